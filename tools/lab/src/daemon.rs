// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The vrnicd of a network, with its RNICs and its switch.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::description::{Description, Network, Nic};
use crate::process::{self, CHILD, Process, tail};
use crate::settings::Settings;
use crate::vm::Fabric;

/// Name of the network of a lab that has only one. The files of its vrnicd are not named after it.
pub const FIRST: &str = "net";

/// How long a process may take to create its sockets.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running vrnicd. Dropping it ends it.
pub struct Daemon {
    process: Process,
    log: PathBuf,
    text: String,
    /// The sockets that vrnicd creates.
    sockets: Vec<PathBuf>,
}

/// Returns the name of a file of a network's vrnicd.
fn file(network: &str, what: &str) -> String {
    if network == FIRST {
        format!("vrnicd{what}")
    } else {
        format!("vrnicd-{network}{what}")
    }
}

/// Returns the path of the configuration file of a network's vrnicd.
#[must_use]
pub fn config(sockets: &Path, network: &str) -> PathBuf {
    sockets.join(file(network, ".toml"))
}

/// Returns the path of the control socket of a network's vrnicd, for vrnicctl.
#[must_use]
pub fn control(sockets: &Path, network: &str) -> PathBuf {
    sockets.join(file(network, "-control"))
}

/// Returns the path of the log of a network's vrnicd.
#[must_use]
pub fn log(logs: &Path, network: &str) -> PathBuf {
    logs.join(file(network, ".log"))
}

/// Returns the path of the socket of an RNIC.
#[must_use]
pub fn socket(sockets: &Path, nic: &Nic) -> PathBuf {
    sockets.join(format!("rnic-{}", nic.name))
}

/// Returns the path of the socket of the switch port for a virtio-net.
#[must_use]
pub fn switch_socket(sockets: &Path, nic: &Nic) -> PathBuf {
    sockets.join(format!("net-{}", nic.name))
}

impl Daemon {
    /// Writes the configuration and starts vrnicd. Returns once its sockets exist. The words of `enter` precede its
    /// command, for example to run it in another namespace.
    ///
    /// # Errors
    /// vrnicd is not built, ends, or opens no sockets. The message has the end of its log.
    pub fn start(
        settings: &Settings,
        sockets: &Path,
        logs: &Path,
        network: &Network,
        lab: &Description,
        enter: Option<Vec<String>>,
    ) -> Result<Self> {
        let program = settings.programs().join("vrnicd");
        if !program.is_file() {
            bail!("{} is missing: run `make build`", program.display());
        }
        fs::create_dir_all(logs)?;
        let (config, log) = (config(sockets, &network.name), log(logs, &network.name));
        let text = text(sockets, network, lab)?;
        fs::write(&config, &text)?;
        let mut made = Vec::new();
        for (_, nic) in lab.nics(&network.name) {
            made.extend(nic.rnic.then(|| socket(sockets, nic)));
            made.extend(network.switch.then(|| switch_socket(sockets, nic)));
        }
        for socket in &made {
            let _ = fs::remove_file(socket);
        }
        // Every run of the lab shows that vrnicd needs no capability, regardless of the user who runs the lab. This
        // comes last, because entering a namespace may make the kernel forget that the process must die with its
        // parent.
        let mut words = enter.unwrap_or_default();
        // Under this path, this program exists even if cargo has replaced its file.
        words.push(format!("/proc/{}/exe", std::process::id()));
        words.extend([CHILD, "--without-privileges", "--"].map(str::to_owned));
        for word in [program.as_path(), Path::new("--config"), &config] {
            words.push(process::text(word));
        }
        let process = Process::start("vrnicd", Path::new(&words[0]), &words[1..], &[], &log)?;
        let mut daemon = Self {
            process,
            log,
            text,
            sockets: made,
        };
        daemon.wait()?;
        Ok(daemon)
    }

    /// Waits until the sockets exist.
    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.sockets.iter().all(|socket| socket.exists()) {
            if let Some(status) = self.process.ended() {
                bail!(
                    "vrnicd ended at once ({status}); {} says:\n{}",
                    self.log.display(),
                    tail(&self.log, 15)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "vrnicd opened no sockets within 20 s; {} says:\n{}",
                    self.log.display(),
                    tail(&self.log, 15)
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the host process ID.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Returns the path of the log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the configuration with which vrnicd runs.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether vrnicd still runs.
    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Kills vrnicd with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Ends vrnicd with SIGTERM. Returns `false` if it had to be killed or reported a failure.
    pub fn stop(&mut self) -> bool {
        self.process.stop(Duration::from_secs(5))
    }
}

/// Returns the configuration of a network's vrnicd.
///
/// # Errors
/// Never, because writing to a string does not fail.
pub fn text(sockets: &Path, network: &Network, lab: &Description) -> Result<String> {
    let mut text = String::new();
    // Allow experiments with one more line for the daemon.
    if let Ok(line) = std::env::var("VRNIC_VRNICD") {
        writeln!(text, "{line}")?;
    }
    for line in &network.daemon {
        let line = line.replace("{lab}", &sockets.to_string_lossy());
        writeln!(text, "{line}")?;
    }
    writeln!(
        text,
        "control = {}",
        quoted(&control(sockets, &network.name))
    )?;
    let rnics = || lab.nics(&network.name).filter(|(_, nic)| nic.rnic);
    // vrnicd refuses a subnet without a device on it.
    if let Some(topology) = network
        .topology
        .as_ref()
        .filter(|_| rnics().next().is_some())
    {
        writeln!(text, "\n[subnet]\ntopology = {topology}")?;
    }
    for (_, nic) in rnics() {
        writeln!(
            text,
            "\n[[device]]\nname = \"{}\"\nsocket = {}\nmac = \"{}\"\nfabric = \"{}\"",
            nic.name,
            quoted(&socket(sockets, nic)),
            nic.mac,
            network.fabric.name()
        )?;
        for line in &nic.device {
            writeln!(text, "{line}")?;
        }
    }
    if !network.switch {
        return Ok(text);
    }
    for (_, nic) in lab.nics(&network.name) {
        writeln!(
            text,
            "\n[[switch.port]]\nname = \"{}\"\nstream = {}",
            nic.name,
            quoted(&switch_socket(sockets, nic))
        )?;
        if nic.rnic && network.fabric != Fabric::Infiniband {
            writeln!(text, "device = \"{}\"", nic.name)?;
        } else {
            writeln!(text, "mac = \"{}\"", nic.mac)?;
        }
        for line in &nic.port {
            writeln!(text, "{line}")?;
        }
    }
    // No VM has a name with a colon.
    for (link, index) in network.links.iter().zip(1..) {
        writeln!(text, "\n[[switch.port]]\nname = \"link:{index}\"\n{link}")?;
        if let Some(mtu) = network.mtu {
            writeln!(text, "mtu = {mtu}")?;
        }
    }
    if lab.nics(&network.name).next().is_none() && network.links.is_empty() {
        writeln!(text, "\n[switch]")?;
    }
    Ok(text)
}

/// Formats a path as a TOML value.
fn quoted(path: &Path) -> String {
    toml::Value::from(path.to_string_lossy().into_owned()).to_string()
}
