// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for memory regions.

use super::Empty;
use crate::{memory::PageList, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`RegisterMr::flags`].
pub mod mr_flags {
    /// The region is all memory that the device can address: addresses are bus addresses, `iova`
    /// and `pages` are 0. Only for protection domains of a kernel context.
    pub const ALL_MEMORY: u32 = 1 << 0;
    /// The region supports on-demand paging. It has no pages before
    /// [`MapPages`](crate::command::MapPages); `first_chunk` of `pages` is 0.
    pub const ON_DEMAND: u32 = 1 << 1;
    /// The pages of an [on-demand](ON_DEMAND) region are other such regions, which
    /// [`AttachRegion`](crate::command::AttachRegion) attaches.
    pub const NESTED: u32 = 1 << 2;
}

/// Registers a memory region.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// [`mr_flags`].
    pub flags: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Address by which work requests refer to the first byte.
    pub iova: U64,
    /// Memory of the region; its length is the length of the region.
    pub pages: PageList,
}
command!(RegisterMr => MrRegistered, RegisterMr, 56);

/// Reply to [`RegisterMr`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MrRegistered {
    /// Key of the region for local and remote use; chosen at random, never 0.
    pub key: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(MrRegistered, 8, key @ 0);

/// Deregisters a memory region; `Busy` while memory windows are bound to it. Work in progress that
/// uses the key fails. For a region for fast registration or an integrity region, the lowest byte
/// of the key is ignored.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeregisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
}
command!(DeregisterMr => Empty, DeregisterMr, 8);

/// Allocates a memory region for fast registration. It has no memory until a work request
/// [`RegisterRegion`](crate::work::SendOpcode::RegisterRegion) registers it. Only for protection
/// domains of a kernel context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Maximum number of pages of a registration.
    pub max_pages: U32,
    /// The table: room for the bus addresses of `max_pages` pages, each a [`U64`]; offset 0.
    pub table: PageList,
}
command!(AllocateMr => MrRegistered, AllocateMr, 40);

/// Allocates an integrity region. It has no memory until a work request
/// [`RegisterIntegrity`](crate::work::SendOpcode::RegisterIntegrity) registers it. Only for
/// protection domains of a kernel context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateIntegrityMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Maximum number of elements of data of a registration; at least 1.
    pub max_elements: U32,
    /// Maximum number of elements of metadata of a registration.
    pub max_metadata_elements: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The table: an [`IntegrityStatus`](crate::integrity::IntegrityStatus), then room for
    /// `max_elements` and then for `max_metadata_elements` elements, each an
    /// [`IntegrityElement`](crate::integrity::IntegrityElement); offset 0.
    pub table: PageList,
}
command!(AllocateIntegrityMr => MrRegistered, AllocateIntegrityMr, 48);

/// Bits of [`ReregisterMr::flags`].
pub mod reregister_flags {
    /// The memory and the key of the region change.
    pub const TRANSLATION: u32 = 1 << 0;
    /// The protection domain of the region changes.
    pub const PD: u32 = 1 << 1;
    /// The access rights of the region change.
    pub const ACCESS: u32 = 1 << 2;
}

/// Changes a memory region created by [`RegisterMr`]; `Busy` while memory windows are bound to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReregisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// [`reregister_flags`]: which of the following members are used.
    pub flags: U32,
    /// New protection domain.
    pub new_pd: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Address by which work requests refer to the first byte.
    pub iova: U64,
    /// Memory of the region.
    pub pages: PageList,
}
command!(ReregisterMr => MrRegistered, ReregisterMr, 64);
