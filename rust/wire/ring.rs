// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Rings: send, receive and completion queues in guest memory.
//!
//! A ring is a [`RingHeader`] and an array of entries. Both are in one buffer that the device got
//! as a page list. Indices run freely through all 32-bit values; entry `i` is in slot
//! `i & (entries - 1)`.

use crate::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum number of entries of a ring.
pub const MAX_ENTRIES: u32 = 1 << 20;

/// Minimum distance of two entries in bytes.
pub const MIN_STRIDE: u32 = 16;

/// Maximum distance of two entries in bytes.
pub const MAX_STRIDE: u32 = 1024;

/// Alignment of a ring header in its buffer, in bytes.
pub const HEADER_ALIGN: u32 = 128;

/// Header of a ring: one cache line written by the driver side, one by the device.
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

/// Byte offsets of the words of a header, for accessing them one by one.
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
    /// Receive queues: the poster must ring the doorbell after it has posted. Set while posted
    /// receives need the device's attention at once, because the queue pair is in the error state.
    pub const NEED_DOORBELL: u32 = 1 << 0;
    /// Completion queues: a completion was lost for lack of a free entry, and the queue is
    /// unusable.
    pub const OVERRUN: u32 = 1 << 1;
}

/// Layout of a ring in its buffer.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RingLayout {
    /// Byte offset of the [`RingHeader`]; a multiple of [`HEADER_ALIGN`].
    pub header_offset: U32,
    /// Byte offset of entry 0; a multiple of `stride`.
    pub entries_offset: U32,
    /// Number of entries: a power of two, at most [`MAX_ENTRIES`]; 0 if the ring is absent.
    pub entries: U32,
    /// Distance of two entries in bytes: a power of two, [`MIN_STRIDE`] to [`MAX_STRIDE`]. Rings
    /// start at offset 0 of the first page of their buffer, so no entry crosses a page boundary.
    pub stride: U32,
}
assert_layout!(RingLayout, 16, header_offset @ 0, entries_offset @ 4, entries @ 8, stride @ 12);

impl RingLayout {
    /// Returns the layout of an absent ring.
    pub fn absent() -> Self {
        Self::default()
    }

    /// Returns whether the ring is present.
    pub fn is_present(&self) -> bool {
        self.entries.get() != 0
    }

    /// Returns the byte offset in the buffer of the end of the entries.
    pub fn end(&self) -> u64 {
        u64::from(self.entries_offset.get())
            + u64::from(self.entries.get()) * u64::from(self.stride.get())
    }

    /// Returns whether the layout is valid for a buffer of `length` bytes.
    ///
    /// An absent ring is valid only if every field is 0.
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

    /// Returns the byte offset in the buffer of the entry with free-running index `index`.
    pub fn entry_offset(&self, index: u32) -> u64 {
        let slot = index & self.entries.get().wrapping_sub(1);
        u64::from(self.entries_offset.get()) + u64::from(slot) * u64::from(self.stride.get())
    }
}

/// Returns the number of entries between consumer and producer, or `None` if that is impossible.
pub fn used(producer: u32, consumer: u32, entries: u32) -> Option<u32> {
    let used = producer.wrapping_sub(consumer);
    (used <= entries).then_some(used)
}

/// Returns the phase of a valid entry with free-running index `index`.
///
/// It is 1 on the first pass through the ring, 0 on the second, and so on.
pub fn phase(index: u32, entries: u32) -> u8 {
    u8::from(index & entries == 0)
}

/// The word that arms a completion queue for one event.
///
/// Bits 31 to 2 count the requests, and bits 1 and 0 are the kind of request. The device raises one
/// event per count.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Arm(u32);

impl Arm {
    const NEXT: u32 = 1 << 0;
    const SOLICITED: u32 = 1 << 1;

    /// Interprets the word from the header.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the word for the header.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the word for a new request: for any completion, or for one that is solicited or
    /// failed.
    #[must_use]
    pub const fn again(self, solicited_only: bool) -> Self {
        let what = if solicited_only {
            Self::SOLICITED
        } else {
            Self::NEXT
        };
        Self(((self.0 & !3).wrapping_add(4)) | what)
    }

    /// Returns the word for the same request, extended to any completion.
    #[must_use]
    pub const fn widen(self) -> Self {
        Self(self.0 | Self::NEXT)
    }

    /// Returns the number of the request.
    pub const fn sequence(self) -> u32 {
        self.0 >> 2
    }

    /// Returns whether the request is for a completion that is solicited (or failed), or not.
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
