// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Chooses KVM or TCG. The existence of /dev/kvm is not enough: a nested or broken KVM fails at the guest's first
//! instructions. So the lab boots the actual kernel under KVM once, and only trusts the result.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::process::{Process, scratch, text};
use crate::settings::Settings;

/// How the guests' instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// Kernel message at the last point that it can reach without a root directory.
const CAME_UP: &str = "Unable to mount root fs";

/// Chooses, and returns the reason. The result is cached per kernel, QEMU and host kernel. `VRNIC_ACCEL=kvm|tcg`
/// overrides it.
///
/// # Errors
/// The override is neither, or the probe cannot be run.
pub fn choose(settings: &Settings) -> Result<(Accelerator, String)> {
    match std::env::var("VRNIC_ACCEL")
        .ok()
        .filter(|value| !value.is_empty())
        .as_deref()
    {
        Some("kvm") => return Ok((Accelerator::Kvm, "asked for by VRNIC_ACCEL".into())),
        Some("tcg") => return Ok((Accelerator::Tcg, "asked for by VRNIC_ACCEL".into())),
        Some(other) => bail!("VRNIC_ACCEL={other}: must be kvm or tcg"),
        None => {}
    }
    if fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok((
            Accelerator::Tcg,
            "/dev/kvm is missing or not accessible".into(),
        ));
    }
    let verdict = verdict_file(settings)?;
    let works = match fs::read_to_string(&verdict).ok().as_deref().map(str::trim) {
        Some("works") => true,
        Some("fails") => false,
        _ => {
            let works = boots_under_kvm(settings)?;
            fs::create_dir_all(verdict.parent().context("a file has a directory")?)?;
            fs::write(&verdict, if works { "works\n" } else { "fails\n" })?;
            works
        }
    };
    Ok(if works {
        (Accelerator::Kvm, "it boots this kernel".into())
    } else {
        (
            Accelerator::Tcg,
            format!(
                "KVM does not boot this kernel here; to try again, delete {}",
                verdict.display()
            ),
        )
    })
}

fn verdict_file(settings: &Settings) -> Result<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    settings.qemu.hash(&mut hasher);
    settings.kernel.image().hash(&mut hasher);
    fs::metadata(settings.kernel.image())?
        .modified()?
        .hash(&mut hasher);
    for fact in [
        "/proc/sys/kernel/osrelease",
        "/proc/sys/kernel/version",
        "/sys/class/dmi/id/product_name",
    ] {
        fs::read_to_string(fact)
            .unwrap_or_default()
            .hash(&mut hasher);
    }
    Ok(Settings::cache()
        .join("kvm-probe")
        .join(format!("{:016x}", hasher.finish())))
}

fn boots_under_kvm(settings: &Settings) -> Result<bool> {
    let dir = scratch()?;
    let console = dir.path().join("console");
    let args = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "q35",
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-m",
        "512M",
        "-append",
        "console=ttyS0 panic=-1",
    ];
    let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    args.extend([
        "-kernel".into(),
        text(&settings.kernel.image()),
        "-serial".into(),
        format!("file:{}", console.display()),
    ]);
    let mut qemu = Process::start(
        "KVM probe",
        &settings.qemu,
        &args,
        &[],
        &dir.path().join("log"),
    )?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut up = false;
    while !up && Instant::now() < deadline && qemu.ended().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        up = seen(&console);
    }
    Ok(up || seen(&console))
}

fn seen(console: &Path) -> bool {
    fs::read(console).is_ok_and(|text| String::from_utf8_lossy(&text).contains(CAME_UP))
}
