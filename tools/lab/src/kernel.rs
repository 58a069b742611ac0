// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The guests' kernels: those that `tools/setup` prepared, or the user's own. `build/kernel/NAME` has a link to the
//! tree of each, and what was built for it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

/// A kernel that the guests can boot, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Debian's own kernel
    Stock,
    /// A small kernel with KUnit and failing allocations
    Lab,
    /// A kernel with KASAN, UBSAN, lockdep and kmemleak
    Debug,
    /// A kernel with KCSAN, to find data races
    Races,
    /// The tree that KDIR names
    #[value(skip)]
    Own,
}

impl Name {
    /// Returns the kernel that the environment requests through `KDIR` or `VRNIC_KERNEL`.
    ///
    /// # Errors
    /// There is no kernel with this name.
    pub fn of_environment() -> Result<Option<Self>> {
        let value = |variable| std::env::var(variable).ok().filter(|text| !text.is_empty());
        if value("KDIR").is_some() {
            return Ok(Some(Self::Own));
        }
        value("VRNIC_KERNEL")
            .map(|name| Self::from_str(&name, false))
            .transpose()
            .map_err(|_| anyhow!("VRNIC_KERNEL: set it to stock, lab, debug or races"))
    }

    /// Returns the name on the command line.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Lab => "lab",
            Self::Debug => "debug",
            Self::Races => "races",
            Self::Own => "own",
        }
    }
}

/// A kernel that guests can boot.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// The configured and built tree.
    pub tree: PathBuf,
    /// Directory with what was built for it here: vrnic's modules.
    pub built: PathBuf,
    /// Its .config.
    pub config: String,
}

impl Kernel {
    /// Finds a kernel that the setup has prepared in the source tree `source`.
    ///
    /// # Errors
    /// The setup has not prepared the kernel, or it is not built.
    pub fn load(source: &Path, name: Name) -> Result<Self> {
        let built = source.join("build/kernel").join(name.text());
        let tree = match std::env::var_os("KDIR") {
            Some(tree) if name == Name::Own => PathBuf::from(tree),
            _ => built.join("tree").canonicalize().with_context(|| {
                let name = name.text();
                format!("the kernel `{name}` is not prepared: run `make build VRNIC_KERNEL={name}`")
            })?,
        };
        Self::in_tree(tree, built)
    }

    fn in_tree(tree: PathBuf, built: PathBuf) -> Result<Self> {
        let config = fs::read_to_string(tree.join(".config"))
            .with_context(|| format!("{} is no configured kernel tree", tree.display()))?;
        let kernel = Self {
            tree,
            built,
            config,
        };
        let image = kernel.image();
        if !image.is_file() {
            bail!(
                "{} is missing: build that kernel, or unset KDIR and run `make setup`",
                image.display()
            );
        }
        Ok(kernel)
    }

    /// Finds a kernel that the setup prepared, by its name, or a built tree, by its path.
    ///
    /// # Errors
    /// The same as for [`load`](Self::load).
    pub fn named(source: &Path, name: &str) -> Result<Self> {
        match Name::from_str(name, false) {
            Ok(name) => Self::load(source, name),
            Err(_) => Self::in_tree(PathBuf::from(name), source.join("build/kernel/own")),
        }
    }

    /// Returns the file that QEMU boots: the uncompressed kernel, if it exists and can be entered directly
    /// (`arch/x86/platform/pvh/head.S`), otherwise the compressed one, which has to decompress itself.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        let unpacked = ["lab/vmlinux", "vmlinux"].map(|path| self.tree.join(path));
        let mut unpacked = unpacked.into_iter().filter(|_| self.has("CONFIG_PVH=y"));
        let packed = || self.tree.join("arch/x86/boot/bzImage");
        unpacked.find(|path| path.is_file()).unwrap_or_else(packed)
    }

    /// Returns the initramfs that loads the drivers for the root directory, if they are modules.
    #[must_use]
    pub fn initramfs(&self) -> Option<PathBuf> {
        Some(self.tree.join("lab/initramfs")).filter(|path| path.is_file())
    }

    /// Returns the directory of the modules that came with the kernel, if any, as in /lib/modules/RELEASE.
    #[must_use]
    pub fn modules(&self) -> Option<PathBuf> {
        self.tree.join("lab/modules").canonicalize().ok()
    }

    /// Returns the name by which it is selected; `own` is only selected by KDIR.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.built.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Returns its release as `uname -r` prints it.
    ///
    /// # Errors
    /// The tree is not built.
    pub fn release(&self) -> Result<String> {
        let path = self.tree.join("include/config/kernel.release");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} is not a built kernel tree", self.tree.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Returns whether it was configured with `option`, a line of .config.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.config.lines().any(|line| line == option)
    }

    /// Returns whether the driver is built in, as it can be in a kernel with the patch series.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.has("CONFIG_INFINIBAND_VRNIC=y")
    }

    /// Returns whether it has expensive checks for its own errors, as built by `VRNIC_KERNEL=debug`.
    #[must_use]
    pub fn debug(&self) -> bool {
        self.has("CONFIG_KASAN=y")
    }

    /// Returns whether it checks for data races, as built by `VRNIC_KERNEL=races`.
    #[must_use]
    pub fn races(&self) -> bool {
        self.has("CONFIG_KCSAN=y")
    }

    /// Returns whether it makes everything many times slower.
    #[must_use]
    pub fn slow(&self) -> bool {
        self.debug() || self.races()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_link() {
        let source = tempfile::tempdir().unwrap();
        let error = |name| Kernel::load(source.path(), name).unwrap_err().to_string();
        assert!(error(Name::Lab).contains("make build VRNIC_KERNEL=lab"));
        let (tree, built) = (
            source.path().join("obj"),
            source.path().join("build/kernel/lab"),
        );
        fs::create_dir_all(tree.join("arch/x86/boot")).unwrap();
        fs::create_dir_all(&built).unwrap();
        std::os::unix::fs::symlink(&tree, built.join("tree")).unwrap();
        assert!(error(Name::Lab).contains("no configured kernel tree"));
        fs::write(
            tree.join(".config"),
            "CONFIG_KASAN=y\n# CONFIG_KCSAN is not set\n",
        )
        .unwrap();
        assert!(error(Name::Lab).contains("bzImage is missing"));
        fs::write(tree.join("arch/x86/boot/bzImage"), "").unwrap();
        let kernel = Kernel::load(source.path(), Name::Lab).unwrap();
        assert!(kernel.debug() && !kernel.races() && kernel.slow());
        assert_eq!(kernel.name(), "lab");
        assert!(kernel.initramfs().is_none() && kernel.modules().is_none());
        assert!(error(Name::Stock).contains("`stock` is not prepared"));

        // The configuration tells whether the uncompressed kernel can be started.
        fs::write(tree.join("vmlinux"), "").unwrap();
        assert!(kernel.image().ends_with("arch/x86/boot/bzImage"));
        fs::write(tree.join(".config"), "CONFIG_PVH=y\n").unwrap();
        let kernel = Kernel::load(source.path(), Name::Lab).unwrap();
        assert_eq!(kernel.image(), tree.join("vmlinux").canonicalize().unwrap());
        fs::create_dir(tree.join("lab")).unwrap();
        fs::write(tree.join("lab/vmlinux"), "").unwrap();
        assert!(kernel.image().ends_with("lab/vmlinux"));
    }
}
