// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Root directories of VMs: the usual one, the one that a lab file names, or one with the packages that it names, which
//! `up` makes with `tools/setup/image.sh`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::description::Machine;
use crate::settings::Settings;

/// Returns the root directory of a VM without a disk, or the image of one.
#[must_use]
pub fn root(settings: &Settings, machine: &Machine) -> PathBuf {
    if let Some(image) = &machine.image {
        return image.clone();
    }
    if machine.packages.is_empty() {
        return settings.guest_root.clone();
    }
    settings
        .tree
        .join("build/setup")
        .join(link(&machine.packages))
}

/// Makes the root directories of those VMs that need packages, if they are not made yet.
///
/// # Errors
/// There is no source tree, or the setup fails, for example because Debian has no such package.
pub fn prepare(settings: &Settings, machines: &[Machine]) -> Result<()> {
    let mut lists: Vec<_> = machines.iter().map(|machine| &machine.packages).collect();
    lists.retain(|packages| !packages.is_empty());
    lists.sort();
    lists.dedup();
    for packages in lists {
        let words = packages.join(" ");
        ensure!(
            !settings.bundled,
            "packages: only `vrnic-lab` in the source tree can add {words} to the VMs' image; use `image` here"
        );
        let status = Command::new("bash")
            .args(["tools/setup/setup.sh", "image"])
            .current_dir(&settings.tree)
            .env("VRNIC_IMAGE", link(packages))
            .env("VRNIC_IMAGE_PACKAGES", &words)
            .status()
            .context("running tools/setup/setup.sh")?;
        ensure!(
            status.success(),
            "packages: no image with {words} could be made; the reason is above"
        );
    }
    Ok(())
}

/// Returns the name in `build/setup` of the image with these packages.
fn link(packages: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    format!("image-{:016x}", hasher.finish())
}
