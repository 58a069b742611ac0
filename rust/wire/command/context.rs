// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for contexts.

use super::Empty;
use crate::{memory::PageList, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Owner of a context.
    pub enum ContextKind: u8 {
        /// A process, which may use neither regions over all memory nor the GSI queue pair.
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
    /// Number of doorbell slots; see
    /// [`notify::is_valid_slot_count`](crate::notify::is_valid_slot_count).
    pub slots: U32,
    /// The notify area, of [`notify::area_length`](crate::notify::area_length) bytes, at offset 0.
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

/// Rings the doorbell of a context, like a write to its doorbell page.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingDoorbell {
    /// Number of the context.
    pub context: U32,
    /// Slot with work.
    pub slot: U32,
}
command!(RingDoorbell => Empty, RingDoorbell, 8);

/// Tells the device which process a context is for.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NameContext {
    /// Number of the context.
    pub context: U32,
    /// Process ID, as seen by the administrator of the guest.
    pub pid: U32,
    /// Name of the process, padded with zeros.
    pub name: [u8; 16],
}
command!(NameContext => Empty, NameContext, 24);
