// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Writes to device memory stay in their page.

#![forbid(unsafe_code)]

use virtio::{
    MappedPage,
    REGION_PAGE_SIZE, //
};

/// Writes beyond the end of a page.
pub fn beyond(page: &MappedPage<'_>) {
    page.write32::<{ REGION_PAGE_SIZE - 4 }>(1);
    #[cfg(refused)]
    page.write32::<REGION_PAGE_SIZE>(1); //~ E0080: write32::<4096>
}

/// Writes across two words.
pub fn unaligned(page: &MappedPage<'_>) {
    page.write32::<4>(1);
    #[cfg(refused)]
    page.write32::<2>(1); //~ E0080: write32::<2>
}
