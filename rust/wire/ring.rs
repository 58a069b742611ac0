// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Rings: send, receive and completion queues in guest memory.
//!
//! A ring is a [`RingHeader`] and an array of entries, both inside one buffer that was given to
//! the device as a page list. Indices run freely through all 32-bit values; entry `i` stands in
//! slot `i & (entries - 1)`.

use crate::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most entries of a ring.
pub const MAX_ENTRIES: u32 = 1 << 20;

/// Smallest distance of two entries in bytes.
pub const MIN_STRIDE: u32 = 16;

/// Largest distance of two entries in bytes.
pub const MAX_STRIDE: u32 = 1024;

/// Alignment of a ring header in its buffer, in bytes.
pub const HEADER_ALIGN: u32 = 128;

/// Head of a ring: one cache line written by the driver side, one by the device.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHeader {
    /// Written by the driver side. Work queues: the producer index; stored with release order
    /// after the entries. Completion queues: the consumer index.
    pub driver_index: U32,
    /// Completion queues, written by the driver side: the [`Arm`] word.
    pub arm: U32,
    /// Reserved; 0.
    pub driver_reserved: [u8; 56],
    /// Written by the device. Work queues: the consumer index; entries before it are free again.
    /// Completion queues: the producer index, informative.
    pub device_index: U32,
    /// Written by the device: [`flags`].
    pub device_flags: U32,
    /// Reserved; 0.
    pub device_reserved: [u8; 56],
}
assert_layout!(RingHeader, 128, driver_index @ 0, arm @ 4, device_index @ 64, device_flags @ 68);

/// Byte offsets of the header's words, for those who access them one by one.
pub mod offset {
    /// [`RingHeader::driver_index`](super::RingHeader::driver_index).
    pub const DRIVER_INDEX: usize = 0;
    /// [`RingHeader::arm`](super::RingHeader::arm).
    pub const ARM: usize = 4;
    /// [`RingHeader::device_index`](super::RingHeader::device_index).
    pub const DEVICE_INDEX: usize = 64;
    /// [`RingHeader::device_flags`](super::RingHeader::device_flags).
    pub const DEVICE_FLAGS: usize = 68;
}

/// Bits of [`RingHeader::device_flags`].
pub mod flags {
    /// Receive queues: the poster must ring the doorbell after it posted. Set while posted
    /// receives need the device's attention at once: the queue pair is in the error state.
    pub const NEED_DOORBELL: u32 = 1 << 0;
    /// Completion queues: a completion found no free entry and was lost; the queue is dead.
    pub const OVERRUN: u32 = 1 << 1;
}

/// Where a ring stands in its buffer, and its shape.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RingLayout {
    /// Byte offset of the [`RingHeader`]; a multiple of [`HEADER_ALIGN`].
    pub header_offset: U32,
    /// Byte offset of entry 0; a multiple of `stride`.
    pub entries_offset: U32,
    /// Number of entries: a power of two, at most [`MAX_ENTRIES`]; 0 for a ring that is absent.
    pub entries: U32,
    /// Bytes from one entry to the next: a power of two, [`MIN_STRIDE`] to [`MAX_STRIDE`]. Since
    /// the buffer's offset in its first page is 0 for rings, no entry crosses a page.
    pub stride: U32,
}
assert_layout!(RingLayout, 16, header_offset @ 0, entries_offset @ 4, entries @ 8, stride @ 12);

impl RingLayout {
    /// Layout of a ring that does not exist.
    pub fn absent() -> Self {
        Self::default()
    }

    /// Whether the ring exists.
    pub fn is_present(&self) -> bool {
        self.entries.get() != 0
    }

    /// Byte offset in the buffer of the first byte after the entries.
    pub fn end(&self) -> u64 {
        u64::from(self.entries_offset.get())
            + u64::from(self.entries.get()) * u64::from(self.stride.get())
    }

    /// Whether the ring is well formed and lies within a buffer of `length` bytes.
    ///
    /// An absent ring is well formed only if every field is 0.
    pub fn is_valid(&self, length: u64) -> bool {
        let header = self.header_offset.get();
        let first = self.entries_offset.get();
        let entries = self.entries.get();
        let stride = self.stride.get();

        if entries == 0 {
            return header == 0 && first == 0 && stride == 0;
        }
        let header_end = u64::from(header) + core::mem::size_of::<RingHeader>() as u64;
        entries.is_power_of_two()
            && entries <= MAX_ENTRIES
            && stride.is_power_of_two()
            && (MIN_STRIDE..=MAX_STRIDE).contains(&stride)
            && header % HEADER_ALIGN == 0
            && first % stride == 0
            && header_end <= length
            && self.end() <= length
            && (header_end <= u64::from(first) || u64::from(header) >= self.end())
    }

    /// Byte offset in the buffer of the entry with free-running index `index`.
    pub fn entry_offset(&self, index: u32) -> u64 {
        let slot = index & self.entries.get().wrapping_sub(1);
        u64::from(self.entries_offset.get()) + u64::from(slot) * u64::from(self.stride.get())
    }
}

/// Entries between the consumer and the producer, or `None` if there cannot be that many.
pub fn used(producer: u32, consumer: u32, entries: u32) -> Option<u32> {
    let used = producer.wrapping_sub(consumer);
    (used <= entries).then_some(used)
}

/// The phase that the entry with free-running index `index` carries once it is valid.
///
/// 1 on the first pass through the ring, 0 on the second, and so on.
pub fn phase(index: u32, entries: u32) -> u8 {
    u8::from(index & entries == 0)
}

/// The word by which a completion queue is armed for one event.
///
/// Bits 31 to 2 count the requests, bits 1 and 0 say what is asked for. The device raises one
/// event per count.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Arm(u32);

impl Arm {
    const NEXT: u32 = 1 << 0;
    const SOLICITED: u32 = 1 << 1;

    /// Interprets the word as it stands in the header.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The word as it stands in the header.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The word that asks once more: for any completion, or for a solicited one (or an error).
    #[must_use]
    pub const fn again(self, solicited_only: bool) -> Self {
        let what = if solicited_only {
            Self::SOLICITED
        } else {
            Self::NEXT
        };
        Self(((self.0 & !3).wrapping_add(4)) | what)
    }

    /// The same request, which now asks for any completion too.
    #[must_use]
    pub const fn widen(self) -> Self {
        Self(self.0 | Self::NEXT)
    }

    /// Number of the request.
    pub const fn sequence(self) -> u32 {
        self.0 >> 2
    }

    /// Whether a completion, solicited (or in error) or not, is what was asked for.
    pub const fn wants(self, solicited: bool) -> bool {
        self.0 & Self::NEXT != 0 || (solicited && self.0 & Self::SOLICITED != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_alternates_with_each_pass() {
        for entries in [1, 2, 64, MAX_ENTRIES] {
            assert_eq!(phase(0, entries), 1);
            assert_eq!(phase(entries - 1, entries), 1);
            assert_eq!(phase(entries, entries), 0);
            assert_eq!(phase(entries * 2, entries), 1);
            assert_eq!(phase(u32::MAX, entries), 0);
        }
    }

    #[test]
    fn used_refuses_wild_producers() {
        assert_eq!(used(3, u32::MAX, 4), Some(4));
        assert_eq!(used(5, 0, 4), None);
        assert_eq!(used(0, 1, 4), None);
    }

    #[test]
    fn arm_wants_what_was_asked_for() {
        let any = Arm::default().again(false);
        let solicited = any.again(true);
        assert!(any.wants(false) && any.wants(true));
        assert!(!solicited.wants(false) && solicited.wants(true));
        assert!(solicited.widen().wants(false));
        assert_eq!(solicited.sequence(), any.sequence() + 1);
        assert!(!Arm::default().wants(true));
    }

    fn layout(header: u32, first: u32, entries: u32, stride: u32) -> RingLayout {
        RingLayout {
            header_offset: header.into(),
            entries_offset: first.into(),
            entries: entries.into(),
            stride: stride.into(),
        }
    }

    #[test]
    fn layouts_are_checked() {
        assert!(layout(0, 4096, 64, 64).is_valid(8192));
        assert!(layout(0, 0, 0, 0).is_valid(0));
        assert!(!layout(0, 4096, 64, 64).is_valid(8191));
        assert!(
            !layout(0, 64, 64, 64).is_valid(8192),
            "entries over the header"
        );
        assert!(
            !layout(64, 4096, 64, 64).is_valid(8192),
            "header misaligned"
        );
        assert!(
            !layout(0, 4096, 48, 64).is_valid(1 << 20),
            "not a power of two"
        );
        assert!(
            !layout(0, 4096 + 32, 64, 64).is_valid(1 << 20),
            "entries misaligned"
        );
        assert!(
            !layout(0, 4096, 64, 2048).is_valid(1 << 30),
            "stride too large"
        );
        assert!(!layout(0, !63, MAX_ENTRIES, 1024).is_valid(1 << 20));
    }
}
