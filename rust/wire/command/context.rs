// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands about contexts.

use super::Empty;
use crate::{memory::PageList, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Who owns a context.
    pub enum ContextKind: u8 {
        /// A process: it may not use regions over all memory, nor the GSI queue pair.
        User = 0,
        /// The driver itself.
        Kernel = 1,
    }
}

/// Creates a context: a notify area and a doorbell page.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateContext {
    /// A [`ContextKind`].
    pub kind: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
    /// Doorbell slots; see [`notify::is_valid_slot_count`](crate::notify::is_valid_slot_count).
    pub slots: U32,
    /// The notify area, [`notify::area_length`](crate::notify::area_length) bytes, offset 0.
    pub area: PageList,
}
command!(CreateContext => ContextCreated, CreateContext, 40);

/// Reply to [`CreateContext`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ContextCreated {
    /// Number of the context.
    pub context: U32,
    /// Doorbell page of the context; meaningless without a doorbell region.
    pub doorbell_page: U32,
}
assert_layout!(ContextCreated, 8, context @ 0, doorbell_page @ 4);

/// Destroys a context; `Busy` while queue pairs or completion queues belong to it. Protection
/// domains outlive their context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyContext {
    /// Number of the context.
    pub context: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyContext => Empty, DestroyContext, 8);

/// Rings the doorbell of a context, as a write to its doorbell page would.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingDoorbell {
    /// Number of the context.
    pub context: U32,
    /// Slot with work.
    pub slot: U32,
}
command!(RingDoorbell => Empty, RingDoorbell, 8);

/// Says which process a context is for.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NameContext {
    /// Number of the context.
    pub context: U32,
    /// Number of the process, as the administrator of the guest sees it.
    pub pid: U32,
    /// What it is called, padded with zeros.
    pub name: [u8; 16],
}
command!(NameContext => Empty, NameContext, 24);
