// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Where things are: in the source tree, with what `tools/setup` prepared, or in a bundle. A bundle is laid out as a
//! source tree in which everything is built, as far as the lab needs it, with the programs in `bin` and what the guests
//! see as /vrnic in `share`. The Debian package makes a bundle of what is installed, in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::{self, Kernel};
use crate::vm::Fabric;

/// What every subcommand that boots VMs needs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the source tree, or of the bundle.
    pub tree: PathBuf,
    /// Whether it is a bundle.
    pub bundled: bool,
    /// The guests' kernel.
    pub kernel: Kernel,
    /// QEMU: `QEMU=`, or what the setup found or unpacked.
    pub qemu: PathBuf,
    /// Root directory of the guests, or an image of it.
    pub guest_root: PathBuf,
    /// How messages travel between the VMs.
    pub fabric: Fabric,
    /// Labs that share this machine.
    pub labs: u32,
    /// RDMA programs of a newer release than the guests', if the setup fetched them.
    pub userland: Option<PathBuf>,
}

impl Settings {
    /// Finds what the setup left in build/; `KDIR`, `QEMU` and `VRNIC_GUEST` in the environment go first.
    ///
    /// # Errors
    /// Not inside the source tree, or the setup has not run; a bundle has no such kernel.
    pub fn load(kernel: kernel::Name) -> Result<Self> {
        let bundled = is_bundled();
        if bundled && kernel != kernel::Name::Stock {
            bail!(
                "without the source tree there is Debian's kernel only: unset KDIR and VRNIC_KERNEL"
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
            qemu: pick("QEMU", "qemu")?,
            guest_root: pick("VRNIC_GUEST", "guest")?,
            userland: setup.join("userland").canonicalize().ok(),
            fabric: Fabric::default(),
            labs: 1,
            bundled,
            tree,
        })
    }

    /// The same with another fabric.
    #[must_use]
    pub fn with_fabric(&self, fabric: Fabric) -> Self {
        Self {
            fabric,
            ..self.clone()
        }
    }

    /// The same with another kernel.
    #[must_use]
    pub fn with_kernel(&self, kernel: &Kernel) -> Self {
        Self {
            kernel: kernel.clone(),
            ..self.clone()
        }
    }

    /// How much longer than usual to wait for guests with this kernel, beside other labs.
    #[must_use]
    pub fn slowness(&self) -> u32 {
        self.labs * if self.kernel.slow() { 10 } else { 1 }
    }

    /// Where vrnicd and its like are: where cargo puts release programs.
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

    /// Where things are kept that outlive a build: the cache of the setup.
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

/// Where this program is installed: above `bin`.
fn prefix() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.to_path_buf())
}

/// The bundle that this program is part of: it has a file that says so.
fn bundle() -> Option<PathBuf> {
    prefix().filter(|root| root.join("bundle.txt").is_file())
}

/// What makes a bundle of what is installed, if this program comes from the Debian package.
fn installed() -> Option<PathBuf> {
    let prepare = prefix()?.join("lib/vrnic-lab/prepare");
    prepare.is_file().then_some(prepare)
}

/// Whether there is no source tree: this program is part of a bundle, or installed.
#[must_use]
pub fn is_bundled() -> bool {
    bundle().is_some() || installed().is_some()
}

/// The bundle that this program is part of or makes, else the source tree around the current directory.
///
/// # Errors
/// There is none, or something that is to be in it is not installed.
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

/// The bundle that `prepare` makes in the cache, or made before.
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
