// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A small subnet manager. It finds the nodes along directed routes, assigns LIDs, fills the forwarding tables with
//! shortest paths, and brings the ports up. It knows only what it learns from packets.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use vrnic_infiniband::{
    Lid,
    attributes::{
        LinearForwarding, MulticastForwarding, NodeInfo, NodeType, Notice, PhysicalState, PortInfo,
        PortState, SwitchInfo, id,
    },
    mad::{Method, Route, Smp, Status},
    packet::Packet,
    subnet::{NodeId, Subnet},
    trap::Trap,
};

/// How long the manager waits for a response.
const PATIENCE: Duration = Duration::from_millis(2);

/// A node that the manager found.
#[derive(Clone, Debug)]
pub struct Found {
    pub info: NodeInfo,
    /// Ports on the path to the node.
    pub path: Vec<u8>,
    pub lid: Lid,
    /// Peer of each port: its index in [`Manager::found`], and its port.
    pub links: BTreeMap<u8, (usize, u8)>,
}

impl Found {
    pub fn is_switch(&self) -> bool {
        self.info.kind == NodeType::SWITCH
    }
}

pub struct Manager {
    /// The HCA on which the manager runs.
    pub at: NodeId,
    pub m_key: u64,
    /// Protection bits and lease that the manager sets at ports.
    pub protection: u8,
    pub lease: u16,
    pub lmc: u8,
    pub found: Vec<Found>,
    /// Node GUIDs that several nodes have.
    pub duplicates: Vec<u64>,
    /// Other packets that arrived.
    pub traps: Vec<Trap>,
    pub delivered: Vec<(NodeId, Packet)>,
    /// LIDs of nodes by GUID, which nodes keep.
    lids: BTreeMap<u64, Lid>,
    transaction: u64,
    /// Whether the manager represses traps.
    pub represses: bool,
}

impl Manager {
    pub fn new(at: NodeId) -> Self {
        Self {
            at,
            m_key: 0,
            protection: 0,
            lease: 0,
            lmc: 0,
            found: Vec::new(),
            duplicates: Vec::new(),
            traps: Vec::new(),
            delivered: Vec::new(),
            lids: BTreeMap::new(),
            transaction: 1 << 32,
            represses: true,
        }
    }

    /// Sends a request, and returns the response.
    pub fn ask(&mut self, subnet: &mut Subnet, mut smp: Smp, lid: Lid) -> Option<Smp> {
        self.transaction += 1;
        smp.header.transaction = self.transaction;
        smp.m_key = self.m_key;
        subnet.send_smp(self.at, &smp, lid).expect("it leaves");
        let deadline = subnet.now() + PATIENCE;
        loop {
            while let Some((node, packet)) = subnet.receive() {
                let response = self.take(subnet, node, packet);
                if response.is_some() {
                    return response;
                }
            }
            if !subnet.step(deadline) {
                subnet.run_until(deadline);
                return None;
            }
        }
    }

    /// Processes a packet that arrived. Returns it if it is the expected response.
    fn take(&mut self, subnet: &mut Subnet, node: NodeId, packet: Packet) -> Option<Smp> {
        let smp = packet
            .as_datagram()
            .filter(|(bth, ..)| bth.destination_qp == 0);
        let smp = smp
            .and_then(|(_, _, mad)| Smp::parse(mad).ok())
            .filter(|_| node == self.at);
        let Some(smp) = smp else {
            self.delivered.push((node, packet));
            return None;
        };
        if smp.header.method == Method::TRAP {
            self.traps.extend(Trap::of(&Notice::read(&smp.data)));
            if self.represses {
                let mut repress = smp;
                repress.header.method = Method::TRAP_REPRESS;
                repress.m_key = self.m_key;
                subnet
                    .send_smp(self.at, &repress, packet.source)
                    .expect("it leaves");
            }
            return None;
        }
        (smp.header.transaction == self.transaction).then_some(smp)
    }

    /// Lets time pass, and processes what arrives.
    pub fn wait(&mut self, subnet: &mut Subnet, time: Duration) {
        let end = subnet.now() + time;
        loop {
            while let Some((node, packet)) = subnet.receive() {
                self.take(subnet, node, packet);
            }
            if !subnet.step(end) {
                subnet.run_until(end);
                return;
            }
        }
    }

    /// Reads an attribute along a path.
    pub fn get(
        &mut self,
        subnet: &mut Subnet,
        path: &[u8],
        attribute: u16,
        modifier: u32,
    ) -> Option<[u8; 64]> {
        let smp = Smp {
            route: Route::along(path),
            ..Smp::request(Method::GET, attribute, modifier)
        };
        let response = self.ask(subnet, smp, 0xffff)?;
        assert_eq!(
            response.header.status,
            Status::OK,
            "{attribute:#x} {modifier:#x}"
        );
        Some(response.data)
    }

    /// Writes an attribute along a path.
    pub fn set(
        &mut self,
        subnet: &mut Subnet,
        path: &[u8],
        attribute: u16,
        modifier: u32,
        data: [u8; 64],
    ) -> bool {
        let smp = Smp {
            route: Route::along(path),
            data,
            ..Smp::request(Method::SET, attribute, modifier)
        };
        let response = self.ask(subnet, smp, 0xffff);
        if let Some(response) = &response {
            assert_eq!(
                response.header.status,
                Status::OK,
                "{attribute:#x} {modifier:#x}"
            );
        }
        response.is_some()
    }

    pub fn port_info(&mut self, subnet: &mut Subnet, path: &[u8], port: u8) -> Option<PortInfo> {
        let data = self.get(subnet, path, id::PORT_INFO, port.into())?;
        Some(PortInfo::read(&data))
    }

    /// Changes the attributes of a port.
    pub fn change_port(
        &mut self,
        subnet: &mut Subnet,
        path: &[u8],
        port: u8,
        change: impl Fn(&mut PortInfo),
    ) -> bool {
        let Some(mut info) = self.port_info(subnet, path, port) else {
            return false;
        };
        info.state = PortState::NO_CHANGE;
        info.physical_state = PhysicalState::NO_CHANGE;
        change(&mut info);
        self.set(subnet, path, id::PORT_INFO, port.into(), info.to_data())
    }

    /// Finds all nodes, and configures them.
    pub fn sweep(&mut self, subnet: &mut Subnet) {
        self.discover(subnet);
        self.assign(subnet);
        self.route(subnet);
        for state in [PortState::ARMED, PortState::ACTIVE] {
            for place in 0..self.found.len() {
                let found = self.found[place].clone();
                for &port in found.links.keys() {
                    let now = self
                        .port_info(subnet, &found.path, port)
                        .map(|info| info.state);
                    if now == Some(PortState(state.0 - 1)) {
                        self.change_port(subnet, &found.path, port, |info| info.state = state);
                    }
                }
            }
        }
    }

    /// Finds the nodes.
    pub fn discover(&mut self, subnet: &mut Subnet) {
        self.found.clear();
        self.duplicates.clear();
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        // Paths, and the port of a known node at which they end.
        let mut paths = VecDeque::from([(Vec::new(), None)]);
        while let Some((path, from)) = paths.pop_front() {
            let Some(data) = self.get(subnet, &path, id::NODE_INFO, 0) else {
                continue;
            };
            let info = NodeInfo::read(&data);
            let known = places.get(&info.node_guid).copied();
            let place = known.unwrap_or(self.found.len());
            if known.is_none() {
                places.insert(info.node_guid, place);
                self.found.push(Found {
                    info,
                    path: path.clone(),
                    lid: 0,
                    links: BTreeMap::new(),
                });
            }
            if let Some((parent, port)) = from {
                let other = self.found[place].links.get(&info.local_port);
                if other.is_some_and(|other| *other != (parent, port)) {
                    self.duplicates.push(info.node_guid);
                    continue;
                }
                self.found[place]
                    .links
                    .insert(info.local_port, (parent, port));
                self.found[parent]
                    .links
                    .insert(port, (place, info.local_port));
            }
            if known.is_some() {
                continue;
            }
            let own = from.is_none() && info.kind == NodeType::CA;
            if info.kind != NodeType::SWITCH && !own {
                continue;
            }
            for port in 1..=info.ports {
                let linked = self
                    .port_info(subnet, &path, port)
                    .is_some_and(|info| info.state > PortState::DOWN);
                if linked && (own || port != info.local_port) && path.len() < 63 {
                    paths.push_back(([&path[..], &[port]].concat(), Some((place, port))));
                }
            }
        }
    }

    /// Assigns LIDs, and tells nodes the LID of the manager.
    fn assign(&mut self, subnet: &mut Subnet) {
        let step = 1 << self.lmc;
        for place in 0..self.found.len() {
            let next = (self.lids.len() as Lid + 1) * step;
            let found = &mut self.found[place];
            found.lid = *self.lids.entry(found.info.node_guid).or_insert(next);
        }
        let own = self.found[0].lid;
        let (key, protection, lease, lmc) = (self.m_key, self.protection, self.lease, self.lmc);
        for place in 0..self.found.len() {
            let Found {
                path, lid, info, ..
            } = self.found[place].clone();
            let switch = info.kind == NodeType::SWITCH;
            let port = if switch { 0 } else { info.local_port };
            self.change_port(subnet, &path, port, |info| {
                info.lid = lid;
                info.sm_lid = own;
                info.m_key = key;
                info.m_key_protection = protection;
                info.m_key_lease = lease;
                info.lmc = if switch { 0 } else { lmc };
                info.subnet_timeout = 8;
            });
        }
    }

    /// Fills the forwarding tables with shortest paths, by the lowest port if there are several.
    fn route(&mut self, subnet: &mut Subnet) {
        let tables = self.tables();
        for place in 0..self.found.len() {
            let Found { path, .. } = self.found[place].clone();
            let Some(table) = tables.get(&place) else {
                continue;
            };
            let top = table.len() as Lid - 1;
            let data = self
                .get(subnet, &path, id::SWITCH_INFO, 0)
                .expect("a switch");
            let info = SwitchInfo {
                linear_top: top,
                state_change: true,
                ..SwitchInfo::read(&data)
            };
            self.set(subnet, &path, id::SWITCH_INFO, 0, info.to_data());
            for (block, ports) in table.chunks(64).enumerate() {
                let mut entries = [0xff; 64];
                entries[..ports.len()].copy_from_slice(ports);
                let data = LinearForwarding { ports: entries }.to_data();
                self.set(subnet, &path, id::LINEAR_FORWARDING, block as u32, data);
            }
        }
    }

    /// Returns the port to each LID for each switch.
    fn tables(&self) -> BTreeMap<usize, Vec<u8>> {
        let step = 1_usize << self.lmc;
        let length = self
            .found
            .iter()
            .map(|found| usize::from(found.lid))
            .max()
            .unwrap_or(0)
            + step;
        let switches = (0..self.found.len()).filter(|&place| self.found[place].is_switch());
        let mut tables: BTreeMap<_, _> =
            switches.map(|place| (place, vec![0xff; length])).collect();
        for (target, found) in self.found.iter().enumerate() {
            // Search outwards from the target: the node from which another one is first seen is its next hop.
            let mut distance = BTreeMap::from([(target, 0)]);
            let mut queue = VecDeque::from([target]);
            while let Some(place) = queue.pop_front() {
                for &(peer, _) in self.found[place].links.values() {
                    if self.found[peer].is_switch() && !distance.contains_key(&peer) {
                        distance.insert(peer, distance[&place] + 1);
                        queue.push_back(peer);
                    }
                }
            }
            for (&switch, table) in &mut tables {
                let port = if switch == target {
                    Some(0)
                } else {
                    let nearer = |(_, (peer, _)): &(&u8, &(usize, u8))| {
                        let passes = self.found[*peer].is_switch() || *peer == target;
                        passes
                            && distance
                                .get(peer)
                                .zip(distance.get(&switch))
                                .is_some_and(|(a, b)| a < b)
                    };
                    self.found[switch]
                        .links
                        .iter()
                        .find(nearer)
                        .map(|(port, _)| *port)
                };
                let lids = if found.is_switch() { 1 } else { step };
                let first = usize::from(found.lid);
                table[first..first + lids].fill(port.unwrap_or(0xff));
            }
        }
        tables
    }

    /// Makes all HCAs members of a group, with a tree of switches.
    pub fn join_all(&mut self, subnet: &mut Subnet, group: Lid) {
        let mut ports: BTreeMap<usize, u16> = BTreeMap::new();
        let root = (0..self.found.len())
            .find(|&place| self.found[place].is_switch())
            .expect("a switch");
        let mut seen = vec![root];
        let mut queue = VecDeque::from([root]);
        while let Some(place) = queue.pop_front() {
            for (&port, &(peer, back)) in &self.found[place].links {
                if !self.found[peer].is_switch() {
                    *ports.entry(place).or_default() |= 1 << port;
                } else if !seen.contains(&peer) {
                    seen.push(peer);
                    queue.push_back(peer);
                    *ports.entry(place).or_default() |= 1 << port;
                    *ports.entry(peer).or_default() |= 1 << back;
                }
            }
        }
        for (place, mask) in ports {
            let path = self.found[place].path.clone();
            let (block, row) = (
                u32::from(group - 0xc000) / 32,
                usize::from(group - 0xc000) % 32,
            );
            let mut table = MulticastForwarding::default();
            table.ports[row] = mask;
            self.set(
                subnet,
                &path,
                id::MULTICAST_FORWARDING,
                block,
                table.to_data(),
            );
        }
    }
}
