// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Child processes that never outlive the lab.
//!
//! Each child gets its own process group, so that Ctrl-C reaches only the lab, which then stops everything in order. It
//! also gets a parent-death signal, so that even `kill -9` of the lab leaves nothing behind. That signal depends on the
//! thread that forked, so one thread that lives as long as the lab starts all children.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use caps::{CapSet, Capability};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::output::tell;

/// The subcommand with which this program calls itself to [`become_child`].
pub const CHILD: &str = "child";

/// Everything to clean up when the lab is interrupted.
static CLEANUP: Mutex<Cleanup> = Mutex::new(Cleanup {
    groups: Vec::new(),
    directories: Vec::new(),
});

struct Cleanup {
    groups: Vec<Pid>,
    directories: Vec<std::path::PathBuf>,
}

/// A running child. Dropping it kills its process group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    pid: Pid,
}

impl Process {
    /// Starts `program` with `args`, and appends its output to `log`.
    ///
    /// # Errors
    /// The program or the log cannot be opened.
    pub fn start(
        name: &str,
        program: &Path,
        args: &[String],
        env: &[(String, String)],
        log: &Path,
    ) -> Result<Self> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .args([CHILD, "--"])
            .arg(program)
            .args(args)
            .envs(env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0);
        let child =
            spawn(command).with_context(|| format!("starting {name} ({})", program.display()))?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        CLEANUP.lock().expect("cleanup list").groups.push(pid);
        Ok(Self {
            child,
            name: name.to_owned(),
            pid,
        })
    }

    /// Returns the process ID on the host.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns how it ended, or `None` while it is running.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it ends, and returns how.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.child
            .wait()
            .with_context(|| format!("waiting for {}", self.name))
    }

    /// Sends SIGTERM, waits up to `patience`, then sends SIGKILL to the group. Returns whether the child ended on its
    /// own and successfully.
    pub fn stop(&mut self, patience: Duration) -> bool {
        if self.ended().is_none() {
            let _ = kill(self.pid, Signal::SIGTERM);
        }
        self.reap(patience)
    }

    /// Waits up to `patience`, then sends SIGKILL to the group. Returns whether the child ended on its own and
    /// successfully.
    pub fn reap(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.ended() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        false
    }

    /// Sends SIGKILL to the whole group, and waits for the child.
    pub fn kill(&mut self) {
        let _ = killpg(self.pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
        CLEANUP
            .lock()
            .expect("cleanup list")
            .groups
            .retain(|group| *group != self.pid);
    }
}

/// Replaces this process with the program `words`, which is killed when its parent ends. With `without_privileges`, the
/// program has no capabilities and cannot gain any. Returns only if this fails.
pub fn become_child(words: &[OsString], without_privileges: bool) -> anyhow::Error {
    let run = || -> Result<std::io::Error> {
        if without_privileges {
            prctl::set_no_new_privs()?;
            if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
                caps::clear(None, CapSet::Bounding)?;
            }
            for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
                caps::clear(None, set)?;
            }
        }
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        let (program, args) = words.split_first().context("no program")?;
        Ok(Command::new(program).args(args).exec())
    };
    match run() {
        Ok(error) => anyhow!(error).context(format!("running {}", words[0].display())),
        Err(error) => error,
    }
}

/// Forks in the one thread that never ends.
fn spawn(command: Command) -> Result<Child> {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, incoming) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in incoming {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, child) = channel();
    spawner
        .send((command, answer))
        .map_err(|_| anyhow!("the spawner thread is gone"))?;
    Ok(child.recv()??)
}

/// Creates a scratch directory that is removed at the end, also on Ctrl-C.
///
/// # Errors
/// The temporary directory is not writable.
pub fn scratch() -> Result<tempfile::TempDir> {
    scratch_in(&std::env::temp_dir())
}

/// Does the same as [`scratch`] in the directory `parent`.
///
/// # Errors
/// `parent` is not writable.
pub fn scratch_in(parent: &Path) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix("vrnic-lab.")
        .tempdir_in(parent)
        .with_context(|| format!("making a scratch directory in {}", parent.display()))?;
    CLEANUP
        .lock()
        .expect("cleanup list")
        .directories
        .push(dir.path().to_path_buf());
    Ok(dir)
}

/// Registers a directory or a file to be removed if the lab is interrupted.
pub fn remove_at_end(path: std::path::PathBuf) {
    CLEANUP.lock().expect("cleanup list").directories.push(path);
}

/// Makes SIGINT, SIGTERM and SIGHUP stop every child and remove the scratch directories before the lab exits.
///
/// # Errors
/// The handlers cannot be installed.
pub fn stop_children_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            tell!("\nvrnic-lab: interrupted, stopping the VMs");
            let cleanup = CLEANUP.lock().expect("cleanup list");
            for group in &cleanup.groups {
                let _ = killpg(*group, Signal::SIGKILL);
            }
            for directory in &cleanup.directories {
                let _ = std::fs::remove_dir_all(directory);
                let _ = std::fs::remove_file(directory);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Converts a path to a string for arguments and environments.
#[must_use]
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the last `lines` lines of a text file, for error messages.
#[must_use]
pub fn tail(path: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
