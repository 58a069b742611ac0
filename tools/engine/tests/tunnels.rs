// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows that look into tunnels, tag frames and drop them. What they match is compared with a model that knows what is
//! in a frame because it made the frame.

use crate::raw::{A, B, add, arrive, counted, dropped, end, frame, receive, to};
use proptest::{collection::vec, option, prelude::*, sample::select};
use vrnic_engine::{
    Cause, FlowSnapshot, RnicConfig, TunnelSnapshot,
    flow::{FlowEnd, Steered},
    recording::replay,
    testing::{Node, World},
};
use vrnic_wire::{
    command::{
        CreateFlow, CreateTunnelFlow, FlowFields, FlowType, MAX_FLOW_TAG, MAX_LABELS, MPLS_PORT,
        Status, TunnelFields, VXLAN_PORT, flow_flags,
    },
    completion::Status as Done,
};
use zerocopy::IntoBytes;

fn try_tunnel(
    world: &mut World,
    node: usize,
    flow: &CreateTunnelFlow,
) -> Result<u32, (Status, Cause)> {
    let Node { rnic, guest } = &mut world.nodes[node];
    Ok(guest.command(rnic, *flow)?.flow.get())
}

fn try_plain(world: &mut World, node: usize, flow: CreateFlow) -> Result<u32, (Status, Cause)> {
    let Node { rnic, guest } = &mut world.nodes[node];
    Ok(guest.command(rnic, flow)?.flow.get())
}

/// Addresses, protocol and ports of a packet of IP.
#[derive(Clone, Debug)]
struct Ip {
    six: bool,
    last: u8,
    options: usize,
    fragment: bool,
    protocol: u8,
}

impl Ip {
    /// Returns the packet around this payload.
    fn around(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        if self.six {
            packet.extend([0x60, 0, 0, 0, 0, 9, protocol, 64]);
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.last]);
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        } else {
            let more = if self.fragment { 0x20 } else { 0 };
            // The length is wrong, and does not matter.
            packet.extend([0x45 + self.options as u8, 0, 0, 1, 0, 0, more, 0]);
            packet.extend([64, protocol, 0, 0, 10, 0, 0, self.last, 10, 0, 0, 9]);
            packet.extend(vec![1; 4 * self.options]);
        }
        packet.extend(payload);
        packet
    }

    fn ether_type(&self) -> u16 {
        if self.six { 0x86dd } else { 0x0800 }
    }

    /// Whether it shows what is behind its header.
    fn is_whole(&self) -> bool {
        self.six || !self.fragment
    }

    /// Sets the fields of the packet, and those bits that exist.
    fn show(&self, protocol: u8, ports: Option<[u16; 2]>, to: &mut [FlowFields; 2]) {
        let [value, mask] = to;
        (mask.source, mask.destination) = ([0xff; 16], [0xff; 16]);
        value.source[15] = self.last;
        value.destination[15] = 9;
        if self.six {
            (value.source[0], value.destination[0]) = (0xfd, 0xfd);
            mask.flow_label = [0, 0x0f, 0xff, 0xff];
        } else {
            (value.source[12], value.destination[12]) = (10, 10);
        }
        (value.protocol, value.hop_limit) = (protocol, 64);
        (mask.protocol, mask.traffic_class, mask.hop_limit) = (0xff, 0xff, 0xff);
        if let Some([source, destination]) = ports.filter(|_| self.is_whole()) {
            (value.source_port, value.destination_port) =
                (source.to_be_bytes(), destination.to_be_bytes());
            (mask.source_port, mask.destination_port) = ([0xff; 2], [0xff; 2]);
        }
    }
}

/// A packet in a tunnel.
#[derive(Clone, Debug)]
enum Inner {
    /// It ends before its header does.
    Cut,
    Ip(Ip),
    Frame {
        vlan: Option<u16>,
        of: Box<Behind>,
    },
}

/// What is behind an Ethernet header.
#[derive(Clone, Debug)]
enum Behind {
    Ip(Ip),
    Mpls(Vec<u32>),
    Other,
}

/// A tunnel.
#[derive(Clone, Debug)]
enum Tunnel {
    None,
    /// Flags, identifier, and a frame.
    Vxlan(u8, u32, Inner),
    /// Flags, key, type of what is in it.
    Gre(u16, u32, u16, Inner),
    /// Labels and what is behind them.
    Labels(Vec<u32>, Inner),
}

/// A frame: an Ethernet header, IP and a tunnel in it, or a label stack behind the Ethernet header.
#[derive(Clone, Debug)]
struct Content {
    vlan: Option<u16>,
    /// None if the label stack follows the Ethernet header.
    ip: Option<Ip>,
    tunnel: Tunnel,
}

fn stack(labels: &[u32]) -> Vec<u8> {
    let count = labels.len();
    let entries = labels.iter().enumerate();
    entries
        .flat_map(|(index, label)| {
            let end = u32::from(index + 1 == count) << 8;
            (label << 12 | end | 64).to_be_bytes()
        })
        .collect()
}

fn ethernet(vlan: Option<u16>, ether_type: u16) -> Vec<u8> {
    let mut header = [&B[..], &A].concat();
    if let Some(vlan) = vlan {
        header.extend([0x81, 0]);
        header.extend(vlan.to_be_bytes());
    }
    header.extend(ether_type.to_be_bytes());
    header
}

fn show_ethernet(vlan: Option<u16>, ether_type: u16, to: &mut [FlowFields; 2]) {
    let [value, mask] = to;
    (value.destination_mac, value.source_mac) = (B, A);
    (mask.destination_mac, mask.source_mac) = ([0xff; 6], [0xff; 6]);
    if let Some(vlan) = vlan {
        (value.vlan_tag, mask.vlan_tag) = (vlan.to_be_bytes(), [0xff; 2]);
    }
    (value.ether_type, mask.ether_type) = (ether_type.to_be_bytes(), [0xff; 2]);
}

/// Ports of a packet with TCP or UDP.
const PORTS: [u16; 2] = [80, 0x1234];

impl Inner {
    fn bytes(&self) -> Vec<u8> {
        let ports = [&[0, 80, 0x12, 0x34][..], &[0; 16]].concat();
        match self {
            Self::Cut => vec![0x45; 13],
            Self::Ip(ip) => ip.around(ip.protocol, &ports),
            Self::Frame { vlan, of } => match &**of {
                Behind::Ip(ip) => {
                    let packet = ip.around(ip.protocol, &ports);
                    [ethernet(*vlan, ip.ether_type()), packet].concat()
                }
                Behind::Mpls(labels) => [ethernet(*vlan, 0x8848), stack(labels)].concat(),
                Behind::Other => [ethernet(*vlan, 0x88b5), ports].concat(),
            },
        }
    }

    /// Shows what a tunnel with frames has.
    fn show_frame(&self, fields: &mut [FlowFields; 2], tunnel: &mut [TunnelFields; 2]) {
        let Self::Frame { vlan, of } = self else {
            return;
        };
        match &**of {
            Behind::Ip(ip) => {
                show_ethernet(*vlan, ip.ether_type(), fields);
                ip.show(ip.protocol, Self::ports(ip), fields);
            }
            Behind::Mpls(labels) => {
                show_ethernet(*vlan, 0x8848, fields);
                show_label(labels, tunnel, |tunnel| &mut tunnel.mpls_inner);
            }
            Behind::Other => show_ethernet(*vlan, 0x88b5, fields),
        }
    }

    /// Shows what a tunnel with packets of IP has.
    fn show_packet(&self, fields: &mut [FlowFields; 2]) {
        if let Self::Ip(ip) = self {
            fields[0].ether_type = ip.ether_type().to_be_bytes();
            fields[1].ether_type = [0xff; 2];
            ip.show(ip.protocol, Self::ports(ip), fields);
        }
    }

    fn ports(ip: &Ip) -> Option<[u16; 2]> {
        [6, 17].contains(&ip.protocol).then_some(PORTS)
    }
}

fn show_label(
    labels: &[u32],
    tunnel: &mut [TunnelFields; 2],
    place: impl Fn(&mut TunnelFields) -> &mut [u8; 4],
) {
    let [value, mask] = tunnel;
    let bytes = stack(labels);
    place(value).copy_from_slice(&bytes[..4]);
    *place(mask) = [0xff; 4];
}

/// What a frame has: values and existing bits of its fields, of those of the tunnel, and of those of the packet in it.
#[derive(Debug, Default)]
struct Shown {
    outer: [FlowFields; 2],
    tunnel: [TunnelFields; 2],
    inner: [FlowFields; 2],
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        let udp = |port: u16, rest: Vec<u8>| {
            let [high, low] = port.to_be_bytes();
            (17, [vec![0, 80, high, low, 0, 8, 0, 0], rest].concat())
        };
        let Some(ip) = &self.ip else {
            let Tunnel::Labels(labels, inner) = &self.tunnel else {
                return ethernet(self.vlan, 0x88b5);
            };
            return [ethernet(self.vlan, 0x8847), stack(labels), inner.bytes()].concat();
        };
        let (protocol, payload) = match &self.tunnel {
            Tunnel::None => (
                ip.protocol,
                [&[0, 80, 0x12, 0x34][..], &[0x08; 40]].concat(),
            ),
            Tunnel::Vxlan(flags, vni, inner) => {
                let [_, a, b, c] = vni.to_be_bytes();
                let header = vec![*flags, 0, 0, 0, a, b, c, 0];
                udp(VXLAN_PORT, [header, inner.bytes()].concat())
            }
            Tunnel::Gre(flags, key, kind, inner) => {
                let mut header = [flags.to_be_bytes(), kind.to_be_bytes()].concat();
                if flags & 0x8000 != 0 {
                    header.extend([7; 4]);
                }
                if flags & 0x2000 != 0 {
                    header.extend(key.to_be_bytes());
                }
                if flags & 0x1000 != 0 {
                    header.extend([9; 4]);
                }
                let labels = match kind {
                    0x8847 => stack(&[77]),
                    _ => Vec::new(),
                };
                (47, [header, labels, inner.bytes()].concat())
            }
            Tunnel::Labels(labels, inner) => {
                udp(MPLS_PORT, [stack(labels), inner.bytes()].concat())
            }
        };
        let packet = ip.around(protocol, &payload);
        [ethernet(self.vlan, ip.ether_type()), packet].concat()
    }

    fn shown(&self) -> Shown {
        let mut shown = Shown::default();
        let Shown {
            outer,
            tunnel,
            inner: fields,
        } = &mut shown;
        let Some(ip) = &self.ip else {
            let Tunnel::Labels(labels, inner) = &self.tunnel else {
                show_ethernet(self.vlan, 0x88b5, outer);
                return shown;
            };
            show_ethernet(self.vlan, 0x8847, outer);
            show_label(labels, tunnel, |tunnel| &mut tunnel.mpls_over_ethernet);
            if labels.len() <= MAX_LABELS {
                inner.show_packet(fields);
            }
            return shown;
        };
        show_ethernet(self.vlan, ip.ether_type(), outer);
        match &self.tunnel {
            Tunnel::None => ip.show(ip.protocol, Inner::ports(ip), outer),
            Tunnel::Gre(..) => ip.show(47, None, outer),
            Tunnel::Vxlan(..) => ip.show(17, Some([80, VXLAN_PORT]), outer),
            Tunnel::Labels(..) => ip.show(17, Some([80, MPLS_PORT]), outer),
        }
        if !ip.is_whole() {
            return shown;
        }
        match &self.tunnel {
            Tunnel::None => {}
            Tunnel::Vxlan(flags, vni, inner) => {
                if flags & 8 != 0 {
                    (tunnel[0].vni, tunnel[1].vni) = (vni.to_be_bytes(), [0, 0xff, 0xff, 0xff]);
                    inner.show_frame(fields, tunnel);
                }
            }
            Tunnel::Gre(flags, key, kind, inner) => {
                // Routing, recursion, other versions.
                let unknown = [0x4000, 0x0800, 0x0400, 4, 2, 1];
                if unknown.iter().any(|bit| flags & bit != 0) {
                    return shown;
                }
                tunnel[0].gre_protocol = kind.to_be_bytes();
                tunnel[1].gre_protocol = [0xff; 2];
                if flags & 0x2000 != 0 {
                    (tunnel[0].gre_key, tunnel[1].gre_key) = (key.to_be_bytes(), [0xff; 4]);
                }
                match kind {
                    0x6558 => inner.show_frame(fields, tunnel),
                    0x8847 => {
                        show_label(&[77], tunnel, |tunnel| &mut tunnel.mpls_over_gre);
                        inner.show_packet(fields);
                    }
                    0x0800 | 0x86dd => {
                        // The type is that of the tunnel, also if the packet is not.
                        fields[0].ether_type = kind.to_be_bytes();
                        fields[1].ether_type = [0xff; 2];
                        if matches!(inner, Inner::Ip(ip) if ip.ether_type() == *kind) {
                            inner.show_packet(fields);
                        }
                    }
                    _ => {}
                }
            }
            Tunnel::Labels(labels, inner) => {
                show_label(labels, tunnel, |tunnel| &mut tunnel.mpls_over_udp);
                if labels.len() <= MAX_LABELS {
                    inner.show_packet(fields);
                }
            }
        }
        shown
    }
}

fn ip() -> impl Strategy<Value = Ip> {
    (
        any::<bool>(),
        1u8..3,
        0usize..=10,
        proptest::bool::weighted(0.1),
        select(vec![6u8, 17, 1]),
    )
        .prop_map(|(six, last, options, fragment, protocol)| Ip {
            six,
            last,
            options,
            fragment,
            protocol,
        })
}

fn labels() -> impl Strategy<Value = Vec<u32>> {
    vec(select(vec![3u32, 16, 0xf_ffff]), 1..=MAX_LABELS + 1)
}

fn inner() -> impl Strategy<Value = Inner> {
    let behind = prop_oneof![
        3 => ip().prop_map(Behind::Ip),
        1 => labels().prop_map(Behind::Mpls),
        1 => Just(Behind::Other),
    ];
    prop_oneof![
        1 => Just(Inner::Cut),
        3 => ip().prop_map(Inner::Ip),
        4 => (option::of(select(vec![5u16, 0xe005])), behind)
            .prop_map(|(vlan, of)| Inner::Frame { vlan, of: Box::new(of) }),
    ]
}

/// Packets in tunnels that carry frames, or that carry packets of IP, and how the tunnel says so.
fn tunnel() -> impl Strategy<Value = Tunnel> {
    let framed = || inner().prop_filter("a frame", |inner| !matches!(inner, Inner::Ip(_)));
    let packet = || inner().prop_filter("a packet", |inner| matches!(inner, Inner::Ip(_)));
    let gre = (
        select(vec![
            0u16, 0x2000, 0x8000, 0xb000, 0x03f8, 0x4000, 0x0400, 0x2001,
        ]),
        select(vec![0u32, 7, 0x700]),
    );
    let typed = prop_oneof![
        framed().prop_map(|inner| (0x6558, inner)),
        (select(vec![0x0800u16, 0x86dd, 0x8847, 0x88b5]), packet()),
    ];
    prop_oneof![
        1 => Just(Tunnel::None),
        3 => (select(vec![8u8, 8, 0xff, 0xf7]), select(vec![0u32, 5, 0xff_ffff]), framed())
            .prop_map(|(flags, vni, inner)| Tunnel::Vxlan(flags, vni, inner)),
        4 => (gre, typed)
            .prop_map(|((flags, key), (kind, inner))| Tunnel::Gre(flags, key, kind, inner)),
        3 => (labels(), packet()).prop_map(|(labels, inner)| Tunnel::Labels(labels, inner)),
    ]
}

fn content() -> impl Strategy<Value = Content> {
    (
        option::of(select(vec![0u16, 7])),
        option::weighted(0.8, ip()),
        tunnel(),
    )
        .prop_map(|(vlan, ip, tunnel)| Content { vlan, ip, tunnel })
}

/// A flow: from which frame the values are, which bytes of which fields count with which bits, priority, tag, and
/// flags.
type Rule = (Content, Vec<(usize, usize, u8)>, u16, u32, u32);

fn rule() -> impl Strategy<Value = Rule> {
    let byte = (0usize..3, 0usize..64, select(vec![0xffu8, 0x0f, 0x80]));
    let flags = [
        0,
        0,
        0,
        flow_flags::DONT_TRAP,
        flow_flags::DROP,
        flow_flags::ALL,
    ];
    (
        content(),
        vec(byte, 0..5),
        0u16..3,
        0u32..3,
        select(flags.to_vec()),
    )
}

/// Returns the request for a rule. Values are those of the frame, also where it lacks the field.
fn request(rule: &Rule, qpn: u32) -> CreateTunnelFlow {
    let (content, bytes, priority, tag, flags) = rule;
    let shown = content.shown();
    let mut flow = CreateTunnelFlow::default();
    flow.flow.qpn = qpn.into();
    flow.flow.port = 1;
    flow.flow.priority = (*priority).into();
    flow.flow.tag = (*tag).into();
    flow.flow.flags = (*flags).into();
    // The fields are in the places where the frame has some, so that flows match.
    for &(which, at, bits) in bytes {
        let (have, exists, value, mask) = match which {
            0 => (
                shown.outer[0].as_bytes(),
                shown.outer[1].as_bytes(),
                flow.flow.value.as_mut_bytes(),
                flow.flow.mask.as_mut_bytes(),
            ),
            1 => (
                shown.tunnel[0].as_bytes(),
                shown.tunnel[1].as_bytes(),
                flow.tunnel_value.as_mut_bytes(),
                flow.tunnel_mask.as_mut_bytes(),
            ),
            _ => (
                shown.inner[0].as_bytes(),
                shown.inner[1].as_bytes(),
                flow.inner_value.as_mut_bytes(),
                flow.inner_mask.as_mut_bytes(),
            ),
        };
        let there: Vec<usize> = (0..exists.len()).filter(|&at| exists[at] != 0).collect();
        let at = match there.len() {
            // Nothing is there: a field that no such frame has. These bytes are not reserved.
            0 => at % 4,
            count => there[at % count],
        };
        mask[at] = bits;
        value[at] = have[at] & bits;
    }
    flow
}

/// What the standard says, word by word: the queue pairs that get a frame with their tags, and whether it passes.
fn expected(flows: &[CreateTunnelFlow], content: &Content) -> (Vec<FlowEnd>, bool) {
    fn fits(have: &[impl IntoBytes + zerocopy::Immutable; 2], want: &[u8], mask: &[u8]) -> bool {
        let [value, exists] = [have[0].as_bytes(), have[1].as_bytes()];
        (0..want.len()).all(|at| mask[at] & !exists[at] == 0 && value[at] & mask[at] == want[at])
    }
    let shown = content.shown();
    let matches = |flow: &CreateTunnelFlow| {
        let plain = &flow.flow;
        fits(&shown.outer, plain.value.as_bytes(), plain.mask.as_bytes())
            && fits(
                &shown.tunnel,
                flow.tunnel_value.as_bytes(),
                flow.tunnel_mask.as_bytes(),
            )
            && fits(
                &shown.inner,
                flow.inner_value.as_bytes(),
                flow.inner_mask.as_bytes(),
            )
    };
    let mut get: Vec<FlowEnd> = Vec::new();
    let mut give = |flow: &CreateTunnelFlow| {
        let (qpn, tag) = (flow.flow.qpn.get(), flow.flow.tag.get());
        if !is_drop(flow) && get.iter().all(|end| end.qpn != qpn) {
            get.push(FlowEnd { qpn, tag });
        }
    };
    for priority in 0..3 {
        let same: Vec<_> = flows
            .iter()
            .filter(|flow| flow.flow.priority.get() == priority)
            .collect();
        for (index, flow) in same.iter().enumerate() {
            if !matches(flow) {
                continue;
            }
            give(flow);
            if flow.flow.flags.get() != flow_flags::DONT_TRAP {
                for other in same.iter().skip(index + 1) {
                    if is_equal(flow, other) {
                        give(other);
                    }
                }
                return (get, false);
            }
        }
    }
    (get, true)
}

fn is_drop(flow: &CreateTunnelFlow) -> bool {
    flow.flow.flags.get() & flow_flags::DROP != 0
}

/// Whether the flows are for the same frames.
fn is_equal(a: &CreateTunnelFlow, b: &CreateTunnelFlow) -> bool {
    (a.flow.value, a.flow.mask) == (b.flow.value, b.flow.mask)
        && (a.tunnel_value, a.tunnel_mask) == (b.tunnel_value, b.tunnel_mask)
        && (a.inner_value, a.inner_mask) == (b.inner_value, b.inner_mask)
}

/// Whether there can be no `new` flow beside the `old` one.
fn is_excluded(old: &CreateTunnelFlow, new: &CreateTunnelFlow) -> bool {
    let copies = |flow: &CreateTunnelFlow| flow.flow.flags.get() == flow_flags::DONT_TRAP;
    is_equal(old, new)
        && old.flow.priority == new.flow.priority
        && copies(old) == copies(new)
        && (is_drop(old) != is_drop(new) || new.flow.tag.get() != 0 && new.flow.tag != old.flow.tag)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever is in a tunnel, each frame goes where the standard says, and with the right tag.
    #[test]
    fn flows_look_into_tunnels_as_the_standard_says(
        rules in vec(rule(), 1..8),
        frames in vec(content(), 1..6),
    ) {
        let mut world = World::new(1, 512, &RnicConfig::default(), 1);
        let qpns: Vec<u32> = (0..3).map(|_| end(&mut world, 0).qp.qpn).collect();
        let mut flows: Vec<CreateTunnelFlow> = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let flow = request(rule, qpns[index % 3]);
            let excluded = flows.iter().any(|old| is_excluded(old, &flow));
            match try_tunnel(&mut world, 0, &flow) {
                Ok(_) => {
                    prop_assert!(!excluded);
                    flows.push(flow);
                }
                Err(refused) => {
                    prop_assert_eq!(refused, (Status::Exists, Cause::FlowExists));
                    prop_assert!(excluded);
                }
            }
        }
        let known = rules.iter().map(|rule| &rule.0);
        for content in frames.iter().chain(known) {
            let mut get = Vec::new();
            let bytes = content.bytes();
            let passes = world.nodes[0].rnic.flows().steer(&bytes, &mut get);
            prop_assert_eq!((get, passes), expected(&flows, content), "{:?}", content);
        }
    }

    /// A frame that ends anywhere, or is anything, matches no flow that the whole frame does not match.
    #[test]
    fn a_frame_that_ends_early_has_less(rule in rule(), cut in 14usize..200, noise in vec(any::<u8>(), 0..40)) {
        let mut world = World::new(1, 512, &RnicConfig::default(), 1);
        let qpn = end(&mut world, 0).qp.qpn;
        let flow = request(&rule, qpn);
        try_tunnel(&mut world, 0, &flow).expect("flow");
        let bytes = rule.0.bytes();
        let flows = world.nodes[0].rnic.flows();
        let takes = |bytes: &[u8]| !flows.steer(bytes, &mut Vec::new());
        let whole = takes(&bytes);
        let part = takes(&bytes[..cut.min(bytes.len())]);
        prop_assert!(whole || !part);
        // Nothing breaks if the rest is something else.
        takes(&[&bytes[..cut.min(bytes.len())], &noise].concat());
    }
}

/// Returns a flow for frames to B with this tag and these flags.
fn tagged(end: &vrnic_engine::testing::DatagramEnd, tag: u32, flags: u32) -> CreateFlow {
    CreateFlow {
        tag: tag.into(),
        flags: flags.into(),
        ..to(end, B)
    }
}

#[test]
fn completions_have_the_tags_of_flows() {
    let mut world = World::recorded(&[RnicConfig::default()], 512, 21);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 0));
    add(
        &mut world,
        0,
        tagged(&a, MAX_FLOW_TAG, flow_flags::DONT_TRAP),
    );
    let later = CreateFlow {
        priority: 1.into(),
        ..tagged(&a, 5, flow_flags::DONT_TRAP)
    };
    add(&mut world, 0, later);
    let last = CreateFlow {
        priority: 2.into(),
        ..tagged(&b, 6, 0)
    };
    add(&mut world, 0, last);
    add(&mut world, 0, to(&b, A));
    let mut tags = |world: &mut World, destination| {
        for end in [&mut a, &mut b] {
            receive(world, end, 100);
        }
        arrive(world, 0, &frame(destination, 60));
        [&mut a, &mut b].map(|end| {
            let done = end.recv_cq.drain();
            done.iter().map(|cqe| cqe.flow_tag).collect::<Vec<_>>()
        })
    };
    assert_eq!(tags(&mut world, B), [vec![MAX_FLOW_TAG], vec![6]]);
    assert_eq!(tags(&mut world, A), [vec![], vec![0]]);
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

#[test]
fn a_flow_can_drop_frames() {
    let mut world = World::recorded(&[RnicConfig::default()], 512, 22);
    let mut a = end(&mut world, 0);
    let group = [1, 0, 0x5e, 0, 0, 1];
    let gone = Steered {
        taken: true,
        passes: false,
    };
    let copies = CreateFlow {
        flags: flow_flags::DONT_TRAP.into(),
        ..to(&a, A)
    };
    add(&mut world, 0, copies);
    let mut drops = Vec::new();
    for destination in [A, B, group] {
        let flow = CreateFlow {
            flags: flow_flags::DROP.into(),
            priority: 1.into(),
            ..to(&a, destination)
        };
        drops.push(add(&mut world, 0, flow));
    }
    // Later flows, and those that get the rest, do not get what was dropped.
    let later = CreateFlow {
        priority: 2.into(),
        ..to(&a, B)
    };
    add(&mut world, 0, later);
    let rest = CreateFlow {
        flow_type: FlowType::AllDefault.raw(),
        value: FlowFields::default(),
        mask: FlowFields::default(),
        ..to(&a, B)
    };
    add(&mut world, 0, rest);
    for (destination, received) in [(A, 1), (B, 0), (group, 0)] {
        receive(&mut world, &mut a, 100);
        let steered = arrive(&mut world, 0, &frame(destination, 60));
        assert_eq!(steered, gone, "{destination:?}");
        let done = a.recv_cq.drain();
        assert_eq!(done.len(), received, "{destination:?}");
        assert!(done.iter().all(|cqe| cqe.status == Done::Success));
    }
    let counts = drops
        .iter()
        .map(|&flow| counted(&mut world, 0, flow).expect("counters"));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 60); 3]);
    assert_eq!(dropped(&world, 0), 0, "nothing was missed");
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

#[test]
fn actions_of_flows_for_the_same_frames_agree() {
    let exists = Err((Status::Exists, Cause::FlowExists));
    // The first flow, the second, and whether both can be there.
    let drop = flow_flags::DROP;
    let copy = flow_flags::DONT_TRAP;
    for (old, new, agree) in [
        ((0, 0), (0, 0), true),
        ((5, 0), (5, 0), true),
        ((5, 0), (0, 0), true),
        ((0, 0), (5, 0), false),
        ((5, 0), (6, 0), false),
        ((0, drop), (0, drop), true),
        ((0, drop), (0, 0), false),
        ((0, 0), (0, drop), false),
        // One leaves frames to others, and comes before the other one.
        ((5, copy), (6, 0), true),
        ((0, copy), (0, drop), true),
        ((0, drop | copy), (0, 0), false),
    ] {
        let mut world = World::new(1, 512, &RnicConfig::default(), 23);
        let a = end(&mut world, 0);
        add(&mut world, 0, tagged(&a, old.0, old.1));
        let added = try_plain(&mut world, 0, tagged(&a, new.0, new.1)).map(|_| ());
        let expected = if agree { Ok(()) } else { exists };
        assert_eq!(added, expected, "{old:?} {new:?}");
        // Other frames have nothing to do with it.
        let other = CreateFlow {
            priority: 1.into(),
            ..tagged(&a, new.0, new.1)
        };
        try_plain(&mut world, 0, other).expect("another priority");
    }
}

#[test]
fn each_fault_of_a_tunnel_flow_has_its_status() {
    use Status::{InvalidArgument, Malformed, NotFound, Unsupported};

    let mut world = World::new(1, 512, &RnicConfig::default(), 24);
    let a = end(&mut world, 0);
    let good = CreateTunnelFlow {
        flow: to(&a, A),
        ..CreateTunnelFlow::default()
    };
    let with = |change: &dyn Fn(&mut CreateTunnelFlow)| {
        let mut flow = good;
        change(&mut flow);
        flow
    };
    let default = with(&|flow| {
        flow.flow.flow_type = FlowType::AllDefault.raw();
        (flow.flow.value, flow.flow.mask) = Default::default();
    });
    let other = |change: &dyn Fn(&mut CreateTunnelFlow)| {
        let mut flow = default;
        change(&mut flow);
        flow
    };
    let cases = [
        (with(&|flow| flow.flow.qpn = 0xfff.into()), NotFound),
        (with(&|flow| flow.flow.port = 2), NotFound),
        (with(&|flow| flow.tunnel_value.reserved[0] = 1), Malformed),
        (with(&|flow| flow.tunnel_mask.reserved[5] = 1), Malformed),
        (with(&|flow| flow.inner_mask.reserved = 1), Malformed),
        (
            with(&|flow| flow.inner_value.reserved_tail[0] = 1),
            Malformed,
        ),
        (with(&|flow| flow.tunnel_value.vni[3] = 1), InvalidArgument),
        (with(&|flow| flow.inner_value.protocol = 1), InvalidArgument),
        (
            with(&|flow| flow.flow.tag = (1 << 24).into()),
            InvalidArgument,
        ),
        (
            with(&|flow| flow.flow.flags = (1 << 9).into()),
            InvalidArgument,
        ),
        (other(&|flow| flow.flow.tag = 1.into()), InvalidArgument),
        (
            other(&|flow| flow.flow.flags = flow_flags::DROP.into()),
            InvalidArgument,
        ),
        (other(&|flow| flow.tunnel_mask.vni[3] = 1), InvalidArgument),
        (other(&|flow| flow.inner_mask.protocol = 1), InvalidArgument),
    ];
    for (index, (flow, status)) in cases.into_iter().enumerate() {
        let refused = try_tunnel(&mut world, 0, &flow).map_err(|(status, _)| status);
        assert_eq!(refused, Err(status), "{index}");
    }
    try_tunnel(&mut world, 0, &good).expect("flow");
    try_tunnel(&mut world, 0, &default).expect("flow");

    for (raw_packets, tunnel_flows) in [(true, false), (false, true)] {
        let mut config = RnicConfig::default();
        config.features.raw_packets = raw_packets;
        config.features.tunnel_flows = tunnel_flows;
        let mut world = World::new(1, 512, &config, 25);
        let refused = try_tunnel(&mut world, 0, &good);
        assert_eq!(refused, Err((Unsupported, Cause::CommandCode)));
    }
    let mut config = RnicConfig::default();
    config.features.tunnel_flows = false;
    let mut world = World::new(1, 512, &config, 26);
    let a = end(&mut world, 0);
    let refused = try_plain(&mut world, 0, tagged(&a, 1, 0));
    assert_eq!(refused, Err((Malformed, Cause::ReservedField)));
    let refused = try_plain(&mut world, 0, tagged(&a, 0, flow_flags::DROP));
    assert_eq!(refused, Err((InvalidArgument, Cause::Flags)));
    try_plain(&mut world, 0, tagged(&a, 0, 0)).expect("a flow as before");
}

#[test]
fn what_a_flow_does_is_shown() {
    let mut world = World::new(1, 512, &RnicConfig::default(), 27);
    let a = end(&mut world, 0);
    let tunnel = TunnelSnapshot {
        value: TunnelFields {
            vni: [0, 0, 1, 2],
            ..TunnelFields::default()
        },
        mask: TunnelFields {
            vni: [0, 0xff, 0xff, 0xff],
            ..TunnelFields::default()
        },
        inner_value: FlowFields {
            protocol: 6,
            ..FlowFields::default()
        },
        inner_mask: FlowFields {
            protocol: 0xff,
            ..FlowFields::default()
        },
    };
    let flow = CreateTunnelFlow {
        flow: tagged(&a, 7, flow_flags::DROP),
        tunnel_value: tunnel.value,
        tunnel_mask: tunnel.mask,
        inner_value: tunnel.inner_value,
        inner_mask: tunnel.inner_mask,
    };
    try_tunnel(&mut world, 0, &flow).expect("flow");
    add(&mut world, 0, to(&a, A));
    let shown = world.nodes[0].rnic.flow_page(0, 10).expect("flows");
    let of = |flow: &FlowSnapshot| (flow.tunnel, flow.tag, flow.drops, flow.dont_trap);
    let shown: Vec<_> = shown.iter().map(of).collect();
    let expected = [(Some(tunnel), 7, true, false), (None, 0, false, false)];
    assert_eq!(shown, expected);
}
