// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for memory windows.

use super::Empty;
use crate::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Type of a memory window (IBTA volume 1, 10.6.7.2).
    pub enum MwType: u32 {
        /// Can be rebound at any time, by queue pairs of its protection domain.
        Type1 = 1,
        /// Type 2B: stays bound to the queue pair that bound it until it is invalidated.
        Type2 = 2,
    }
}

/// Allocates an unbound memory window.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateMw {
    /// Protection domain of the window.
    pub pd: U32,
    /// A [`MwType`].
    pub mw_type: U32,
}
command!(AllocateMw => MwAllocated, AllocateMw, 8);

/// Reply to [`AllocateMw`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MwAllocated {
    /// Key of the window, which cannot be used before the window is bound.
    pub key: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(MwAllocated, 8, key @ 0);

/// Deallocates a memory window, bound or not. The lowest byte of the key is ignored.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeallocateMw {
    /// Protection domain of the window.
    pub pd: U32,
    /// Key of the window.
    pub key: U32,
}
command!(DeallocateMw => Empty, DeallocateMw, 8);
