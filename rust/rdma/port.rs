// SPDX-License-Identifier: GPL-2.0

//! Ports.

use core::num::NonZeroU32;

use kernel::prelude::*;

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Number of a port; the first port is 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Port(NonZeroU32);

impl Port {
    /// The first port.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// Returns the first `count` ports.
    pub(crate) fn all(count: u32) -> impl ExactSizeIterator<Item = Self> {
        // CAST: `usize` has at least 32 bits. Numbers end with `count`.
        (0..count as usize).map(|index| Self(NonZeroU32::MIN.saturating_add(index as u32)))
    }

    /// Returns the number.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

impl Default for Port {
    fn default() -> Self {
        Self::FIRST
    }
}

impl TryFrom<u32> for Port {
    type Error = Error;

    fn try_from(number: u32) -> Result<Self> {
        NonZeroU32::new(number).map(Self).ok_or(EINVAL)
    }
}

c_enum! {
    /// Logical state of a port (`enum ib_port_state`).
    pub enum State: bindings::ib_port_state {
        /// No link.
        Down = bindings::ib_port_state_IB_PORT_DOWN,
        /// Waiting for a subnet manager.
        Init = bindings::ib_port_state_IB_PORT_INIT,
        /// Configured.
        Armed = bindings::ib_port_state_IB_PORT_ARMED,
        /// Usable.
        Active = bindings::ib_port_state_IB_PORT_ACTIVE,
    }
}

c_enum! {
    /// Path MTU: maximum payload of a packet (`enum ib_mtu`).
    pub enum Mtu: bindings::ib_mtu {
        /// 256 bytes.
        Mtu256 = bindings::ib_mtu_IB_MTU_256,
        /// 512 bytes.
        Mtu512 = bindings::ib_mtu_IB_MTU_512,
        /// 1024 bytes.
        Mtu1024 = bindings::ib_mtu_IB_MTU_1024,
        /// 2048 bytes.
        Mtu2048 = bindings::ib_mtu_IB_MTU_2048,
        /// 4096 bytes.
        Mtu4096 = bindings::ib_mtu_IB_MTU_4096,
    }
}

/// Link layer of a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// None of the named link layers.
    Unspecified,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

impl LinkLayer {
    /// Returns the C constant.
    pub(crate) const fn raw(self) -> bindings::rdma_link_layer {
        match self {
            Self::Unspecified => bindings::rdma_link_layer_IB_LINK_LAYER_UNSPECIFIED,
            Self::Ethernet => bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET,
            Self::InfiniBand => bindings::rdma_link_layer_IB_LINK_LAYER_INFINIBAND,
        }
    }
}

/// Protocol of a port, which determines how the core handles the port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RoCE version 2 only.
    RoceV2,
    /// RoCE versions 1 and 2.
    RoceV1AndV2,
    /// InfiniBand, with a subnet manager elsewhere in the subnet.
    InfiniBand,
    /// A protocol that the core does not know. The core and most users in the kernel ignore the
    /// port.
    Unspecified,
}

/// Maximum number of sysfs attributes in one allocation of the core for the tables of a port. The
/// core makes two allocations (`drivers/infiniband/core/sysfs.c`): one with two attributes for each
/// GID, and one with one attribute for each GID and each P_Key. `kmalloc` warns above its maximum
/// of 4 MiB, which is 128 bytes for each attribute.
const MOST_ATTRIBUTES: u32 = 1 << 15;

/// Attributes of a port that never change (`struct ib_port_immutable`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Immutable {
    /// Protocol.
    pub protocol: Protocol,
    /// Length of the P_Key table.
    pub pkey_table_length: u16,
    /// Length of the GID table. Registration fails with more than 16384 GIDs, or with more than
    /// 32768 GIDs and P_Keys together.
    pub gid_table_length: u32,
    /// Whether the port has [raw packet](crate::qp::Type::RawPacket) queue pairs.
    pub raw_packets: bool,
}

impl Immutable {
    /// Writes the attributes into a zeroed C structure; [`EINVAL`] if the tables are too long.
    pub(crate) fn write(&self, raw: &mut bindings::ib_port_immutable) -> Result {
        raw.core_cap_flags = match self.protocol {
            Protocol::RoceV2 => bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP,
            Protocol::RoceV1AndV2 => {
                bindings::RDMA_CORE_PORT_IBA_ROCE | bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP
            }
            Protocol::InfiniBand => bindings::RDMA_CORE_PORT_IBA_IB,
            Protocol::Unspecified => 0,
        };
        if self.raw_packets {
            raw.core_cap_flags |= bindings::RDMA_CORE_PORT_RAW_PACKET;
        }
        let attributes = self
            .gid_table_length
            .saturating_add(self.gid_table_length.max(self.pkey_table_length.into()));
        if attributes > MOST_ATTRIBUTES {
            return Err(EINVAL);
        }
        raw.pkey_tbl_len = self.pkey_table_length.into();
        raw.gid_tbl_len = self.gid_table_length.try_into()?;
        raw.max_mad_size = match self.protocol {
            // Such a port has no management datagrams.
            Protocol::Unspecified => 0,
            _ => bindings::IB_MGMT_MAD_SIZE,
        };
        Ok(())
    }
}

/// Settings that a subnet manager assigned to an InfiniBand port (IBTA volume 1, section 14.2.5.6).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Subnet {
    /// Lowest LID of the port.
    pub lid: u16,
    /// LMC: binary logarithm of the number of LIDs of the port.
    pub lid_mask_count: u8,
    /// LID of the subnet manager.
    pub manager_lid: u16,
    /// Service level for packets to the subnet manager.
    pub manager_service_level: u8,
    /// Subnet timeout, the maximum time a packet takes to its destination: 4.096 µs times 2 to this
    /// power.
    pub timeout: u8,
    /// Capabilities of the port: CapabilityMask.
    pub capabilities: u32,
    /// Physical state of the link (`enum ib_port_phys_state`).
    pub physical_state: u8,
    /// Number of data virtual lanes, in the encoding of VLCap.
    pub virtual_lanes: u8,
    /// Initialisation that the subnet manager reports as done: InitTypeReply.
    pub init_type_reply: u8,
}

impl Subnet {
    /// Returns whether each value fits its field. The core uses some of them as shift counts.
    fn is_valid(&self) -> bool {
        self.lid_mask_count < 1 << 3 && self.manager_service_level < 1 << 4 && self.timeout < 1 << 5
    }
}

/// A change of an InfiniBand port that a user in the kernel asks for (`struct ib_port_modify`; IBTA
/// volume 1, section 11.2.1.4).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortChange {
    /// Capability bits to set, for services that local software provides.
    pub set_capabilities: u32,
    /// Capability bits to clear.
    pub clear_capabilities: u32,
    /// Whether to reset the counter of Q_Key violations.
    pub reset_qkey_violations: bool,
}

impl PortChange {
    /// Converts a change from C. Changes without a name here are rejected with `EOPNOTSUPP`.
    pub(crate) fn from_raw(mask: c_int, raw: &bindings::ib_port_modify) -> Result<Self> {
        const RESET: u32 = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR;

        // CAST: A set of bits that C keeps in an `int`.
        let mask = mask as u32;
        if mask & !RESET != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Self {
            set_capabilities: raw.set_port_cap_mask,
            clear_capabilities: raw.clr_port_cap_mask,
            reset_qkey_violations: mask & RESET != 0,
        })
    }
}

/// Attributes of a port (`struct ib_port_attr`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// State.
    pub state: State,
    /// Maximum MTU.
    pub max_mtu: Mtu,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Number of lanes (`enum ib_port_width`).
    pub active_width: u8,
    /// Speed of each lane (`enum ib_port_speed`).
    pub active_speed: u16,
    /// Maximum message length in bytes.
    pub max_message_size: u32,
    /// Number of packets dropped for a bad P_Key.
    pub bad_pkey_count: u32,
    /// Number of packets dropped for a bad Q_Key.
    pub qkey_violation_count: u32,
    /// Whether GIDs are derived from IP addresses of the network device, as with RoCE.
    pub has_ip_gids: bool,
    /// Settings from the subnet manager, if the port has one.
    pub subnet: Option<Subnet>,
}

impl PortAttr {
    /// Writes the attributes of a port into a zeroed C structure, including the table lengths from
    /// `immutable`: the core allocated its tables according to those, but trusts the lengths found
    /// here.
    ///
    /// `EINVAL` if the driver returns a value that no subnet manager can assign.
    pub(crate) fn write(
        &self,
        immutable: &bindings::ib_port_immutable,
        raw: &mut bindings::ib_port_attr,
    ) -> Result {
        if self.subnet.is_some_and(|subnet| !subnet.is_valid()) {
            return Err(EINVAL);
        }
        // CAST: Constants that C keeps in a byte.
        raw.phys_state = match self.state {
            State::Down => bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8,
            _ => bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8,
        };
        raw.state = self.state.raw();
        raw.max_mtu = self.max_mtu.raw();
        raw.active_mtu = self.active_mtu.raw();
        raw.active_width = self.active_width;
        raw.active_speed = self.active_speed;
        raw.pkey_tbl_len = immutable.pkey_tbl_len.try_into()?;
        raw.gid_tbl_len = immutable.gid_tbl_len;
        raw.max_msg_sz = self.max_message_size;
        raw.bad_pkey_cntr = self.bad_pkey_count;
        raw.qkey_viol_cntr = self.qkey_violation_count;
        raw.port_cap_flags = bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;
        raw.max_vl_num = 1;
        raw.set_ip_gids(self.has_ip_gids.into());
        if let Some(subnet) = &self.subnet {
            raw.lid = subnet.lid.into();
            raw.lmc = subnet.lid_mask_count;
            raw.sm_lid = subnet.manager_lid.into();
            raw.sm_sl = subnet.manager_service_level;
            raw.subnet_timeout = subnet.timeout;
            raw.port_cap_flags = subnet.capabilities;
            raw.phys_state = subnet.physical_state;
            raw.max_vl_num = subnet.virtual_lanes;
            raw.init_type_reply = subnet.init_type_reply;
        }
        Ok(())
    }
}
