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
    /// Its place in the order in which ports were added.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// What is behind a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// A network device, or anything else that takes plain frames.
    Netdev,
    /// An RNIC.
    Rnic,
}

/// Somebody who hands frames in and is given frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The port.
    pub port: PortId,
    /// Which of its members.
    pub member: Member,
}

/// What a port is like.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Whether it has a network device.
    pub netdev: bool,
    /// Whether it has an RNIC. Then it must have an address.
    pub rnic: bool,
    /// The address of all its members. Frames to it never go elsewhere, and other ports' frames from it are dropped.
    pub mac: Option<Mac>,
    /// Most other addresses that are learned at this port; frames from further ones are dropped. With 0, nothing but
    /// frames to its own address and multicast goes to the port.
    pub addresses: usize,
    /// VLANs.
    pub vlans: Vlans,
    /// Most bytes behind the Ethernet header, tag not counted, in both directions.
    pub mtu: usize,
    /// Ports of the same group do not exchange frames. Links that join each of several switches to each other are in
    /// one, so that no frame goes in a circle.
    pub group: Option<u32>,
    /// What may wait for each endpoint.
    pub queue: QueueLimits,
    /// What happens to frames that leave for the port from others.
    pub impairment: Impairment,
}

impl Default for PortConfig {
    /// A port with a network device that may have any addresses.
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
    /// A NIC: a network device and an RNIC that have the address `mac` and no other.
    pub fn nic(mac: Mac) -> Self {
        Self {
            rnic: true,
            mac: Some(mac),
            addresses: 0,
            ..Self::default()
        }
    }
}

/// One of a port's members.
#[derive(Debug, Default)]
pub(crate) struct Station {
    pub(crate) up: bool,
    /// Whether it is in the list of those that have something to take.
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
    /// All members are up.
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

    /// The next frame for a member. When there is none it leaves the list of those that have some.
    pub(crate) fn pop(&mut self, member: Member) -> Option<Vec<u8>> {
        let station = self.station(member)?;
        let frame = station.queue.pop();
        station.listed = frame.is_some();
        frame
    }

    /// Puts back what [`pop`](Self::pop) gave.
    pub(crate) fn put_back(&mut self, member: Member, frame: Vec<u8>) {
        if let Some(station) = self.station(member) {
            station.queue.put_back(frame);
        }
    }

    pub(crate) fn is_up(&self, member: Member) -> bool {
        self.look_at(member).is_some_and(|station| station.up)
    }

    /// Frames that wait for a member.
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

    /// Which members a frame on this port is for: the network device, the RNIC.
    pub(crate) fn members(&self, header: &Header) -> (bool, bool) {
        let roce = header.roce && self.is_up(Member::Rnic);
        if header.destination.is_multicast() {
            return (true, roce);
        }
        let rnic = roce && self.config.mac == Some(header.destination);
        (!rnic, rnic)
    }
}
