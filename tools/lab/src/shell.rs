// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab shell`: two VMs with a prompt in each. `vrnic-lab attach` opens one prompt.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::control;
use crate::lab::{Extra, Lab, Module, Options};
use crate::output::say;
use crate::settings::Settings;
use crate::vm::{Device, Family, NAMES};
use crate::web;

/// Ctrl-], as in telnet and virsh.
const DETACH: u8 = 0x1d;

/// Returns where a running shell lab can be reached: a link into its scratch directory.
#[must_use]
pub fn running(tree: &Path) -> PathBuf {
    tree.join("build/shell/sockets")
}

/// Returns the control socket of the lab that `shell` started.
#[must_use]
pub fn control_socket(tree: &Path) -> PathBuf {
    running(tree).join("control")
}

/// Boots the lab and provides prompts until the user is done.
///
/// # Errors
/// The lab did not come up.
pub fn shell(settings: &Settings, device: Device, plain: bool) -> Result<()> {
    let out = settings.tree.join("build/shell");
    let lab = Arc::new(Lab::boot(
        settings,
        Options {
            device,
            logs: out.join("logs"),
            vrnicd: Extra::default(),
            no_rnic: device == Device::Rxe,
            module: Module::Plain,
        },
    )?);
    control::serve(&lab, &lab.sockets().join("control"), None)?;
    let link = running(&settings.tree);
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(lab.sockets(), &link)
        .with_context(|| format!("making {}", link.display()))?;
    for name in NAMES {
        match lab.wait_rdma(name, device) {
            Ok(gid) => say!(
                "VM {name}: {} ready, RoCEv2 IPv4 GID index {gid}, address {}",
                device.ibdev(),
                lab.address(name, Family::V4)?
            ),
            Err(error) => say!("{error:#}"),
        }
    }
    if device == Device::Vrnic {
        match web::address(&lab.control()) {
            Ok(address) => say!("in a browser: {address}"),
            Err(error) => say!("the browser view is not available: {error:#}"),
        }
    }
    let me = std::env::current_exe()?;
    let tmux = Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    if tmux && !plain && std::io::stdout().is_terminal() {
        in_tmux(&me, &settings.tree)?;
    } else {
        say!(
            "\nVM a is here; for VM b run this in another terminal:\n    make attach VM=b\nCtrl-] leaves; the lab ends when you leave VM a.\n"
        );
        attach(&running(&settings.tree), "a")?;
    }
    let _ = std::fs::remove_file(&link);
    say!("\nending the lab");
    let _ = lab.shut_down();
    Ok(())
}

/// Opens a tmux session with two panes. It ends with them.
fn in_tmux(me: &Path, tree: &Path) -> Result<()> {
    let session = format!("vrnic-{}", std::process::id());
    let pane = |vm: &str| {
        format!(
            "cd '{}' && '{}' attach --vm {vm}",
            tree.display(),
            me.display()
        )
    };
    let tmux = |args: &[&str]| -> Result<()> {
        let status = Command::new("tmux")
            .env_remove("TMUX")
            .args(args)
            .status()
            .context("running tmux")?;
        if status.success() {
            Ok(())
        } else {
            bail!("tmux {} failed", args.join(" "))
        }
    };
    tmux(&["new-session", "-d", "-s", &session, &pane("a")])?;
    tmux(&["split-window", "-h", "-t", &session, &pane("b")])?;
    tmux(&[
        "set-option",
        "-t",
        &session,
        "status-right",
        " two VMs; Ctrl-] leaves a pane, Ctrl-b d ends the lab ",
    ])?;
    tmux(&["set-option", "-t", &session, "status-right-length", "80"])?;
    tmux(&["set-option", "-t", &session, "mouse", "on"])?;
    tmux(&["attach-session", "-t", &session])?;
    let _ = Command::new("tmux")
        .args(["kill-session", "-t", &session])
        .stderr(std::process::Stdio::null())
        .status();
    Ok(())
}

/// Restores the mode of the terminal when dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Connects this terminal to a VM's shell until Ctrl-], the end of the input, or the end of the VM.
///
/// # Errors
/// No lab is running, its console cannot be reached, or another terminal has it.
pub fn attach(sockets: &Path, vm: &str) -> Result<()> {
    let stream = UnixStream::connect(sockets.join(format!("shell-{vm}")))
        .context("no running lab has this VM; start one with `make shell` or `vrnic-lab up`")?;
    // QEMU serves one terminal and silently makes the next one wait.
    let lock = File::create(sockets.join(format!("shell-{vm}.lock")))?;
    let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
        bail!(
            "VM {vm}'s prompt is open in another terminal (a pane of tmux?); Ctrl-] there frees it, \
             and `vrnic-lab exec --vm {vm} -- COMMAND` works beside it"
        )
    };
    let raw = std::io::stdin()
        .is_terminal()
        .then(Raw::enter)
        .transpose()?;
    let mut to_guest = stream.try_clone()?;
    if let Some((rows, columns)) = terminal_size() {
        // The guest's console does not learn the size on its own.
        write!(to_guest, " stty rows {rows} cols {columns}; clear\r")?;
    } else {
        write!(to_guest, "\r")?;
    }
    let mut from_guest = stream.try_clone()?;
    let printer = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from_guest.read(&mut buffer) {
            let mut out = std::io::stdout().lock();
            if out
                .write_all(&buffer[..n])
                .and_then(|()| out.flush())
                .is_err()
            {
                break;
            }
        }
    });
    let typist = std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
            let end = buffer[..n].iter().position(|&byte| byte == DETACH);
            if to_guest.write_all(&buffer[..end.unwrap_or(n)]).is_err() || end.is_some() {
                return;
            }
        }
        // The input of a script has ended: let the guest finish its commands.
        std::thread::sleep(Duration::from_secs(2));
    });
    while !printer.is_finished() && !typist.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(raw);
    Ok(())
}

/// Returns the rows and columns of this terminal. `stty` reads them, so that no ioctl is needed here.
fn terminal_size() -> Option<(u16, u16)> {
    if !std::io::stdin().is_terminal() {
        return None;
    }
    let output = Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next()?, words.next()?) {
        (Ok(rows), Ok(columns)) if rows > 0 => Some((rows, columns)),
        _ => None,
    }
}
