// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands about memory regions on demand.

use super::Empty;
use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks what pages of a region [on demand](super::mr_flags::ON_DEMAND) the device waits for. They
/// will not be told again unless they are needed once more after the answer.
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
    /// The first page.
    pub first_page: U32,
    /// Pages, some of which may be there; 0 if the device waits for none.
    pub page_count: U32,
    /// [`fault_flags`].
    pub flags: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(PageFault, 16, first_page @ 0, page_count @ 4, flags @ 8);

/// Gives pages to a region [on demand](super::mr_flags::ON_DEMAND), or other rights to pages that
/// it has.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, 1 to [`TABLE_PAGES`](crate::memory::TABLE_PAGES).
    pub page_count: U32,
    /// Bus address of a table with an entry, a [`U64`], for each page; a multiple of 4096. An entry
    /// is a bus address and [`page_flags`](crate::memory::page_flags).
    pub table: U64,
}
command!(MapPages => Empty, MapPages, 24);

/// Takes pages from a region [on demand](super::mr_flags::ON_DEMAND); the device accesses none of
/// them after the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnmapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, at least 1.
    pub page_count: U32,
}
command!(UnmapPages => Empty, UnmapPages, 16);

/// Says that there are no such pages: work that waits for one of them fails.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RefusePages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, at least 1.
    pub page_count: U32,
}
command!(RefusePages => Empty, RefusePages, 16);

/// Makes a region [on demand](super::mr_flags::ON_DEMAND) a page of a
/// [nested](super::mr_flags::NESTED) one, until it is deregistered, or the page is taken from the
/// nested region.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachRegion {
    /// Protection domain of both regions.
    pub pd: U32,
    /// Key of the nested region.
    pub key: U32,
    /// The page.
    pub page: U32,
    /// Key of the region that it is, which is as long as a page, and begins with a page.
    pub region: U32,
}
command!(AttachRegion => Empty, AttachRegion, 16);
