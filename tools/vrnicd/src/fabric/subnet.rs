// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The InfiniBand subnet of this process: switches and HCAs of `vrnic_infiniband`, with an RNIC behind some of the
//! HCAs.
//!
//! The subnet runs in the worker's thread, and its time is that of the devices. An HCA has the agents of management,
//! and sees to it that an RNIC sends only with LIDs and P_Keys of its own. It does so whether or not a driver is there,
//! as the firmware of an adapter does. What a subnet manager makes of the port, the engine is told; the other way
//! round, agents do what commands ask for.
//!
//! Between devices packets travel as values: payload is read from guest memory once and written there once, and nobody
//! makes or checks a CRC unless a capture sees the bytes, or a link damages them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tracing::{debug, info};
use vrnic_engine::memory::Memory;
use vrnic_engine::segment::{LidRoute, Path};
use vrnic_engine::subnet::{HcaPort, PortAnswer, PortRequest, Violation};
use vrnic_engine::time::Instant;
use vrnic_engine::{Rnic, Segment};
use vrnic_infiniband::attributes::{PortInfo, PortState as State};
use vrnic_infiniband::hca::PORT;
use vrnic_infiniband::packet::{Body, Bth, Deth, GRH_NEXT_HEADER, Grh, Packet};
use vrnic_infiniband::port::Port;
use vrnic_infiniband::subnet::{LinkId, NodeId, Subnet};
use vrnic_infiniband::topology::{Kind, Topology};
use vrnic_infiniband::trap::{KeyViolation, Trap};
use vrnic_roce::{FrameError, encode_transport, parse_transport};
use vrnic_wire::port::{Mtu, NO_VLAN, PortState, SubnetPort, capability};

use crate::config::{Config, Device, FabricKind};

/// Ports of the switch that joins the RNICs if there is no topology, beside one for each of them.
const SPARE_PORTS: usize = 8;
/// Buffers for packets that are kept for reuse.
const MAX_SPARE: usize = 256;
/// Class of subnet management along directed routes, and by LID.
const SUBNET_CLASSES: [u8; 2] = [0x81, 0x01];

/// A subnet, and which of its HCAs RNICs are behind.
pub struct SubnetFabric {
    subnet: Subnet,
    /// By the index of the device.
    ends: Vec<Option<End>>,
    devices: BTreeMap<NodeId, usize>,
    /// Packets for RNICs, each with the index of the device.
    arrived: VecDeque<(usize, Packet)>,
    /// Buffers of packets that are not under way any more.
    spare: Vec<Vec<u8>>,
}

/// The HCA of an RNIC.
struct End {
    node: NodeId,
    link: Option<LinkId>,
    /// Whether the control socket wants the link; the topology may have begun without it.
    up: bool,
    /// What the engine knows; nothing if there is none, or one that was not told yet.
    known: Option<Known>,
    /// Groups whose packets the HCA takes, and of which state of the engine they are.
    groups: (u64, BTreeSet<u16>),
    /// Packets that could not leave, or could not be read.
    unsent: u64,
    malformed: u64,
}

/// What an engine was told.
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

/// The topology of a configuration: that of its file, or a switch with all RNICs. An HCA has the name of its RNIC, and
/// its GUID.
///
/// # Errors
/// The file cannot be read or makes no sense, or lacks an HCA.
pub fn topology(config: &Config) -> Result<Topology> {
    let is_on = |device: &&Device| device.fabric == FabricKind::Infiniband;
    let devices: Vec<&Device> = config.devices.iter().filter(is_on).collect();
    let file = config.subnet.as_ref().map(|subnet| &subnet.topology);
    let mut topology = if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the topology {}", path.display()))?;
        Topology::parse(&text).with_context(|| format!("in the topology {}", path.display()))?
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
            node.name == device.name && node.kind == Kind::Hca
        };
        let node = topology.nodes.iter_mut().find(hca).with_context(|| {
            format!(
                "the topology has no HCA named `{0}`, for the device `{0}`",
                device.name
            )
        })?;
        // MAC addresses, and so GUIDs, may follow each other: there is no next one for the port.
        (node.guid, node.port_guid) = (device.guid().0, device.guid().0);
    }
    Ok(topology)
}

impl SubnetFabric {
    /// The subnet of a configuration; none if no RNIC is on one.
    ///
    /// # Errors
    /// Its topology cannot be read or makes no sense.
    pub fn new(config: &Config) -> Result<Option<Self>> {
        let is_on = |device: &Device| device.fabric == FabricKind::Infiniband;
        if !config.devices.iter().any(is_on) {
            return Ok(None);
        }
        let topology = topology(config)?;
        let mut subnet = Subnet::new(&topology);
        let (mut ends, mut devices) = (Vec::new(), BTreeMap::new());
        for (index, device) in config.devices.iter().enumerate() {
            let node = subnet.find(&device.name).filter(|_| is_on(device));
            ends.push(node.map(|node| {
                subnet.set_bare(node);
                devices.insert(node, index);
                let link = subnet.peer(node, PORT).map(|(link, ..)| link);
                End {
                    node,
                    link,
                    up: true,
                    known: None,
                    groups: (0, BTreeSet::new()),
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
        Ok(Some(Self {
            subnet,
            ends,
            devices,
            arrived: VecDeque::new(),
            spare: Vec::new(),
        }))
    }

    /// Whether a device is on the subnet.
    pub fn has(&self, device: usize) -> bool {
        self.ends.get(device).is_some_and(Option::is_some)
    }

    /// Lets time pass until now. True if anything happened.
    pub fn turn(&mut self, now: Instant) -> bool {
        let end = Duration::from_nanos(now.as_nanos());
        let worked = self.subnet.next_event().is_some_and(|at| at <= end);
        self.subnet.run_until(end);
        self.take_arrived();
        worked
    }

    /// Takes what HCAs received for RNICs. Those without an RNIC have agents, and nobody behind them.
    fn take_arrived(&mut self) {
        while let Some((node, packet)) = self.subnet.receive() {
            if let Some(&device) = self.devices.get(&node) {
                self.arrived.push_back((device, packet));
            }
        }
    }

    /// When something happens next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = self.subnet.next_event()?;
        Some(Instant::from_nanos(
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
        ))
    }

    /// The next packet for an RNIC, with the index of its device.
    pub fn next_packet(&mut self) -> Option<(usize, Packet)> {
        self.arrived.pop_front()
    }

    /// The packet that `segment` of a device becomes; none if it cannot be one, and then it is lost.
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

    /// Takes back what a packet was made of that is not under way any more.
    pub fn recycle(&mut self, packet: Packet) {
        if self.spare.len() < MAX_SPARE {
            let (Body::Transport { rest, .. } | Body::Raw(rest)) = packet.body;
            self.spare.push(rest);
        }
    }

    /// The RNIC of a device sends a packet, at the time of the last [turn](Self::turn). Its HCA may refuse it: then
    /// it is lost.
    pub fn send(&mut self, device: usize, packet: Packet) {
        let Some(node) = self.ends[device].as_ref().map(|end| end.node) else {
            return;
        };
        if let Err(error) = self.subnet.send(node, packet) {
            self.note_unsent(device, &error);
        }
        // What goes to the RNIC itself is there already.
        self.take_arrived();
    }

    fn note_unsent(&mut self, device: usize, why: &dyn std::fmt::Display) {
        if let Some(end) = &mut self.ends[device] {
            end.unsent += 1;
            if end.unsent.is_power_of_two() {
                debug!(device, count = end.unsent, "a packet is lost: {why}");
            }
        }
    }

    /// A packet for the RNIC of a device is none of the transport that the engine knows.
    pub fn note_malformed(&mut self, device: usize, error: FrameError) {
        if let Some(end) = &mut self.ends[device] {
            end.malformed += 1;
            if end.malformed.is_power_of_two() {
                debug!(
                    device,
                    count = end.malformed,
                    "a packet is dropped: {error}"
                );
            }
        }
    }

    /// Lets the HCA and the engine of a device know of each other what changed. `up` is whether the control socket
    /// wants its link.
    pub fn update(&mut self, device: usize, up: bool, rnic: Option<&mut Rnic>) {
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let node = end.node;
        if let Some(link) = end
            .link
            .filter(|_| std::mem::replace(&mut end.up, up) != up)
        {
            self.subnet.set_link(link, up);
        }
        // The driver may have reset the device since: then the engine is another one, and knows nothing.
        let is_told = |rnic: &Rnic| rnic.hca_port().is_some_and(|port| !port.guids.is_empty());
        if end.known.is_some() && !rnic.as_deref().is_some_and(is_told) {
            self.forget(device);
        }
        let Some(rnic) = rnic else {
            return;
        };
        while let Some(violation) = rnic.next_violation() {
            let trap = trap_of(&violation);
            self.subnet
                .change_agent(node, |agent| agent.note_violation(trap));
        }
        while let Some(request) = rnic.next_port_request() {
            let answer = self.serve(node, request);
            rnic.answer_port_request(answer);
        }
        let changes = self.subnet.take_changes(node);
        let port = self.subnet.agent(node).end_port();
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        if changes.reregister || !end.known.as_ref().is_some_and(|known| known.is(port)) {
            end.known = Some(Known::of(port));
            rnic.set_hca_port(hca_port(port), changes.reregister);
        }
        let generation = rnic.group_generation();
        if end.groups.0 != generation {
            let wanted: BTreeSet<u16> = rnic.group_lids().collect();
            for &lid in wanted.symmetric_difference(&end.groups.1) {
                self.subnet.attach(node, lid, wanted.contains(&lid));
            }
            end.groups = (generation, wanted);
        }
    }

    /// The software behind the HCA of a device is gone: what it wanted of the HCA ends.
    fn forget(&mut self, device: usize) {
        let Some(end) = &mut self.ends[device] else {
            return;
        };
        let node = end.node;
        end.known = None;
        for lid in std::mem::take(&mut end.groups).1 {
            self.subnet.attach(node, lid, false);
        }
        self.subnet.change_agent(node, |agent| {
            let mask = agent.end_port().info().capability_mask & !capability::ALL;
            agent.set_capabilities(mask);
        });
    }

    /// An agent does what a command asks of it.
    fn serve(&mut self, node: NodeId, request: PortRequest) -> PortAnswer {
        match request {
            PortRequest::Modify {
                set,
                clear,
                reset_bad_qkeys,
            } => {
                self.subnet.change_agent(node, |agent| {
                    let mask = agent.end_port().info().capability_mask;
                    agent.set_capabilities(mask & !clear | set);
                    if reset_bad_qkeys {
                        agent.reset_q_key_violations();
                    }
                });
                PortAnswer::Done
            }
            PortRequest::Mad {
                ignore_m_key,
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
                let own = self.subnet.agent(node).end_port().info().lid;
                let deth = Deth::default();
                let packet = Packet::datagram((slid, own), service_level, bth, deth, &mad);
                match self.subnet.process(node, &packet, ignore_m_key) {
                    None => PortAnswer::Passed,
                    Some(None) => PortAnswer::Done,
                    Some(Some(answer)) => PortAnswer::Answered(answer),
                }
            }
        }
    }
}

/// Reads a packet that reached an RNIC.
///
/// # Errors
/// It is none of the transport, or one that is malformed.
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

/// What the engine is told of a port.
fn hca_port(port: &Port) -> HcaPort {
    let info = port.info();
    let mtu = |code| Mtu::try_from(code).unwrap_or(Mtu::Mtu256);
    let state = match info.state {
        State::INIT => PortState::Initialize,
        State::ARMED => PortState::Armed,
        State::ACTIVE => PortState::Active,
        _ => PortState::Down,
    };
    // The encoding of the verbs has a bit for each speed, those of the extended ones behind the others.
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

/// What the subnet manager is told of a wrong key.
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

/// Checks what the configuration says of the subnet.
///
/// # Errors
/// It contradicts itself, or its topology makes no sense.
pub fn check(config: &Config) -> Result<()> {
    let is_on = |device: &&Device| device.fabric == FabricKind::Infiniband;
    if config.subnet.is_some() {
        ensure!(
            config.devices.iter().any(|device| is_on(&device)),
            "[subnet], but no device has fabric = \"infiniband\""
        );
    }
    let mut guids = BTreeMap::new();
    for device in config.devices.iter().filter(is_on) {
        let other = guids.insert(device.guid().0, &device.name);
        ensure!(
            other.is_none(),
            "the devices `{}` and `{}` on the subnet have the same node_guid",
            other.map_or("", |name| name.as_str()),
            device.name
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{
        Body as Kind, Payload, Position, Reth, SendTail, Service, Touched,
    };
    use vrnic_engine::testing::Memories;

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
        // Two ports have not the same.
        let twice = ports.replace("00:01\"", "00:00\"");
        let plain = "[[device]]\nname = \"a\"\nsocket = \"a.sock\"\nmac = \"02:00:00:00:00:09\"\n";
        assert!(Config::parse(&format!("{plain}{twice}")).is_err());
        // Nor has one that of a device on Ethernet.
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
                // As it is on a link.
                let packet = Packet::parse(&packet.to_bytes()).unwrap();
                let came = read(&packet).unwrap();
                assert_eq!((came.path, came.body), (sent.path, sent.body));
                assert_eq!((came.pkey, came.psn), (sent.pkey, sent.psn));
                assert_eq!(came.destination_qpn, 17);
                assert!(came.solicited && came.ack_request);
                assert!(matches!(came.payload, Payload::Frame(b"bytes")));
            }
        }
        let raw = Packet {
            body: Body::Raw(vec![1; 8]),
            ..fabric.packet(0, &segment(false), &memory).unwrap()
        };
        assert!(read(&raw).is_err());
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
        assert!(error("[single]\nhosts = 2\n").contains("no HCA named `hca0`"));
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
