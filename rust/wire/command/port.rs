// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for the port and its GID table.

use super::Empty;
use crate::{
    port::{GidEntry, PortAttributes},
    U32,
};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queries the attributes of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPort {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryPort => PortAttributes, QueryPort, 8);

/// Sets an entry of the GID table, whether it was in use or not.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetGid {
    /// Index of the entry, less than `gid_table_length`.
    pub index: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The entry.
    pub entry: GidEntry,
}
command!(SetGid => Empty, SetGid, 40);

/// Clears an entry of the GID table.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClearGid {
    /// Index of the entry, less than `gid_table_length`.
    pub index: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(ClearGid => Empty, ClearGid, 8);

/// Sets the maximum path MTU of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetMtu {
    /// Port, 1.
    pub port: U32,
    /// A [`Mtu`](crate::port::Mtu), at most `max_mtu` of the port.
    pub mtu: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
command!(SetMtu => Empty, SetMtu, 8);

/// Sets the administrative state of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetPortState {
    /// Port, 1.
    pub port: U32,
    /// A [`PortState`](crate::port::PortState).
    pub state: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
command!(SetPortState => Empty, SetPortState, 8);
