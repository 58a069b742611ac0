// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The switch, which connects ports.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::address::{Learned, LearnedAddress, Table};
use crate::counter::{Counters, Drop};
use crate::frame::Header;
use crate::port::{Endpoint, Member, Port, PortConfig, PortId};
use crate::queue::Pool;
use crate::vlan::Vlan;

/// A learning Ethernet switch. The crate's documentation describes what it does.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Port>,
    table: Table,
    /// Endpoints with queued frames.
    ready: VecDeque<Endpoint>,
    pool: Pool,
    /// Targets of the current frame; kept for its allocation.
    targets: Vec<Endpoint>,
}

impl Switch {
    /// Creates a switch without ports that forgets an address if no frame has come from it for `age`.
    pub fn new(age: Duration) -> Self {
        Self {
            ports: Vec::new(),
            table: Table::new(age),
            ready: VecDeque::new(),
            pool: Pool::default(),
            targets: Vec::new(),
        }
    }

    /// Adds a port with all its members up. Returns `None` if the port has an RNIC but no address, an address that is
    /// not unicast, or the address of another port.
    pub fn add_port(&mut self, config: PortConfig) -> Option<PortId> {
        let port = PortId(self.ports.len());
        let unicast = config.mac.is_none_or(|mac| !mac.is_multicast());
        if !unicast || config.rnic && config.mac.is_none() || !self.table.add_port(port, config.mac)
        {
            return None;
        }
        self.ports.push(Port::new(config));
        Some(port)
    }

    /// Brings an endpoint up or down. When an endpoint goes down, its queued frames are dropped, and if it is a network
    /// device, its learned addresses are forgotten.
    pub fn set_up(&mut self, endpoint: Endpoint, up: bool) {
        let port = &mut self.ports[endpoint.port.0];
        let Some(station) = port.station(endpoint.member) else {
            return;
        };
        station.up = up;
        if up {
            return;
        }
        let queue = mem::take(&mut station.queue);
        for frame in queue {
            port.counters.dropped(Drop::DownLeaving);
            self.pool.put(frame);
        }
        if endpoint.member == Member::Netdev {
            self.table.forget(endpoint.port);
        }
    }

    /// Returns whether the endpoint exists and is up.
    pub fn is_up(&self, endpoint: Endpoint) -> bool {
        self.ports[endpoint.port.0].is_up(endpoint.member)
    }

    /// Returns an empty buffer for a frame.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.pool.get()
    }

    /// Takes back a buffer that is no longer needed.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.pool.put(buffer);
    }

    /// Processes a frame from an endpoint. The frames that result wait for [`pop`](Self::pop).
    pub fn receive(&mut self, from: Endpoint, frame: Vec<u8>, now: Duration) {
        self.ports[from.port.0].counters.received(frame.len());
        match self.admit(from, &frame, now) {
            Ok((header, vlan)) => self.forward(from, header, vlan, frame, now),
            Err(reason) => self.lose(from.port, reason, frame),
        }
    }

    /// Takes the next queued frame, and returns it with the endpoint that it is for. If the endpoint has no room, the
    /// frame is [lost](Self::lose): others never wait for it.
    pub fn pop(&mut self) -> Option<(Endpoint, Vec<u8>)> {
        while let Some(&endpoint) = self.ready.front() {
            let port = &mut self.ports[endpoint.port.0];
            if let Some(frame) = port.pop(endpoint.member) {
                port.counters.sent(frame.len());
                return Some((endpoint, frame));
            }
            self.ready.pop_front();
        }
        None
    }

    /// Returns whether [`pop`](Self::pop) has to be called until it returns nothing.
    pub fn has_output(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Advances the time: frames on [impaired](PortConfig::impairment) lines arrive.
    pub fn advance(&mut self, now: Duration) {
        for index in 0..self.ports.len() {
            while let Some(arrived) = self.ports[index].line.arrived(now) {
                let endpoint = Endpoint {
                    port: PortId(index),
                    member: arrived.member,
                };
                self.queue(endpoint, arrived.frame);
            }
        }
    }

    /// Returns when [`advance`](Self::advance) has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let lines = self.ports.iter().map(|port| &port.line);
        lines.filter_map(crate::impair::Line::next_arrival).min()
    }

    /// Returns the counters of a port.
    pub fn counters(&self, port: PortId) -> &Counters {
        &self.ports[port.0].counters
    }

    /// Returns the settings of a port.
    pub fn config(&self, port: PortId) -> &PortConfig {
        &self.ports[port.0].config
    }

    /// Returns all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len()).map(PortId)
    }

    /// Returns the number of frames queued for an endpoint.
    pub fn waiting(&self, endpoint: Endpoint) -> usize {
        self.ports[endpoint.port.0].waiting(endpoint.member)
    }

    /// Returns the learned addresses.
    pub fn learned(&self, now: Duration) -> impl Iterator<Item = LearnedAddress> + '_ {
        self.table.learned(now)
    }

    /// Checks whether the frame may enter. Returns its header and VLAN.
    fn admit(
        &mut self,
        from: Endpoint,
        frame: &[u8],
        now: Duration,
    ) -> Result<(Header, Vlan), Drop> {
        let port = &self.ports[from.port.0];
        if !port.is_up(from.member) {
            return Err(Drop::Down);
        }
        let header = Header::parse(frame).ok_or(Drop::Malformed)?;
        if header.payload_length(frame.len()) > port.config.mtu {
            return Err(Drop::Oversize);
        }
        let vlan = port.config.vlans.classify(header.vlan).ok_or(Drop::Vlan)?;
        let limit = port.config.addresses;
        match self.table.learn(vlan, header.source, from.port, limit, now) {
            Learned::Yes => {}
            Learned::Spoofed => return Err(Drop::Spoofed),
            Learned::Full => return Err(Drop::Addresses),
        }
        if header.destination.is_reserved() {
            return Err(Drop::Reserved);
        }
        Ok((header, vlan))
    }

    fn forward(
        &mut self,
        from: Endpoint,
        header: Header,
        vlan: Vlan,
        frame: Vec<u8>,
        now: Duration,
    ) {
        let mut targets = mem::take(&mut self.targets);
        targets.clear();
        let outcome = self.find_targets(from, &header, vlan, now, &mut targets);
        if let Err(reason) = outcome {
            self.lose(from.port, reason, frame);
        } else if let Some((last, others)) = targets.split_last() {
            for target in others {
                let mut copy = self.pool.get();
                copy.extend_from_slice(&frame);
                self.leave(from, *target, header, vlan, copy, now);
            }
            self.leave(from, *last, header, vlan, frame, now);
        } else {
            self.lose(from.port, Drop::Nowhere, frame);
        }
        self.targets = targets;
    }

    /// Finds the endpoints for a frame.
    fn find_targets(
        &self,
        from: Endpoint,
        header: &Header,
        vlan: Vlan,
        now: Duration,
        targets: &mut Vec<Endpoint>,
    ) -> Result<(), Drop> {
        let multicast = header.destination.is_multicast();
        let known = if multicast {
            None
        } else {
            self.table.find(vlan, header.destination, now)
        };
        if let Some(port) = known {
            if self.ports[port.0].config.vlans.egress_tag(vlan).is_none() {
                return Err(Drop::Vlan);
            }
            if self.exchanges(from.port, port) {
                self.add_members(from, port, header, targets);
            }
            return Ok(());
        }
        for (index, port) in self.ports.iter().enumerate() {
            // A port that cannot have learned addresses cannot have the unknown destination.
            let possible = multicast || port.config.addresses > 0;
            let id = PortId(index);
            if possible
                && port.config.vlans.egress_tag(vlan).is_some()
                && self.exchanges(from.port, id)
            {
                let first = targets.len();
                self.add_members(from, id, header, targets);
                // Endpoints that are down are left out here, because the frame is not addressed to them in particular.
                let mut place = first;
                while let Some(endpoint) = targets.get(place) {
                    if port.is_up(endpoint.member) {
                        place += 1;
                    } else {
                        targets.remove(place);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether frames may go from one port to the other, which is always true within a port.
    fn exchanges(&self, from: PortId, to: PortId) -> bool {
        let group = |port: PortId| self.ports[port.0].config.group;
        from == to || group(from).is_none() || group(from) != group(to)
    }

    /// Adds the members of `port` that are to get the frame.
    fn add_members(
        &self,
        from: Endpoint,
        port: PortId,
        header: &Header,
        targets: &mut Vec<Endpoint>,
    ) {
        let (netdev, rnic) = self.ports[port.0].members(header);
        // Only an RNIC sends to itself. It delivers its own multicast itself.
        let to_itself = !header.destination.is_multicast();
        let (netdev, rnic) = (
            netdev.then_some(Member::Netdev),
            rnic.then_some(Member::Rnic),
        );
        targets.extend(
            netdev
                .into_iter()
                .chain(rnic)
                .map(|member| Endpoint { port, member })
                .filter(|&to| to != from || to_itself && to.member == Member::Rnic),
        );
    }

    /// Sends a frame to an endpoint.
    fn leave(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        header: Header,
        vlan: Vlan,
        mut frame: Vec<u8>,
        now: Duration,
    ) {
        let port = &mut self.ports[to.port.0];
        if header.payload_length(frame.len()) > port.config.mtu {
            return self.lose(to.port, Drop::OversizeLeaving, frame);
        }
        let tagged = port.config.vlans.egress_tag(vlan) == Some(true);
        header.retag(&mut frame, vlan, tagged);
        if from.port == to.port {
            return self.queue(to, frame);
        }
        let copies = port.line.copies();
        if copies == 0 {
            return self.lose(to.port, Drop::Impaired, frame);
        }
        for _ in 1..copies {
            let mut copy = self.pool.get();
            copy.extend_from_slice(&frame);
            self.travel(to, copy, now);
        }
        self.travel(to, frame, now);
    }

    /// Sends a frame over the line of a port.
    fn travel(&mut self, to: Endpoint, frame: Vec<u8>, now: Duration) {
        let port = &mut self.ports[to.port.0];
        let Some(due) = port.line.arrival(now) else {
            return self.queue(to, frame);
        };
        let (frames, bytes) = port.line.load();
        let limits = port.config.queue;
        if frames < limits.frames && bytes + frame.len() <= limits.bytes {
            port.line.send(due, to.member, frame);
        } else {
            self.lose(to.port, Drop::QueueFull, frame);
        }
    }

    /// Queues a frame for an endpoint.
    fn queue(&mut self, to: Endpoint, frame: Vec<u8>) {
        let port = &mut self.ports[to.port.0];
        let limits = port.config.queue;
        let reason = match port.station(to.member).filter(|station| station.up) {
            None => Drop::DownLeaving,
            Some(station) if !station.queue.has_room(limits, frame.len()) => Drop::QueueFull,
            Some(station) => {
                station.queue.push(frame);
                if !mem::replace(&mut station.listed, true) {
                    self.ready.push_back(to);
                }
                return;
            }
        };
        self.lose(to.port, reason, frame);
    }

    /// Counts a frame as lost at this port, and takes back its buffer.
    pub fn lose(&mut self, port: PortId, reason: Drop, frame: Vec<u8>) {
        self.ports[port.0].counters.dropped(reason);
        self.pool.put(frame);
    }
}
