// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A switch (IBTA volume 1, chapter 18). It forwards frames between its ports by the forwarding tables that a subnet
//! manager has filled.

use crate::{
    Lid,
    agent::{Agent, Identity},
    directed::Step,
    mad::{PERMISSIVE, Smp},
    node::{Reply, answer_general, answer_smp, check_pkey, key_violation, smp_packet},
    packet::{Body, Frame, Lrh, MANAGEMENT_LANE, NextHeader, Packet},
    performance::{Discard, RelayError, count_both},
    port::{PortConfig, is_multicast},
    queue::{self, Room},
    trap::{SwitchKeyViolation, Trap},
};
use std::time::Duration;

pub use crate::node::Output;

/// Maximum number of switches that a packet may pass. A directed route has at most 63 hops, so the shortest path
/// between two nodes that one manager reaches has fewer than this. A packet that has gone further is in a loop.
pub const MAX_SWITCHES: u8 = 128;

/// A switch. It never [delivers](Output::Deliver).
#[derive(Clone, Debug)]
pub struct Switch {
    agent: Agent,
    /// Buffer of the packet that is being forwarded at the port by which it arrived.
    room: Option<Room>,
}

impl Switch {
    /// Creates a switch with these external ports, none of which has a link.
    pub fn new(identity: &Identity, ports: &[PortConfig]) -> Self {
        Self {
            agent: Agent::switch(identity, ports),
            room: None,
        }
    }

    /// Returns the agents.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns a mutable reference to the agents.
    pub fn agent_mut(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// Advances the time. Sends packets that waited, and traps.
    pub fn poll(&mut self, now: Duration) -> Vec<Output> {
        let mut outputs = self.agent.start_ports(now);
        if let Some(trap) = self.agent.poll(now) {
            let info = *self.agent.end_port().info();
            let packet = smp_packet(&trap, (info.lid, info.sm_lid), info.sm_sl);
            self.route(packet.into(), 0, now, &mut outputs);
        }
        outputs
    }

    /// Receives a frame from the link of port `input`. If it has passed [`MAX_SWITCHES`], drops it unless it is for
    /// this switch.
    pub fn receive(&mut self, input: u8, frame: Frame, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        if let Some(lrh) = self.agent.receive(input, &frame, now) {
            if !lrh.is_management() && !self.lets_in(input, &frame, &lrh) {
                return outputs;
            }
            if lrh.destination == PERMISSIVE {
                if lrh.is_management() {
                    self.accept(frame, input, now, &mut outputs);
                } else {
                    self.relay_error(input, RelayError::Lid);
                }
            } else {
                self.take_room(input, &frame, &lrh);
                self.route(frame, input, now, &mut outputs);
                // Release the buffer if no port took the frame.
                self.release_room();
            }
        }
        outputs
    }

    /// Releases the buffer of the packet that is being forwarded.
    fn release_room(&mut self) {
        if let Some(room) = self.room.take()
            && let Some(queues) = self.agent.queues_mut(room.port)
        {
            queues.release(room);
        }
    }

    /// Occupies the buffer for a packet that arrived, unless it is a management packet.
    fn take_room(&mut self, input: u8, frame: &Frame, lrh: &Lrh) {
        let queues = self.agent.queues_mut(input);
        if let Some(queues) = queues.filter(|_| !lrh.is_management()) {
            let room = Room {
                port: input,
                lane: lrh.lane,
                blocks: queue::blocks(frame),
            };
            queues.hold(room);
            self.room = Some(room);
        }
    }

    /// Forwards a frame by its LID.
    fn route(&mut self, frame: Frame, input: u8, now: Duration, outputs: &mut Vec<Output>) {
        let Some(lrh) = frame.lrh() else {
            return;
        };
        let to = lrh.destination;
        if self.agent.end_port().has_lid(to) {
            return self.accept(frame, input, now, outputs);
        }
        if frame.hops() >= MAX_SWITCHES {
            return self.relay_error(input, RelayError::Loop);
        }
        if is_multicast(to) {
            let ports = self.agent.multicast_ports(to, input);
            let Some((last, others)) = ports.split_last() else {
                return self.relay_error(input, RelayError::Lid);
            };
            // The last copy takes the buffer.
            let room = self.room.take();
            for port in others {
                self.forward(frame.clone(), &lrh, (input, *port), now, outputs);
            }
            self.room = room;
            return self.forward(frame, &lrh, (input, *last), now, outputs);
        }
        match self.agent.unicast_port(to) {
            // Sending it back to where it came from would create a loop.
            Some(port) if port != input || input == 0 => {
                self.forward(frame, &lrh, (input, port), now, outputs);
            }
            Some(_) => self.relay_error(input, RelayError::Loop),
            None => self.relay_error(input, RelayError::Lid),
        }
    }

    /// Counts a packet that arrived by `input` and cannot be forwarded. Packets from the switch itself are not counted.
    fn relay_error(&mut self, input: u8, why: RelayError) {
        let external = self.agent.statistics_mut(input).filter(|_| input != 0);
        if let Some(statistics) = external {
            statistics.relay_error(why);
        }
    }

    /// Forwards a frame from one port to another.
    fn forward(
        &mut self,
        mut frame: Frame,
        lrh: &Lrh,
        (input, output): (u8, u8),
        now: Duration,
        outputs: &mut Vec<Output>,
    ) {
        if output == 0 {
            return self.accept(frame, input, now, outputs);
        }
        if !self.lets_out(output, &frame, lrh) {
            return;
        }
        let life = self.agent.life();
        let Some(port) = self.agent.port_mut(output) else {
            return;
        };
        if !lrh.is_management() {
            let map = port.lanes.get(usize::from(input));
            let level = usize::from(lrh.service_level & 0xf);
            let lane = map.map_or(MANAGEMENT_LANE, |map| map.lanes[level]);
            if lane == MANAGEMENT_LANE {
                if input == 0 {
                    port.statistics.discard(Discard::Other, 1);
                }
                return self.relay_error(input, RelayError::Lane);
            }
            frame.set_lane(lane);
        }
        let hops = frame.hops() + 1;
        let left = port.transmit(frame.after(hops), life, self.room.take(), now);
        outputs.extend(left.ok().flatten().map(|(frame, at)| Output::Transmit {
            port: output,
            frame,
            at,
        }));
    }

    /// Returns whether a port accepts a packet: checks its partition, and whether it is raw (18.2.4.2).
    fn lets_in(&mut self, number: u8, frame: &Frame, lrh: &Lrh) -> bool {
        let Some(port) = self.agent.port_mut(number) else {
            return false;
        };
        let info = &port.info;
        let raw = info.filter_raw_inbound && is_raw(lrh);
        let foreign = info.enforce_inbound && !port.is_of_member(frame, lrh);
        if raw || foreign {
            count_both!(port.statistics, receive_constraint_errors);
            if foreign {
                self.tell_of(number, frame);
            }
        }
        !raw && !foreign
    }

    /// Returns whether a port may send a packet.
    fn lets_out(&mut self, number: u8, frame: &Frame, lrh: &Lrh) -> bool {
        let Some(port) = self.agent.port_mut(number) else {
            return false;
        };
        let info = &port.info;
        let raw = info.filter_raw_outbound && is_raw(lrh);
        let foreign = info.enforce_outbound && !port.admits(frame, lrh);
        if raw || foreign {
            count_both!(port.statistics, transmit_constraint_errors);
            if foreign {
                self.tell_of(number, frame);
            }
        }
        !raw && !foreign
    }

    /// Raises a trap about a packet that a port stopped because of its partition key.
    fn tell_of(&mut self, port: u8, frame: &Frame) {
        let (Ok(packet), Some(bth)) = (frame.clone().into_packet(), frame.transport()) else {
            return;
        };
        let known = key_violation(&packet, bth.pkey.into());
        self.agent.raise(Trap::SwitchPKey(SwitchKeyViolation {
            valid: 0b1111_1111_1100_0000,
            source: known.source,
            destination: known.destination,
            pkey: bth.pkey,
            service_level: known.service_level,
            source_qp: known.source_qp,
            destination_qp: known.destination_qp,
            source_gid: known.source_gid,
            destination_gid: known.destination_gid,
            switch: 0,
            port,
        }));
    }

    /// Processes a frame that arrived by `input` and is for the switch itself or has a directed route.
    fn accept(&mut self, frame: Frame, input: u8, now: Duration, outputs: &mut Vec<Output>) {
        self.release_room();
        let packet = match frame.into_packet() {
            Ok(packet) => packet,
            Err(error) => {
                if let Some(statistics) = self.agent.statistics_mut(input) {
                    statistics.receive_error(error.into());
                }
                return;
            }
        };
        let Body::Transport { bth, .. } = &packet.body else {
            return;
        };
        let management = packet.lane == MANAGEMENT_LANE;
        if bth.version != 0 || management != (bth.destination_qp == 0) {
            return;
        }
        if management {
            return self.accept_smp(&packet, input, now, outputs);
        }
        // The agents are not in any multicast group.
        let here = bth.destination_qp == 1 && !is_multicast(packet.destination);
        if !here || !check_pkey(&mut self.agent, &packet) {
            return;
        }
        if let Some(Reply::Send(response, _)) = answer_general(&mut self.agent, &packet, now) {
            self.route(response.into(), 0, now, outputs);
        }
    }

    fn accept_smp(&mut self, packet: &Packet, input: u8, now: Duration, outputs: &mut Vec<Output>) {
        let Some(Ok(mut smp)) = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad)) else {
            return;
        };
        let place = self.agent.place();
        let step = match &mut smp.route {
            Some(route) => route.arrive(input, place),
            None if packet.destination == PERMISSIVE => Step::Discard,
            None => Step::Here,
        };
        let own = self.agent.end_port().info().lid;
        let level = packet.service_level;
        match step {
            Step::Here => {
                let reply = answer_smp(&mut self.agent, packet, &smp, input, now);
                if let Some(Reply::Send(response, step)) = reply {
                    self.answer(response, step, now, outputs);
                }
            }
            Step::Port(_) => {
                let packet = smp_packet(&smp, (PERMISSIVE, PERMISSIVE), level);
                self.answer(packet, step, now, outputs);
            }
            Step::Lid(lid) => {
                let packet = smp_packet(&smp, (own, lid), level);
                self.answer(packet, step, now, outputs);
            }
            Step::Discard => {}
        }
    }

    /// Sends a subnet management packet.
    fn answer(&mut self, packet: Packet, step: Step, now: Duration, outputs: &mut Vec<Output>) {
        let frame = Frame::from(packet);
        match step {
            Step::Port(port) => {
                if let Some(lrh) = frame.lrh() {
                    self.forward(frame, &lrh, (0, port), now, outputs);
                }
            }
            Step::Lid(lid) if !is_own(&self.agent, lid) => self.route(frame, 0, now, outputs),
            // The switch has no owner to deliver to.
            Step::Lid(_) | Step::Here | Step::Discard => {}
        }
    }
}

/// Returns whether the switch itself has this LID.
fn is_own(agent: &Agent, lid: Lid) -> bool {
    agent.end_port().has_lid(lid)
}

/// Returns whether a packet is a raw one.
fn is_raw(lrh: &Lrh) -> bool {
    matches!(lrh.next, NextHeader::RawEtherType | NextHeader::RawIpv6)
}
