// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Ports and their GID table.

use crate::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// State of a port; numerically the verbs port state.
    pub enum PortState: u8 {
        /// No link.
        Down = 1,
        /// InfiniBand: the link is up, and only subnet management packets pass.
        Initialize = 2,
        /// InfiniBand: configured, and about to become active.
        Armed = 3,
        /// Usable.
        Active = 4,
    }
}

wire_enum! {
    /// Path MTU; numerically the verbs MTU.
    pub enum Mtu: u8 {
        /// 256 bytes of payload.
        Mtu256 = 1,
        /// 512 bytes of payload.
        Mtu512 = 2,
        /// 1024 bytes of payload.
        Mtu1024 = 3,
        /// 2048 bytes of payload.
        Mtu2048 = 4,
        /// 4096 bytes of payload.
        Mtu4096 = 5,
    }
}

impl Mtu {
    /// Returns the payload in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

wire_enum! {
    /// Packet format of a GID.
    pub enum GidType: u8 {
        /// RoCE v1: Ethernet type 0x8915.
        RoceV1 = 0,
        /// RoCE v2: UDP over IPv4 or IPv6.
        RoceV2 = 1,
    }
}

impl GidType {
    /// Returns the name of the type in sysfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// `vlan` of a GID with untagged frames.
pub const NO_VLAN: u16 = 0xffff;

/// First 12 bytes of the GID of an IPv4 address.
pub const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Returns whether a GID is that of a multicast group, of IPv6 or IPv4.
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || gid.starts_with(&IPV4_MAPPED) && gid[12] & 0xf0 == 0xe0
}

/// An entry of the GID table.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GidEntry {
    /// The GID, most significant byte first.
    pub gid: [u8; 16],
    /// Source MAC address of frames from this GID.
    pub mac: [u8; 6],
    /// VLAN of the frames or [`NO_VLAN`].
    pub vlan: U16,
    /// A [`GidType`].
    pub gid_type: u8,
    /// Reserved; 0.
    pub reserved: [u8; 7],
}
assert_layout!(GidEntry, 32, gid @ 0, mac @ 16, vlan @ 22, gid_type @ 24);

/// Attributes of a port.
///
/// An InfiniBand port has more: [`SubnetPort`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortAttributes {
    /// A [`PortState`].
    pub state: u8,
    /// Maximum [`Mtu`].
    pub max_mtu: u8,
    /// [`Mtu`] in use.
    pub active_mtu: u8,
    /// Number of lanes; verbs encoding (1: 1X, 2: 4X, 4: 8X, 8: 12X, 16: 2X).
    pub active_width: u8,
    /// Speed of each lane; verbs encoding.
    pub active_speed: U16,
    /// Length of the P_Key table; at least 1.
    pub pkey_table_length: U16,
    /// Length of the GID table.
    pub gid_table_length: U32,
    /// Maximum message length in bytes.
    pub max_message_size: U32,
    /// Number of datagrams dropped for a bad P_Key.
    pub bad_pkey_count: U32,
    /// Number of datagrams dropped for a bad Q_Key.
    pub qkey_violation_count: U32,
    /// The [`PortState`] that the driver has set.
    pub administrative_state: u8,
    /// Reserved; 0.
    pub reserved: [u8; 7],
}
assert_layout!(PortAttributes, 32, state @ 0, active_speed @ 4, pkey_table_length @ 6,
    gid_table_length @ 8, max_message_size @ 12, bad_pkey_count @ 16, qkey_violation_count @ 20,
    administrative_state @ 24);

/// First LID of multicast groups, whose range ends with 0xfffe (IBTA volume 1, 4.1.3).
pub const MULTICAST_LID: u16 = 0xc000;

/// The permissive LID, which directed-route packets use instead of a LID.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// P_Key of the default partition, with full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Bit of a P_Key for full membership in the partition.
pub const FULL_MEMBERSHIP: u16 = 0x8000;

/// Bits of the capability mask that users of the driver can set.
pub mod capability {
    /// A subnet manager uses the port.
    pub const SUBNET_MANAGER: u32 = 1 << 1;
    /// A connection manager uses the port.
    pub const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    /// SNMP tunneling.
    pub const SNMP_TUNNELING: u32 = 1 << 17;
    /// Device management.
    pub const DEVICE_MANAGEMENT: u32 = 1 << 19;
    /// A vendor-specific management class.
    pub const VENDOR_CLASS: u32 = 1 << 20;
    /// All bits with a meaning here.
    pub const ALL: u32 = SUBNET_MANAGER
        | COMMUNICATION_MANAGEMENT
        | SNMP_TUNNELING
        | DEVICE_MANAGEMENT
        | VENDOR_CLASS;
}

/// Returns whether a LID is that of a multicast group.
pub const fn is_multicast_lid(lid: u16) -> bool {
    lid >= MULTICAST_LID && lid != PERMISSIVE_LID
}

/// Settings that the subnet manager assigned to an InfiniBand port (IBTA volume 1, 14.2.5.6).
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SubnetPort {
    /// Upper half of the port's GIDs as a number, of which the most significant byte comes first.
    pub gid_prefix: U64,
    /// Capability mask of PortInfo, as a number.
    pub capability_mask: U32,
    /// Base LID; 0 if there is none.
    pub lid: U16,
    /// LID of the subnet manager.
    pub sm_lid: U16,
    /// LID mask count: the port has 2 to this power LIDs, starting from the base LID.
    pub lmc: u8,
    /// Service level for packets to the subnet manager.
    pub sm_service_level: u8,
    /// Physical state of PortInfo: 2 is polling, 3 disabled, 4 training, 5 link up.
    pub physical_state: u8,
    /// Supported data lanes, in the encoding of PortInfo (1: 1, 2: 2, 3: 4, 4: 8, 5: 15).
    pub max_lanes: u8,
    /// Data lanes in use, in the same encoding.
    pub lanes: u8,
    /// Subnet timeout: 4.096 µs times 2 to this power.
    pub subnet_timeout: u8,
    /// Initialisation that the subnet manager reports as done: InitTypeReply of PortInfo.
    pub init_type_reply: u8,
    /// Reserved; 0.
    pub reserved: [u8; 9],
}
assert_layout!(SubnetPort, 32, gid_prefix @ 0, capability_mask @ 8, lid @ 12, sm_lid @ 14,
    lmc @ 16, sm_service_level @ 17, physical_state @ 18, max_lanes @ 19, lanes @ 20,
    subnet_timeout @ 21, init_type_reply @ 22);
