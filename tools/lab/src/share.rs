// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The directory that the guests see as /vrnic: a private copy of the build, so that a build during a run does not
//! affect running VMs.
//!
//! ```text
//! init, disk        second half of the guest's start
//! chaos/            workloads of `vrnic-lab chaos` that are more than a command
//! bin/              executables of the cargo workspace
//! lib/libvrnic-…    providers
//! userland/         libraries and programs of a newer release; bin/…-65 runs them
//! lib/modules/REL/  vrnic.ko, every module of the kernel tree, those of tests; with depmod's tables. Modules that came
//!                   with a kernel are in a share of their own, mounted as kernel/
//! patched/          modules of Linux with a patch of ours, for tests that load them instead of the kernel's
//! tests/            the source tree's tests/
//! ```

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::settings::Settings;

/// Fills the directory `share`.
///
/// # Errors
/// Something required was not built, or copying failed.
pub fn stage(settings: &Settings, share: &Path, driver: Option<&Path>) -> Result<()> {
    fs::create_dir_all(share.join("bin"))?;
    fs::create_dir_all(share.join("tests"))?;
    tree(&settings.tree.join("tools/lab/guest"), share)?;
    programs(&settings.programs(), share)?;
    providers(&settings.tree.join("build/provider"), share)?;
    if let Some(userland) = &settings.userland {
        for part in ["lib", "programs"] {
            tree(&userland.join(part), &share.join("userland").join(part))?;
        }
        tree(&userland.join("bin"), &share.join("bin"))?;
    }
    let tests = settings.tree.join("tests");
    if tests.is_dir() {
        tree(&tests, &share.join("tests"))?;
    }
    modules(settings, share, driver)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies the provider for each private ABI of libibverbs if it is built: rxe alone needs none.
fn providers(built: &Path, share: &Path) -> Result<()> {
    fs::create_dir_all(share.join("lib"))?;
    for entry in fs::read_dir(built).into_iter().flatten() {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            copy(
                &path,
                &share
                    .join("lib")
                    .join(path.file_name().context("a file has a name")?),
            )?;
        }
    }
    Ok(())
}

/// Copies executables of the workspace.
fn programs(built: &Path, share: &Path) -> Result<()> {
    for entry in fs::read_dir(built)
        .with_context(|| format!("{}: build the workspace first", built.display()))?
    {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = fs::metadata(&path)?;
        if !metadata.is_file() {
            continue;
        }
        if metadata.permissions().mode() & 0o111 != 0
            && !name.contains('.')
            && !name.starts_with("vrnic-lab")
        {
            copy(&path, &share.join("bin").join(&name))?;
        }
    }
    if !share.join("bin/vrnic-agent").is_file() {
        bail!("vrnic-agent is not built: run `make build`");
    }
    Ok(())
}

fn tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if entry.file_name() != "target" {
                tree(&source, &target)?;
            }
        } else if kind.is_file() {
            copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Copies the kernel's modules and vrnic's, laid out for modprobe.
fn modules(settings: &Settings, share: &Path, driver: Option<&Path>) -> Result<()> {
    let kernel = &settings.kernel;
    let release = kernel.release()?;
    let dir = share.join("lib/modules").join(&release);
    fs::create_dir_all(&dir)?;
    let elsewhere = kernel.modules();
    // Modules that came with the kernel do not change: guests have them in a directory of their own, mounted here.
    let mount = dir.join("kernel");
    if let Some(modules) = &elsewhere {
        symlink(modules.join("kernel"), &mount)?;
    } else {
        built_modules(&kernel.tree, &dir)?;
    }
    if let Some(driver) = driver {
        if !driver.is_file() {
            bail!("{} is missing: run `make build`", driver.display());
        }
        copy(driver, &dir.join("vrnic.ko"))?;
    }
    // Modules for tests are only built for tests. depmod must not see those that replace modules of the kernel.
    let tests = kernel.built.join("test-modules");
    let patched = share.join("patched");
    fs::create_dir_all(&patched)?;
    for (from, to) in [(tests.join("linux"), &patched), (tests, &dir)] {
        for entry in fs::read_dir(from).into_iter().flatten() {
            let entry = entry?;
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "ko")
            {
                copy(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
    }
    for list in [
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ] {
        let from = elsewhere.as_ref().unwrap_or(&kernel.tree).join(list);
        if from.is_file() {
            copy(&from, &dir.join(list))?;
        }
    }
    // depmod looks below BASE/lib/modules.
    let output = Command::new("depmod")
        .arg("-b")
        .arg(share)
        .arg(&release)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .context("running depmod (package kmod)")?;
    if !output.status.success() {
        bail!("depmod failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    if elsewhere.is_some() {
        fs::remove_file(&mount)?;
        fs::create_dir(&mount)?;
    }
    Ok(())
}

/// Copies modules that were built in the kernel's tree.
fn built_modules(tree: &Path, dir: &Path) -> Result<()> {
    let order = fs::read_to_string(tree.join("modules.order"))
        .with_context(|| format!("{}: build its modules (make modules)", tree.display()))?;
    for line in order.lines() {
        let object = tree.join(line).with_extension("ko");
        let name = object.file_name().context("a module without a name")?;
        copy(&object, &dir.join(name))?;
    }
    Ok(())
}
