// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab ssh`: logs in to a VM. QEMU forwards a port of this machine's loopback address. Each lab has its own key,
//! which is removed with the lab.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::control::{self, Ask};

fn key_file(sockets: &Path) -> PathBuf {
    sockets.join("ssh-key")
}

/// Returns the public part of the lab's key. Creates the key if there is none.
///
/// # Errors
/// ssh-keygen is missing or fails.
pub fn key(sockets: &Path) -> Result<String> {
    let file = key_file(sockets);
    let public = file.with_extension("pub");
    if !public.is_file() {
        let output = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "vrnic-lab", "-f"])
            .arg(&file)
            .output()
            .context("running ssh-keygen (package openssh-client)")?;
        ensure!(
            output.status.success(),
            "ssh-keygen: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = std::fs::read_to_string(&public)?;
    let key = text.split_whitespace().nth(1);
    Ok(key.context("a public key has two words")?.to_owned())
}

/// Replaces this process with ssh to `[USER@]VM` of the lab at `control`, which runs `argv` or a shell.
///
/// # Errors
/// The VM is not running or has no ssh, or ssh is missing.
pub fn ssh(control: &Path, target: &str, argv: &[String]) -> Result<()> {
    let (user, vm) = target.split_once('@').unwrap_or(("root", target));
    let fact = |words: &[&str]| {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        control::ask(control, &Ask::Fact(words)).map(|(_, answer)| answer)
    };
    let port = fact(&["ssh-port", vm])?;
    let key = key_file(Path::new(&fact(&["sockets"])?));
    let error = Command::new("ssh")
        .args(["-F", "none", "-p", &port, "-i"])
        .arg(key)
        // The VM's key was created with the lab, so it is not known from before.
        .args(["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no"])
        .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"])
        .arg(format!("{user}@127.0.0.1"))
        .arg("--")
        .args(argv)
        .exec();
    Err(error).context("running ssh (package openssh-client)")
}
