// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for extended reliable connections.

use super::{CreateSrq, Empty, SrqCreated};
use crate::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Creates an XRC domain, which does not belong to a context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateXrcd {
    /// Reserved; 0.
    pub reserved: [U32; 2],
}
command!(CreateXrcd => XrcdCreated, CreateXrcd, 8);

/// Reply to [`CreateXrcd`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct XrcdCreated {
    /// Number of the domain.
    pub xrcdn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(XrcdCreated, 8, xrcdn @ 0);

/// Destroys an XRC domain; `Busy` while shared receive queues or queue pairs belong to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyXrcd {
    /// Number of the domain.
    pub xrcdn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyXrcd => Empty, DestroyXrcd, 8);

/// Creates a shared receive queue for the queue pairs of an XRC domain.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateXrcSrq {
    /// Parameters of every shared receive queue.
    pub srq: CreateSrq,
    /// XRC domain of the queue.
    pub xrcdn: U32,
    /// Completion queue for the receives.
    pub cqn: U32,
}
command!(CreateXrcSrq => SrqCreated, CreateXrcSrq, 72);
