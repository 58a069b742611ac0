// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for shared receive queues.

use super::Empty;
use crate::{memory::PageList, ring::RingLayout, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Creates a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    /// Context that owns the queue.
    pub context: U32,
    /// Protection domain of its elements.
    pub pd: U32,
    /// Maximum scatter/gather elements of an entry.
    pub max_sge: U32,
    /// Number of receives below which an event is raised; 0 for no event.
    pub limit: U32,
    /// The ring.
    pub ring: RingLayout,
    /// Buffer of the ring, zeroed by the driver; offset 0.
    pub pages: PageList,
}
command!(CreateSrq => SrqCreated, CreateSrq, 64);

/// Reply to [`CreateSrq`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqCreated {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(SrqCreated, 8, srqn @ 0);

/// Sets the limit of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Number of receives below which an event is raised; 0 for no event.
    pub limit: U32,
}
command!(ModifySrq => Empty, ModifySrq, 8);

/// Moves a shared receive queue to another ring, which already contains the queue's entries.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeSrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The new ring.
    pub ring: RingLayout,
    /// Buffer of the new ring; offset 0.
    pub pages: PageList,
}
command!(ResizeSrq => Empty, ResizeSrq, 56);

/// Queries the attributes of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QuerySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QuerySrq => SrqAttributes, QuerySrq, 8);

/// Attributes of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqAttributes {
    /// The limit; 0 if it has been reached since it was set.
    pub limit: U32,
    /// Number of entries of the ring.
    pub entries: U32,
    /// Maximum scatter/gather elements of an entry.
    pub max_sge: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(SrqAttributes, 16, limit @ 0, entries @ 4, max_sge @ 8);

/// Destroys a shared receive queue; `Busy` while queue pairs use it. No event of the queue follows
/// the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroySrq => Empty, DestroySrq, 8);
