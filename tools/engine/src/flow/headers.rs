// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The fields of a frame that flows can look at: those of its headers, of its tunnel, and of the packet in that.
//!
//! Lengths in headers do not matter, except those of headers: a header is complete if the frame contains its bytes.

use super::{FRAME_HEADER, FRAME_TAG};
use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice,
    SingleVlanHeaderSlice, ether_type,
};
use vrnic_wire::command::{FlowFields, MAX_LABELS, MPLS_PORT, TunnelFields, VXLAN_PORT};
use zerocopy::transmute;

/// Fields as words, which can be compared quickly.
pub(super) type Words = [u64; size_of::<FlowFields>() / 8];

/// Fields of a tunnel as words.
pub(super) type TunnelWords = [u64; size_of::<TunnelFields>() / 8];

/// Ethertype of an Ethernet frame in a tunnel.
const BRIDGED: EtherType = EtherType(0x6558);

/// Length of a header of UDP, and of one of VXLAN.
const UDP_HEADER: usize = 8;
const VXLAN_HEADER: usize = 8;

/// Length of an entry of a label stack.
const LABEL: usize = 4;

/// Returns whether a frame with this header, which must be complete, has a VLAN tag.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    let header = Ethernet2HeaderSlice::from_slice(frame);
    header.is_ok_and(|header| header.ether_type() == ether_type::VLAN_TAGGED_FRAME)
}

/// Returns the Ethertype of a frame, behind its tag if it has one, and where its payload begins. `None` if the header
/// or the tag is not complete.
pub(crate) fn network_of(frame: &[u8]) -> Option<(EtherType, usize)> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    if ethernet.ether_type() != ether_type::VLAN_TAGGED_FRAME {
        return Some((ethernet.ether_type(), FRAME_HEADER));
    }
    let tag = SingleVlanHeaderSlice::from_slice(&frame[FRAME_HEADER..]).ok()?;
    Some((tag.ether_type(), FRAME_HEADER + FRAME_TAG))
}

/// The fields of a frame, or of a packet of IP.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Headers<'a> {
    /// Values of the fields; 0 if the frame does not have them.
    pub(super) value: Words,
    /// The fields that the frame has.
    pub(super) present: Words,
    /// Whether the destination is a group address.
    pub(super) multicast: bool,
    /// What is behind the Ethernet header and the tag: its type and bytes.
    network: Option<(EtherType, &'a [u8])>,
    /// What is behind the header of IP, unless it is a fragment: its protocol and bytes.
    transport: Option<(IpNumber, &'a [u8])>,
}

impl<'a> Headers<'a> {
    /// Reads the fields of a frame. Returns `None` if it has no complete Ethernet header.
    pub(super) fn of(frame: &'a [u8]) -> Option<Self> {
        let (mut value, mut present) = (FlowFields::default(), FlowFields::default());
        let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        value.destination_mac = ethernet.destination();
        value.source_mac = ethernet.source();
        (present.destination_mac, present.source_mac) = ([0xff; 6], [0xff; 6]);
        let multicast = value.destination_mac[0] & 1 != 0;
        let Some((ether_type, start)) = network_of(frame) else {
            return Some(Self {
                value: transmute!(value),
                present: transmute!(present),
                multicast,
                ..Self::default()
            });
        };
        if start > FRAME_HEADER {
            value.vlan_tag = [frame[FRAME_HEADER], frame[FRAME_HEADER + 1]];
            present.vlan_tag = [0xff; 2];
        }
        let network = &frame[start..];
        Some(Self {
            multicast,
            network: Some((ether_type, network)),
            ..Self::behind(ether_type, network, value, present)
        })
    }

    /// Reads the fields of a packet of this type that begins without an Ethernet header.
    fn of_packet(ether_type: EtherType, packet: &'a [u8]) -> Self {
        Self::behind(
            ether_type,
            packet,
            FlowFields::default(),
            FlowFields::default(),
        )
    }

    /// Adds the fields of a packet of this type to those of the headers in front of it.
    fn behind(
        ether_type: EtherType,
        packet: &'a [u8],
        mut value: FlowFields,
        mut present: FlowFields,
    ) -> Self {
        value.ether_type = ether_type.0.to_be_bytes();
        present.ether_type = [0xff; 2];
        let transport = read_network(ether_type, packet, &mut value, &mut present);
        if let Some((IpNumber::TCP | IpNumber::UDP, bytes)) = transport
            && let Some([a, b, c, d]) = bytes.first_chunk::<4>()
        {
            (value.source_port, value.destination_port) = ([*a, *b], [*c, *d]);
            (present.source_port, present.destination_port) = ([0xff; 2], [0xff; 2]);
        }
        Self {
            value: transmute!(value),
            present: transmute!(present),
            transport,
            ..Self::default()
        }
    }
}

/// Reads the fields of IP. Returns what is in it unless it is a fragment.
fn read_network<'a>(
    ether_type: EtherType,
    packet: &'a [u8],
    value: &mut FlowFields,
    present: &mut FlowFields,
) -> Option<(IpNumber, &'a [u8])> {
    let (length, fragment) = match ether_type {
        ether_type::IPV4 => {
            let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
            value.source[12..].copy_from_slice(&ip.source());
            value.destination[12..].copy_from_slice(&ip.destination());
            value.protocol = ip.protocol().0;
            value.traffic_class = packet[1];
            value.hop_limit = ip.ttl();
            (ip.slice().len(), ip.is_fragmenting_payload())
        }
        ether_type::IPV6 => {
            let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
            value.source = ip.source();
            value.destination = ip.destination();
            value.flow_label = ip.flow_label().value().to_be_bytes();
            present.flow_label = [0, 0x0f, 0xff, 0xff];
            value.protocol = ip.next_header().0;
            value.traffic_class = ip.traffic_class();
            value.hop_limit = ip.hop_limit();
            (ip.slice().len(), false)
        }
        _ => return None,
    };
    (present.source, present.destination) = ([0xff; 16], [0xff; 16]);
    (present.protocol, present.traffic_class, present.hop_limit) = (0xff, 0xff, 0xff);
    (!fragment).then(|| (IpNumber(value.protocol), &packet[length..]))
}

/// The tunnel of a frame.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Tunnel<'a> {
    /// Values of its fields; 0 if it does not have them.
    pub(super) value: TunnelWords,
    /// The fields that it has.
    pub(super) present: TunnelWords,
    /// The fields of the packet in it.
    pub(super) inner: Headers<'a>,
}

impl<'a> Tunnel<'a> {
    /// Reads the first tunnel of a frame. It has no fields if there is none.
    pub(super) fn of(outer: &Headers<'a>) -> Self {
        let (mut value, mut present) = (TunnelFields::default(), TunnelFields::default());
        let inner = match (outer.network, outer.transport) {
            (Some((ether_type, packet)), _) if is_mpls(ether_type) => labelled(
                packet,
                &mut value.mpls_over_ethernet,
                &mut present.mpls_over_ethernet,
            ),
            (_, Some((IpNumber::UDP, bytes))) => in_udp(bytes, &mut value, &mut present),
            (_, Some((IpNumber::GRE, bytes))) => in_gre(bytes, &mut value, &mut present),
            _ => None,
        };
        let inner = inner.unwrap_or_default();
        if let Some((ether_type, packet)) = inner.network
            && is_mpls(ether_type)
        {
            labelled(packet, &mut value.mpls_inner, &mut present.mpls_inner);
        }
        Self {
            value: transmute!(value),
            present: transmute!(present),
            inner,
        }
    }
}

fn is_mpls(ether_type: EtherType) -> bool {
    [0x8847, 0x8848].contains(&ether_type.0)
}

/// Reads what a datagram with this header and payload carries. Returns the packet in the tunnel.
fn in_udp<'a>(
    bytes: &'a [u8],
    value: &mut TunnelFields,
    present: &mut TunnelFields,
) -> Option<Headers<'a>> {
    let (header, payload) = bytes.split_first_chunk::<UDP_HEADER>()?;
    match u16::from_be_bytes([header[2], header[3]]) {
        VXLAN_PORT => {
            let (header, frame) = payload.split_first_chunk::<VXLAN_HEADER>()?;
            // Without the flag I, the identifier is not valid.
            if header[0] & 0x08 == 0 {
                return None;
            }
            value.vni = [0, header[4], header[5], header[6]];
            present.vni = [0, 0xff, 0xff, 0xff];
            Headers::of(frame)
        }
        MPLS_PORT => labelled(
            payload,
            &mut value.mpls_over_udp,
            &mut present.mpls_over_udp,
        ),
        _ => None,
    }
}

/// Reads what a packet with this header of GRE carries. Returns the packet in the tunnel.
fn in_gre<'a>(
    bytes: &'a [u8],
    value: &mut TunnelFields,
    present: &mut TunnelFields,
) -> Option<Headers<'a>> {
    const CHECKSUM: u16 = 1 << 15;
    const KEY: u16 = 1 << 13;
    const SEQUENCE: u16 = 1 << 12;
    /// Routing, recursion and the version, without which the header has a known length.
    const NOT: u16 = 0x4c07;

    let (&[f0, f1, p0, p1], mut rest) = bytes.split_first_chunk::<4>()?;
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & NOT != 0 {
        return None;
    }
    let mut option = |flag| {
        if flags & flag == 0 {
            return Some(None);
        }
        let (word, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        Some(Some(*word))
    };
    let (_checksum, key, _sequence) = (option(CHECKSUM)?, option(KEY)?, option(SEQUENCE)?);
    (value.gre_protocol, present.gre_protocol) = ([p0, p1], [0xff; 2]);
    if let Some(key) = key {
        (value.gre_key, present.gre_key) = (key, [0xff; 4]);
    }
    match EtherType(u16::from_be_bytes([p0, p1])) {
        BRIDGED => Headers::of(rest),
        version @ (ether_type::IPV4 | ether_type::IPV6) => Some(Headers::of_packet(version, rest)),
        other if is_mpls(other) => {
            labelled(rest, &mut value.mpls_over_gre, &mut present.mpls_over_gre)
        }
        _ => None,
    }
}

/// Reads the first entry of a label stack. Returns the packet of IP behind the stack.
fn labelled<'a>(
    stack: &'a [u8],
    value: &mut [u8; LABEL],
    present: &mut [u8; LABEL],
) -> Option<Headers<'a>> {
    let first = stack.first_chunk::<LABEL>()?;
    (*value, *present) = (*first, [0xff; LABEL]);
    let mut entries = stack.chunks_exact(LABEL).take(MAX_LABELS);
    let last = entries.position(|entry| entry[2] & 1 != 0)?;
    let packet = &stack[(last + 1) * LABEL..];
    match packet.first()? >> 4 {
        4 => Some(Headers::of_packet(ether_type::IPV4, packet)),
        6 => Some(Headers::of_packet(ether_type::IPV6, packet)),
        _ => None,
    }
}
