// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The agents of a node for subnet management (IBTA volume 1, chapter 14) and performance management (chapter 16).
//!
//! The agents own the attributes of their node and of its ports. They [answer](Agent::answer) requests, guard the node
//! by its management key, and [send traps](Agent::poll) to the subnet manager. They are the same for a channel adapter,
//! whose only port has number 1, and for a switch, whose port 0 receives the packets to the switch itself.

use crate::{
    Lid,
    attributes::{
        GuidInfo, LinearForwarding, MulticastForwarding, NodeDescription, NodeInfo, NodeType,
        PKeyTable, PhysicalState, PortInfo, PortState, SlToVl, SwitchInfo, VlArbitration,
        capability, id, mtu_of, time_of,
    },
    directed::Place,
    mad::{self, Method, PerformanceMad, Smp, Status},
    node::Output,
    packet::{Frame, Lrh},
    performance::{self, Statistics, count, count_both},
    port::{MULTICAST_LID, PARTITIONS, Port, PortConfig, Received, Speed, Width, life_of},
    queue::{Queues, Room},
    trap::{self, Trap},
};
use std::{collections::VecDeque, time::Duration};

/// Response time that the agents report, in the encoding of [`time_of`]: 17 ms.
pub(crate) const RESPONSE_TIME: u8 = 12;

/// Entry of a linear forwarding table for a LID without a port.
pub const NO_PORT: u8 = 0xff;
/// Number of LIDs in a linear forwarding table.
const LINEAR_CAP: u16 = MULTICAST_LID;
/// Number of LIDs in a multicast forwarding table.
const MULTICAST_CAP: u16 = 1024;
/// Number of ports that one block of a multicast forwarding table covers.
const MULTICAST_PORTS: usize = 16;

/// Maximum number of external ports of a switch (14.2.5.3).
pub const MAX_PORTS: usize = 254;

/// Maximum number of pending traps of each kind that hostile packets can provoke.
const MAX_VIOLATIONS: usize = 4;
/// Minimum time between two traps, even if the subnet manager sets a shorter one.
const MIN_TRAP_INTERVAL: Duration = Duration::from_millis(1);

/// Time that an agent takes to process a management packet.
const EFFORT: Duration = Duration::from_micros(2);
/// Backlog of an agent beyond which it drops management packets.
const MAX_EFFORT: Duration = Duration::from_micros(128);

/// Identity of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// GUID of the node, which is also that of port 0 of a switch.
    pub node_guid: u64,
    /// GUID of the port of a channel adapter.
    pub port_guid: u64,
    /// GUID of the system.
    pub system_guid: u64,
    /// Human-readable name.
    pub description: String,
    /// OUI of the vendor.
    pub vendor_id: u32,
    /// Device number of the vendor.
    pub device_id: u16,
    /// Revision.
    pub revision: u32,
}

/// What a subnet manager has changed at the end port since the last call of [`Agent::take_changes`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// LID or LID mask count changed.
    pub lid: bool,
    /// LID or service level of the subnet manager changed.
    pub manager: bool,
    /// Partition table changed.
    pub pkeys: bool,
    /// GID prefix or GUIDs changed.
    pub gids: bool,
    /// Clients must register again.
    pub reregister: bool,
}

/// What to do with a subnet management packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this response.
    Respond(Box<Smp>),
    /// Nothing.
    Discard,
    /// Deliver the packet to the subnet manager, if there is one.
    Pass,
}

#[derive(Clone, Debug)]
struct PendingTrap {
    transaction: u64,
    trap: Trap,
}

/// State that only a switch has.
#[derive(Clone, Debug)]
struct Tables {
    info: SwitchInfo,
    linear: Vec<u8>,
    multicast: Vec<[u16; MULTICAST_PORTS]>,
}

/// The agents of a node.
#[derive(Clone, Debug)]
pub struct Agent {
    node: NodeInfo,
    description: NodeDescription,
    tables: Option<Tables>,
    /// Ports, from port 0 on for a switch and from port 1 on for a channel adapter.
    ports: Vec<Port>,
    /// When the management key stops protecting the node.
    lease_end: Option<Duration>,
    traps: VecDeque<PendingTrap>,
    /// Earliest time of the next trap.
    trap_gate: Duration,
    transaction: u64,
    /// When the agent finishes the packets that it has accepted.
    busy: Duration,
    changes: Changes,
    /// The physical state of a port changed.
    links_changed: bool,
    /// The ways of packets through the node may have changed.
    routing_changed: bool,
}

impl Agent {
    /// Creates the agents of a channel adapter with one port.
    pub fn adapter(identity: &Identity, config: PortConfig) -> Self {
        let mut port = Port::new(config, identity.port_guid, 1);
        port.info.capability_mask = capability::TRAP
            | capability::SL_TO_VL
            | capability::SYSTEM_GUID
            | capability::EXTENDED_SPEEDS
            | capability::CAPABILITY_NOTICE
            | capability::CLIENT_REREGISTRATION;
        Self::new(identity, NodeType::CA, vec![port], None)
    }

    /// Creates the agents of a switch with these external ports, of which it uses at most the first [`MAX_PORTS`].
    pub fn switch(identity: &Identity, configs: &[PortConfig]) -> Self {
        let configs = &configs[..configs.len().min(MAX_PORTS)];
        let zero = PortConfig::default();
        let mut ports: Vec<Port> = [&zero]
            .into_iter()
            .chain(configs)
            .map(|&config| Port::new(config, identity.node_guid, configs.len() + 1))
            .collect();
        let zero = &mut ports[0].info;
        zero.state = PortState::ACTIVE;
        zero.physical_state = PhysicalState::LINK_UP;
        zero.capability_mask = capability::TRAP
            | capability::SL_TO_VL
            | capability::SYSTEM_GUID
            | capability::SWITCH_PKEY_TRAP
            | capability::EXTENDED_SPEEDS
            | capability::CAPABILITY_NOTICE
            | capability::CLIENT_REREGISTRATION
            | capability::MULTICAST_TOP;
        let tables = Tables {
            info: SwitchInfo {
                linear_cap: LINEAR_CAP,
                multicast_cap: MULTICAST_CAP,
                default_port: NO_PORT,
                default_multicast_primary: NO_PORT,
                default_multicast_not_primary: NO_PORT,
                life_time: 18,
                partition_enforcement_cap: PARTITIONS as u16,
                inbound_enforcement: true,
                outbound_enforcement: true,
                filter_raw_inbound: true,
                filter_raw_outbound: true,
                ..SwitchInfo::default()
            },
            linear: vec![NO_PORT; LINEAR_CAP.into()],
            multicast: vec![[0; MULTICAST_PORTS]; MULTICAST_CAP.into()],
        };
        Self::new(identity, NodeType::SWITCH, ports, Some(tables))
    }

    fn new(identity: &Identity, kind: NodeType, ports: Vec<Port>, tables: Option<Tables>) -> Self {
        Self {
            node: NodeInfo {
                base_version: mad::BASE_VERSION,
                class_version: mad::CLASS_VERSION,
                kind,
                ports: (ports.len() - usize::from(tables.is_some())) as u8,
                system_guid: identity.system_guid,
                node_guid: identity.node_guid,
                port_guid: ports[0].guids[0],
                partition_cap: PARTITIONS as u16,
                device_id: identity.device_id,
                revision: identity.revision,
                vendor_id: identity.vendor_id,
                ..NodeInfo::default()
            },
            description: NodeDescription::new(&identity.description),
            tables,
            ports,
            lease_end: None,
            traps: VecDeque::new(),
            trap_gate: Duration::ZERO,
            transaction: 0,
            busy: Duration::ZERO,
            changes: Changes::default(),
            links_changed: false,
            routing_changed: false,
        }
    }

    /// Returns the node information, without the port of a request.
    pub fn node(&self) -> &NodeInfo {
        &self.node
    }

    /// Returns the description of the node.
    pub fn description(&self) -> &NodeDescription {
        &self.description
    }

    /// Returns the switch information, or `None` for a channel adapter.
    pub fn switch_info(&self) -> Option<&SwitchInfo> {
        self.tables.as_ref().map(|tables| &tables.info)
    }

    /// Returns the node as directed routes need it.
    pub fn place(&self) -> Place {
        Place {
            switch: self.tables.is_some(),
            ports: self.node.ports,
        }
    }

    /// Returns the port with this number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(self.index(number)?)
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let index = self.index(number)?;
        self.ports.get_mut(index)
    }

    /// Returns the index of a port in `ports`.
    fn index(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_sub(usize::from(self.tables.is_none()))
    }

    /// Returns the numbers of the ports that can have a link.
    pub fn external_ports(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.node.ports
    }

    /// Returns the port at which packets to the node end.
    pub fn end_port(&self) -> &Port {
        &self.ports[0]
    }

    pub(crate) fn end_port_mut(&mut self) -> &mut Port {
        &mut self.ports[0]
    }

    /// Returns the port by which a unicast packet to `lid` leaves a switch (18.2.4.3.1).
    pub(crate) fn unicast_port(&self, lid: Lid) -> Option<u8> {
        let tables = self.tables.as_ref()?;
        let port = *tables.linear.get(usize::from(lid))?;
        (lid <= tables.info.linear_top && port <= self.node.ports).then_some(port)
    }

    /// Returns the ports by which a multicast packet to `lid` that arrived by port `input` leaves a switch
    /// (18.2.4.3.3): the ports in the forwarding table, or the default port if the table does not cover `lid`.
    pub(crate) fn multicast_ports(&self, lid: Lid, input: u8) -> Vec<u8> {
        let Some(tables) = &self.tables else {
            return Vec::new();
        };
        let info = &tables.info;
        let row = tables.multicast.get(usize::from(lid - MULTICAST_LID));
        let beyond = info.multicast_top != 0 && lid > info.multicast_top;
        if let Some(row) = row.filter(|_| !beyond) {
            (0..=self.node.ports)
                .filter(|&port| {
                    let number = usize::from(port);
                    row[number / MULTICAST_PORTS] >> (number % MULTICAST_PORTS) & 1 != 0
                })
                .filter(|&port| port != input)
                .collect()
        } else {
            let port = if input == info.default_multicast_primary {
                info.default_multicast_not_primary
            } else {
                info.default_multicast_primary
            };
            let usable = port <= self.node.ports && port != input;
            usable.then_some(port).into_iter().collect()
        }
    }

    /// Returns how long a packet may stay in the switch.
    pub(crate) fn life(&self) -> Duration {
        life_of(
            self.tables
                .as_ref()
                .map_or(20, |tables| tables.info.life_time),
        )
    }

    /// Returns what changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Tells the agents that the link of a port came up.
    pub fn link_up(&mut self, port: u8, width: Width, speed: Speed) {
        if port == 0 {
            return;
        }
        if let Some(it) = self.port_mut(port) {
            it.link_up(width, speed);
            self.routing_changed = true;
            self.state_changed();
        }
    }

    /// Tells the agents that the link of a port went down. The physical layer then polls or sleeps, whichever the
    /// subnet manager configured.
    pub fn link_down(&mut self, port: u8) {
        let Some(it) = self.port(port).filter(|it| port != 0 && it.has_link()) else {
            return;
        };
        self.set_physical_state(port, it.info.down_default);
    }

    /// Notes that the state of a port's link changed.
    fn state_changed(&mut self) {
        if let Some(tables) = &mut self.tables {
            tables.info.state_change = true;
            self.raise(Trap::LinkState(trap::LinkChange::default()));
        }
    }

    /// Returns whether the physical state of a port changed since the last call, other than by
    /// [`link_up`](Self::link_up). The other end of the link must be told.
    pub fn take_links_changed(&mut self) -> bool {
        std::mem::take(&mut self.links_changed)
    }

    /// Returns whether the link of a port, the LIDs or the forwarding tables for unicast packets changed since the last
    /// call.
    pub fn take_routing_changed(&mut self) -> bool {
        std::mem::take(&mut self.routing_changed)
    }

    fn set_physical_state(&mut self, port: u8, state: PhysicalState) {
        self.links_changed = true;
        self.routing_changed = true;
        if self.port_mut(port).is_some_and(|it| it.link_down(state)) {
            self.state_changed();
        }
    }

    /// Changes the capabilities of the end port, for example because a subnet manager has started.
    pub fn set_capabilities(&mut self, mask: u32) {
        let info = &mut self.end_port_mut().info;
        if std::mem::replace(&mut info.capability_mask, mask) != mask {
            self.raise(Trap::Capability(trap::CapabilityChange {
                mask,
                ..trap::CapabilityChange::default()
            }));
        }
    }

    /// Counts `packets` with a wrong key that the owner of the node reports, and raises the trap ([`Trap::PKey`],
    /// [`Trap::QKey`]).
    pub fn note_violations(&mut self, trap: Trap, packets: u32) {
        let info = &mut self.end_port_mut().info;
        let count = match trap {
            Trap::PKey(_) => &mut info.p_key_violations,
            Trap::QKey(_) => &mut info.q_key_violations,
            _ => return,
        };
        *count = count.saturating_add(u16::try_from(packets).unwrap_or(u16::MAX));
        self.raise(trap);
    }

    /// Resets the count of packets with a wrong Q_Key.
    pub fn reset_q_key_violations(&mut self) {
        self.end_port_mut().info.q_key_violations = 0;
    }

    /// Raises a trap. It is sent to the subnet manager again and again until the manager represses it, each time with
    /// the current LID of the node. It replaces a pending trap of the same kind and subject. Traps about violations are
    /// kept for a few subjects only, so that hostile packets do not delay the others.
    pub fn raise(&mut self, trap: Trap) {
        let number = trap.number();
        let alike = self.traps.iter().filter(|it| it.trap.number() == number);
        let many = alike.count() >= MAX_VIOLATIONS;
        let is_same = |it: &&mut PendingTrap| {
            it.trap.number() == number && it.trap.subject() == trap.subject()
        };
        let known = self.traps.iter_mut().find(is_same);
        if known.is_none() && many && trap.is_violation() {
            return;
        }
        // A TrapRepress for the older trap must not cancel this one.
        self.transaction += 1;
        let pending = PendingTrap {
            transaction: self.transaction,
            trap,
        };
        match known {
            Some(old) => *old = pending,
            None => self.traps.push_back(pending),
        }
    }

    /// Returns whether the port can send traps to a subnet manager.
    fn can_trap(&self) -> bool {
        let info = &self.end_port().info;
        info.sm_lid != 0 && info.lid != 0 && info.state == PortState::ACTIVE
    }

    /// Advances the time. Returns a trap to send to the LID of the subnet manager now, if there is one.
    pub fn poll(&mut self, now: Duration) -> Option<Smp> {
        if self.lease_end.is_some_and(|end| end <= now) {
            self.lease_end = None;
            self.end_port_mut().info.m_key_protection = 0;
        }
        if now < self.trap_gate || !self.can_trap() {
            return None;
        }
        let pending = self.traps.pop_front()?;
        let interval = Duration::from_nanos(time_of(self.end_port().info.subnet_timeout));
        self.trap_gate = now + interval.max(MIN_TRAP_INTERVAL);
        let mut smp = Smp::request(Method::TRAP, id::NOTICE, 0);
        smp.header.transaction = pending.transaction;
        let issuer = self.end_port().info.lid;
        smp.data = pending
            .trap
            .by(issuer)
            .notice(self.node.kind, issuer)
            .to_data();
        self.traps.push_back(pending);
        Some(smp)
    }

    /// Returns when [`poll`](Self::poll) has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let traps = (!self.traps.is_empty() && self.can_trap()).then_some(self.trap_gate);
        let ports = self.ports.iter().filter_map(Port::next_start);
        traps.into_iter().chain(self.lease_end).chain(ports).min()
    }

    /// Returns the packets that waited at the ports and can leave now.
    pub(crate) fn start_ports(&mut self, now: Duration) -> Vec<Output> {
        let numbers = u8::from(self.tables.is_none())..;
        let ports = numbers.zip(&mut self.ports);
        ports
            .filter_map(|(port, it)| {
                let (frame, at) = it.start(now)?;
                Some(Output::Transmit { port, frame, at })
            })
            .collect()
    }

    /// Returns the credit limits of ports and their lanes that the other ends do not know yet (7.9).
    pub(crate) fn take_limits(&mut self) -> Vec<(u8, u8, u64)> {
        let queues = self
            .ports
            .iter_mut()
            .filter_map(|port| port.queues.as_mut());
        let freed: Vec<Room> = queues.flat_map(Queues::take_freed).collect();
        for room in freed {
            if let Some(queues) = self.queues_mut(room.port) {
                queues.release(room);
            }
        }
        let mut limits = Vec::new();
        for port in self.external_ports() {
            let linked = self.port_mut(port).filter(|port| port.has_link());
            if let Some(queues) = linked.and_then(|port| port.queues.as_mut()) {
                let told = queues.take_limits().into_iter();
                limits.extend(told.map(|(lane, limit)| (port, lane, limit)));
            }
        }
        limits
    }

    /// Returns the queues of a port, or `None` without flow control.
    pub(crate) fn queues_mut(&mut self, port: u8) -> Option<&mut Queues> {
        self.port_mut(port)?.queues.as_mut()
    }

    /// Receives a frame from the link of a port. Returns its header, or `None` if the port drops it.
    pub(crate) fn receive(&mut self, port: u8, frame: &Frame, now: Duration) -> Option<Lrh> {
        match self.port_mut(port)?.receive(frame, now) {
            Received::Good(lrh) => Some(lrh),
            Received::Dropped => None,
            Received::TooManyErrors => {
                let trouble = trap::PortTrouble {
                    port,
                    ..trap::PortTrouble::default()
                };
                self.raise(Trap::LinkIntegrity(trouble));
                None
            }
        }
    }

    /// Returns whether the agents can take another management packet, which arrived by `port`.
    pub(crate) fn has_room(&mut self, port: u8, now: Duration) -> bool {
        let busy = self.busy.max(now) + EFFORT;
        if busy.saturating_sub(now) > MAX_EFFORT {
            if let Some(port) = self.port_mut(port) {
                count_both!(port.statistics, vl15_dropped);
            }
            return false;
        }
        self.busy = busy;
        true
    }

    /// Answers a packet of performance management. Returns `None` if the standard defines no answer.
    pub fn answer_performance(
        &mut self,
        request: &PerformanceMad,
        now: Duration,
    ) -> Option<PerformanceMad> {
        let first = u8::from(self.tables.is_none());
        let ports = self.ports.iter_mut().map(|port| {
            port.count_wait(now);
            let tick = port.tick();
            (&mut port.statistics, tick)
        });
        performance::answer(request, first, ports, now)
    }

    /// Returns a mutable reference to the counters of a port.
    pub fn statistics_mut(&mut self, port: u8) -> Option<&mut Statistics> {
        self.port_mut(port).map(|port| &mut port.statistics)
    }

    /// Answers a subnet management packet that arrived by port `input` and ended here.
    pub fn answer(&mut self, request: &Smp, input: u8, now: Duration) -> Answer {
        let header = &request.header;
        if header.method.is_response() || header.method == Method::TRAP {
            return Answer::Pass;
        }
        if header.base_version != mad::BASE_VERSION || header.class_version != mad::CLASS_VERSION {
            return respond(request.response(Status::BAD_VERSION));
        }
        if header.attribute == id::SM_INFO {
            // The attribute belongs to the subnet manager, and has a key of its own.
            return if self.end_port().info.capability_mask & capability::SM != 0 {
                Answer::Pass
            } else {
                respond(request.response(Status::BAD_ATTRIBUTE))
            };
        }
        if !self.check_m_key(request, now) {
            return Answer::Discard;
        }
        match header.method {
            Method::TRAP_REPRESS => {
                let heard = |pending: &PendingTrap| pending.transaction == header.transaction;
                self.traps.retain(|pending| !heard(pending));
                Answer::Discard
            }
            Method::GET | Method::SET => {
                let set = header.method == Method::SET;
                let done = if set {
                    self.set(request, input)
                } else {
                    Ok(())
                };
                respond(match done.and_then(|()| self.get(request, input)) {
                    Ok(data) => Smp {
                        data,
                        ..request.response(Status::OK)
                    },
                    Err(status) => request.response(status),
                })
            }
            _ => respond(request.response(Status::BAD_METHOD)),
        }
    }

    /// Checks the management key of a request (14.2.4).
    fn check_m_key(&mut self, request: &Smp, now: Duration) -> bool {
        let info = &self.end_port().info;
        if info.m_key == 0 {
            return true;
        }
        if request.m_key == info.m_key {
            self.lease_end = None;
            return true;
        }
        if request.header.method == Method::GET && info.m_key_protection < 2 {
            return true;
        }
        let lease = info.m_key_lease;
        if lease != 0 && self.lease_end.is_none() {
            self.lease_end = Some(now + Duration::from_secs(lease.into()));
        }
        let violations = &mut self.end_port_mut().info.m_key_violations;
        count!(*violations);
        let mut violation = trap::MKeyViolation {
            method: request.header.method.0,
            attribute: request.header.attribute,
            modifier: request.header.modifier,
            m_key: request.m_key,
            ..trap::MKeyViolation::default()
        };
        if let Some(route) = &request.route {
            violation.directed = true;
            violation.source = route.source;
            violation.hops = route.hop_count;
            violation.truncated = usize::from(route.hop_count) > violation.back.len();
            violation.back.copy_from_slice(&route.back[1..=30]);
        }
        self.raise(Trap::MKey(violation));
        false
    }

    /// Returns the port that the modifier of a port attribute names. For a channel adapter, that is the port `input`.
    fn named_port(&self, modifier: u32, input: u8) -> u8 {
        if self.tables.is_some() {
            modifier as u8
        } else {
            input
        }
    }

    /// Returns the data of an attribute, or the status that says why there are none.
    fn get(&self, request: &Smp, input: u8) -> Result<[u8; 64], Status> {
        let modifier = request.header.modifier;
        let tables = self.tables.as_ref().ok_or(Status::BAD_ATTRIBUTE);
        let found = match request.header.attribute {
            id::NODE_DESCRIPTION => Some(self.description.to_data()),
            id::NODE_INFO => {
                let mut node = self.node;
                node.local_port = input;
                Some(node.to_data())
            }
            id::SWITCH_INFO => Some(tables?.info.to_data()),
            id::GUID_INFO => {
                let guids = self.end_port().guids;
                (modifier == 0).then(|| GuidInfo { guids }.to_data())
            }
            id::PORT_INFO => self.port_info(request, input).map(|info| info.to_data()),
            id::PKEY_TABLE => self
                .pkey_port(modifier, input)
                .and_then(|number| self.port(number))
                .map(|port| PKeyTable { keys: port.pkeys }.to_data()),
            id::SL_TO_VL => {
                let (output, from) = self.sl_to_vl_ports(modifier, input);
                let map = self.port(output).and_then(|port| port.lanes.get(from));
                map.map(SlToVl::to_data)
            }
            id::VL_ARBITRATION => {
                let (port, block) = self.arbitration_block(modifier, input);
                let tables = self.port(port).map(|port| &port.arbitration);
                let table = tables.and_then(|tables| tables.get(block?));
                table.map(VlArbitration::to_data)
            }
            id::LINEAR_FORWARDING => {
                let tables = tables?;
                let ports =
                    linear_block(modifier).and_then(|at| tables.linear.get(at..)?.first_chunk());
                ports.map(|&ports| LinearForwarding { ports }.to_data())
            }
            id::MULTICAST_FORWARDING => {
                let tables = tables?;
                multicast_block(modifier).map(|(rows, position)| {
                    let rows = &tables.multicast[rows];
                    let ports = std::array::from_fn(|row| rows[row][position]);
                    MulticastForwarding { ports }.to_data()
                })
            }
            _ => return Err(Status::BAD_ATTRIBUTE),
        };
        found.ok_or(Status::BAD_FIELD)
    }

    /// Changes an attribute as requested, or nothing if that fails.
    fn set(&mut self, request: &Smp, input: u8) -> Result<(), Status> {
        let (modifier, data) = (request.header.modifier, &request.data);
        let done = match request.header.attribute {
            id::SWITCH_INFO if self.tables.is_some() => {
                self.set_switch_info(&SwitchInfo::read(data))
            }
            id::GUID_INFO => self.set_guids(modifier, GuidInfo::read(data).guids),
            id::PORT_INFO => self.set_port_info(&PortInfo::read(data), modifier, input),
            id::PKEY_TABLE => self.set_pkeys(modifier, input, PKeyTable::read(data).keys),
            id::SL_TO_VL => {
                let (output, from) = self.sl_to_vl_ports(modifier, input);
                let old = self
                    .port_mut(output)
                    .and_then(|port| port.lanes.get_mut(from));
                let map = SlToVl::read(data);
                let old = old.map(|old| std::mem::replace(old, map));
                self.routing_changed |= old.is_some_and(|old| old != map);
                old.map(|_| ())
            }
            id::VL_ARBITRATION => {
                let (port, block) = self.arbitration_block(modifier, input);
                let tables = self.port_mut(port).map(|port| &mut port.arbitration);
                let table = tables.and_then(|tables| tables.get_mut(block?));
                table.map(|table| *table = VlArbitration::read(data))
            }
            id::LINEAR_FORWARDING if self.tables.is_some() => self.set_linear(modifier, data),
            id::MULTICAST_FORWARDING if self.tables.is_some() => self.set_multicast(modifier, data),
            _ => return Err(Status::BAD_ATTRIBUTE),
        };
        done.ok_or(Status::BAD_FIELD)
    }

    /// Sets the GUIDs except for the first, which the port was built with.
    fn set_guids(&mut self, modifier: u32, mut guids: [u64; 8]) -> Option<()> {
        if modifier != 0 {
            return None;
        }
        let own = &mut self.end_port_mut().guids;
        guids[0] = own[0];
        let changed = std::mem::replace(own, guids) != guids;
        self.changes.gids |= changed;
        Some(())
    }

    fn set_pkeys(&mut self, modifier: u32, input: u8, keys: [u16; PARTITIONS]) -> Option<()> {
        let number = self.pkey_port(modifier, input)?;
        let end = self.index(number) == Some(0);
        let changed = std::mem::replace(&mut self.port_mut(number)?.pkeys, keys) != keys;
        self.changes.pkeys |= changed && end;
        Some(())
    }

    fn set_linear(&mut self, modifier: u32, data: &[u8]) -> Option<()> {
        let table = &mut self.tables.as_mut()?.linear;
        let ports = table
            .get_mut(linear_block(modifier)?..)?
            .first_chunk_mut()?;
        let new = LinearForwarding::read(data).ports;
        self.routing_changed |= std::mem::replace(ports, new) != new;
        Some(())
    }

    fn set_multicast(&mut self, modifier: u32, data: &[u8]) -> Option<()> {
        let (rows, position) = multicast_block(modifier)?;
        let rows = &mut self.tables.as_mut()?.multicast[rows];
        let block = MulticastForwarding::read(data);
        for (row, mask) in rows.iter_mut().zip(block.ports) {
            row[position] = mask;
        }
        Some(())
    }

    /// Returns the port in the modifier of a partition table. Each port has one block.
    fn pkey_port(&self, modifier: u32, input: u8) -> Option<u8> {
        (modifier as u16 == 0).then(|| self.named_port(modifier >> 16, input))
    }

    /// Returns the output port in the modifier of an SL to VL table, and the index of the input port in its maps.
    fn sl_to_vl_ports(&self, modifier: u32, input: u8) -> (u8, usize) {
        if self.tables.is_some() {
            (modifier as u8, usize::from((modifier >> 8) as u8))
        } else {
            (input, 0)
        }
    }

    /// Returns the port and the block in the modifier of an arbitration table.
    fn arbitration_block(&self, modifier: u32, input: u8) -> (u8, Option<usize>) {
        let block = (modifier >> 16) as usize;
        let both = [1, 3].contains(&block);
        (self.named_port(modifier, input), both.then(|| block - 1))
    }

    /// Returns the attributes of a port that the requester may see.
    fn port_info(&self, request: &Smp, input: u8) -> Option<PortInfo> {
        let (end, number) = self.port_of(request.header.modifier, input)?;
        let mut info = self.port(number)?.info;
        info.local_port = input;
        if !end {
            return Some(info);
        }
        let own = info.m_key;
        if own != request.m_key && info.m_key_protection != 0 {
            info.m_key = 0;
        }
        Some(info)
    }

    /// Returns whether the modifier of a port attribute names the end port, and the number of the port. The highest bit
    /// of the modifier says that the manager knows extended speeds.
    fn port_of(&self, modifier: u32, input: u8) -> Option<(bool, u8)> {
        let number = u8::try_from(modifier & 0x7fff_ffff).ok()?;
        let number = match (&self.tables, number) {
            (None, 0) => input,
            _ => number,
        };
        self.port(number)?;
        Some((self.index(number) == Some(0), number))
    }

    fn set_switch_info(&mut self, new: &SwitchInfo) -> Option<()> {
        let info = &mut self.tables.as_mut()?.info;
        let multicast_end = MULTICAST_LID + info.multicast_cap;
        if new.linear_top >= info.linear_cap
            || new.multicast_top != 0
                && !(MULTICAST_LID - 1..multicast_end).contains(&new.multicast_top)
        {
            return None;
        }
        self.routing_changed |= info.linear_top != new.linear_top;
        *info = SwitchInfo {
            linear_top: new.linear_top,
            default_port: new.default_port,
            default_multicast_primary: new.default_multicast_primary,
            default_multicast_not_primary: new.default_multicast_not_primary,
            life_time: new.life_time,
            state_change: info.state_change && !new.state_change,
            multicast_top: new.multicast_top,
            ..*info
        };
        Some(())
    }

    /// Checks the new attributes of a port, and applies those that can be changed.
    fn set_port_info(&mut self, new: &PortInfo, modifier: u32, input: u8) -> Option<()> {
        let (end, number) = self.port_of(modifier, input)?;
        let switch = self.tables.is_some();
        let old = self.port(number)?.info;
        let mut info = old;
        if end {
            set_end_port(new, &mut info, switch)?;
        }
        let linked = !(switch && number == 0);
        if linked {
            set_link(new, &mut info)?;
        }
        if switch && linked {
            info.enforce_inbound = new.enforce_inbound;
            info.enforce_outbound = new.enforce_outbound;
            info.filter_raw_inbound = new.filter_raw_inbound;
            info.filter_raw_outbound = new.filter_raw_outbound;
        }
        self.port_mut(number)?.info = info;
        if end {
            let moved = (old.lid, old.lmc) != (info.lid, info.lmc);
            self.changes.lid |= moved;
            self.routing_changed |= moved;
            self.changes.manager |= (old.sm_lid, old.sm_sl) != (info.sm_lid, info.sm_sl);
            self.changes.gids |= old.gid_prefix != info.gid_prefix;
            self.changes.reregister |= new.client_reregister;
        }
        if linked {
            if new.physical_state != PhysicalState::NO_CHANGE {
                self.set_physical_state(number, new.physical_state);
            } else if new.state == PortState::DOWN && old.state != PortState::DOWN {
                self.set_physical_state(number, info.down_default);
            }
        }
        Some(())
    }
}

/// Checks and sets the attributes that only the end port has.
fn set_end_port(new: &PortInfo, info: &mut PortInfo, switch: bool) -> Option<()> {
    let unicast = |lid| lid < MULTICAST_LID;
    if !unicast(new.lid) || !unicast(new.sm_lid) || switch && new.lmc != 0 {
        return None;
    }
    // LID 0 means none, and must not be among the LIDs that the mask makes. While a port has no LID, its other
    // attributes can still be set.
    if new.lid >> new.lmc == 0 && (new.lid, info.lid) != (0, 0) {
        return None;
    }
    info.m_key = new.m_key;
    info.gid_prefix = new.gid_prefix;
    info.lid = new.lid;
    info.lmc = new.lmc;
    info.sm_lid = new.sm_lid;
    info.sm_sl = new.sm_sl;
    info.m_key_lease = new.m_key_lease;
    info.m_key_protection = new.m_key_protection;
    info.subnet_timeout = new.subnet_timeout;
    info.init_type = new.init_type;
    for (violations, wanted) in [
        (&mut info.m_key_violations, new.m_key_violations),
        (&mut info.p_key_violations, new.p_key_violations),
        (&mut info.q_key_violations, new.q_key_violations),
    ] {
        if wanted == 0 {
            *violations = 0;
        }
    }
    Some(())
}

/// Checks and sets the attributes of a port with a link (14.2.5.6), except for changes that take the link down.
fn set_link(new: &PortInfo, info: &mut PortInfo) -> Option<()> {
    match new.state {
        PortState::NO_CHANGE | PortState::DOWN => {}
        PortState::ARMED if [PortState::INIT, PortState::ARMED].contains(&info.state) => {
            info.state = new.state;
        }
        PortState::ACTIVE if [PortState::ARMED, PortState::ACTIVE].contains(&info.state) => {
            info.state = new.state;
        }
        _ => return None,
    }
    if new.physical_state > PhysicalState::DISABLED {
        return None;
    }
    match new.down_default {
        PhysicalState::NO_CHANGE => {}
        PhysicalState::SLEEP | PhysicalState::POLLING => info.down_default = new.down_default,
        _ => return None,
    }
    let choose = |enabled: &mut u8, wanted: u8, supported: u8, all: u8| {
        *enabled = match wanted {
            0 => *enabled,
            _ if wanted == all => supported,
            _ if wanted & !supported == 0 => wanted,
            _ => return None,
        };
        Some(())
    };
    choose(
        &mut info.width_enabled,
        new.width_enabled,
        info.width_supported,
        0xff,
    )?;
    choose(
        &mut info.speed_enabled,
        new.speed_enabled,
        info.speed_supported,
        0xf,
    )?;
    if new.extended_speed_enabled == 30 {
        info.extended_speed_enabled = 0;
    } else {
        let supported = info.extended_speed_supported;
        choose(
            &mut info.extended_speed_enabled,
            new.extended_speed_enabled,
            supported,
            31,
        )?;
    }
    mtu_of(new.neighbor_mtu).filter(|_| new.neighbor_mtu <= info.mtu_cap)?;
    info.neighbor_mtu = new.neighbor_mtu;
    if new.operational_vls > info.vl_cap {
        return None;
    }
    if new.operational_vls != 0 {
        info.operational_vls = new.operational_vls;
    }
    info.vl_high_limit = new.vl_high_limit;
    info.vl_stall_count = new.vl_stall_count;
    info.head_of_queue_life = new.head_of_queue_life;
    info.local_physical_errors = new.local_physical_errors;
    info.overrun_errors = new.overrun_errors;
    Some(())
}

fn respond(response: Smp) -> Answer {
    Answer::Respond(Box::new(response))
}

/// Returns the first LID of the block that the modifier of a linear forwarding table names.
fn linear_block(modifier: u32) -> Option<usize> {
    usize::try_from(modifier).ok()?.checked_mul(64)
}

/// Returns the LIDs and the ports of the block that the modifier of a multicast forwarding table names.
fn multicast_block(modifier: u32) -> Option<(std::ops::Range<usize>, usize)> {
    let start = (modifier & 0x1ff) as usize * 32;
    let rows = start..start + 32;
    (rows.end <= MULTICAST_CAP.into() && modifier << 4 >> 13 == 0)
        .then_some((rows, (modifier >> 28) as usize))
}
