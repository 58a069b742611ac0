// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for flows: which Ethernet frames of the port raw packet queue pairs receive.

use super::Empty;
use crate::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Type of a flow; numerically that of the verbs.
    pub enum FlowType: u8 {
        /// Frames that match the flow's fields.
        Normal = 0,
        /// All frames that no flow of the type `Normal` takes.
        AllDefault = 1,
        /// All multicast frames that no flow of the type `Normal` takes.
        MulticastDefault = 2,
    }
}

/// Bits of [`CreateFlow::flags`]; numerically those of the verbs.
pub mod flow_flags {
    /// The flow gets a copy of the frame, and does not take it away from others.
    pub const DONT_TRAP: u32 = 1 << 1;
    /// Nobody else gets the frames, nor does the queue pair. Not a bit of the verbs.
    pub const DROP: u32 = 1 << 8;
    /// All bits with a meaning.
    pub const ALL: u32 = DONT_TRAP | DROP;
}

/// Largest [`CreateFlow::tag`].
pub const MAX_FLOW_TAG: u32 = (1 << 24) - 1;

/// Fields of a frame, each in the byte order of the network.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FlowFields {
    /// Ethernet: MAC address of the destination.
    pub destination_mac: [u8; 6],
    /// Ethernet: MAC address of the source.
    pub source_mac: [u8; 6],
    /// Ethertype, in a tagged frame that behind the tag.
    pub ether_type: [u8; 2],
    /// VLAN tag: priority, drop eligibility and identifier.
    pub vlan_tag: [u8; 2],
    /// IP: source address. An IPv4 address is in the last 4 bytes, and the others are 0.
    pub source: [u8; 16],
    /// IP: destination address, likewise.
    pub destination: [u8; 16],
    /// IPv6: flow label, 20 bits.
    pub flow_label: [u8; 4],
    /// IP: protocol, or the next header of the fixed header.
    pub protocol: u8,
    /// IP: type of service or traffic class.
    pub traffic_class: u8,
    /// IP: time to live or hop limit.
    pub hop_limit: u8,
    /// Reserved; 0.
    pub reserved: u8,
    /// TCP and UDP: source port.
    pub source_port: [u8; 2],
    /// TCP and UDP: destination port.
    pub destination_port: [u8; 2],
    /// Reserved; 0.
    pub reserved_tail: [u8; 4],
}
assert_layout!(FlowFields, 64, destination_mac @ 0, source_mac @ 6, ether_type @ 12,
    vlan_tag @ 14, source @ 16, destination @ 32, flow_label @ 48, protocol @ 52,
    traffic_class @ 53, hop_limit @ 54, source_port @ 56, destination_port @ 58);

/// Directs frames that arrive at the port to a queue pair of type raw packet.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateFlow {
    /// Number of the queue pair.
    pub qpn: U32,
    /// A [`FlowType`].
    pub flow_type: u8,
    /// Port, 1.
    pub port: u8,
    /// Priority of a flow of type `Normal`: the lowest number goes first.
    pub priority: U16,
    /// [`flow_flags`].
    pub flags: U32,
    /// The [`flow_tag`](crate::completion::Cqe::flow_tag) of its frames, at most [`MAX_FLOW_TAG`];
    /// 0 unless the type is `Normal`.
    pub tag: U32,
    /// Values of the fields.
    pub value: FlowFields,
    /// Bits of the fields that have to be equal; all 0 unless the type is `Normal`.
    pub mask: FlowFields,
}
command!(CreateFlow => FlowCreated, CreateFlow, 144);

/// Fields of the headers between a packet and the packet in its tunnel, each in the byte order of
/// the network.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TunnelFields {
    /// VXLAN: network identifier, 24 bits.
    pub vni: [u8; 4],
    /// GRE: key.
    pub gre_key: [u8; 4],
    /// GRE: type of the packet in the tunnel.
    pub gre_protocol: [u8; 2],
    /// Reserved; 0.
    pub reserved: [u8; 6],
    /// MPLS behind the Ethernet header: first entry of the label stack.
    pub mpls_over_ethernet: [u8; 4],
    /// MPLS behind a GRE header, likewise.
    pub mpls_over_gre: [u8; 4],
    /// MPLS behind a UDP header, likewise.
    pub mpls_over_udp: [u8; 4],
    /// MPLS behind the Ethernet header of the packet in the tunnel, likewise.
    pub mpls_inner: [u8; 4],
}
assert_layout!(TunnelFields, 32, vni @ 0, gre_key @ 4, gre_protocol @ 8, mpls_over_ethernet @ 16,
    mpls_over_gre @ 20, mpls_over_udp @ 24, mpls_inner @ 28);

/// [`CreateFlow`] with fields of a tunnel. All masks are 0 unless the type is `Normal`.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateTunnelFlow {
    /// The flow, with the fields in front of the tunnel.
    pub flow: CreateFlow,
    /// Values of the fields of the tunnel.
    pub tunnel_value: TunnelFields,
    /// Bits of these fields that have to be equal.
    pub tunnel_mask: TunnelFields,
    /// Values of the fields of the packet in the tunnel.
    pub inner_value: FlowFields,
    /// Bits of these fields that have to be equal.
    pub inner_mask: FlowFields,
}
command!(CreateTunnelFlow => FlowCreated, CreateTunnelFlow, 336);

/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// UDP port of MPLS.
pub const MPLS_PORT: u16 = 6635;

/// Largest number of entries of a label stack behind which the device finds a packet.
pub const MAX_LABELS: usize = 5;

/// Reply to [`CreateFlow`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowCreated {
    /// Number of the flow, not 0.
    pub flow: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(FlowCreated, 8, flow @ 0);

/// Removes a flow.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyFlow {
    /// Number of the flow.
    pub flow: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyFlow => Empty, DestroyFlow, 8);

/// Reads the counters of a flow.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryFlow {
    /// Number of the flow.
    pub flow: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryFlow => FlowCounters, QueryFlow, 8);

/// Reply to [`QueryFlow`]: what the flow has got since it was created.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FlowCounters {
    /// Number of frames.
    pub packets: U64,
    /// Number of bytes in these frames.
    pub bytes: U64,
}
assert_layout!(FlowCounters, 16, packets @ 0, bytes @ 8);
