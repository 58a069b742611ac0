// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Locations of files: in the source tree, with what `tools/setup` prepared, or in a bundle. A bundle has the layout of
//! a source tree in which everything that the lab needs is built, with the programs in `bin` and what the guests see as
//! /vrnic in `share`. The Debian package makes a bundle from the installed files in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::{self, Kernel};
use crate::vm::Fabric;

/// Settings for all subcommands that boot VMs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the source tree, or of the bundle.
    pub tree: PathBuf,
    /// Whether it is a bundle.
    pub bundled: bool,
    /// The guests' kernel.
    pub kernel: Kernel,
    /// QEMU: from `QEMU=`, or as found or unpacked by the setup.
    pub qemu: PathBuf,
    /// Root directory of the guests, or its image.
    pub guest_root: PathBuf,
    /// How messages travel between the VMs.
    pub fabric: Fabric,
    /// Number of labs that share this machine.
    pub labs: u32,
    /// RDMA programs of a newer release than the guests', if the setup fetched them.
    pub userland: Option<PathBuf>,
}

impl Settings {
    /// Finds what the setup left in build/. `KDIR`, `QEMU` and `VRNIC_GUEST` in the environment take precedence.
    ///
    /// # Errors
    /// This is not in the source tree, the setup has not run, a bundle does not have the kernel, or `QEMU` names one
    /// that cannot be used.
    pub fn load(kernel: kernel::Name) -> Result<Self> {
        let bundled = is_bundled();
        if bundled && kernel != kernel::Name::Stock {
            bail!(
                "without the source tree, only Debian's kernel is available: unset KDIR and VRNIC_KERNEL"
            );
        }
        let tree = tree()?;
        let setup = tree.join("build/setup");
        let pick = |variable: &str, what: &str| -> Result<PathBuf> {
            match std::env::var_os(variable).filter(|value| !value.is_empty()) {
                Some(value) => Ok(PathBuf::from(value)),
                None => setup.join(what).canonicalize().with_context(|| {
                    format!(
                        "{} is missing: run `make setup`, or set {variable}=",
                        setup.join(what).display()
                    )
                }),
            }
        };
        Ok(Self {
            kernel: Kernel::load(&tree, kernel)?,
            qemu: {
                let qemu = pick("QEMU", "qemu")?;
                // The setup has checked its own.
                if std::env::var_os("QEMU").is_some_and(|value| !value.is_empty()) {
                    check_qemu(&qemu)?;
                }
                qemu
            },
            guest_root: pick("VRNIC_GUEST", "guest")?,
            userland: setup.join("userland").canonicalize().ok(),
            fabric: Fabric::default(),
            labs: 1,
            bundled,
            tree,
        })
    }

    /// Returns the same settings with another fabric.
    #[must_use]
    pub fn with_fabric(&self, fabric: Fabric) -> Self {
        Self {
            fabric,
            ..self.clone()
        }
    }

    /// Returns the same settings with another kernel.
    #[must_use]
    pub fn with_kernel(&self, kernel: &Kernel) -> Self {
        Self {
            kernel: kernel.clone(),
            ..self.clone()
        }
    }

    /// Returns how many times longer than usual to wait for guests with this kernel, in parallel with other labs.
    #[must_use]
    pub fn slowness(&self) -> u32 {
        let crowd = self.labs.div_ceil(of_processors(processors()));
        crowd * if self.kernel.slow() { 10 } else { 1 }
    }

    /// Returns the directory of vrnicd and the other programs: where cargo puts release builds.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        if self.bundled {
            return self.tree.join("bin");
        }
        std::env::var_os("CARGO_TARGET_DIR")
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| self.tree.join("tools/target"), PathBuf::from)
            .join("release")
    }

    /// Returns the directory for files that outlive a build: the setup's cache.
    #[must_use]
    pub fn cache() -> PathBuf {
        if let Some(dir) = std::env::var_os("VRNIC_CACHE").filter(|dir| !dir.is_empty()) {
            return dir.into();
        }
        let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        std::env::var_os("XDG_CACHE_HOME")
            .map_or_else(|| home.join(".cache"), PathBuf::from)
            .join("vrnic")
    }
}

/// Returns how many labs of two VMs, each with `memory` MiB, fit this machine at the same time. At least one.
#[must_use]
pub fn labs_that_fit(memory: u32) -> u32 {
    fitting(processors(), available_memory(), memory)
}

/// Returns how many labs fit this many processors and MiB of available memory.
fn fitting(processors: u32, available: Option<u64>, memory: u32) -> u32 {
    let of_memory = available.map_or(1, |available| available / (2 * u64::from(memory)));
    let of_memory = u32::try_from(of_memory).unwrap_or(u32::MAX);
    of_processors(processors).min(of_memory).max(1)
}

/// Returns how many labs fit this many processors: each VM of a lab needs one.
fn of_processors(processors: u32) -> u32 {
    (processors / 2).max(1)
}

/// Returns the number of this machine's processors.
fn processors() -> u32 {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// Returns the memory that this machine has left, in MiB, if it can be found out: at most what is left of the limit of
/// the control group that this process is in, for example that of a container.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = group
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .and_then(|path| left_in_group(Path::new("/sys/fs/cgroup"), Path::new(path)));
    let available = kilobytes / 1024;
    Some(left.map_or(available, |left| available.min(left)))
}

/// Returns how much memory, in MiB, the control group `path` below `root` and the groups that it is in may still use,
/// if any of them has a limit. A group gives up inactive pages of files when it needs memory.
fn left_in_group(root: &Path, path: &Path) -> Option<u64> {
    let left = path.ancestors().filter_map(|group| {
        let read = |file| std::fs::read_to_string(root.join(group).join(file)).ok();
        let number = |text: String| text.trim().parse::<u64>().ok();
        let limit = read("memory.max").and_then(number)?;
        let used = read("memory.current").and_then(number).unwrap_or(0);
        let files = read("memory.stat").and_then(|stat| {
            let mut lines = stat.lines();
            let files = lines.find_map(|line| line.strip_prefix("inactive_file "))?;
            number(files.to_owned())
        });
        let used = used.saturating_sub(files.unwrap_or(0));
        Some(limit.saturating_sub(used))
    });
    left.min().map(|bytes| bytes >> 20)
}

/// Checks that a QEMU that the user names has the device that VMs need for an RNIC.
fn check_qemu(qemu: &Path) -> Result<()> {
    let name = qemu.display();
    let help = Command::new(qemu)
        .args(["-device", "help"])
        .output()
        .with_context(|| format!("QEMU={name} cannot be run: name a qemu-system-x86_64"))?;
    ensure!(
        String::from_utf8_lossy(&help.stdout).contains("\"vfio-user-pci\""),
        "QEMU={name} has no vfio-user-pci device: use QEMU 10.1 or newer, or leave QEMU unset"
    );
    Ok(())
}

/// Returns where this program is installed: the directory above `bin`.
fn prefix() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.to_path_buf())
}

/// Returns the bundle that this program is part of. It has a file that identifies it.
fn bundle() -> Option<PathBuf> {
    prefix().filter(|root| root.join("bundle.txt").is_file())
}

/// Returns the program that makes a bundle from the installed files, if this program comes from the Debian package.
fn installed() -> Option<PathBuf> {
    let prepare = prefix()?.join("lib/vrnic-lab/prepare");
    prepare.is_file().then_some(prepare)
}

/// Returns whether there is no source tree, because this program is part of a bundle or installed.
#[must_use]
pub fn is_bundled() -> bool {
    bundle().is_some() || installed().is_some()
}

/// Returns the bundle that this program is part of or makes, otherwise the source tree that contains the current
/// directory.
///
/// # Errors
/// There is none, or a file that the bundle needs is not installed.
pub fn tree() -> Result<PathBuf> {
    if let Some(bundle) = bundle() {
        return Ok(bundle);
    }
    if let Some(prepare) = installed() {
        return prepared(&prepare);
    }
    let here = std::env::current_dir()?;
    here.ancestors()
        .find(|dir| dir.join("tools/lab/Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .context("not inside the vrnic source tree")
}

/// Returns the bundle in the cache, which `prepare` makes if necessary.
fn prepared(prepare: &Path) -> Result<PathBuf> {
    let output = Command::new(prepare)
        .arg(Settings::cache().join("lab"))
        .output()
        .with_context(|| format!("running {}", prepare.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim());
    let path = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(path.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_fit_the_processors_and_the_memory() {
        for (processors, available, expected) in [
            (1, Some(64_000), 1),
            (2, Some(64_000), 1),
            (5, Some(64_000), 2),
            (32, Some(64_000), 16),
            (32, Some(10_000), 3),
            (32, Some(100), 1),
            (32, None, 1),
        ] {
            let found = fitting(processors, available, 1536);
            assert_eq!(found, expected, "{processors} {available:?}");
        }
        assert!(available_memory().is_some_and(|memory| memory > 0));
    }

    #[test]
    fn the_limits_of_control_groups_count() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("job/step")).unwrap();
        let left = |group: &str| left_in_group(root.path(), Path::new(group));
        let write = |file, text| std::fs::write(root.path().join(file), text).unwrap();
        assert_eq!(left("job/step"), None);
        write("job/step/memory.max", "max\n");
        assert_eq!(left("job/step"), None);
        write("job/memory.max", "2147483648\n");
        assert_eq!(left("job/step"), Some(2048));
        write("job/step/memory.max", "1073741824\n");
        assert_eq!(left("job/step"), Some(1024));
        // 1536 MiB of the whole job are used, 256 of which are inactive pages of files.
        write("job/memory.current", "1610612736\n");
        assert_eq!(left("job/step"), Some(512));
        write(
            "job/memory.stat",
            "active_file 7\ninactive_file 268435456\nslab 9\n",
        );
        assert_eq!(left("job/step"), Some(768));
        write("job/memory.current", "9663676416\n");
        assert_eq!(left("job/step"), Some(0));
        assert_eq!(left(""), None);
    }

    #[test]
    fn an_old_qemu_is_named_with_what_to_do() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let qemu = directory.path().join("qemu");
        let check = || check_qemu(&qemu).map_err(|error| format!("{error:#}"));
        let said = check().unwrap_err();
        assert!(said.contains("cannot be run: name a qemu-"), "{said}");
        let write = |device: &str| {
            let script = format!("#!/bin/sh\necho 'name \"{device}\", bus PCI'\n");
            std::fs::write(&qemu, script).unwrap();
            std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("vfio-pci");
        let said = check().unwrap_err();
        assert!(
            said.ends_with("use QEMU 10.1 or newer, or leave QEMU unset"),
            "{said}"
        );
        assert!(
            said.contains("qemu has no vfio-user-pci device: "),
            "{said}"
        );
        write("vfio-user-pci");
        check().unwrap();
    }
}
