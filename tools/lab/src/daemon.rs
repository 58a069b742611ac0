// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One vrnicd with an RNIC per VM.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::lab::Extra;
use crate::process::{Process, tail};
use crate::settings::Settings;
use crate::vm::{NAMES, mac};

/// Arguments of setpriv: every run of the lab shows that vrnicd needs no capability, whoever runs the lab.
const WITHOUT_PRIVILEGES: [&str; 2] = ["--inh-caps=-all", "--no-new-privs"];

/// Whether this process is root, who alone may (and must) shrink the bounding set to be without capabilities.
fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// A running vrnicd. Dropping it ends it.
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

/// The configuration file of a lab.
#[must_use]
pub fn config(sockets: &Path) -> PathBuf {
    sockets.join("vrnicd.toml")
}

/// vrnicd's control socket, for vrnicctl.
#[must_use]
pub fn control(sockets: &Path) -> PathBuf {
    sockets.join("vrnicd-control")
}

/// The socket of a VM's RNIC.
#[must_use]
pub fn socket(sockets: &Path, vm: &str) -> PathBuf {
    sockets.join(format!("rnic-{vm}"))
}

impl Daemon {
    /// Writes the configuration and starts vrnicd; returns once the sockets are there. `extra` is added
    /// to it.
    ///
    /// # Errors
    /// vrnicd is not built, ends, or opens no sockets; the message has the end of its log.
    pub fn start(settings: &Settings, sockets: &Path, logs: &Path, extra: &Extra) -> Result<Self> {
        let program = settings.programs().join("vrnicd");
        if !program.is_file() {
            bail!("{} is missing: run `make build`", program.display());
        }
        fs::create_dir_all(logs)?;
        let log = logs.join("vrnicd.log");
        let mut text = String::new();
        // For experiments: one more line for the daemon.
        if let Ok(line) = std::env::var("VRNIC_VRNICD") {
            writeln!(text, "{line}")?;
        }
        for line in &extra.daemon {
            let line = line.replace("{lab}", &sockets.to_string_lossy());
            writeln!(text, "{line}")?;
        }
        writeln!(text, "control = \"{}\"", control(sockets).display())?;
        for name in NAMES {
            let socket = socket(sockets, name);
            let _ = fs::remove_file(&socket);
            writeln!(
                text,
                "\n[[device]]\nname = \"{name}\"\nsocket = \"{}\"\nmac = \"{}\"\nfabric = \"{}\"",
                socket.display(),
                mac(name),
                settings.fabric.name()
            )?;
            for line in &extra.device {
                writeln!(text, "{line}")?;
            }
        }
        fs::write(config(sockets), text)?;
        let mut args: Vec<String> = WITHOUT_PRIVILEGES.map(str::to_owned).into();
        if is_root()? {
            args.push("--bounding-set=-all".to_owned());
        }
        args.extend([
            "--".to_owned(),
            program.to_string_lossy().into_owned(),
            "--config".to_owned(),
            config(sockets).to_string_lossy().into_owned(),
        ]);
        let mut process = Process::start("vrnicd", Path::new("setpriv"), &args, &[], &log)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !NAMES.iter().all(|name| socket(sockets, name).exists()) {
            if let Some(status) = process.ended() {
                bail!(
                    "vrnicd ended at once ({status}); {} says:\n{}",
                    log.display(),
                    tail(&log, 15)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "vrnicd opened no sockets within 20 s; {} says:\n{}",
                    log.display(),
                    tail(&log, 15)
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { process, log })
    }

    /// Host process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// SIGTERM and a clean end. False when it had to be killed or reported a failure.
    pub fn stop(&mut self) -> bool {
        self.process.stop(Duration::from_secs(5))
    }
}
