// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for completion counters.

use super::Empty;
use crate::{memory::PageList, U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Counts of a completion counter, in memory and in replies.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompletionCounts {
    /// Number of operations that succeeded.
    pub completions: U64,
    /// Number of operations that failed or were flushed.
    pub errors: U64,
}
assert_layout!(CompletionCounts, 16, completions @ 0, errors @ 8);

/// Creates a completion counter whose counts are 0.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCompletionCounter {
    /// Context that owns the counter.
    pub context: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Memory of [`CompletionCounts`], in one page; offset a multiple of their size.
    pub pages: PageList,
}
command!(CreateCompletionCounter => CompletionCounterCreated, CreateCompletionCounter, 40);

/// Reply to [`CreateCompletionCounter`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionCounterCreated {
    /// Number of the counter, not 0.
    pub counter: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CompletionCounterCreated, 8, counter @ 0);

/// Operations that a completion counter counts for a queue pair.
pub mod counted_operations {
    /// Sends, with or without immediate data or invalidation, also in segments.
    pub const SEND: u32 = 1 << 0;
    /// Receives, also of writes with immediate data.
    pub const RECEIVE: u32 = 1 << 1;
    /// RDMA reads.
    pub const READ: u32 = 1 << 2;
    /// RDMA reads by the peer.
    pub const REMOTE_READ: u32 = 1 << 3;
    /// RDMA writes, with or without immediate data.
    pub const WRITE: u32 = 1 << 4;
    /// RDMA writes by the peer.
    pub const REMOTE_WRITE: u32 = 1 << 5;
    /// All operations.
    pub const ALL: u32 = SEND | RECEIVE | READ | REMOTE_READ | WRITE | REMOTE_WRITE;
}

/// Makes a completion counter count operations of a queue pair in state `Reset` or `Init`, until
/// that is destroyed. `Busy` if a counter counts one of these operations already.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachCompletionCounter {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Number of the counter.
    pub counter: U32,
    /// [`counted_operations`]; not 0.
    pub operations: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(AttachCompletionCounter => Empty, AttachCompletionCounter, 16);

wire_enum! {
    /// One of the counts of a completion counter.
    pub enum CompletionCount: u16 {
        /// [`CompletionCounts::completions`].
        Completions = 0,
        /// [`CompletionCounts::errors`].
        Errors = 1,
    }
}

wire_enum! {
    /// How [`ModifyCompletionCounter`] changes a count.
    pub enum CountChange: u16 {
        /// The count becomes the value.
        Set = 0,
        /// The value is added to the count.
        Add = 1,
    }
}

/// Changes a count of a completion counter.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyCompletionCounter {
    /// Number of the counter.
    pub counter: U32,
    /// A [`CompletionCount`].
    pub count: U16,
    /// A [`CountChange`].
    pub change: U16,
    /// The value.
    pub value: U64,
}
command!(ModifyCompletionCounter => Empty, ModifyCompletionCounter, 16);

/// Queries the counts of a completion counter.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCompletionCounter {
    /// Number of the counter.
    pub counter: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryCompletionCounter => CompletionCounts, QueryCompletionCounter, 8);

/// Destroys a completion counter; `Busy` while queue pairs have it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCompletionCounter {
    /// Number of the counter.
    pub counter: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyCompletionCounter => Empty, DestroyCompletionCounter, 8);
