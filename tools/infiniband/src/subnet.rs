// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A whole subnet in virtual time: HCAs, switches, and links that have a latency, damage packets, and can be cut and
//! restored. The same description and the same calls always give the same result.

use crate::{
    Lid,
    agent::{Agent, Changes, Identity},
    attributes::PhysicalState,
    hca::{Hca, SendError},
    mad::Smp,
    node::{Output, smp_packet},
    packet::{Frame, Packet},
    performance::Discard,
    port::PortConfig,
    switch::Switch,
    topology::{End, Kind, Link, Topology},
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// How long two ports take to train a link.
pub const TRAINING: Duration = Duration::from_millis(10);

/// Maximum bytes of memory for the packets of a link in one direction.
const MAX_ON_LINK: usize = 16 << 20;
/// Maximum bytes of memory for the packets of all links.
const MAX_ON_LINKS: usize = 256 << 20;

/// Identifies a node of a subnet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// Identifies a link of a subnet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(usize);

#[derive(Debug)]
enum Device {
    Hca(Hca),
    Switch(Switch),
}

#[derive(Debug)]
struct Node {
    name: String,
    device: Device,
    /// The link of each port, from port 1 on, and the end of the link at this port.
    links: Vec<Option<(usize, usize)>>,
    /// When the node is woken.
    wake: Option<Duration>,
    /// Whether the ports of the node work.
    on: bool,
}

#[derive(Debug)]
struct Cable {
    link: Link,
    /// Number of times that the link went up or down. Packets that were on the link at that time are lost.
    epoch: u64,
    training: bool,
    /// Bytes of memory for the packets on the way to each end.
    bytes: [usize; 2],
}

#[derive(Debug)]
enum Event {
    /// A frame arrives at an end of a link.
    Arrive {
        link: usize,
        end: usize,
        epoch: u64,
        frame: Frame,
        /// The lane of the frame, and the number of blocks sent in it including this frame.
        sent: (u8, u64),
    },
    /// A port at an end of a link learns up to which block of a lane it may send.
    Limit {
        link: usize,
        end: usize,
        epoch: u64,
        lane: u8,
        limit: u64,
    },
    /// The ports of a link have finished training.
    Trained { link: usize },
    /// An agent has something to do.
    Wake { node: usize },
}

/// Returns the approximate bytes of memory for a frame on a link.
fn cost(frame: &Frame) -> usize {
    frame.length() + 2 * size_of::<Event>()
}

/// A subnet.
#[derive(Debug)]
pub struct Subnet {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    events: BTreeMap<(Duration, u64), Event>,
    /// Number of events so far. Of events at the same time, the older one is handled first.
    order: u64,
    now: Duration,
    chance: ChaCha8Rng,
    delivered: VecDeque<(NodeId, Packet)>,
    /// Bytes of memory for the packets on all links.
    bytes: usize,
    /// Number of changes of the routing.
    routing_changes: u64,
}

impl Subnet {
    /// Creates the subnet of a description at time 0. Links that are plugged in come up after [`TRAINING`].
    pub fn new(topology: &Topology) -> Self {
        Self::beginning(topology, Duration::ZERO)
    }

    /// Creates the subnet of a description at time `now`.
    pub fn beginning(topology: &Topology, now: Duration) -> Self {
        let mut links: Vec<Vec<_>> = topology
            .nodes
            .iter()
            .map(|node| match node.kind {
                Kind::Hca => vec![None],
                Kind::Switch(ports) => vec![None; ports.into()],
            })
            .collect();
        for (index, link) in topology.links.iter().enumerate() {
            for (end, End { node, port }) in link.ends.into_iter().enumerate() {
                links[node][usize::from(port) - 1] = Some((index, end));
            }
        }
        let nodes = topology.nodes.iter().zip(links).map(|(node, links)| {
            let configs: Vec<PortConfig> = links
                .iter()
                .map(|link| link.map_or(topology.ports, |(link, _)| topology.links[link].ports))
                .collect();
            let identity = Identity {
                node_guid: node.guid,
                port_guid: node.port_guid,
                system_guid: node.guid,
                description: node.name.clone(),
                vendor_id: (node.guid >> 40) as u32,
                device_id: 1,
                revision: 1,
            };
            Node {
                name: node.name.clone(),
                device: match node.kind {
                    Kind::Hca => Device::Hca(Hca::new(&identity, configs[0])),
                    Kind::Switch(_) => Device::Switch(Switch::new(&identity, &configs)),
                },
                links,
                wake: None,
                on: true,
            }
        });
        let cable = |&link: &Link| Cable {
            link,
            epoch: 0,
            training: false,
            bytes: [0; 2],
        };
        let mut subnet = Self {
            nodes: nodes.collect(),
            cables: topology.links.iter().map(cable).collect(),
            events: BTreeMap::new(),
            order: 0,
            now,
            chance: ChaCha8Rng::seed_from_u64(topology.seed),
            delivered: VecDeque::new(),
            bytes: 0,
            routing_changes: 0,
        };
        for link in 0..subnet.cables.len() {
            subnet.settle(link);
        }
        subnet
    }

    /// Returns the time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns when the next event happens.
    pub fn next_event(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Runs the subnet until `end`.
    pub fn run_until(&mut self, end: Duration) {
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// Runs the subnet until its next event, unless that is after `end`. Returns whether there was an event.
    pub fn step(&mut self, end: Duration) -> bool {
        let Some(entry) = self
            .events
            .first_entry()
            .filter(|entry| entry.key().0 <= end)
        else {
            return false;
        };
        self.now = self.now.max(entry.key().0);
        match entry.remove() {
            Event::Arrive {
                link,
                end,
                epoch,
                frame,
                sent: (lane, blocks),
            } => {
                self.cables[link].bytes[end] -= cost(&frame);
                self.bytes -= cost(&frame);
                if self.cables[link].epoch == epoch {
                    let end = self.cables[link].link.ends[end];
                    if let Some(queues) = self.agent_mut(end.node).queues_mut(end.port) {
                        queues.received(lane, blocks);
                    }
                    self.arrive(end, frame);
                }
            }
            Event::Limit {
                link,
                end,
                epoch,
                lane,
                limit,
            } => {
                if self.cables[link].epoch == epoch {
                    let End { node, port } = self.cables[link].link.ends[end];
                    if let Some(queues) = self.agent_mut(node).queues_mut(port) {
                        queues.set_limit(lane, limit);
                    }
                    let now = self.now;
                    let outputs = self.agent_mut(node).start_ports(now);
                    self.after(node, outputs);
                }
            }
            Event::Trained { link } => self.trained(link),
            // A wakeup that was replaced by an earlier one, or has already been handled.
            Event::Wake { node } if self.nodes[node].wake != Some(self.now) => {}
            Event::Wake { node } => {
                self.nodes[node].wake = None;
                let now = self.now;
                let outputs = match &mut self.nodes[node].device {
                    Device::Hca(hca) => hca.poll(now),
                    Device::Switch(switch) => switch.poll(now),
                };
                self.after(node, outputs);
            }
        }
        true
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// Returns the HCAs.
    pub fn hcas(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes().filter(|node| self.hca(*node).is_some())
    }

    /// Returns the node with this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes
            .iter()
            .position(|node| node.name == name)
            .map(NodeId)
    }

    /// Returns the name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0].name
    }

    /// Returns the agents of a node.
    pub fn agent(&self, node: NodeId) -> &Agent {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => hca.agent(),
            Device::Switch(switch) => switch.agent(),
        }
    }

    /// Returns a node as an HCA, or `None` if it is a switch.
    pub fn hca(&self, node: NodeId) -> Option<&Hca> {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => Some(hca),
            Device::Switch(_) => None,
        }
    }

    /// Changes the state of the agents of a node.
    pub fn change_agent<R>(&mut self, node: NodeId, change: impl FnOnce(&mut Agent) -> R) -> R {
        let result = change(self.agent_mut(node.0));
        self.after(node.0, Vec::new());
        result
    }

    /// Makes the owner of an HCA do more itself, as described at [`Hca::set_bare`]. Returns whether the node is an HCA.
    pub fn set_bare(&mut self, node: NodeId) -> bool {
        let device = &mut self.nodes[node.0].device;
        let is_hca = matches!(device, Device::Hca(_));
        if let Device::Hca(hca) = device {
            hca.set_bare();
        }
        is_hca
    }

    /// Returns what a subnet manager changed at a node since the last call.
    pub fn take_changes(&mut self, node: NodeId) -> Changes {
        self.agent_mut(node.0).take_changes()
    }

    /// Lets an agent of an HCA process a management datagram, as [`Hca::process`] does. Returns `None` for a switch.
    pub fn process(&mut self, node: NodeId, packet: &Packet) -> Option<Option<Vec<u8>>> {
        let now = self.now;
        let result = match &mut self.nodes[node.0].device {
            Device::Hca(hca) => hca.process(packet, now),
            Device::Switch(_) => None,
        };
        self.after(node.0, Vec::new());
        result
    }

    /// Answers a packet that [`receive`](Self::receive) returned, if it is a ping, as [`Hca::answer_ping`] does.
    pub fn answer_ping(&mut self, node: NodeId, packet: &Packet) {
        let now = self.now;
        if let Device::Hca(hca) = &mut self.nodes[node.0].device {
            let outputs = hca.answer_ping(packet, now);
            self.after(node.0, outputs);
        }
    }

    /// Starts or stops receiving packets to a multicast LID at an HCA. Returns whether the node is an HCA.
    pub fn attach(&mut self, node: NodeId, group: Lid, attached: bool) -> bool {
        match &mut self.nodes[node.0].device {
            Device::Hca(hca) if attached => hca.attach(group),
            Device::Hca(hca) => hca.detach(group),
            Device::Switch(_) => return false,
        }
        true
    }

    /// Sends a packet from an HCA, as [`Hca::send`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Hca::send`], and [`SendError::Down`] for a switch.
    pub fn send(&mut self, node: NodeId, packet: Packet) -> Result<(), SendError> {
        let now = self.now;
        let outputs = match &mut self.nodes[node.0].device {
            Device::Hca(hca) => hca.send(packet, now)?,
            Device::Switch(_) => return Err(SendError::Down),
        };
        self.after(node.0, outputs);
        Ok(())
    }

    /// Returns a packet as it would be on the link if an HCA sent it now. The HCA chooses the source and the lane.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send), except for those that depend on the state of the link.
    pub fn as_sent(&self, node: NodeId, packet: Packet) -> Result<Packet, SendError> {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => hca.as_sent(packet),
            Device::Switch(_) => Err(SendError::Down),
        }
    }

    /// Sends a subnet management packet from an HCA, along its directed route or to `lid`.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn send_smp(&mut self, node: NodeId, smp: &Smp, lid: Lid) -> Result<(), SendError> {
        self.send(node, smp_packet(smp, (0, lid), 0))
    }

    /// Returns the next packet that an HCA received and that is not for its agents.
    pub fn receive(&mut self) -> Option<(NodeId, Packet)> {
        self.delivered.pop_front()
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.cables.len()).map(LinkId)
    }

    /// Returns how often the ways of unicast packets may have changed, by links, LIDs, forwarding tables or SL to VL
    /// maps.
    pub fn routing_changes(&self) -> u64 {
        self.routing_changes
    }

    /// Returns the properties of a link.
    pub fn link(&self, link: LinkId) -> &Link {
        &self.cables[link.0].link
    }

    /// Returns the nodes and ports at the ends of a link.
    pub fn ends(&self, link: LinkId) -> [(NodeId, u8); 2] {
        let ends = self.cables[link.0].link.ends;
        ends.map(|end| (NodeId(end.node), end.port))
    }

    /// Returns whether the ports of a link have finished training.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.cables[link.0]
            .link
            .ends
            .iter()
            .all(|end| self.has_link(*end))
    }

    /// Returns the link at a port, and the node and port at its other end.
    pub fn peer(&self, node: NodeId, port: u8) -> Option<(LinkId, NodeId, u8)> {
        let place = usize::from(port).checked_sub(1)?;
        let (link, end) = (*self.nodes[node.0].links.get(place)?)?;
        let peer = self.cables[link].link.ends[1 - end];
        Some((LinkId(link), NodeId(peer.node), peer.port))
    }

    /// Cuts a link, or plugs it in again.
    pub fn set_link(&mut self, link: LinkId, up: bool) {
        self.cables[link.0].link.up = up;
        self.settle(link.0);
    }

    /// Returns whether the ports of a node work.
    pub fn is_on(&self, node: NodeId) -> bool {
        self.nodes[node.0].on
    }

    /// Makes all ports of a node fail, or work again. The node keeps its state, and links that are cut stay so.
    pub fn set_on(&mut self, node: NodeId, on: bool) {
        self.nodes[node.0].on = on;
        let links = self.nodes[node.0].links.clone();
        for (link, _) in links.into_iter().flatten() {
            self.settle(link);
        }
    }

    /// Changes the probability, from 0 to 1, that a bit arrives wrong.
    pub fn set_bit_error_rate(&mut self, link: LinkId, rate: f64) {
        self.cables[link.0].link.bit_error_rate = rate;
    }

    fn agent_mut(&mut self, node: usize) -> &mut Agent {
        match &mut self.nodes[node].device {
            Device::Hca(hca) => hca.agent_mut(),
            Device::Switch(switch) => switch.agent_mut(),
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.order += 1;
        self.events.insert((at, self.order), event);
    }

    /// Lets a frame arrive at a port.
    fn arrive(&mut self, end: End, frame: Frame) {
        let now = self.now;
        let outputs = match &mut self.nodes[end.node].device {
            Device::Hca(hca) => hca.receive(frame, now),
            Device::Switch(switch) => switch.receive(end.port, frame, now),
        };
        self.after(end.node, outputs);
    }

    /// Handles the outputs of a node and other changes of its state.
    fn after(&mut self, node: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Deliver(packet) => self.delivered.push_back((NodeId(node), packet)),
                Output::Transmit { port, frame, at } => {
                    self.transmit(End { node, port }, frame, at);
                }
            }
        }
        self.routing_changes += u64::from(self.agent_mut(node).take_routing_changed());
        if self.agent_mut(node).take_links_changed() {
            for port in 0..self.nodes[node].links.len() {
                if let Some((link, _)) = self.nodes[node].links[port] {
                    self.settle(link);
                }
            }
        }
        for (port, lane, limit) in self.agent_mut(node).take_limits() {
            let Some((link, end)) = self.nodes[node].links[usize::from(port) - 1] else {
                continue;
            };
            let Cable { epoch, .. } = self.cables[link];
            let at = self.now + self.cables[link].link.latency;
            let end = 1 - end;
            let limit = Event::Limit {
                link,
                end,
                epoch,
                lane,
                limit,
            };
            self.schedule(at, limit);
        }
        let now = self.now;
        let deadline = self
            .agent(NodeId(node))
            .next_deadline()
            .map(|at| at.max(now));
        if let Some(at) = deadline
            && self.nodes[node].wake.is_none_or(|wake| at < wake)
        {
            self.nodes[node].wake = Some(at);
            self.schedule(at, Event::Wake { node });
        }
    }

    /// Puts a frame that leaves a port on the link.
    fn transmit(&mut self, from: End, frame: Frame, at: Duration) {
        let Some((link, end)) = self.nodes[from.node].links[usize::from(from.port) - 1] else {
            return;
        };
        let Cable {
            link: properties,
            epoch,
            ..
        } = &self.cables[link];
        let (at, epoch, rate) = (at + properties.latency, *epoch, properties.bit_error_rate);
        let lane = frame.lane();
        let queues = self.agent_mut(from.node).queues_mut(from.port);
        let controlled = queues.is_some();
        let sent = (lane, queues.map_or(0, |queues| queues.sent(lane)));
        let cost = cost(&frame);
        let cable = &mut self.cables[link].bytes[1 - end];
        let full = *cable + cost > MAX_ON_LINK || self.bytes + cost > MAX_ON_LINKS;
        // With flow control, the receive buffers limit the packets on a link.
        if full && !controlled {
            let statistics = self.agent_mut(from.node).statistics_mut(from.port);
            if let Some(statistics) = statistics {
                statistics.discard(Discard::Other, 1);
            }
            return;
        }
        *cable += cost;
        self.bytes += cost;
        let frame = self.damage(frame, rate);
        self.schedule(
            at,
            Event::Arrive {
                link,
                end: 1 - end,
                epoch,
                frame,
                sent,
            },
        );
    }

    /// Inverts a bit of a frame with the probability that any of its bits arrives wrong.
    fn damage(&mut self, frame: Frame, rate: f64) -> Frame {
        if rate <= 0.0 {
            return frame;
        }
        let bits = frame.length() as u64 * 8;
        let probability = -((-rate).ln_1p() * f64::from(bits as u32)).exp_m1();
        if f64::from(self.chance.next_u32()) >= probability * f64::from(u32::MAX) {
            return frame;
        }
        let bit = (self.chance.next_u64() % bits) as usize;
        let hops = frame.hops();
        let mut bytes = frame.into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        Frame::from(bytes).after(hops)
    }

    fn has_link(&self, end: End) -> bool {
        let port = self.agent(NodeId(end.node)).port(end.port);
        port.is_some_and(crate::port::Port::has_link)
    }

    fn is_polling(&self, end: End) -> bool {
        let port = self.agent(NodeId(end.node)).port(end.port);
        port.is_some_and(|port| port.info().physical_state == PhysicalState::POLLING)
    }

    /// Returns whether a link is plugged in, and the ports at both ends work.
    fn is_usable(&self, link: usize) -> bool {
        let Link { ends, up, .. } = self.cables[link].link;
        up && ends.iter().all(|end| self.nodes[end.node].on)
    }

    /// Brings both ends of a link to the same state.
    fn settle(&mut self, link: usize) {
        let ends = self.cables[link].link.ends;
        let up = self.is_usable(link);
        let linked = ends.map(|end| self.has_link(end));
        if up && linked == [true; 2] {
            return;
        }
        for (end, linked) in ends.into_iter().zip(linked) {
            if linked {
                self.cables[link].epoch += 1;
                self.agent_mut(end.node).link_down(end.port);
                self.after(end.node, Vec::new());
            }
        }
        if up && !self.cables[link].training && ends.iter().all(|end| self.is_polling(*end)) {
            self.cables[link].training = true;
            self.schedule(self.now + TRAINING, Event::Trained { link });
        }
    }

    /// Brings a link up at the end of its training, if the ports are still polling.
    fn trained(&mut self, link: usize) {
        self.cables[link].training = false;
        let ends = self.cables[link].link.ends;
        if !self.is_usable(link) || !ends.iter().all(|end| self.is_polling(*end)) {
            return;
        }
        let [one, other] = ends.map(|end| self.agent(NodeId(end.node)).port(end.port));
        let agreed = one.zip(other).and_then(|(one, other)| one.negotiate(other));
        if let Some((width, speed)) = agreed {
            self.cables[link].epoch += 1;
            for end in ends {
                self.agent_mut(end.node).link_up(end.port, width, speed);
            }
            for end in ends {
                self.after(end.node, Vec::new());
            }
        }
    }
}
