// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Descriptions of the switch.

use super::Timed;
use crate::config::Mac;
use crate::control::protocol::{Address, SwitchPort};
use crate::device::Device;
use crate::network::{KnownAddress, Network, PortView};

/// Describes all ports.
pub fn ports(devices: &[Timed<'_, Device>], network: &Network) -> Vec<SwitchPort> {
    let device = |index: usize| devices.get(index).map(|device| device.it.name().to_owned());
    network.ports().map(|port| view(&port, device)).collect()
}

fn view(port: &PortView<'_>, device: impl Fn(usize) -> Option<String>) -> SwitchPort {
    let counters = port.counters;
    let traffic = [
        ("rx_frames", counters.rx_frames),
        ("rx_bytes", counters.rx_bytes),
        ("tx_frames", counters.tx_frames),
        ("tx_bytes", counters.tx_bytes),
        ("faults", port.faults),
    ];
    let all = traffic.into_iter().chain(port.drops());
    SwitchPort {
        name: port.name.to_owned(),
        device: port.device.and_then(device),
        rnic_up: port.rnic_up,
        medium: port.medium.map(str::to_owned),
        medium_up: port.medium_up,
        mac: port.config.mac.map(|mac| Mac(mac.0).to_string()),
        mtu: port.config.mtu,
        vlans: port.config.vlans.to_string(),
        waiting: port.waiting,
        counters: all.map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

/// Describes an address.
pub fn address(known: KnownAddress<'_>) -> Address {
    Address {
        mac: Mac(known.mac.0).to_string(),
        vlan: known.vlan.map(vrnic_switch::Vlan::get),
        port: known.port.to_owned(),
        age_s: known.age.map(|age| age.as_secs()),
    }
}
