// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for counters.

use super::Empty;
use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queries the counters of the port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCounters {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryCounters => Counters, QueryCounters, 8);

/// Maximum number of counters in a reply.
pub const MAX_COUNTERS: usize = 48;

/// Counters of the port, each at the index of its [`Counter`](crate::counter::Counter).
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counters {
    /// Values; 0 at indices without a counter.
    pub values: [U64; MAX_COUNTERS],
}
assert_layout!(Counters, MAX_COUNTERS * 8);

/// Creates a counter set with all values 0.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCounterSet {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(CreateCounterSet => CounterSetCreated, CreateCounterSet, 8);

/// Reply to [`CreateCounterSet`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CounterSetCreated {
    /// Number of the counter set, not 0.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CounterSetCreated, 8, counter_set @ 0);

/// Makes a queue pair count in a counter set.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindCounterSet {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Number of the counter set; 0 for none.
    pub counter_set: U32,
}
command!(BindCounterSet => Empty, BindCounterSet, 8);

/// Queries the values of a counter set.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCounterSet {
    /// Number of the counter set.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryCounterSet => Counters, QueryCounterSet, 8);

/// Destroys a counter set; `Busy` while queue pairs are bound to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCounterSet {
    /// Number of the counter set.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyCounterSet => Empty, DestroyCounterSet, 8);
