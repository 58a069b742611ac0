// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings in memory shared with the device, from the driver's side.

pub mod completion;
pub mod receive;
pub mod send;

use crate::memory::Shared;
use core::sync::atomic::Ordering;
use vrnic_wire::abi::Ring;
use vrnic_wire::ring::offset;

/// Why a work request was not accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has no free entry.
    Full,
    /// The request is not valid for this queue, or the queue takes none in its state.
    Invalid,
}

/// A send or receive ring.
#[derive(Debug)]
pub struct WorkRing {
    memory: Shared,
    layout: Ring,
    /// Index of the next entry to write.
    next: u32,
    /// `next` as the device knows it.
    published: u32,
    /// The device's consumer index when it was last looked at: entries before it are free.
    consumed: u32,
}

impl WorkRing {
    /// The ring described by `layout` in `memory`, which is zeroed.
    pub fn new(memory: Shared, layout: Ring) -> Self {
        Self {
            memory,
            layout,
            next: 0,
            published: 0,
            consumed: 0,
        }
    }

    /// Bytes of an entry; 0 if there is no ring.
    pub fn stride(&self) -> u32 {
        self.layout.stride
    }

    fn word(&self, offset: usize) -> &core::sync::atomic::AtomicU32 {
        self.memory
            .word(self.layout.header_offset as usize + offset)
    }

    /// The next free entry, which becomes used.
    #[inline]
    pub fn take(&mut self) -> Result<Shared, Refused> {
        let entries = self.layout.entries;
        if self.next.wrapping_sub(self.consumed) >= entries && !self.look_for_room() {
            return Err(Refused::Full);
        }
        let slot = (self.next & entries.wrapping_sub(1)) as usize;
        self.next = self.next.wrapping_add(1);

        let stride = self.layout.stride as usize;
        let offset = self.layout.entries_offset as usize + slot * stride;
        Ok(self.memory.part(offset, stride))
    }

    /// Asks the device what it consumed; whether there is a free entry now.
    fn look_for_room(&mut self) -> bool {
        if self.layout.entries == 0 {
            return false;
        }
        // Acquire: an entry is written again only after the device has read it.
        self.consumed = u32::from_le(self.word(offset::DEVICE_INDEX).load(Ordering::Acquire));
        self.next.wrapping_sub(self.consumed) < self.layout.entries
    }

    /// Entries taken and not published yet.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        self.next.wrapping_sub(self.published)
    }

    /// Gives the entries taken to the device; whether there are any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        // Release: the device sees the entries before the index.
        self.word(offset::DRIVER_INDEX)
            .store(self.next.to_le(), Ordering::Release);
        true
    }

    /// Gives back the last entry taken.
    #[inline]
    pub fn give_back_one(&mut self) {
        if self.unpublished() > 0 {
            self.next = self.next.wrapping_sub(1);
        }
    }

    /// Gives back all entries taken since the last `publish`.
    pub fn give_back(&mut self) {
        self.next = self.published;
    }

    /// The flags that the device set.
    #[inline]
    pub fn device_flags(&self) -> u32 {
        u32::from_le(self.word(offset::DEVICE_FLAGS).load(Ordering::Relaxed))
    }

    /// Begins anew, as the device does when its queue pair is reset.
    pub fn reset(&mut self) {
        if self.layout.entries == 0 {
            return;
        }
        self.next = 0;
        self.published = 0;
        self.consumed = 0;
        self.word(offset::DRIVER_INDEX).store(0, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::Buffer;
    use vrnic_wire::ring::RingLayout;

    /// A ring of `entries` entries in a buffer of its own.
    pub(crate) fn ring(entries: u32, stride: u32) -> (Buffer, Shared, Ring) {
        let layout = Ring {
            header_offset: 0,
            entries_offset: 1024,
            entries,
            stride,
        };
        let buffer = Buffer::new(1024 + entries as usize * stride as usize).unwrap();
        assert!(RingLayout::from(layout).is_valid(buffer.length() as u64));
        // SAFETY: The tests keep the buffer as long as they use the ring.
        let memory = unsafe { buffer.shared() };
        (buffer, memory, layout)
    }

    #[test]
    fn a_ring_holds_its_entries_and_no_more() {
        let (_buffer, memory, layout) = ring(4, 64);
        let mut ring = WorkRing::new(memory, layout);
        for _ in 0..4 {
            ring.take().unwrap();
        }
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
        assert!(ring.publish());
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 4);
        assert!(!ring.publish());

        memory
            .word(offset::DEVICE_INDEX)
            .store(1, Ordering::Relaxed);
        ring.take().unwrap();
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
    }

    #[test]
    fn indices_run_over_the_end() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut ring = WorkRing::new(memory, layout);
        ring.next = u32::MAX;
        ring.published = u32::MAX;
        ring.consumed = u32::MAX;
        memory
            .word(offset::DEVICE_INDEX)
            .store(u32::MAX, Ordering::Relaxed);
        ring.take().unwrap();
        ring.take().unwrap();
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
        ring.publish();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 1);
        memory
            .word(offset::DEVICE_INDEX)
            .store(1, Ordering::Relaxed);
        ring.take().unwrap();
        ring.take().unwrap();
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
    }

    #[test]
    fn a_wild_consumer_index_makes_no_room() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut ring = WorkRing::new(memory, layout);
        ring.take().unwrap();
        ring.take().unwrap();
        memory
            .word(offset::DEVICE_INDEX)
            .store(77, Ordering::Relaxed);
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
    }

    #[test]
    fn an_absent_ring_is_always_full() {
        let (_buffer, memory, _) = ring(2, 64);
        let mut ring = WorkRing::new(memory, Ring::default());
        assert_eq!(ring.take().unwrap_err(), Refused::Full);
        ring.reset();
    }

    #[test]
    fn entries_are_given_back() {
        let (_buffer, memory, layout) = ring(4, 64);
        let mut ring = WorkRing::new(memory, layout);
        ring.take().unwrap();
        ring.publish();
        ring.take().unwrap();
        ring.take().unwrap();
        ring.give_back_one();
        assert_eq!(ring.unpublished(), 1);
        ring.give_back();
        assert!(!ring.publish());
        ring.give_back_one();
        assert_eq!(ring.next, 1, "what is published stays");
    }
}
