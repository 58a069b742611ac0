// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for protection domains.

use super::Empty;
use crate::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Creates a protection domain.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreatePd {
    /// Context that owns the domain.
    pub context: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(CreatePd => PdCreated, CreatePd, 8);

/// Reply to [`CreatePd`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PdCreated {
    /// Number of the protection domain.
    pub pd: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(PdCreated, 8, pd @ 0);

/// Destroys a protection domain; `Busy` while regions or queue pairs belong to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyPd {
    /// Number of the protection domain.
    pub pd: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyPd => Empty, DestroyPd, 8);
