// SPDX-License-Identifier: GPL-2.0

//! GIDs and their table.

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::{
    bindings,
    port::Port, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A global identifier, most significant byte first.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Converts a GID from C.
    pub(crate) fn from_raw(raw: &bindings::ib_gid) -> Self {
        // SAFETY: All members of the union are plain bytes.
        Self(*unsafe { crate::compat::member(&raw.raw) })
    }
}

c_enum! {
    /// Packet format of a GID (`enum ib_gid_type`).
    pub enum Type: bindings::ib_gid_type {
        /// InfiniBand: packets with a GRH.
        InfiniBand = bindings::ib_gid_type_IB_GID_TYPE_IB,
        /// RoCE version 1: packets with their own EtherType and a GRH.
        RoceV1 = bindings::ib_gid_type_IB_GID_TYPE_ROCE,
        /// RoCE version 2: UDP over IPv4 or IPv6.
        RoceV2 = bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
    }
}

/// An entry of the GID table, which the core fills with the addresses of the network device
/// (`struct ib_gid_attr`).
pub struct GidAttr<'a>(&'a bindings::ib_gid_attr);

impl<'a> GidAttr<'a> {
    /// Wraps an entry.
    pub(crate) fn new(raw: &'a bindings::ib_gid_attr) -> Self {
        Self(raw)
    }

    /// Returns the index in the table.
    #[inline]
    pub fn index(&self) -> u32 {
        self.0.index.into()
    }

    /// Returns the port that the table belongs to.
    #[inline]
    pub fn port(&self) -> Result<Port> {
        Port::try_from(self.0.port_num)
    }

    /// Returns the GID.
    #[inline]
    pub fn gid(&self) -> Gid {
        Gid::from_raw(&self.0.gid)
    }

    /// Returns the type of the GID; `EINVAL` for types without a name here.
    #[inline]
    pub fn kind(&self) -> Result<Type> {
        Type::try_from(self.0.gid_type)
    }

    /// Returns the VLAN ID, if any, and the source MAC address of frames sent from the GID.
    pub fn link_layer(&self) -> Result<(Option<u16>, [u8; 6])> {
        /// `rdma_read_gid_l2_fields` returns this value for untagged frames.
        const NO_VLAN: u16 = 0xffff;

        let mut vlan = NO_VLAN;
        let mut mac = [0; 6];
        // SAFETY: The entry is valid, and both results have room.
        to_result(unsafe {
            bindings::rdma_read_gid_l2_fields(self.0, &mut vlan, mac.as_mut_ptr())
        })?;
        Ok(((vlan != NO_VLAN).then_some(vlan), mac))
    }
}
