// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A separate vrnicd, with a device for each guest.

use std::fmt::Write as _;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The fabric that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Copied from guest to guest.
    Local,
    /// In RoCE frames.
    Roce,
    /// In packets on an InfiniBand subnet, which the first guest manages.
    Infiniband,
}

impl Fabric {
    /// All fabrics.
    pub const ALL: [Self; 3] = [Self::Local, Self::Roce, Self::Infiniband];

    /// Returns the name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Roce => "roce",
            Self::Infiniband => "infiniband",
        }
    }
}

/// How long vrnicd may take to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// Name of the control socket.
const CONTROL: &str = "control";

/// A running vrnicd, which ends when the value is dropped.
pub struct Daemon {
    process: Child,
    directory: TempDir,
    fabric: Fabric,
    devices: usize,
}

/// The environment variable with a number of workers for vrnicd. They keep giving devices to each other.
pub const WORKERS: &str = "VRNIC_TEST_WORKERS";

/// Returns the global lines of a configuration that [`WORKERS`] asks for.
pub fn workers() -> String {
    std::env::var(WORKERS).map_or_else(
        |_| String::new(),
        |count| format!("workers = {count}\ntest_restless_workers = true\n"),
    )
}

/// For a test named `this` in a program of tests: runs all other tests of the program, with four [workers].
///
/// # Errors
/// One of them failed.
pub fn others_with_four_workers(this: &str) -> Result<()> {
    let outcome = Command::new(std::env::current_exe()?)
        .args(["--skip", this, "--test-threads", "2"])
        .env(WORKERS, "4")
        .output()?;
    let output = String::from_utf8_lossy(&outcome.stdout);
    ensure!(outcome.status.success(), "{output}");
    ensure!(
        output.contains("test result: ok") && !output.contains(" 0 passed"),
        "{output}"
    );
    Ok(())
}

/// Returns the MAC address of a device.
pub fn mac(device: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, (device >> 8) as u8, device as u8]
}

impl Daemon {
    /// Starts `program` with `devices` devices on a fabric. Their names are their numbers.
    pub fn start(program: &Path, fabric: Fabric, devices: usize) -> Result<Self> {
        let devices: Vec<_> = (0..devices)
            .map(|device| (device.to_string(), ""))
            .collect();
        Self::configured(program, fabric, &devices, "")
    }

    /// Starts `program` with these devices, each a name and further lines of its section of the configuration, and with
    /// further global lines.
    pub fn configured(
        program: &Path,
        fabric: Fabric,
        devices: &[(String, &str)],
        settings: &str,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        let (control, workers) = (path(CONTROL), workers());
        let mut text = format!("control = \"{}\"\n{workers}{settings}\n", control.display());
        for (device, (name, more)) in devices.iter().enumerate() {
            let mac = mac(device).map(|byte| format!("{byte:02x}")).join(":");
            writeln!(
                text,
                "[[device]]\nname = \"{name}\"\nsocket = \"{}\"\nmac = \"{mac}\"\nfabric = \"{}\"\n{more}",
                path(&device.to_string()).display(),
                fabric.name()
            )?;
        }
        std::fs::write(path("config"), text)?;
        let process = Command::new(program)
            .arg("--config")
            .arg(path("config"))
            .stdout(Stdio::null())
            .stderr(File::create(path("log"))?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self {
            process,
            directory,
            fabric,
            devices: devices.len(),
        })
    }

    /// Starts `program` with a device whose packets go over this host's network, between `local` and `peer`; `more` are
    /// further lines for the port.
    pub fn over_udp(program: &Path, local: IpAddr, peer: IpAddr, more: &str) -> Result<Self> {
        let port = format!(
            "[[switch.port]]\nname = \"udp\"\n\
             udp = {{ local = \"{local}\", device = \"0\", peers = [\"{peer}\"] }}\n{more}"
        );
        Self::configured(program, Fabric::Roce, &[("0".to_owned(), "")], &port)
    }

    /// Connects to a device.
    pub fn connect(&mut self, device: usize) -> Result<UnixStream> {
        let path = self.directory.path().join(device.to_string());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return Ok(stream);
                }
                Err(error) if Instant::now() > deadline => bail!("{error}: {}", self.log()),
                Err(_) => {}
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("vrnicd ended ({status}): {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the fabric of its devices.
    pub fn fabric(&self) -> Fabric {
        self.fabric
    }

    /// Returns the number of its devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// Returns the PID of the daemon.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the path of the control socket, which exists once the devices do.
    pub fn control(&self) -> PathBuf {
        self.directory.path().join(CONTROL)
    }

    /// Returns the log of the daemon.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.process);
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
