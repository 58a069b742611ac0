// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for completion queues.

use super::Empty;
use crate::{memory::PageList, ring::RingLayout, U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`CreateCq::flags`].
pub mod cq_flags {
    /// Completions are written even if there is no room for them.
    pub const IGNORE_OVERRUN: u16 = 1 << 0;
}

/// Creates a completion queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    /// Context that owns the queue.
    pub context: U32,
    /// Completion vector, less than `completion_vectors`.
    pub vector: U16,
    /// [`cq_flags`].
    pub flags: U16,
    /// The ring, with stride [`CQE_STRIDE`](crate::completion::CQE_STRIDE).
    pub ring: RingLayout,
    /// Buffer of the ring, zeroed by the driver; offset 0.
    pub pages: PageList,
}
command!(CreateCq => CqCreated, CreateCq, 56);

/// Reply to [`CreateCq`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqCreated {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CqCreated, 8, cqn @ 0);

/// Destroys a completion queue; `Busy` while queue pairs use it. No event of the queue follows the
/// reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyCq => Empty, DestroyCq, 8);

/// Moves a completion queue to another ring, in which no entry is valid. Completions that were
/// written earlier remain in the old ring, and count as used entries of the new one.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The new ring.
    pub ring: RingLayout,
    /// Buffer of the new ring; offset 0.
    pub pages: PageList,
}
command!(ResizeCq => Empty, ResizeCq, 56);

/// Sets the moderation of a completion queue's events.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Number of completions to wait for before an event; 0 and 1 disable moderation.
    pub count: U16,
    /// Maximum delay of an event in microseconds; 0 disables moderation.
    pub period: U16,
}
command!(ModifyCq => Empty, ModifyCq, 8);
