// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for on-demand memory regions.

use super::Empty;
use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Fetches the pages of an [on-demand](super::mr_flags::ON_DEMAND) region for which the device
/// waits. The device does not report them again unless they are needed once more after the answer.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakePageFault {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
}
command!(TakePageFault => PageFault, TakePageFault, 8);

/// Bits of [`PageFault::flags`].
pub mod fault_flags {
    /// The pages will be written.
    pub const WRITE: u32 = 1 << 0;
}

/// Reply to [`TakePageFault`].
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PageFault {
    /// First page.
    pub first_page: U32,
    /// Number of pages, some of which may already be present; 0 if the device waits for none.
    pub page_count: U32,
    /// [`fault_flags`].
    pub flags: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(PageFault, 16, first_page @ 0, page_count @ 4, flags @ 8);

/// Maps pages of an [on-demand](super::mr_flags::ON_DEMAND) region, or changes the rights of mapped
/// pages.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// First page.
    pub first_page: U32,
    /// Number of pages, 1 to [`TABLE_PAGES`](crate::memory::TABLE_PAGES).
    pub page_count: U32,
    /// Bus address, a multiple of 4096, of a table with an entry, a [`U64`], for each page. An
    /// entry consists of a bus address and [`page_flags`](crate::memory::page_flags).
    pub table: U64,
}
command!(MapPages => Empty, MapPages, 24);

/// Unmaps pages of an [on-demand](super::mr_flags::ON_DEMAND) region. The device accesses none of
/// them after the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnmapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// First page.
    pub first_page: U32,
    /// Number of pages, at least 1.
    pub page_count: U32,
}
command!(UnmapPages => Empty, UnmapPages, 16);

/// Tells the device that pages do not exist: work that waits for one of them fails.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RefusePages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// First page.
    pub first_page: U32,
    /// Number of pages, at least 1.
    pub page_count: U32,
}
command!(RefusePages => Empty, RefusePages, 16);

/// Makes an [on-demand](super::mr_flags::ON_DEMAND) region a page of a
/// [nested](super::mr_flags::NESTED) region, until it is deregistered, or the page of the nested
/// region is unmapped.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachRegion {
    /// Protection domain of both regions.
    pub pd: U32,
    /// Key of the nested region.
    pub key: U32,
    /// Page of the nested region.
    pub page: U32,
    /// Key of the attached region, which must have the length of a page and start at a page
    /// boundary.
    pub region: U32,
}
command!(AttachRegion => Empty, AttachRegion, 16);
