// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Where things are: the source tree and what `tools/setup` prepared.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::vm::Fabric;

/// Paths every subcommand needs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the source tree.
    pub tree: PathBuf,
    /// Built kernel tree: `KDIR=` or the one the setup built.
    pub kdir: PathBuf,
    /// QEMU: `QEMU=`, or what the setup found or unpacked.
    pub qemu: PathBuf,
    /// Root directory of the guests.
    pub guest_root: PathBuf,
    /// How messages travel between the VMs.
    pub fabric: Fabric,
    /// Labs that share this machine.
    pub labs: u32,
    /// RDMA programs of a newer release than the guests', if the setup fetched them.
    pub userland: Option<PathBuf>,
}

impl Settings {
    /// Reads build/setup.env; `KDIR` and `QEMU` in the environment go first.
    ///
    /// # Errors
    /// Not inside the source tree, or the setup has not run.
    pub fn load() -> Result<Self> {
        let tree = find_tree()?;
        let path = tree.join("build/setup.env");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} is missing: run `make setup` first", path.display()))?;
        let recorded: HashMap<String, String> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let pick = |variable: &str, key: &str| -> Result<PathBuf> {
            match std::env::var_os(variable).filter(|value| !value.is_empty()) {
                Some(value) => Ok(PathBuf::from(value)),
                None => recorded.get(key).map(PathBuf::from).with_context(|| {
                    format!(
                        "{} has no {key}: run `make setup`, or set {variable}=",
                        path.display()
                    )
                }),
            }
        };
        let settings = Self {
            kdir: pick("KDIR", "VRNIC_KDIR")?,
            qemu: pick("QEMU", "VRNIC_QEMU")?,
            guest_root: pick("VRNIC_GUEST", "VRNIC_GUEST_ROOT")?,
            userland: recorded
                .get("VRNIC_USERLAND")
                .map(PathBuf::from)
                .filter(|dir| dir.is_dir()),
            fabric: Fabric::default(),
            labs: 1,
            tree,
        };
        if !settings.bzimage().is_file() {
            bail!(
                "{} is missing: build that kernel, or unset KDIR and run `make setup`",
                settings.bzimage().display()
            );
        }
        Ok(settings)
    }

    /// The same with another fabric.
    #[must_use]
    pub fn with_fabric(&self, fabric: Fabric) -> Self {
        Self {
            fabric,
            ..self.clone()
        }
    }

    /// The guests' kernel.
    #[must_use]
    pub fn bzimage(&self) -> PathBuf {
        self.kdir.join("arch/x86/boot/bzImage")
    }

    /// Whether the guests' kernel looks for errors of its own at great cost: what `VRNIC_KERNEL=debug` builds.
    #[must_use]
    pub fn debug_kernel(&self) -> bool {
        self.kernel_has("CONFIG_KASAN=y")
    }

    /// Whether it looks for data races: what `VRNIC_KERNEL=races` builds.
    #[must_use]
    pub fn races_kernel(&self) -> bool {
        self.kernel_has("CONFIG_KCSAN=y")
    }

    /// Whether everything takes many times as long with it.
    #[must_use]
    pub fn slow_kernel(&self) -> bool {
        self.debug_kernel() || self.races_kernel()
    }

    fn kernel_has(&self, option: &str) -> bool {
        std::fs::read_to_string(self.kdir.join(".config"))
            .is_ok_and(|config| config.lines().any(|line| line == option))
    }

    /// How much longer than usual to wait for guests with this kernel, beside other labs.
    #[must_use]
    pub fn slowness(&self) -> u32 {
        self.labs * if self.slow_kernel() { 10 } else { 1 }
    }

    /// Where cargo puts release programs.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
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

/// The source tree around the current directory.
fn find_tree() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    here.ancestors()
        .find(|dir| dir.join("tools/lab/Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .context("not inside the vrnic source tree")
}
