// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The InfiniBand subnet of this process: switches and HCAs of `vrnic_infiniband`, with RNICs behind some of the HCAs.
//!
//! The subnet runs in the worker's thread and uses the time of the devices. Each HCA has the management agents, and
//! makes sure that its RNIC sends only with its own LIDs and P_Keys. Like the firmware of an adapter, it does so
//! whether or not there is a driver. The engine is told how a subnet manager configures the port. In return, agents do
//! what commands ask for.
//!
//! Between devices, packets travel as values: payload is read from guest memory once and written to guest memory once,
//! and CRCs are not computed or checked unless a capture needs the bytes or a link damages them.
//!
//! All devices share the switches, so a panic in the subnet affects them all and leaves the subnet in an unknown state.
//! The subnet is then created again, as if all switches and HCAs had lost power for a moment. RNICs and their drivers
//! live on. Their ports go down, which they are told, and come up again when the links have trained and a subnet
//! manager has found them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tracing::{debug, error, info};
use vrnic_engine::memory::Memory;
use vrnic_engine::segment::{LidRoute, Path};
use vrnic_engine::subnet::{HcaPort, PortAnswer, PortRequest, Violation};
use vrnic_engine::time::Instant;
use vrnic_engine::{Rnic, Segment};
use vrnic_infiniband::agent::Agent;
use vrnic_infiniband::attributes::{PortInfo, PortState as State};
use vrnic_infiniband::hca::PORT;
use vrnic_infiniband::packet::{Body, Bth, Deth, GRH_NEXT_HEADER, Grh, Packet};
use vrnic_infiniband::port::Port;
use vrnic_infiniband::subnet::{LinkId, NodeId, Subnet};
use vrnic_infiniband::topology::{Kind, Topology};
use vrnic_infiniband::trap::{KeyViolation, Trap};
use vrnic_roce::{FrameError, encode_transport, parse_transport};
use vrnic_wire::port::{Mtu, NO_VLAN, PortState, SubnetPort, capability};

use crate::config::subnet::Source;
use crate::config::{Config, Device, FabricKind};
use crate::fabric::routing::Routing;

/// Number of spare ports of the switch that connects the RNICs if there is no topology.
const SPARE_PORTS: usize = 8;
/// Maximum number of packet buffers that are kept for reuse.
const MAX_SPARE: usize = 256;
/// Classes of subnet management along directed routes and by LID.
const SUBNET_CLASSES: [u8; 2] = [0x81, 0x01];

/// Maximum number of subnet events in a turn of the worker, so that a flood of packets does not delay the devices.
const STEPS: usize = 256;

/// A subnet, and the HCAs that have RNICs behind them.
pub struct SubnetFabric {
    topology: Topology,
    subnet: Subnet,
    /// How often the subnet was created again.
    restarts: u64,
    /// HCAs by the index of the device.
    ends: Vec<Option<End>>,
    devices: BTreeMap<NodeId, usize>,
    /// Packets for RNICs, each with the index of its device.
    arrived: VecDeque<(usize, Packet)>,
    /// Buffers of packets that are no longer in use.
    spare: Vec<Vec<u8>>,
    routing: Routing,
}

/// HCA of an RNIC.
struct End {
    node: NodeId,
    link: Option<LinkId>,
    /// Capabilities that the software behind the HCA has announced.
    capabilities: u32,
    /// What has been done at the HCA on behalf of its owner.
    done: Done,
    /// Port state that the engine knows. `None` if there is no engine, or it has not been told yet.
    known: Option<Known>,
    /// Number of packets that could not be sent, and of those that could not be parsed.
    unsent: u64,
    malformed: u64,
}

/// What has been done at an HCA since the subnet was created.
struct Done {
    /// Whether the link is as the control socket wants it. The topology may start with the link down.
    up: bool,
    /// Generation of the engine's groups, and the groups whose packets the HCA receives.
    groups: (u64, BTreeSet<u16>),
    /// Capabilities that the agent reports.
    capabilities: u32,
}

impl Done {
    const NOTHING: Self = Self {
        up: true,
        groups: (0, BTreeSet::new()),
        capabilities: 0,
    };
}

/// Port state that an engine has been told.
#[derive(PartialEq)]
struct Known {
    info: PortInfo,
    pkeys: Vec<u16>,
    guids: Vec<u64>,
}

impl Known {
    fn is(&self, port: &Port) -> bool {
        self.info == *port.info() && self.pkeys == port.pkeys() && self.guids == port.guids()
    }

    fn of(port: &Port) -> Self {
        Self {
            info: *port.info(),
            pkeys: port.pkeys().to_vec(),
            guids: port.guids().to_vec(),
        }
    }
}

/// Returns the topology of a configuration: the one that the configuration contains or names, or a switch with all
/// RNICs. The HCA of each RNIC has the GUID of the RNIC.
///
/// # Errors
/// The file cannot be read or is not valid, or lacks an HCA.
pub fn topology(config: &Config) -> Result<Topology> {
    let is_on = |device: &&Device| device.fabric == FabricKind::Infiniband;
    let devices: Vec<&Device> = config.devices.iter().filter(is_on).collect();
    let source = config.subnet.as_ref().map(|subnet| &subnet.topology);
    let mut topology = if let Some(Source::File(path)) = source {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the topology {}", path.display()))?;
        Topology::parse(&text).with_context(|| format!("in the topology {}", path.display()))?
    } else if let Some(Source::Here(here)) = source {
        Topology::new(here, "").context("in the topology")?
    } else {
        let ports = devices.len() + SPARE_PORTS;
        let mut text = format!("[[switch]]\nname = \"switch\"\nports = {ports}\n");
        for (device, port) in devices.iter().zip(1..) {
            let name = toml::Value::String(device.name.clone());
            writeln!(
                text,
                "[[hca]]\nname = {name}\n[[link]]\nends = [{name}, \"switch/{port}\"]"
            )?;
        }
        Topology::parse(&text).context("the default topology")?
    };
    for device in devices {
        let hca = |node: &&mut vrnic_infiniband::topology::Node| {
            node.name == device.hca() && node.kind == Kind::Hca
        };
        let node = topology.nodes.iter_mut().find(hca).with_context(|| {
            format!(
                "the topology has no HCA named {:?} for the device `{}`: name another one with hca",
                device.hca(),
                device.name
            )
        })?;
        // MAC addresses, and so GUIDs, may be consecutive, so the port cannot have the next GUID.
        (node.guid, node.port_guid) = (device.guid().0, device.guid().0);
    }
    Ok(topology)
}

impl SubnetFabric {
    /// Creates the subnet of a configuration, or returns `None` if no RNIC is on a subnet.
    ///
    /// # Errors
    /// The topology cannot be read or is not valid.
    pub fn new(config: &Config) -> Result<Option<Self>> {
        let is_on = |device: &Device| device.fabric == FabricKind::Infiniband;
        if !config.devices.iter().any(is_on) {
            return Ok(None);
        }
        let topology = topology(config)?;
        let subnet = Subnet::new(&topology);
        let (mut ends, mut devices) = (Vec::new(), BTreeMap::new());
        for (index, device) in config.devices.iter().enumerate() {
            let node = subnet.find(device.hca()).filter(|_| is_on(device));
            ends.push(node.map(|node| {
                devices.insert(node, index);
                End {
                    node,
                    link: subnet.peer(node, PORT).map(|(link, ..)| link),
                    capabilities: 0,
                    done: Done::NOTHING,
                    known: None,
                    unsent: 0,
                    malformed: 0,
                }
            }));
        }
        info!(
            nodes = topology.nodes.len(),
            links = topology.links.len(),
            devices = devices.len(),
            "InfiniBand subnet"
        );
        let mut fabric = Self {
            topology,
            subnet,
            restarts: 0,
            ends,
            devices,
            arrived: VecDeque::new(),
            spare: Vec::new(),
            routing: Routing::default(),
        };
        fabric.set_bare();
        Ok(Some(fabric))
    }

    /// Makes engines do what the software of a machine with an HCA does.
    fn set_bare(&mut self) {
        for &node in self.devices.keys() {
            self.subnet.set_bare(node);
        }
    }

    /// Works on the subnet, and creates it again if that panics.
    fn contained<R>(&mut self, work: impl FnOnce(&mut Subnet) -> R) -> Option<R> {
        // The state that a panic leaves behind is not used again.
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut self.subnet))).ok();
        if result.is_none() {
            self.restart();
        }
        result
    }

    /// Creates the subnet again. All switches and HCAs lose their state and their links. The configuration of the
    /// RNICs' HCAs is restored when their devices have their turns.
    fn restart(&mut self) {
        self.restarts += 1;
        if self.restarts.is_power_of_two() {
            error!(
                count = self.restarts,
                "the InfiniBand subnet panicked and restarts; the links of all its devices go down for a moment"
            );
        }
        let subnet = Subnet::beginning(&self.topology, self.subnet.now());
        let broken = std::mem::replace(&mut self.subnet, subnet);
        if catch_unwind(AssertUnwindSafe(|| drop(broken))).is_err() {
            error!("the InfiniBand subnet panicked again while it was taken down");
        }
        self.arrived.clear();
        self.routing = Routing::default();
        self.set_bare();
        for end in self.ends.iter_mut().flatten() {
            end.done = Done::NOTHING;
        }
    }

    /// Returns the subnet.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// Returns what is known about the routing of the subnet.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Changes the subnet now.
    pub fn change(&mut self, now: Instant, change: impl FnOnce(&mut Subnet)) {
        self.turn(now);
        change(&mut self.subnet);
    }

    /// Returns whether a device is on the subnet.
    pub fn has(&self, device: usize) -> bool {
        self.ends.get(device).is_some_and(Option::is_some)
    }

    /// Runs the subnet until now, or until it has handled the maximum number of events of a turn. The rest waits for
    /// the next turn. Also works on the search for credit loops. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        let end = Duration::from_nanos(now.as_nanos());
        let mut worked = self.subnet.next_event().is_some_and(|at| at <= end);
        self.contained(|subnet| {
            for _ in 0..STEPS {
                if !subnet.step(end) {
                    return subnet.run_until(end);
                }
            }
        });
        self.take_arrived();
        let mut routing = std::mem::take(&mut self.routing);
        let searched = self.contained(|subnet| {
            let searched = routing.turn(subnet, end);
            (routing, searched)
        });
        if let Some((routing, searched)) = searched {
            self.routing = routing;
            worked |= searched;
        }
        worked
    }

    /// Takes the packets that HCAs received for RNICs. HCAs without an RNIC have agents, and answer pings.
    fn take_arrived(&mut self) {
        while let Some((node, packet)) = self.subnet.receive() {
            if let Some(&device) = self.devices.get(&node) {
                self.arrived.push_back((device, packet));
            } else {
                self.contained(|subnet| subnet.answer_ping(node, &packet));
            }
        }
    }

    /// Returns when the next event happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let routing = self.routing.next_deadline(self.subnet.now());
        let at = self.subnet.next_event().into_iter().chain(routing).min()?;
        Some(Instant::from_nanos(
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
        ))
    }

    /// Returns the next packet for an RNIC, with the index of its device.
    pub fn next_packet(&mut self) -> Option<(usize, Packet)> {
        self.arrived.pop_front()
    }

    /// Converts `segment` of a device to a packet. Returns `None` if that is not possible, in which case the segment is
    /// lost.
    pub fn packet<M: Memory>(
        &mut self,
        device: usize,
        segment: &Segment<'_>,
        memory: &M,
    ) -> Option<Packet> {
        let path = &segment.path;
        let lids = path.lids?;
        let grh = lids.global.then_some(Grh {
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            next_header: GRH_NEXT_HEADER,
            hop_limit: path.hop_limit,
            source: path.source,
            destination: path.destination,
        });
        let mut rest = self.spare.pop().unwrap_or_default();
        match encode_transport(segment, memory, &mut rest) {
            Ok(bth) => {
                let addresses = (lids.source, lids.destination);
                let level = path.service_level;
                Some(Packet::of_transport(
                    addresses,
                    level,
                    grh,
                    Bth::parse(&bth),
                    rest,
                ))
            }
            Err(error) => {
                self.note_unsent(device, &error);
                self.spare.push(rest);
                None
            }
        }
    }

    /// Takes back the buffer of a packet that is no longer in use.
    pub fn recycle(&mut self, packet: Packet) {
        if self.spare.len() < MAX_SPARE {
            let (Body::Transport { rest, .. } | Body::Raw(rest)) = packet.body;
            self.spare.push(rest);
        }
    }

    /// Returns the bytes of a packet as the HCA of a device would send it, or `None` if the HCA refuses it.
    pub fn as_sent(&self, device: usize, packet: &Packet) -> Option<Vec<u8>> {
        let node = self.ends[device].as_ref()?.node;
        let packet = self.subnet.as_sent(node, packet.clone()).ok()?;
        Some(packet.to_bytes())
    }

    /// Sends a packet of a device's RNIC, at the time of the last [turn](Self::turn). Returns `false` if its HCA
    /// refuses the packet, which is then lost.
    pub fn send(&mut self, device: usize, packet: Packet) -> bool {
        let Some(node) = self.ends[device].as_ref().map(|end| end.node) else {
            return false;
        };
        let sent = self.contained(|subnet| subnet.send(node, packet));
        if let Some(Err(error)) = &sent {
            self.note_unsent(device, error);
        }
        // Packets to the RNIC itself have already arrived.
        self.take_arrived();
        matches!(sent, Some(Ok(())))
    }

    fn note_unsent(&mut self, device: usize, why: &dyn std::fmt::Display) {
        if let Some(end) = &mut self.ends[device] {
            end.unsent += 1;
            if end.unsent.is_power_of_two() {
                debug!(device, count = end.unsent, "dropped a packet: {why}");
            }
        }
    }

    /// Counts a packet for the RNIC of a device that is not a valid packet of the engine's transport.
    pub fn note_malformed(&mut self, device: usize, error: FrameError) {
        if let Some(end) = &mut self.ends[device] {
            end.malformed += 1;
            if end.malformed.is_power_of_two() {
                debug!(device, count = end.malformed, "dropped a packet: {error}");
            }
        }
    }

    /// Tells the HCA and the engine of a device about each other's changes. `up` says whether the control socket wants
    /// the link up.
    pub fn update(&mut self, device: usize, up: bool, rnic: Option<&mut Rnic>) {
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let (node, link) = (end.node, end.link);
        if std::mem::replace(&mut end.done.up, up) != up
            && let Some(link) = link
        {
            self.contained(|subnet| subnet.set_link(link, up));
        }
        // If the driver has reset the device, the engine is a new one and has not been told anything.
        let is_told = |rnic: &Rnic| rnic.hca_port().is_some_and(|port| !port.guids.is_empty());
        let knew = self.ends[device]
            .as_ref()
            .is_some_and(|end| end.known.is_some());
        if knew && !rnic.as_deref().is_some_and(is_told) {
            self.forget(device);
        }
        self.tell_capabilities(device);
        let Some(rnic) = rnic else {
            return;
        };
        while let Some(violation) = rnic.next_violation() {
            let trap = trap_of(&violation);
            self.contained(|subnet| {
                subnet.change_agent(node, |agent| {
                    agent.note_violations(trap, violation.count);
                });
            });
        }
        while let Some(request) = rnic.next_port_request() {
            let answer = self.serve(device, node, request);
            rnic.answer_port_request(answer);
        }
        let changes = self.contained(|subnet| subnet.take_changes(node));
        let reregister = changes.is_some_and(|changes| changes.reregister);
        let generation = rnic.group_generation();
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let port = self.subnet.agent(node).end_port();
        if reregister || !end.known.as_ref().is_some_and(|known| known.is(port)) {
            end.known = Some(Known::of(port));
            rnic.set_hca_port(hca_port(port), reregister);
        }
        if end.done.groups.0 != generation {
            let wanted: BTreeSet<u16> = rnic.group_lids().collect();
            let groups = (generation, wanted.clone());
            let had = std::mem::replace(&mut end.done.groups, groups).1;
            self.attach(node, &had, &wanted);
        }
    }

    /// Makes the HCA receive packets to the `wanted` groups, and no longer those to other groups that it had.
    fn attach(&mut self, node: NodeId, had: &BTreeSet<u16>, wanted: &BTreeSet<u16>) {
        self.contained(|subnet| {
            for &lid in wanted.symmetric_difference(had) {
                subnet.attach(node, lid, wanted.contains(&lid));
            }
        });
    }

    /// Undoes the settings of the software behind the HCA of a device, because the software is gone.
    fn forget(&mut self, device: usize) {
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let node = end.node;
        end.known = None;
        end.capabilities = 0;
        let (_, had) = std::mem::take(&mut end.done.groups);
        self.attach(node, &had, &BTreeSet::new());
    }

    /// Makes the agent of a device's HCA report the current capabilities.
    fn tell_capabilities(&mut self, device: usize) {
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let (node, capabilities) = (end.node, end.capabilities);
        if std::mem::replace(&mut end.done.capabilities, capabilities) != capabilities {
            self.contained(|subnet| {
                subnet.change_agent(node, |agent| {
                    let own = agent.end_port().info().capability_mask & !capability::ALL;
                    agent.set_capabilities(own | capabilities);
                });
            });
        }
    }

    /// Lets an agent do what a command asks for.
    fn serve(&mut self, device: usize, node: NodeId, request: PortRequest) -> PortAnswer {
        match request {
            PortRequest::Modify {
                set,
                clear,
                reset_bad_qkeys,
            } => {
                if let Some(end) = &mut self.ends[device] {
                    end.capabilities = end.capabilities & !clear | set;
                }
                self.tell_capabilities(device);
                if reset_bad_qkeys {
                    self.contained(|subnet| {
                        subnet.change_agent(node, Agent::reset_q_key_violations);
                    });
                }
                PortAnswer::Done
            }
            PortRequest::Mad {
                slid,
                service_level,
                mad,
            } => {
                let subnet_class = mad
                    .get(1)
                    .is_some_and(|class| SUBNET_CLASSES.contains(class));
                let bth = Bth {
                    destination_qp: u32::from(!subnet_class),
                    ..Bth::default()
                };
                let done = self.contained(|subnet| {
                    let own = subnet.agent(node).end_port().info().lid;
                    let packet =
                        Packet::datagram((slid, own), service_level, bth, Deth::default(), &mad);
                    subnet.process(node, &packet)
                });
                match done {
                    // The subnet that would have answered is gone.
                    None | Some(Some(None)) => PortAnswer::Done,
                    Some(None) => PortAnswer::Passed,
                    Some(Some(Some(answer))) => PortAnswer::Answered(answer),
                }
            }
        }
    }
}

/// Reads a packet that reached an RNIC.
///
/// # Errors
/// The packet is malformed, or not one of the transport.
pub fn read(packet: &Packet) -> Result<Segment<'_>, FrameError> {
    let Body::Transport { grh, bth, rest } = &packet.body else {
        return Err(FrameError::NotRoce);
    };
    let mut path = Path {
        service_level: packet.service_level,
        vlan: NO_VLAN,
        lids: Some(LidRoute {
            source: packet.source,
            destination: packet.destination,
            global: grh.is_some(),
        }),
        ..Path::default()
    };
    if let Some(grh) = grh {
        path.source = grh.source;
        path.destination = grh.destination;
        path.traffic_class = grh.traffic_class;
        path.flow_label = grh.flow_label;
        path.hop_limit = grh.hop_limit;
    }
    parse_transport(&bth.to_bytes(), rest, path)
}

/// Returns the port state for the engine.
fn hca_port(port: &Port) -> HcaPort {
    let info = port.info();
    let mtu = |code| Mtu::try_from(code).unwrap_or(Mtu::Mtu256);
    let state = match info.state {
        State::INIT => PortState::Initialize,
        State::ARMED => PortState::Armed,
        State::ACTIVE => PortState::Active,
        _ => PortState::Down,
    };
    // The verbs encoding has a bit for each speed, with the extended speeds after the others.
    let speed = match (info.speed_active, info.extended_speed_active) {
        (basic, 0) => basic.into(),
        (_, 1) => 16,
        (_, 2) => 32,
        (_, _) => 64,
    };
    HcaPort {
        state,
        max_mtu: mtu(info.mtu_cap),
        active_mtu: mtu(info.neighbor_mtu.min(info.mtu_cap)),
        width: info.width_active,
        speed,
        subnet: SubnetPort {
            gid_prefix: info.gid_prefix.into(),
            capability_mask: info.capability_mask.into(),
            lid: info.lid.into(),
            sm_lid: info.sm_lid.into(),
            lmc: info.lmc,
            sm_service_level: info.sm_sl,
            physical_state: info.physical_state.0,
            max_lanes: info.vl_cap,
            lanes: info.operational_vls,
            subnet_timeout: info.subnet_timeout,
            init_type_reply: info.init_type_reply,
            ..SubnetPort::default()
        },
        pkeys: port.pkeys().to_vec(),
        guids: port.guids().to_vec(),
        bad_pkeys: info.p_key_violations.into(),
        bad_qkeys: info.q_key_violations.into(),
    }
}

/// Returns the trap about a wrong key.
fn trap_of(violation: &Violation) -> Trap {
    let path = &violation.path;
    let lids = path.lids.unwrap_or_default();
    let details = KeyViolation {
        source: lids.source,
        destination: lids.destination,
        key: violation.key,
        service_level: path.service_level,
        source_qp: violation.source_qpn,
        destination_qp: violation.destination_qpn,
        source_gid: path.source,
        destination_gid: path.destination,
    };
    if violation.qkey {
        Trap::QKey(details)
    } else {
        Trap::PKey(details)
    }
}

/// Checks the subnet in the configuration.
///
/// # Errors
/// The configuration contradicts itself, or its topology is not valid.
pub fn check(config: &Config) -> Result<()> {
    let is_on = |device: &&Device| device.fabric == FabricKind::Infiniband;
    if config.subnet.is_some() {
        ensure!(
            config.devices.iter().any(|device| is_on(&device)),
            "[subnet], but no device has fabric = \"infiniband\""
        );
    }
    for device in config.devices.iter().filter(|device| device.hca.is_some()) {
        ensure!(
            is_on(&device) && config.subnet.is_some(),
            "the device `{}` has hca, but is not on a subnet with a topology",
            device.name
        );
    }
    let (mut guids, mut hcas) = (BTreeMap::new(), BTreeMap::new());
    for device in config.devices.iter().filter(is_on) {
        let other = hcas.insert(device.hca(), &device.name);
        ensure!(
            other.is_none(),
            "the devices `{}` and `{}` are the same HCA, {:?}",
            other.map_or("", |name| name.as_str()),
            device.name,
            device.hca()
        );
        let other = guids.insert(device.guid().0, &device.name);
        ensure!(
            other.is_none(),
            "the devices `{}` and `{}` on the subnet have the same node_guid",
            other.map_or("", |name| name.as_str()),
            device.name
        );
    }
    // Topology files are read only when the daemon starts.
    if let Some(Source::Here(_)) = config.subnet.as_ref().map(|subnet| &subnet.topology) {
        topology(config)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{
        Body as Kind, Payload, Position, Reth, SendTail, Service, Touched,
    };
    use vrnic_engine::testing::Memories;
    use vrnic_engine::{LinkLayer, RnicConfig};
    use vrnic_infiniband::agent::Answer;
    use vrnic_infiniband::attributes::{LinearForwarding, PhysicalState, SwitchInfo, id};
    use vrnic_infiniband::mad::{
        Header, MAD_LENGTH, MANAGEMENT_QKEY, Method, PERMISSIVE, PerformanceMad, Route, Smp,
        Status, class,
    };
    use vrnic_wire::event::EventType;

    fn config(text: &str) -> Config {
        let device = |number: u8| {
            format!(
                "[[device]]\nname = \"hca{number}\"\nsocket = \"{number}.sock\"\n\
                 mac = \"02:00:00:00:00:0{number}\"\nfabric = \"infiniband\"\n"
            )
        };
        Config::parse(&format!("{}{}{text}", device(0), device(1))).unwrap()
    }

    fn segment(global: bool) -> Segment<'static> {
        Segment {
            path: Path {
                source: [u8::from(global); 16],
                destination: [2 * u8::from(global); 16],
                service_level: 5,
                hop_limit: 3 * u8::from(global),
                vlan: NO_VLAN,
                lids: Some(LidRoute {
                    source: 7,
                    destination: 9,
                    global,
                }),
                ..Path::default()
            },
            source_qpn: 0,
            destination_qpn: 17,
            pkey: 0x8001,
            psn: Psn::new(5),
            solicited: true,
            ack_request: true,
            migrated: true,
            service: Service::Reliable,
            body: Kind::Write {
                position: Position::Only,
                reth: Some(Reth {
                    address: 1 << 40,
                    rkey: 77,
                    length: 5,
                }),
                immediate: Some(99),
            },
            payload: Payload::Bytes(b"bytes".to_vec()),
            checksums_ok: false,
            touched: Touched::NOT,
        }
    }

    #[test]
    fn a_network_device_of_the_same_guest_may_have_the_address_of_an_hca() {
        let port = |mac: u8| {
            format!(
                "[[switch.port]]\nname = \"n{mac}\"\nstream = \"n{mac}.sock\"\nmac = \"02:00:00:00:00:0{mac}\"\n"
            )
        };
        let ports = format!("{}{}", port(0), port(1));
        assert!(config(&ports).switch.is_some());
        // Two ports cannot have the same address.
        let twice = ports.replace("00:01\"", "00:00\"");
        let plain = "[[device]]\nname = \"a\"\nsocket = \"a.sock\"\nmac = \"02:00:00:00:00:09\"\n";
        assert!(Config::parse(&format!("{plain}{twice}")).is_err());
        // Nor can a port have the address of a device on Ethernet.
        assert!(Config::parse(&format!("{plain}{}", port(9))).is_err());
    }

    #[test]
    fn packets_come_back_as_the_segments_that_they_were() {
        let memory = Memories::new().add(0);
        let mut fabric = SubnetFabric::new(&config("")).unwrap().unwrap();
        for global in [false, true] {
            for body in [
                segment(global).body,
                Kind::Send {
                    position: Position::Only,
                    tail: SendTail::Immediate(4),
                },
            ] {
                let sent = Segment {
                    body,
                    ..segment(global)
                };
                let packet = fabric.packet(0, &sent, &memory).unwrap();
                // As the packet is on a link.
                let packet = Packet::parse(&packet.to_bytes()).unwrap();
                let came = read(&packet).unwrap();
                assert_eq!((came.path, came.body), (sent.path, sent.body));
                assert_eq!((came.pkey, came.psn), (sent.pkey, sent.psn));
                assert_eq!(came.destination_qpn, 17);
                assert!(came.solicited && came.ack_request);
                assert!(matches!(came.payload, Payload::Frame(b"bytes")));
            }
        }
        let packet = fabric.packet(0, &segment(false), &memory).unwrap();
        assert_eq!(
            fabric.as_sent(0, &packet),
            None,
            "nobody made the port active"
        );
        let raw = Packet {
            body: Body::Raw(vec![1; 8]),
            ..fabric.packet(0, &segment(false), &memory).unwrap()
        };
        assert!(read(&raw).is_err());
    }

    /// Sets an attribute of the named node as a manager does.
    fn set(fabric: &mut SubnetFabric, name: &str, attribute: u16, modifier: u32, data: [u8; 64]) {
        let node = fabric.subnet.find(name).unwrap();
        let request = Smp {
            data,
            ..Smp::request(Method::SET, attribute, modifier)
        };
        let now = fabric.subnet.now();
        let answer = (fabric.subnet).change_agent(node, |agent| agent.answer(&request, 1, now));
        let done = matches!(&answer, Answer::Respond(smp) if smp.header.status == Status::OK);
        assert!(done, "{answer:?}");
    }

    /// Assigns the LIDs 4 and 8 to the two HCAs as a manager does, and brings the ports up.
    fn manage(fabric: &mut SubnetFabric) {
        let mut ports = [0xff; 64];
        (ports[4], ports[8]) = (1, 2);
        let table = LinearForwarding { ports };
        set(fabric, "switch", id::LINEAR_FORWARDING, 0, table.to_data());
        let info = SwitchInfo {
            linear_top: 63,
            life_time: 18,
            ..SwitchInfo::default()
        };
        set(fabric, "switch", id::SWITCH_INFO, 0, info.to_data());
        for state in [State::ARMED, State::ACTIVE] {
            for (name, port, lid) in [
                ("hca0", 1, 4),
                ("hca1", 1, 8),
                ("switch", 1, 0),
                ("switch", 2, 0),
            ] {
                let node = fabric.subnet.find(name).unwrap();
                let info = PortInfo {
                    state,
                    physical_state: PhysicalState::NO_CHANGE,
                    lid,
                    sm_lid: 4,
                    ..*fabric.subnet.agent(node).port(port).unwrap().info()
                };
                set(fabric, name, id::PORT_INFO, port.into(), info.to_data());
            }
        }
    }

    /// Runs the subnet until the given time, and gives all devices their turns.
    fn turn(fabric: &mut SubnetFabric, rnics: &mut [Rnic; 2], up: [bool; 2], milliseconds: u64) {
        fabric.turn(Instant::from_nanos(milliseconds * 1_000_000));
        for (device, (rnic, up)) in rnics.iter_mut().zip(up).enumerate() {
            fabric.update(device, up, Some(rnic));
        }
    }

    fn states(rnics: &[Rnic; 2]) -> [PortState; 2] {
        rnics.each_ref().map(|rnic| rnic.hca_port().unwrap().state)
    }

    /// Sends a packet from the first device to the second one, and checks that it arrives.
    fn exchange(fabric: &mut SubnetFabric, milliseconds: u64) {
        let memory = Memories::new().add(0);
        let mut sent = segment(false);
        (sent.path.lids, sent.pkey) = (
            Some(LidRoute {
                source: 4,
                destination: 8,
                global: false,
            }),
            0xffff,
        );
        let packet = fabric.packet(0, &sent, &memory).unwrap();
        fabric.send(0, packet);
        fabric.turn(Instant::from_nanos(milliseconds * 1_000_000));
        // The first device also gets traps.
        let (_, packet) = std::iter::from_fn(|| fabric.next_packet())
            .find(|(device, _)| *device == 1)
            .unwrap();
        assert!(matches!(
            read(&packet).unwrap().payload,
            Payload::Frame(b"bytes")
        ));
        fabric.recycle(packet);
    }

    /// An HCA without a device answers pings. Those to the HCA of a device are for its guest.
    #[test]
    fn simulated_hcas_answer_pings() {
        let topology = "[[switch]]\nname = \"switch\"\nports = 2\n[[hca]]\nname = \"hca0\"\n[[hca]]\nname = \"hca1\"\n\
                        [[link]]\nends = [\"hca0\", \"switch/1\"]\n[[link]]\nends = [\"hca1\", \"switch/2\"]\n";
        let path = std::env::temp_dir().join(format!("vrnicd-pings-{}.toml", std::process::id()));
        std::fs::write(&path, topology).unwrap();
        let device = "[[device]]\nname = \"hca0\"\nsocket = \"0.sock\"\nmac = \"02:00:00:00:00:00\"\n\
                      fabric = \"infiniband\"\n";
        let one = format!("{device}[subnet]\ntopology = {path:?}\n");
        let mut mad = vec![0; MAD_LENGTH];
        Header::request(class::PING, Method::GET, 0, 0).write(&mut mad);
        mad[37..40].copy_from_slice(&vrnic_infiniband::ping::OUI);
        let bth = Bth {
            pkey: 0xffff,
            destination_qp: 1,
            ..Bth::default()
        };
        let deth = Deth {
            qkey: MANAGEMENT_QKEY,
            source_qp: 1,
        };
        for (config, answered) in [(Config::parse(&one).unwrap(), true), (config(""), false)] {
            let mut fabric = SubnetFabric::new(&config).unwrap().unwrap();
            fabric.turn(Instant::from_nanos(20_000_000));
            manage(&mut fabric);
            fabric.send(0, Packet::datagram((4, 8), 0, bth, deth, &mad));
            for milliseconds in 21..24 {
                fabric.turn(Instant::from_nanos(milliseconds * 1_000_000));
            }
            let is_ping = |packet: &Packet| {
                let datagram = packet.as_datagram();
                datagram.is_some_and(|(.., mad)| mad[1] == class::PING)
            };
            let pings: Vec<_> = std::iter::from_fn(|| fabric.next_packet())
                .filter(|(_, packet)| is_ping(packet))
                .collect();
            let [(device, packet)] = &pings[..] else {
                panic!("{pings:?}")
            };
            let (.., mad) = packet.as_datagram().unwrap();
            let method = if answered { 0x81 } else { 1 };
            assert_eq!((*device, mad[3]), (usize::from(!answered), method));
            assert_eq!(mad[40..].starts_with(b"hca1\0"), answered);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn after_a_panic_in_the_subnet_its_ports_come_up_again() {
        let mut fabric = SubnetFabric::new(&config("")).unwrap().unwrap();
        let config = RnicConfig {
            link_layer: LinkLayer::InfiniBand,
            ..RnicConfig::default()
        };
        let mut rnics = [(); 2].map(|()| Rnic::new(config.clone()));
        let up = [true; 2];
        turn(&mut fabric, &mut rnics, up, 20);
        manage(&mut fabric);
        turn(&mut fabric, &mut rnics, up, 21);
        assert_eq!(states(&rnics), [PortState::Active; 2]);
        let node = fabric.ends[0].as_ref().unwrap().node;
        let modify = PortRequest::Modify {
            set: capability::SUBNET_MANAGER,
            clear: 0,
            reset_bad_qkeys: false,
        };
        assert!(matches!(fabric.serve(0, node, modify), PortAnswer::Done));
        exchange(&mut fabric, 22);
        for rnic in &mut rnics {
            while rnic.next_async_event().is_some() {}
        }

        let before = fabric.subnet.now();
        // Both panics leave the subnet half changed.
        for _ in 0..2 {
            let done = fabric.contained(|subnet| {
                subnet.change_agent(node, |agent| agent.link_down(PORT));
                assert!(subnet.nodes().next().is_none(), "for a test");
            });
            assert!(done.is_none());
        }
        assert_eq!((fabric.restarts, fabric.subnet.now()), (2, before));

        // Both devices are told, and neither has failed.
        turn(&mut fabric, &mut rnics, up, 23);
        assert_eq!(states(&rnics), [PortState::Down; 2]);
        for rnic in &mut rnics {
            let events = std::iter::from_fn(|| rnic.next_async_event());
            let kinds: Vec<u16> = events.map(|event| event.event_type.get()).collect();
            assert!(kinds.contains(&EventType::PortError.raw()), "{kinds:?}");
        }
        // Only packets are lost.
        fabric.send(0, fabric_packet());
        // The settings of the control socket and of the software behind the HCA are restored, and the links train.
        turn(&mut fabric, &mut rnics, [true, false], 50);
        assert_eq!(states(&rnics), [PortState::Initialize, PortState::Down]);
        let told = |fabric: &SubnetFabric| {
            let info = *fabric.subnet.agent(node).end_port().info();
            info.capability_mask & capability::ALL
        };
        assert_eq!(told(&fabric), capability::SUBNET_MANAGER);
        assert!(
            fabric
                .contained(|_| -> () { panic!("for a test") })
                .is_none()
        );
        turn(&mut fabric, &mut rnics, [true, false], 51);
        turn(&mut fabric, &mut rnics, [true, false], 80);
        assert_eq!(states(&rnics), [PortState::Initialize, PortState::Down]);
        turn(&mut fabric, &mut rnics, up, 81);
        turn(&mut fabric, &mut rnics, up, 100);
        assert_eq!(states(&rnics), [PortState::Initialize; 2]);
        manage(&mut fabric);
        turn(&mut fabric, &mut rnics, up, 101);
        assert_eq!(states(&rnics), [PortState::Active; 2]);
        exchange(&mut fabric, 102);
        assert_eq!(told(&fabric), capability::SUBNET_MANAGER);
        // The driver of the first device is gone, and so are its settings.
        fabric.update(0, true, None);
        assert_eq!(told(&fabric), 0);
    }

    /// Generates requests of a driver to an agent: valid or nearly valid datagrams, and random ones.
    fn requests() -> impl Strategy<Value = PortRequest> {
        let method = prop_oneof![
            Just(Method::GET),
            Just(Method::SET),
            any::<u8>().prop_map(Method)
        ];
        let near = (
            method,
            0_u16..0x40,
            any::<u32>(),
            any::<[u8; 32]>(),
            any::<u64>(),
        )
            .prop_map(|(method, attribute, modifier, data, bits)| {
                let modifier = modifier >> (bits % 32);
                if bits & 1 << 40 == 0 {
                    let mut mad = PerformanceMad::request(method, attribute);
                    mad.data[..32].copy_from_slice(&data);
                    return mad.to_bytes().to_vec();
                }
                let mut smp = Smp::request(method, attribute, modifier);
                smp.data[..32].copy_from_slice(&data);
                smp.route =
                    Route::along(&data[..usize::from(data[0] % 4)]).filter(|_| bits & 1 << 41 == 0);
                smp.to_bytes().to_vec()
            });
        let anything = vec(any::<u8>(), MAD_LENGTH);
        let mads = (any::<(u16, u8)>(), prop_oneof![4 => near, 1 => anything]).prop_map(
            |((slid, service_level), mad)| PortRequest::Mad {
                slid,
                service_level: service_level & 0xf,
                mad,
            },
        );
        let modify = any::<(u32, u32, bool)>().prop_map(|(set, clear, reset_bad_qkeys)| {
            // The engine checks this.
            let set = set & capability::ALL;
            PortRequest::Modify {
                set,
                clear: clear & capability::ALL & !set,
                reset_bad_qkeys,
            }
        });
        prop_oneof![4 => mads, 1 => modify]
    }

    proptest! {
        #[test]
        fn whatever_a_driver_asks_of_its_hca_others_stay_as_they_are(
            requests in vec(requests(), 1..40),
        ) {
            let mut fabric = SubnetFabric::new(&config("")).unwrap().unwrap();
            fabric.turn(Instant::from_nanos(20_000_000));
            manage(&mut fabric);
            let [own, other] = [0, 1].map(|device| fabric.ends[device].as_ref().unwrap().node);
            let before = Known::of(fabric.subnet.agent(other).end_port());
            for (milliseconds, request) in (21..).zip(requests) {
                let answer = fabric.serve(0, own, request);
                if let PortAnswer::Answered(mad) = &answer {
                    prop_assert_eq!(mad.len(), MAD_LENGTH);
                }
                fabric.turn(Instant::from_nanos(milliseconds * 1_000_000));
            }
            prop_assert_eq!(fabric.restarts, 0);
            prop_assert!(before.is(fabric.subnet.agent(other).end_port()));
        }
    }

    /// Returns a valid packet.
    fn fabric_packet() -> Packet {
        let bth = Bth {
            pkey: 0xffff,
            destination_qp: 17,
            ..Bth::default()
        };
        Packet::datagram((4, 8), 0, bth, Deth::default(), b"bytes")
    }

    #[test]
    fn rnics_have_a_switch_or_a_topology() {
        let plain = topology(&config("")).unwrap();
        assert_eq!(plain.nodes.len(), 3);
        let hca = plain.nodes.iter().find(|node| node.name == "hca1").unwrap();
        assert_eq!(hca.guid, 0x0000_00ff_fe00_0001);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("topology.toml");
        let text = format!("[subnet]\ntopology = {:?}\n", path.display().to_string());
        let written = |topology: &str| {
            std::fs::write(&path, topology).unwrap();
            self::topology(&config(&text))
        };
        let more = "[fat-tree]\nspines = 2\nleaves = 2\nhosts = 2\n[[hca]]\nname = \"hca0\"\n[[hca]]\n\
                    name = \"hca1\"\n[[link]]\nends = [\"hca0\", \"spine1/3\"]\n[[link]]\nends = [\"hca1\", \"spine2/3\"]\n";
        let error = |topology: &str| format!("{:#}", written(topology).unwrap_err());
        assert!(error("[single]\nhosts = 2\n").contains("no HCA named \"hca0\""));
        assert!(error("[single]\nhosts = \n").contains("topology.toml"));
        let tree = written(more).unwrap();
        assert_eq!(tree.nodes.len(), 2 + 2 + 4 + 2);
        let hca = tree.nodes.iter().find(|node| node.name == "hca1").unwrap();
        assert_eq!((hca.guid, hca.port_guid), (0xff_fe00_0001, 0xff_fe00_0001));
        std::fs::remove_file(&path).unwrap();
        let missing = format!("{:#}", self::topology(&config(&text)).unwrap_err());
        assert!(missing.contains("cannot read the topology"), "{missing}");
    }

    #[test]
    fn a_device_takes_the_place_of_an_hca_of_the_topology() {
        let device = |number: u8, hca: &str| {
            format!(
                "[[device]]\nname = \"d{number}\"\nsocket = \"{number}.sock\"\nmac = \"02:00:00:00:00:0{number}\"\n\
                 fabric = \"infiniband\"\nhca = \"{hca}\"\n"
            )
        };
        let here = "[subnet.topology.ring]\nswitches = 3\nhosts = 1\n";
        let text = |hca: &str| format!("{}{}{here}", device(1, "switch2-h1"), device(2, hca));
        let config = Config::parse(&text("switch3-h1")).unwrap();
        let ring = topology(&config).unwrap();
        let guid = |name: &str| {
            ring.nodes
                .iter()
                .find(|node| node.name == name)
                .unwrap()
                .guid
        };
        assert_eq!(guid("switch2-h1"), 0x0000_00ff_fe00_0001);
        assert_eq!(guid("switch3-h1"), 0x0000_00ff_fe00_0002);
        let fabric = SubnetFabric::new(&config).unwrap().unwrap();
        assert!(fabric.has(0) && fabric.has(1));

        let refused = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let missing = refused(&text("switch2"));
        assert!(
            missing.contains("no HCA named \"switch2\" for the device `d2`"),
            "{missing}"
        );
        assert!(
            refused(&text("switch2-h1")).contains("`d1` and `d2` are the same HCA, \"switch2-h1\"")
        );
        let nowhere = device(1, "x");
        assert!(refused(&nowhere).contains("`d1` has hca"));
        let mistake = refused(&text("switch3-h1").replace("switches = 3", "switches = 2"));
        assert!(mistake.contains("line 14: `switches = 2`"), "{mistake}");
        let other = refused(&format!("{}[subnet]\ntopology = 7\n", device(1, "x")));
        assert!(
            other.contains("the path of a topology file, or a table"),
            "{other}"
        );
        let unknown = refused(&text("switch3-h1").replace("hosts", "guests"));
        assert!(unknown.contains("guests"), "{unknown}");
    }

    #[test]
    fn a_flood_takes_a_part_of_each_turn() {
        const PACKETS: usize = 2000;
        let mut fabric = SubnetFabric::new(&config("")).unwrap().unwrap();
        let at = |milliseconds: u64| Instant::from_nanos(milliseconds * 1_000_000);
        while fabric.turn(at(100)) {}
        let mut smp = Smp::request(Method::GET, id::NODE_INFO, 0);
        let mut route = Route::along(&[1]).unwrap();
        route.hop_pointer = 1;
        smp.route = Some(route);
        let bth = Bth {
            pkey: 0xffff,
            ..Bth::default()
        };
        let addresses = (PERMISSIVE, PERMISSIVE);
        let packet = Packet::datagram(addresses, 0, bth, Deth::default(), &smp.to_bytes());
        for _ in 0..PACKETS {
            fabric.send(0, packet.clone());
        }
        assert_eq!(fabric.ends[0].as_ref().unwrap().unsent, 0);
        let mut turns = 0;
        while fabric.turn(at(200)) {
            turns += 1;
            if turns == 1 {
                assert!(
                    fabric.next_deadline().unwrap() < at(200),
                    "there is more to do"
                );
                // A device that sends in this turn does not make it longer.
                let now = fabric.subnet.now();
                fabric.send(1, packet.clone());
                assert_eq!(fabric.subnet.now(), now);
            }
        }
        assert!((PACKETS / STEPS..100).contains(&turns), "{turns}");
        assert_eq!(fabric.subnet.now(), Duration::from_millis(200));
        assert_eq!(fabric.ends[1].as_ref().unwrap().unsent, 0);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let device = |number: u8, more: &str| {
            format!(
                "[[device]]\nname = \"d{number}\"\nsocket = \"{number}.sock\"\n\
                 mac = \"02:00:00:00:00:0{number}\"\n{more}\n"
            )
        };
        let nobody = device(1, "fabric = \"roce\"") + "[subnet]\ntopology = \"x\"\n";
        assert!(refused(&nobody).contains("no device has fabric = \"infiniband\""));
        let twice = "fabric = \"infiniband\"\nnode_guid = \"0000:0000:0000:0005\"";
        let twice = device(1, twice) + &device(2, twice);
        assert!(refused(&twice).contains("`d1` and `d2` on the subnet have the same node_guid"));
        let port = device(1, "fabric = \"infiniband\"")
            + "[[switch.port]]\nname = \"p\"\ndevice = \"d1\"\n";
        assert!(refused(&port).contains("d1"));
        let unknown = device(1, "fabric = \"infiniband\"") + "[subnet]\ntopologie = \"x\"\n";
        assert!(refused(&unknown).contains("topologie"));
    }
}
