// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A whole subnet in virtual time: HCAs, switches, and links that take their time, damage packets, and are cut and
//! restored. The same description and the same calls give the same result.

use crate::{
    Lid,
    agent::{Agent, Changes, Identity},
    attributes::PhysicalState,
    hca::{Hca, SendError},
    mad::Smp,
    node::{Output, smp_packet},
    packet::{Frame, Packet},
    performance::count,
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

/// How long two ports take to agree on a link.
pub const TRAINING: Duration = Duration::from_millis(10);

/// Most bytes of memory for what waits for a link or is on it, in one direction.
const MAX_ON_LINK: usize = 16 << 20;
/// Most bytes of memory for what waits for links or is on them.
const MAX_ON_LINKS: usize = 256 << 20;

/// A node of a subnet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// A link of a subnet.
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
    /// The link of each port, from port 1 on, and which of its ends that is.
    links: Vec<Option<(usize, usize)>>,
    /// When it is woken.
    wake: Option<Duration>,
}

#[derive(Debug)]
struct Cable {
    link: Link,
    /// Counts how often the link went up or down: what was on it then is lost.
    epoch: u64,
    training: bool,
    /// Bytes of memory for what is on the way to each of its ends.
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
        /// With it, so many blocks of its lane were sent.
        sent: (u8, u64),
    },
    /// A port at an end of a link hears up to which block of a lane it may send.
    Limit {
        link: usize,
        end: usize,
        epoch: u64,
        lane: u8,
        limit: u64,
    },
    /// The ports of a link have agreed.
    Trained { link: usize },
    /// An agent has something to do.
    Wake { node: usize },
}

/// Bytes of memory for a frame on a link, about.
fn cost(frame: &Frame) -> usize {
    frame.length() + 2 * size_of::<Event>()
}

/// A subnet.
#[derive(Debug)]
pub struct Subnet {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    events: BTreeMap<(Duration, u64), Event>,
    /// Events so far: of those at the same time, the older one is first.
    order: u64,
    now: Duration,
    chance: ChaCha8Rng,
    delivered: VecDeque<(NodeId, Packet)>,
    /// Bytes of memory for what is on the way on all links.
    bytes: usize,
}

impl Subnet {
    /// The subnet of a description, at time 0. Its links that are plugged in come up after [`TRAINING`].
    pub fn new(topology: &Topology) -> Self {
        Self::beginning(topology, Duration::ZERO)
    }

    /// The same, but it is `now` already.
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
        };
        for link in 0..subnet.cables.len() {
            subnet.settle(link);
        }
        subnet
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// When something happens next, if nobody does anything.
    pub fn next_event(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets time pass until `end`.
    pub fn run_until(&mut self, end: Duration) {
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// Lets time pass until the next event, unless that is after `end`. Whether there was one.
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
            // Another one was earlier, or there was one already.
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

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// The HCAs.
    pub fn hcas(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes().filter(|node| self.hca(*node).is_some())
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes
            .iter()
            .position(|node| node.name == name)
            .map(NodeId)
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0].name
    }

    /// The agents of a node.
    pub fn agent(&self, node: NodeId) -> &Agent {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => hca.agent(),
            Device::Switch(switch) => switch.agent(),
        }
    }

    /// A node as an HCA; `None` if it is a switch.
    pub fn hca(&self, node: NodeId) -> Option<&Hca> {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => Some(hca),
            Device::Switch(_) => None,
        }
    }

    /// Changes what an agent knows.
    pub fn change_agent<R>(&mut self, node: NodeId, change: impl FnOnce(&mut Agent) -> R) -> R {
        let result = change(self.agent_mut(node.0));
        self.after(node.0, Vec::new());
        result
    }

    /// Lets the owner of an HCA do more itself, as [`Hca::set_bare`] says. Whether the node is an HCA.
    pub fn set_bare(&mut self, node: NodeId) -> bool {
        let device = &mut self.nodes[node.0].device;
        let is_hca = matches!(device, Device::Hca(_));
        if let Device::Hca(hca) = device {
            hca.set_bare();
        }
        is_hca
    }

    /// What a subnet manager changed at a node since this was called.
    pub fn take_changes(&mut self, node: NodeId) -> Changes {
        self.agent_mut(node.0).take_changes()
    }

    /// An agent of an HCA processes a management datagram, as [`Hca::process`] does; `None` of a switch.
    pub fn process(&mut self, node: NodeId, packet: &Packet) -> Option<Option<Vec<u8>>> {
        let now = self.now;
        let result = match &mut self.nodes[node.0].device {
            Device::Hca(hca) => hca.process(packet, now),
            Device::Switch(_) => None,
        };
        self.after(node.0, Vec::new());
        result
    }

    /// Lets an HCA receive packets to a multicast LID, or no longer. Whether the node is an HCA.
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
    /// As [`Hca::send`]; a switch is always [`SendError::Down`].
    pub fn send(&mut self, node: NodeId, packet: Packet) -> Result<(), SendError> {
        let now = self.now;
        let outputs = match &mut self.nodes[node.0].device {
            Device::Hca(hca) => hca.send(packet, now)?,
            Device::Switch(_) => return Err(SendError::Down),
        };
        self.after(node.0, outputs);
        Ok(())
    }

    /// What a packet is on the link if an HCA sends it now: its source and its lane are the HCA's choice.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), but for what depends on the link.
    pub fn as_sent(&self, node: NodeId, packet: Packet) -> Result<Packet, SendError> {
        match &self.nodes[node.0].device {
            Device::Hca(hca) => hca.as_sent(packet),
            Device::Switch(_) => Err(SendError::Down),
        }
    }

    /// Sends a packet of subnet management from an HCA, along its directed route or to `lid`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_smp(&mut self, node: NodeId, smp: &Smp, lid: Lid) -> Result<(), SendError> {
        self.send(node, smp_packet(smp, (0, lid), 0))
    }

    /// The next packet that an HCA received and that is not for its agents.
    pub fn receive(&mut self) -> Option<(NodeId, Packet)> {
        self.delivered.pop_front()
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.cables.len()).map(LinkId)
    }

    /// A link.
    pub fn link(&self, link: LinkId) -> &Link {
        &self.cables[link.0].link
    }

    /// The nodes that a link joins, and their ports.
    pub fn ends(&self, link: LinkId) -> [(NodeId, u8); 2] {
        let ends = self.cables[link.0].link.ends;
        ends.map(|end| (NodeId(end.node), end.port))
    }

    /// Whether the ports of a link have agreed.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.cables[link.0]
            .link
            .ends
            .iter()
            .all(|end| self.has_link(*end))
    }

    /// The link at a port, and what is at its other end.
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

    /// Changes how many bits arrive wrong, 0 to 1.
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

    /// A frame arrives at a port.
    fn arrive(&mut self, end: End, frame: Frame) {
        let now = self.now;
        let outputs = match &mut self.nodes[end.node].device {
            Device::Hca(hca) => hca.receive(frame, now),
            Device::Switch(switch) => switch.receive(end.port, frame, now),
        };
        self.after(end.node, outputs);
    }

    /// Does what a node wants.
    fn after(&mut self, node: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Deliver(packet) => self.delivered.push_back((NodeId(node), packet)),
                Output::Transmit { port, frame, at } => {
                    self.transmit(End { node, port }, frame, at);
                }
            }
        }
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

    /// A frame leaves a port.
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
        // With flow control, room limits it.
        if full && !controlled {
            let statistics = self.agent_mut(from.node).statistics_mut(from.port);
            if let Some(statistics) = statistics {
                count!(statistics.counters.transmit_discards);
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

    /// Changes a bit of a frame with the probability that one or more arrive wrong.
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

    /// Makes both ends of a link agree about it.
    fn settle(&mut self, link: usize) {
        let Link { ends, up, .. } = self.cables[link].link;
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

    /// The ports of a link agree now, if they still can.
    fn trained(&mut self, link: usize) {
        self.cables[link].training = false;
        let Link { ends, up, .. } = self.cables[link].link;
        if !up || !ends.iter().all(|end| self.is_polling(*end)) {
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
