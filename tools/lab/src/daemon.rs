// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One vrnicd with an RNIC per VM, or one for each VM, each in a network of its own.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::lab::Extra;
use crate::namespaces::Namespaces;
use crate::process::{Process, tail};
use crate::settings::Settings;
use crate::vm::{NAMES, mac};

/// Arguments of setpriv: every run of the lab shows that vrnicd needs no capability, whoever runs the lab. Entering a
/// namespace may make the kernel forget that a process shall die with its parent.
const WITHOUT_PRIVILEGES: [&str; 5] = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--inh-caps=-all",
    "--no-new-privs",
];

/// Whether this process is root, who alone may (and must) shrink the bounding set to be without capabilities.
fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// How long it may take until a process has made what it shall make.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running vrnicd, or two. Dropping it ends them.
pub struct Daemon {
    // Order matters: they end before their networks.
    parts: Vec<Part>,
    _namespaces: Option<Namespaces>,
}

/// One process.
struct Part {
    process: Process,
    log: PathBuf,
    /// The sockets that it makes.
    sockets: Vec<PathBuf>,
}

/// The configuration file of a lab's first or only vrnicd.
#[must_use]
pub fn config(sockets: &Path) -> PathBuf {
    sockets.join("vrnicd.toml")
}

/// The control socket of a lab's first or only vrnicd, for vrnicctl.
#[must_use]
pub fn control(sockets: &Path) -> PathBuf {
    sockets.join("vrnicd-control")
}

/// The socket of a VM's RNIC.
#[must_use]
pub fn socket(sockets: &Path, vm: &str) -> PathBuf {
    sockets.join(format!("rnic-{vm}"))
}

/// The socket of the switch's port for a VM's virtio-net.
#[must_use]
pub fn switch_socket(sockets: &Path, vm: &str) -> PathBuf {
    sockets.join(format!("net-{vm}"))
}

impl Daemon {
    /// Writes the configuration and starts vrnicd; returns once the sockets are there. `extra` is added
    /// to it. Without `rnics` it is a switch only.
    ///
    /// # Errors
    /// vrnicd is not built, ends, or opens no sockets; the message has the end of its log.
    pub fn start(
        settings: &Settings,
        sockets: &Path,
        logs: &Path,
        extra: &Extra,
        rnics: bool,
    ) -> Result<Self> {
        let program = settings.programs().join("vrnicd");
        if !program.is_file() {
            bail!("{} is missing: run `make build`", program.display());
        }
        fs::create_dir_all(logs)?;
        let namespaces = extra
            .two_daemons
            .then(|| Namespaces::start(sockets, logs))
            .transpose()?;
        let mut parts = Vec::new();
        let groups: &[&[&str]] = match &namespaces {
            Some(_) => &[&NAMES[..1], &NAMES[1..]],
            None => &[&NAMES],
        };
        for (index, names) in groups.iter().enumerate() {
            let (config, control, log) = if index == 0 {
                (config(sockets), control(sockets), logs.join("vrnicd.log"))
            } else {
                (
                    sockets.join("vrnicd-2.toml"),
                    sockets.join("vrnicd-2-control"),
                    logs.join("vrnicd-2.log"),
                )
            };
            let mut text = text(settings, sockets, extra, &control, names, rnics)?;
            if namespaces.is_some() {
                write!(
                    text,
                    "\n[[switch.port]]\nname = \"link\"\nlink = {{ local = \"{}:4789\", peer = \"{}:4789\" }}\n",
                    Namespaces::ADDRESSES[index],
                    Namespaces::ADDRESSES[1 - index]
                )?;
            }
            fs::write(&config, text)?;
            let mut made = Vec::new();
            for name in *names {
                let rnic = rnics && extra.has_rnic(name);
                made.extend(rnic.then(|| socket(sockets, name)));
                made.extend(
                    extra
                        .switched(settings)
                        .then(|| switch_socket(sockets, name)),
                );
            }
            for socket in &made {
                let _ = fs::remove_file(socket);
            }
            let mut words = match &namespaces {
                Some(namespaces) => namespaces.enter(index),
                None => Vec::new(),
            };
            words.extend(WITHOUT_PRIVILEGES.map(str::to_owned));
            if namespaces.is_some() || is_root()? {
                words.push("--bounding-set=-all".to_owned());
            }
            words.push("--".to_owned());
            for word in [program.as_path(), Path::new("--config"), &config] {
                words.push(word.to_string_lossy().into_owned());
            }
            let process = Process::start("vrnicd", Path::new(&words[0]), &words[1..], &[], &log)?;
            parts.push(Part {
                process,
                log,
                sockets: made,
            });
        }
        let mut daemon = Self {
            parts,
            _namespaces: namespaces,
        };
        daemon.wait()?;
        Ok(daemon)
    }

    /// Waits for the sockets.
    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for part in &mut self.parts {
            while !part.sockets.iter().all(|socket| socket.exists()) {
                if let Some(status) = part.process.ended() {
                    bail!(
                        "vrnicd ended at once ({status}); {} says:\n{}",
                        part.log.display(),
                        tail(&part.log, 15)
                    );
                }
                if Instant::now() > deadline {
                    bail!(
                        "vrnicd opened no sockets within 20 s; {} says:\n{}",
                        part.log.display(),
                        tail(&part.log, 15)
                    );
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Host process id; of two, the one that has VM a.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.parts[0].process.pid()
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.parts[0].log
    }

    /// Whether it still runs; of two, whether both do.
    pub fn alive(&mut self) -> bool {
        self.parts
            .iter_mut()
            .all(|part| part.process.ended().is_none())
    }

    /// SIGTERM and a clean end. False when it had to be killed or reported a failure.
    pub fn stop(&mut self) -> bool {
        let mut clean = true;
        for part in &mut self.parts {
            clean &= part.process.stop(Duration::from_secs(5));
        }
        clean
    }
}

/// The configuration for some VMs.
fn text(
    settings: &Settings,
    sockets: &Path,
    extra: &Extra,
    control: &Path,
    names: &[&str],
    rnics: bool,
) -> Result<String> {
    let mut text = String::new();
    // For experiments: one more line for the daemon.
    if let Ok(line) = std::env::var("VRNIC_VRNICD") {
        writeln!(text, "{line}")?;
    }
    for line in &extra.daemon {
        let line = line.replace("{lab}", &sockets.to_string_lossy());
        writeln!(text, "{line}")?;
    }
    writeln!(text, "control = \"{}\"", control.display())?;
    let has_rnic = |name: &str| rnics && extra.has_rnic(name);
    for name in names.iter().filter(|name| has_rnic(name)) {
        writeln!(
            text,
            "\n[[device]]\nname = \"{name}\"\nsocket = \"{}\"\nmac = \"{}\"\nfabric = \"{}\"",
            socket(sockets, name).display(),
            mac(name),
            settings.fabric.name()
        )?;
        for line in &extra.device {
            writeln!(text, "{line}")?;
        }
    }
    for name in names.iter().filter(|_| extra.switched(settings)) {
        writeln!(
            text,
            "\n[[switch.port]]\nname = \"{name}\"\nstream = \"{}\"",
            switch_socket(sockets, name).display()
        )?;
        if has_rnic(name) {
            writeln!(text, "device = \"{name}\"")?;
        } else {
            writeln!(text, "mac = \"{}\"", mac(name))?;
        }
        for line in &extra.port {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}
