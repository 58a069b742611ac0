// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for a port on an InfiniBand subnet.

use super::Empty;
use crate::{port::SubnetPort, U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queries the settings that the subnet manager assigned to a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QuerySubnetPort {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QuerySubnetPort => SubnetPort, QuerySubnetPort, 8);

/// Number of P_Keys in a reply.
pub const PKEY_BLOCK: usize = 32;

/// Queries a part of the P_Key table of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPkeys {
    /// Port, 1.
    pub port: U32,
    /// Index of the first P_Key, less than `pkey_table_length`.
    pub first: U32,
}
command!(QueryPkeys => Pkeys, QueryPkeys, 8);

/// A part of a P_Key table.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Pkeys {
    /// P_Keys; 0 for empty entries and beyond the end of the table.
    pub pkeys: [U16; PKEY_BLOCK],
}
assert_layout!(Pkeys, 64, pkeys @ 0);

/// Number of GIDs in a reply.
pub const GID_BLOCK: usize = 8;

/// Queries a part of the GID table of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryGids {
    /// Port, 1.
    pub port: U32,
    /// Index of the first GID, less than `gid_table_length`.
    pub first: U32,
}
command!(QueryGids => Gids, QueryGids, 8);

/// A part of a GID table.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Gids {
    /// GIDs of 16 bytes each; 0 for empty entries and beyond the end of the table.
    pub gids: [u8; 16 * GID_BLOCK],
}
assert_layout!(Gids, 128, gids @ 0);

/// Bits of [`ModifyPort::flags`].
pub mod modify_port_flags {
    /// Resets the counter of Q_Key violations to 0.
    pub const RESET_QKEY_VIOLATIONS: u32 = 1 << 0;
    /// All bits with a meaning.
    pub const ALL: u32 = RESET_QKEY_VIOLATIONS;
}

/// Changes a port on behalf of the driver's users (IBTA volume 1, 11.2.1.4).
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyPort {
    /// Port, 1.
    pub port: U32,
    /// [`modify_port_flags`].
    pub flags: U32,
    /// Bits of the capability mask to set.
    pub set_capabilities: U32,
    /// Bits of the capability mask to clear; must not overlap the bits to set.
    pub clear_capabilities: U32,
}
command!(ModifyPort => Empty, ModifyPort, 16);

/// Length of a management datagram in bytes.
pub const MAD_LENGTH: usize = 256;

/// Bits of [`ProcessMad::flags`].
pub mod mad_flags {
    /// A local user of the driver sent the datagram. The agent of subnet management checks the
    /// M_Key all the same.
    pub const IGNORE_M_KEY: u32 = 1 << 0;
    /// All bits with a meaning.
    pub const ALL: u32 = IGNORE_M_KEY;
}

wire_enum! {
    /// What an agent of the device did with a management datagram.
    pub enum MadResult: u32 {
        /// Nothing: the datagram is not for an agent of the device.
        Passed = 0,
        /// The agent responded; the reply contains the response.
        Answered = 1,
        /// The agent consumed the datagram, and there is no response.
        Consumed = 2,
    }
}

/// Passes a management datagram to the device's own agents. It either does not come from the
/// network, or it arrived at QP0 or QP1.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessMad {
    /// Port, 1.
    pub port: U32,
    /// [`mad_flags`].
    pub flags: U32,
    /// LID of the sender.
    pub slid: U16,
    /// Service level of the datagram.
    pub service_level: u8,
    /// Reserved; 0.
    pub reserved: [u8; 5],
    /// The datagram.
    pub mad: [u8; MAD_LENGTH],
}
command!(ProcessMad => MadProcessed, ProcessMad, 272);

/// Result of processing a management datagram.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MadProcessed {
    /// A [`MadResult`].
    pub result: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The response, or 0.
    pub mad: [u8; MAD_LENGTH],
}
assert_layout!(MadProcessed, 264, result @ 0, mad @ 8);
