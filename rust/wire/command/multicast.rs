// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for multicast groups.

use super::Empty;
use crate::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Attaches a queue pair of type UD to a multicast group; `Busy` if it is already attached.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachMulticast {
    /// Number of the queue pair.
    pub qpn: U32,
    /// InfiniBand: LID of the group; otherwise 0.
    pub lid: U16,
    /// Reserved; 0.
    pub reserved: U16,
    /// GID of the group, which must satisfy [`is_multicast`](crate::port::is_multicast).
    pub gid: [u8; 16],
}
command!(AttachMulticast => Empty, AttachMulticast, 24);

/// Detaches a queue pair from a multicast group.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DetachMulticast {
    /// Number of the queue pair.
    pub qpn: U32,
    /// InfiniBand: LID of the group; otherwise 0.
    pub lid: U16,
    /// Reserved; 0.
    pub reserved: U16,
    /// GID of the group.
    pub gid: [u8; 16],
}
command!(DetachMulticast => Empty, DetachMulticast, 24);
