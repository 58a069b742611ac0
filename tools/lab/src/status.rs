// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Status of a lab, for display and for programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::daemon;
use crate::lab::Lab;
use crate::report::align;
use crate::vm::{self, State};
use crate::web;

/// A lab.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Process ID of the supervisor.
    pub pid: u32,
    /// Directory of sockets and configurations.
    pub directory: PathBuf,
    /// Directory of logs.
    pub logs: PathBuf,
    /// Its networks.
    pub networks: Vec<Network>,
    /// Its VMs.
    pub vms: Vec<Machine>,
}

/// A network.
#[derive(Debug, Serialize, Deserialize)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// `local` or `roce`.
    pub fabric: String,
    /// Its addresses.
    pub subnet: String,
    /// Process ID of its vrnicd, if it has one.
    pub pid: Option<i32>,
    /// Control socket of its vrnicd, for vrnicctl.
    pub control: PathBuf,
    /// Address of the browser view, if it has a vrnicd.
    #[serde(default)]
    pub web: Option<String>,
}

/// A VM.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// `up`, `booting` or `ended`.
    pub state: String,
    /// Process ID of its QEMU.
    pub pid: Option<i32>,
    /// Its kernel; none for the lab's kernel.
    pub kernel: Option<String>,
    /// Memory in MiB.
    pub memory: u32,
    /// Number of processors.
    pub cpus: Option<u32>,
    /// Its network devices.
    pub devices: Vec<Device>,
    /// Log of its console.
    pub console: PathBuf,
}

/// A network device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its network.
    pub network: String,
    /// RDMA device in the guest, if it has one.
    pub rdma: Option<String>,
    /// MAC address.
    pub mac: String,
    /// IPv4 address of the guest.
    pub ipv4: String,
    /// IPv6 address of the guest.
    pub ipv6: String,
}

impl Status {
    /// Returns the status of a lab.
    #[must_use]
    pub fn of(lab: &Lab) -> Self {
        let description = lab.description();
        let networks = description.networks.iter().map(|network| {
            let control = daemon::control(lab.sockets(), &network.name);
            let pid = lab.daemon_pid(&network.name);
            Network {
                name: network.name.clone(),
                fabric: network.fabric.name().to_owned(),
                subnet: format!("10.77.{}.0/24", network.subnet),
                pid,
                web: pid.and_then(|_| web::address(&control).ok()),
                control,
            }
        });
        let machines = description.machines.iter().map(|machine| {
            let (state, pid, cpus) = match lab.vm_state(&machine.name) {
                State::Booting => ("booting", None, None),
                State::Up { pid, cpus } => ("up", Some(pid), Some(cpus)),
                State::Ended => ("ended", None, None),
            };
            let devices = machine.nics.iter().zip(machine.rdma_devices());
            Machine {
                name: machine.name.clone(),
                state: state.to_owned(),
                pid,
                kernel: machine.kernel.clone(),
                memory: vm::memory(machine),
                cpus,
                devices: devices
                    .map(|(nic, rdma)| Device {
                        network: nic.network.clone(),
                        rdma,
                        mac: nic.mac.clone(),
                        ipv4: nic.ipv4.clone(),
                        ipv6: nic.ipv6.clone(),
                    })
                    .collect(),
                console: lab.logs().join(format!("console-{}.log", machine.name)),
            }
        });
        Self {
            name: description.name.clone(),
            pid: std::process::id(),
            directory: lab.sockets().to_path_buf(),
            logs: lab.logs().to_path_buf(),
            networks: networks.collect(),
            vms: machines.collect(),
        }
    }

    /// Formats the status as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut rows =
            vec![["VM", "state", "RDMA device", "network", "address"].map(str::to_owned)];
        for machine in &self.vms {
            let none = [
                machine.name.clone(),
                machine.state.clone(),
                String::new(),
                String::new(),
                String::new(),
            ];
            if machine.devices.is_empty() {
                rows.push(none.clone());
            }
            for (index, device) in machine.devices.iter().enumerate() {
                let [name, state, ..] = if index == 0 {
                    none.clone()
                } else {
                    Default::default()
                };
                let fabric = self
                    .networks
                    .iter()
                    .find(|network| network.name == device.network);
                let fabric = fabric.map_or("", |network| &network.fabric);
                rows.push([
                    name,
                    state,
                    device.rdma.clone().unwrap_or_default(),
                    format!("{} ({fabric})", device.network),
                    device.ipv4.clone(),
                ]);
            }
        }
        let mut text = String::new();
        let _ = writeln!(text, "lab {} ({}):\n", self.name, self.directory.display());
        text.push_str(align(&rows).trim_end());
        text.push('\n');
        for network in &self.networks {
            if let Some(web) = &network.web {
                let _ = writeln!(text, "in a browser, network {}: {web}", network.name);
            }
        }
        text
    }
}
