// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Doorbells and the notify area, by which a context tells the device which rings have work.
//!
//! Each context shares one *notify area* with the device. It contains a bit per doorbell slot in
//! the `pending` words, a bit per `pending` word in the `summary` words, a flags word that the
//! device writes, and another one that the driver writes.
//!
//! To ring the doorbell, the driver side sets the two bits, executes a full fence and reads the
//! flags word. Unless the word has [`flags::POLLING`], it writes the slot number to its doorbell
//! page. To sleep, the device clears `POLLING`, executes a full fence, and checks the summary words
//! once more. Whichever of the two fences comes first in the total order, the other side sees what
//! was stored before that fence, so no request is lost.

/// Byte offset of the flags word (le32, written by the device).
pub const FLAGS_OFFSET: usize = 0;

/// Byte offset of the first summary word (le64). Bit `b` of summary word `w` is set if pending word
/// `64 * w + b` is not zero.
pub const SUMMARY_OFFSET: usize = 64;

/// Number of summary words.
pub const SUMMARY_WORDS: usize = 16;

/// Byte offset of the driver's flags word (le32, written by the driver, read by posters).
pub const DRIVER_FLAGS_OFFSET: usize = 192;

/// Byte offset of the first pending word (le64). Bit `b` of pending word `w` is set if slot
/// `64 * w + b` has work.
pub const PENDING_OFFSET: usize = 256;

/// Minimum number of slots of a context.
pub const MIN_SLOTS: u32 = 64;

/// Maximum number of slots of a context.
pub const MAX_SLOTS: u32 = 65536;

/// Bits of the flags word.
pub mod flags {
    /// The device polls the summary words, so the doorbell write may be skipped.
    pub const POLLING: u32 = 1 << 0;
}

/// Bits of the driver's flags word.
pub mod driver_flags {
    /// The device has failed or is gone: nothing will complete any more.
    pub const FAILED: u32 = 1 << 0;
}

/// Returns the length in bytes of a notify area with `slots` slots.
pub const fn area_length(slots: u32) -> usize {
    PENDING_OFFSET + slots as usize / 8
}

/// Returns whether a context can have `slots` slots: a power of two within the limits.
pub const fn is_valid_slot_count(slots: u32) -> bool {
    slots.is_power_of_two() && slots >= MIN_SLOTS && slots <= MAX_SLOTS
}

/// Location of the two bits of a slot.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SlotBits {
    /// Byte offset of the pending word in the notify area.
    pub pending_offset: usize,
    /// The slot's bit in the pending word.
    pub pending_mask: u64,
    /// Byte offset of the summary word in the notify area.
    pub summary_offset: usize,
    /// The pending word's bit in the summary word.
    pub summary_mask: u64,
}

impl SlotBits {
    /// Returns the bits of `slot`, which must be less than the number of slots of its context.
    pub const fn new(slot: u32) -> Self {
        let pending = slot / 64;
        Self {
            pending_offset: PENDING_OFFSET + pending as usize * 8,
            pending_mask: 1 << (slot % 64),
            summary_offset: SUMMARY_OFFSET + (pending / 64) as usize * 8,
            summary_mask: 1 << (pending % 64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_lies_in_its_area() {
        let last = SlotBits::new(MAX_SLOTS - 1);
        assert_eq!(last.pending_offset + 8, area_length(MAX_SLOTS));
        assert_eq!(last.summary_offset + 8, SUMMARY_OFFSET + SUMMARY_WORDS * 8);
        const { assert!(SUMMARY_OFFSET + SUMMARY_WORDS * 8 <= DRIVER_FLAGS_OFFSET) };
        const { assert!(DRIVER_FLAGS_OFFSET + 64 <= PENDING_OFFSET) };
        assert_eq!(
            SlotBits::new(64 * 65 + 3).summary_offset,
            SUMMARY_OFFSET + 8
        );
        assert_eq!(SlotBits::new(64 * 65 + 3).summary_mask, 2);
        assert_eq!(SlotBits::new(64 * 65 + 3).pending_mask, 8);
    }
}
