// SPDX-License-Identifier: GPL-2.0

//! Layout of rings of the kernel: the driver side of section "Rings" of
//! `Documentation/virtio-rdma.rst`.
//!
//! The provider fills the rings of processes; the driver only passes their layout to the device.

use kernel::prelude::*;
use vrnic_wire::ring::{
    RingHeader,
    RingLayout,
    HEADER_ALIGN,
    MAX_ENTRIES, //
};

/// Length of a ring header in bytes.
const HEADER: u32 = size_of::<RingHeader>() as u32;

/// Returns the number of entries of a ring that holds at least `count`; 0 for none. `EINVAL` if it
/// exceeds the maximum for rings or the device's `limit`.
pub(crate) fn entries_for(count: u32, limit: u32) -> Result<u32> {
    if count == 0 {
        return Ok(0);
    }
    match count.checked_next_power_of_two() {
        Some(entries) if entries <= limit.min(MAX_ENTRIES) => Ok(entries),
        _ => Err(EINVAL),
    }
}

/// Rounds `value` up to a multiple of `to`, a power of two.
fn align(value: u64, to: u32) -> u64 {
    let mask = u64::from(to).wrapping_sub(1);
    (value + mask) & !mask
}

/// Places rings one after another in a buffer.
pub(crate) struct Layout {
    end: u64,
}

impl Layout {
    /// Creates the layout of an empty buffer.
    pub(crate) fn new() -> Self {
        Self { end: 0 }
    }

    /// Returns the length of the buffer in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.end
    }

    /// Places a ring; `EINVAL` if its offsets cannot be represented.
    pub(crate) fn place(&mut self, entries: u32, stride: u32) -> Result<RingLayout> {
        if entries == 0 {
            return Ok(RingLayout::absent());
        }
        let header = align(self.end, HEADER_ALIGN);
        let first = align(header + u64::from(HEADER), stride);
        let layout = RingLayout {
            header_offset: u32::try_from(header)?.into(),
            entries_offset: u32::try_from(first)?.into(),
            entries: entries.into(),
            stride: stride.into(),
        };
        self.end = layout.end();
        if layout.is_valid(self.end) {
            Ok(layout)
        } else {
            Err(EINVAL)
        }
    }
}

/// Returns the byte offset of word `word` of the header.
pub(crate) fn header_word(layout: &RingLayout, word: usize) -> usize {
    layout.header_offset.get() as usize + word
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_ring)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_and_limited() {
        assert_eq!(entries_for(0, 8), Ok(0));
        assert_eq!(entries_for(1, 8), Ok(1));
        assert_eq!(entries_for(5, 8), Ok(8));
        assert_eq!(entries_for(9, 8), Err(EINVAL));
        assert_eq!(entries_for(5, 6), Err(EINVAL));
        assert_eq!(entries_for(u32::MAX, u32::MAX), Err(EINVAL));
        assert_eq!(entries_for(MAX_ENTRIES + 1, u32::MAX), Err(EINVAL));
    }

    #[test]
    fn rings_do_not_overlap() -> Result {
        let mut buffer = Layout::new();
        let first = buffer.place(4, 1024)?;
        let absent = buffer.place(0, 64)?;
        let second = buffer.place(8, 32)?;
        assert!(first.is_valid(buffer.length()) && second.is_valid(buffer.length()));
        assert_eq!(first.entries_offset.get(), 1024);
        assert!(!absent.is_present());
        assert!(u64::from(second.header_offset.get()) >= first.end());
        assert_eq!(second.end(), buffer.length());
        assert!(buffer.place(MAX_ENTRIES, 1024).is_ok());
        Ok(())
    }
}
