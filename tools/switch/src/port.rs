// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Ports and their endpoints.

use crate::address::Mac;
use crate::counter::Counters;
use crate::frame::Header;
use crate::impair::{Impairment, Line};
use crate::queue::{Queue, QueueLimits};
use crate::vlan::Vlans;

/// A port of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub(crate) usize);

impl PortId {
    /// Returns the index of the port, in the order in which ports were added.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A member of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// A network device, or anything else that takes plain frames.
    Netdev,
    /// An RNIC.
    Rnic,
}

/// The sender or receiver of frames at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The port.
    pub port: PortId,
    /// Member of the port.
    pub member: Member,
}

/// Settings of a port.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Whether it has a network device.
    pub netdev: bool,
    /// Whether it has an RNIC, which requires an address.
    pub rnic: bool,
    /// The address of all its members. Frames to it never go elsewhere, and frames from it that come in at other ports
    /// are dropped.
    pub mac: Option<Mac>,
    /// Largest number of other addresses learned at this port; frames from further ones are dropped. If 0, the port
    /// gets only multicast and frames to its own address.
    pub addresses: usize,
    /// VLANs.
    pub vlans: Vlans,
    /// Largest length of a frame without its Ethernet header and tag, in both directions.
    pub mtu: usize,
    /// Group of the port. Ports in the same group do not exchange frames. On switches that are all linked to each
    /// other, the links of each switch form a group, so that frames do not circulate.
    pub group: Option<u32>,
    /// Limits of the queue of each endpoint.
    pub queue: QueueLimits,
    /// Impairments of frames from other ports that leave by this port.
    pub impairment: Impairment,
}

impl Default for PortConfig {
    /// Returns the settings of a port with a network device that may have any addresses.
    fn default() -> Self {
        Self {
            netdev: true,
            rnic: false,
            mac: None,
            addresses: 1024,
            vlans: Vlans::default(),
            mtu: 9000,
            group: None,
            queue: QueueLimits::default(),
            impairment: Impairment::default(),
        }
    }
}

impl PortConfig {
    /// Returns the settings of a NIC: a network device and an RNIC with the address `mac` and no other.
    pub fn nic(mac: Mac) -> Self {
        Self {
            rnic: true,
            mac: Some(mac),
            addresses: 0,
            ..Self::default()
        }
    }
}

/// The state of one of a port's members.
#[derive(Debug, Default)]
pub(crate) struct Station {
    pub(crate) up: bool,
    /// Whether it is in the list of endpoints with queued frames.
    pub(crate) listed: bool,
    pub(crate) queue: Queue,
}

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) config: PortConfig,
    pub(crate) counters: Counters,
    pub(crate) line: Line,
    netdev: Option<Station>,
    rnic: Option<Station>,
}

impl Port {
    /// Creates a port whose members are all up.
    pub(crate) fn new(config: PortConfig) -> Self {
        let station = |present: bool| {
            present.then(|| Station {
                up: true,
                ..Station::default()
            })
        };
        Self {
            netdev: station(config.netdev),
            rnic: station(config.rnic),
            line: Line::new(&config.impairment),
            counters: Counters::default(),
            config,
        }
    }

    pub(crate) fn station(&mut self, member: Member) -> Option<&mut Station> {
        match member {
            Member::Netdev => self.netdev.as_mut(),
            Member::Rnic => self.rnic.as_mut(),
        }
    }

    /// Returns the next frame for a member. If there is none, marks the member as no longer listed.
    pub(crate) fn pop(&mut self, member: Member) -> Option<Vec<u8>> {
        let station = self.station(member)?;
        let frame = station.queue.pop();
        station.listed = frame.is_some();
        frame
    }

    pub(crate) fn is_up(&self, member: Member) -> bool {
        self.look_at(member).is_some_and(|station| station.up)
    }

    /// Returns the number of frames queued for a member.
    pub(crate) fn waiting(&self, member: Member) -> usize {
        self.look_at(member)
            .map_or(0, |station| station.queue.len())
    }

    fn look_at(&self, member: Member) -> Option<&Station> {
        match member {
            Member::Netdev => self.netdev.as_ref(),
            Member::Rnic => self.rnic.as_ref(),
        }
    }

    /// Returns which members a frame at this port is for: the network device, the RNIC.
    pub(crate) fn members(&self, header: &Header) -> (bool, bool) {
        let roce = header.roce && self.is_up(Member::Rnic);
        if header.destination.is_multicast() {
            return (true, roce);
        }
        let rnic = roce && self.config.mac == Some(header.destination);
        (!rnic, rnic)
    }
}
