// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A host channel adapter (IBTA volume 1, chapter 17) with one port, whose number is 1, and without queue pairs. It
//! delivers the packets that are not for its agents to its owner, and sends those of the owner as the standard
//! requires.

use crate::{
    Lid,
    agent::{Agent, Answer, Identity},
    attributes::{PortState, lanes_of},
    directed::Step,
    mad::{PERMISSIVE, PerformanceMad, Smp},
    node::{Reply, answer_general, answer_smp, check_pkey, respond, smp_packet},
    packet::{Body, Frame, MANAGEMENT_LANE, Packet},
    performance::Discard,
    ping,
    port::{FULL_MEMBER, MAX_FRAME, MAX_WAIT, MULTICAST_QP, PortConfig, is_multicast},
    queue::Queues,
};
use std::{collections::BTreeSet, error::Error, fmt, time::Duration};

pub use crate::node::Output;

/// Maximum number of packets that wait for credits.
const MAX_WAITING: usize = 1024;

/// The number of the port.
pub const PORT: u8 = 1;

/// An HCA.
#[derive(Clone, Debug)]
pub struct Hca {
    agent: Agent,
    groups: BTreeSet<Lid>,
    /// Whether the owner handles directed routes, and packets that it sends to its own groups.
    bare: bool,
}

/// Why a packet was not sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SendError {
    /// The port is not active, or, for management packets, the link is down.
    Down,
    /// Too many packets wait for the link.
    Busy,
    /// The partition key is not in the port's table, or the key of an empty entry.
    Partition,
    /// The service level has no lane.
    ServiceLevel,
    /// The packet is longer than the link's MTU allows.
    TooLong,
    /// A packet to QP 0 that is not a valid subnet management packet, or whose directed route does not begin here.
    Management,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "the port does not send such packets in its state",
            Self::Busy => "too many packets wait for the link",
            Self::Partition => "the partition key is not in the port's table",
            Self::ServiceLevel => "the service level has no virtual lane",
            Self::TooLong => "the packet is too long for the link",
            Self::Management => "the packet is not valid subnet management",
        })
    }
}

impl Error for SendError {}

impl Hca {
    /// Creates an HCA without a link.
    pub fn new(identity: &Identity, config: PortConfig) -> Self {
        Self {
            agent: Agent::adapter(identity, config),
            groups: BTreeSet::new(),
            bare: false,
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

    /// Makes the owner do more itself, as the software of a machine with an HCA does. Subnet management packets with
    /// directed routes are delivered to the owner as they arrived, and are sent unchanged: the owner does what 14.2.2
    /// requires of the node at which they begin or end. The HCA no longer delivers to the owner what the owner sends to
    /// a group.
    pub fn set_bare(&mut self) {
        self.bare = true;
    }

    /// Processes a management datagram that arrived in `packet`, and returns the agent's response. Returns `None` if
    /// the datagram is not for an agent, and `Some(None)` if the agent does not respond. The management key protects
    /// the node from its owner as it does from the network, because the key is a secret of the subnet manager.
    pub fn process(&mut self, packet: &Packet, now: Duration) -> Option<Option<Vec<u8>>> {
        let (bth, _, mad) = packet.as_datagram()?;
        if bth.destination_qp != 0 {
            let request = PerformanceMad::parse(mad).ok()?;
            let response = self.agent.answer_performance(&request, now)?;
            return Some(Some(response.to_bytes().to_vec()));
        }
        let smp = Smp::parse(mad).ok()?;
        match self.agent.answer(&smp, PORT, now) {
            Answer::Pass => None,
            Answer::Discard => Some(None),
            Answer::Respond(response) => Some(Some(response.to_bytes().to_vec())),
        }
    }

    /// Answers a packet that was delivered to the owner, if it is a [ping], as a machine with the name of
    /// the HCA would. This is for HCAs without software.
    pub fn answer_ping(&mut self, packet: &Packet, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        let pong = packet
            .as_datagram()
            .filter(|(bth, ..)| bth.destination_qp == 1)
            .and_then(|(.., request)| ping::answer(request, self.agent.description().text()));
        if let Some(pong) = pong
            && let Some(Reply::Send(response, step)) = respond(&self.agent, packet, &pong)
        {
            self.respond(response, step, now, &mut outputs);
        }
        outputs
    }

    /// Starts receiving packets to a multicast LID.
    pub fn attach(&mut self, group: Lid) {
        self.groups.insert(group);
    }

    /// Stops receiving packets to a multicast LID.
    pub fn detach(&mut self, group: Lid) {
        self.groups.remove(&group);
    }

    /// Advances the time. Sends packets that waited, and traps.
    pub fn poll(&mut self, now: Duration) -> Vec<Output> {
        let mut outputs = self.agent.start_ports(now);
        if let Some(trap) = self.agent.poll(now) {
            let info = *self.agent.end_port().info();
            let packet = smp_packet(&trap, (info.lid, info.sm_lid), info.sm_sl);
            self.leave(packet, Step::Lid(info.sm_lid), now, &mut outputs);
        }
        outputs
    }

    /// Receives a frame from the link.
    pub fn receive(&mut self, frame: Frame, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.agent.receive(PORT, &frame, now).is_none() {
            return outputs;
        }
        match frame.into_packet() {
            Ok(packet) => self.accept(packet, now, &mut outputs),
            Err(error) => {
                let statistics = &mut self.agent.end_port_mut().statistics;
                statistics.receive_error(error.into());
            }
        }
        outputs
    }

    /// Completes a packet as [`send`](Self::send) does: its source becomes one of the port's own LIDs, and its lane
    /// that of its service level. Returns the next step of the packet.
    ///
    /// # Errors
    ///
    /// The port may not send such a packet.
    fn prepare(&self, packet: &mut Packet) -> Result<Step, SendError> {
        let port = self.agent.end_port();
        let info = port.info();
        let management =
            matches!(&packet.body, Body::Transport { bth, .. } if bth.destination_qp == 0);
        let directed = self.bare && management && packet.destination == PERMISSIVE;
        if directed {
            packet.source = PERMISSIVE;
        } else if !port.has_lid(packet.source) {
            packet.source = info.lid;
        }
        let mut step = Step::Lid(packet.destination);
        if management {
            packet.lane = MANAGEMENT_LANE;
            let smp = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad));
            let Some(Ok(mut smp)) = smp else {
                return Err(SendError::Management);
            };
            if self.bare {
                if smp.route.is_some() && directed {
                    step = Step::Port(PORT);
                }
            } else if let Some(route) = &mut smp.route {
                // The route begins at this node. After a first part by LID, it would begin at a switch.
                if route.source == PERMISSIVE || route.returning {
                    step = route.depart(self.agent.place());
                    if step == Step::Discard {
                        return Err(SendError::Management);
                    }
                    *packet = smp_packet(&smp, (PERMISSIVE, PERMISSIVE), packet.service_level);
                }
            }
            if step == Step::Lid(PERMISSIVE) {
                return Err(SendError::Management);
            }
        } else {
            if info.state != PortState::ACTIVE {
                return Err(SendError::Down);
            }
            packet.lane = self
                .lane(packet.service_level)
                .ok_or(SendError::ServiceLevel)?;
            if let Body::Transport { bth, .. } = &packet.body
                && (bth.pkey & !FULL_MEMBER == 0 || !port.pkeys().contains(&bth.pkey))
            {
                return Err(SendError::Partition);
            }
        }
        Ok(step)
    }

    /// Returns the packet as the link would carry it if it were sent now.
    ///
    /// # Errors
    ///
    /// The port may not send such a packet.
    pub fn as_sent(&self, mut packet: Packet) -> Result<Packet, SendError> {
        self.prepare(&mut packet)?;
        Ok(packet)
    }

    /// Sends a packet, with one of the port's own LIDs as its source and in the lane of its service level.
    ///
    /// # Errors
    ///
    /// The port may not or cannot send the packet.
    pub fn send(&mut self, mut packet: Packet, now: Duration) -> Result<Vec<Output>, SendError> {
        let step = self.prepare(&mut packet)?;
        let management = packet.lane == MANAGEMENT_LANE;
        let port = self.agent.end_port();
        let (Body::Transport { rest, .. } | Body::Raw(rest)) = &packet.body;
        if rest.len() > MAX_FRAME {
            return Err(SendError::TooLong);
        }
        let waiting = port.queues.as_ref().map_or(0, Queues::len);
        if port.backlog(now) > MAX_WAIT / 2 || waiting >= MAX_WAITING {
            return Err(SendError::Busy);
        }
        let mut outputs = Vec::new();
        if !self.bare
            && is_multicast(packet.destination)
            && self.groups.contains(&packet.destination)
        {
            self.accept(packet.clone(), now, &mut outputs);
        }
        if self.leave(packet, step, now, &mut outputs) {
            Ok(outputs)
        } else if management {
            Err(SendError::Down)
        } else {
            Err(SendError::TooLong)
        }
    }

    /// Returns the lane of a service level if the link has it, which is never the lane of subnet management.
    fn lane(&self, service_level: u8) -> Option<u8> {
        let port = self.agent.end_port();
        let lane = port.lanes[0].lanes[usize::from(service_level & 0xf)];
        let lanes = lanes_of(port.info().operational_vls).unwrap_or(1);
        Some(lane).filter(|lane| *lane < lanes)
    }

    /// Carries out the next step of a packet. Returns whether that was possible.
    fn leave(
        &mut self,
        packet: Packet,
        step: Step,
        now: Duration,
        outputs: &mut Vec<Output>,
    ) -> bool {
        match step {
            // For a route without hops, a response is for the owner and a request for the agent.
            Step::Here => self.end(packet, None, now, outputs),
            Step::Lid(lid) if self.agent.end_port().has_lid(lid) => {
                self.accept(packet, now, outputs);
            }
            Step::Lid(_) | Step::Port(PORT) => {
                let port = self.agent.end_port_mut();
                let Ok(left) = port.transmit(packet.into(), MAX_WAIT, None, now) else {
                    return false;
                };
                outputs.extend(left.map(|(frame, at)| Output::Transmit {
                    port: PORT,
                    frame,
                    at,
                }));
            }
            Step::Port(_) | Step::Discard => return false,
        }
        true
    }

    /// Accepts a packet from the link or from the HCA itself.
    fn accept(&mut self, packet: Packet, now: Duration, outputs: &mut Vec<Output>) {
        let port = self.agent.end_port();
        let Body::Transport { bth, .. } = &packet.body else {
            return;
        };
        let management = packet.lane == MANAGEMENT_LANE;
        let to = packet.destination;
        if bth.version != 0 || management != (bth.destination_qp == 0) {
            return;
        }
        if management {
            if to == PERMISSIVE || port.has_lid(to) {
                self.accept_smp(packet, now, outputs);
            }
            return;
        }
        let here = if is_multicast(to) {
            bth.destination_qp == MULTICAST_QP && self.groups.contains(&to)
        } else {
            bth.destination_qp != MULTICAST_QP && port.has_lid(to)
        };
        if !here || !check_pkey(&mut self.agent, &packet) {
            return;
        }
        if bth.destination_qp != 1 {
            outputs.push(Output::Deliver(packet));
            return;
        }
        match answer_general(&mut self.agent, &packet, now) {
            Some(Reply::Send(response, step)) => self.respond(response, step, now, outputs),
            Some(Reply::Deliver) => outputs.push(Output::Deliver(packet)),
            None => {}
        }
    }

    /// Sends a response from QP 1 in the lane of its service level.
    fn respond(
        &mut self,
        mut response: Packet,
        step: Step,
        now: Duration,
        outputs: &mut Vec<Output>,
    ) {
        if let Some(lane) = self.lane(response.service_level) {
            response.lane = lane;
            self.leave(response, step, now, outputs);
        } else {
            let statistics = &mut self.agent.end_port_mut().statistics;
            statistics.discard(Discard::Other, 1);
        }
    }

    /// Accepts a subnet management packet.
    fn accept_smp(&mut self, packet: Packet, now: Duration, outputs: &mut Vec<Output>) {
        let Some(Ok(mut smp)) = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad)) else {
            return;
        };
        let Some(route) = &mut smp.route else {
            if packet.destination != PERMISSIVE {
                self.end(packet, None, now, outputs);
            }
            return;
        };
        if route.arrive(PORT, self.agent.place()) == Step::Here {
            let addresses = (packet.source, packet.destination);
            let arrived = self.bare.then(|| packet.clone());
            let packet = smp_packet(&smp, addresses, packet.service_level);
            self.end(packet, arrived, now, outputs);
        }
    }

    /// Handles a subnet management packet that ends here. A packet for the owner is delivered as it `arrived`, if that
    /// is given.
    fn end(
        &mut self,
        packet: Packet,
        arrived: Option<Packet>,
        now: Duration,
        outputs: &mut Vec<Output>,
    ) {
        let Some(Ok(smp)) = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad)) else {
            return;
        };
        match answer_smp(&mut self.agent, &packet, &smp, PORT, now) {
            Some(Reply::Send(response, step)) => {
                self.leave(response, step, now, outputs);
            }
            Some(Reply::Deliver) => outputs.push(Output::Deliver(arrived.unwrap_or(packet))),
            None => {}
        }
    }
}
