// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Writes to device memory stay in what is mapped.

#![forbid(unsafe_code)]

use virtio::Mapping;

/// Writes beyond the end.
pub fn beyond(page: &Mapping<'_, 4096>) {
    page.write32::<4092>(1);
    #[cfg(refused)]
    page.write32::<4096>(1); //~ E0080: write32::<4096>
}

/// Writes across two words.
pub fn unaligned(page: &Mapping<'_, 4096>) {
    page.write32::<4>(1);
    #[cfg(refused)]
    page.write32::<2>(1); //~ E0080: write32::<2>
}
