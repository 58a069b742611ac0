// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings in memory shared with the device, from the driver's side.

pub mod completion;
pub mod outstanding;
pub mod receive;
pub mod send;
pub mod shared;

use crate::memory::{Entries, Field, Shared};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use outstanding::{Name, Outstanding};
use vrnic_wire::abi::Ring;
use vrnic_wire::ring::{RingHeader, offset};

/// Why a work request was not accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has no free entry.
    Full,
    /// The request is invalid for this queue, or the queue accepts none in its state.
    Invalid,
}

/// A send or receive ring.
#[derive(Debug)]
pub struct WorkRing {
    layout: Ring,
    entries: Entries,
    driver_index: Field<AtomicU32>,
    device_flags: Field<AtomicU32>,
    /// Index of the next entry to write.
    next: u32,
    /// `next` as last published to the device.
    published: u32,
    /// Requests known to be completed: the entries before this index are free.
    done: u32,
    /// Requests posted and not completed.
    outstanding: Arc<Outstanding>,
    /// Number of the queue at its completion queue.
    number: u32,
}

impl WorkRing {
    /// Creates the ring described by `layout` in `memory`, which is zeroed. Its requests are
    /// recorded in `outstanding`, which the completion queue knows as `number`.
    pub fn new(memory: Shared, layout: Ring, outstanding: Arc<Outstanding>, number: u32) -> Self {
        let header = memory.part(layout.header_offset as usize, size_of::<RingHeader>());
        let first = layout.entries_offset as usize;
        Self {
            layout,
            // An absent ring has one entry without bytes, which is never free.
            entries: memory.entries(first, layout.entries.max(1), layout.stride),
            driver_index: header.word(offset::DRIVER_INDEX),
            device_flags: header.word(offset::DEVICE_FLAGS),
            next: 0,
            published: 0,
            done: 0,
            outstanding,
            number,
        }
    }

    /// Returns the number of the queue at its completion queue.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the size of an entry in bytes; 0 if there is no ring.
    pub fn stride(&self) -> u32 {
        self.layout.stride
    }

    /// Takes the next free entry for the request `wr_id`. Returns the entry and the request's name.
    #[inline]
    pub fn take(&mut self, wr_id: u64) -> Result<(Shared, Name), Refused> {
        let index = self.next;
        if index.wrapping_sub(self.done) >= self.layout.entries && !self.look_for_room() {
            return Err(Refused::Full);
        }
        self.outstanding.remember(index, wr_id)?;
        self.next = index.wrapping_add(1);
        let queue = self.number;
        Ok((self.entries.at(index), Name { queue, index }))
    }

    /// Updates `done`. Returns whether there is a free entry.
    #[cold]
    fn look_for_room(&mut self) -> bool {
        self.done = self.outstanding.done();
        self.next.wrapping_sub(self.done) < self.layout.entries
    }

    /// Returns the number of entries taken and not published yet.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        self.next.wrapping_sub(self.published)
    }

    /// Publishes the entries taken to the device. Returns whether there are any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        self.outstanding.set_posted(self.next);
        // Release: the device sees the entries before the index.
        self.driver_index
            .store(self.next.to_le(), Ordering::Release);
        true
    }

    /// Returns the last entry taken.
    #[inline]
    pub fn give_back_one(&mut self) {
        if self.unpublished() > 0 {
            self.next = self.next.wrapping_sub(1);
        }
    }

    /// Returns all entries taken since the last `publish`.
    pub fn give_back(&mut self) {
        self.next = self.published;
    }

    /// Returns the flags that the device has set.
    #[inline]
    pub fn device_flags(&self) -> u32 {
        u32::from_le(self.device_flags.load(Ordering::Relaxed))
    }

    /// Returns the requests posted and not completed.
    pub fn outstanding(&self) -> &Arc<Outstanding> {
        &self.outstanding
    }

    /// Resets the ring, as the device does when its queue pair is reset. The completion queue must
    /// not be polled at the same time.
    pub fn reset(&mut self) {
        self.outstanding.reset();
        if self.layout.entries == 0 {
            return;
        }
        self.next = 0;
        self.published = 0;
        self.done = 0;
        self.driver_index.store(0, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::Buffer;
    use vrnic_wire::completion::Opcode;
    use vrnic_wire::ring::RingLayout;

    /// Creates a ring of `entries` entries in its own buffer.
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

    /// Creates a work ring that its completion queue knows by the number 3.
    pub(crate) fn work_ring(memory: Shared, layout: Ring) -> WorkRing {
        let outstanding = Outstanding::new(layout.entries, Opcode::Send).unwrap();
        WorkRing::new(memory, layout, outstanding, 3)
    }

    #[test]
    fn a_ring_holds_its_entries_and_no_more() {
        let (_buffer, memory, layout) = ring(4, 64);
        let mut ring = work_ring(memory, layout);
        for index in 0..4 {
            let (_, name) = ring.take(100).unwrap();
            assert_eq!(name, Name { queue: 3, index });
        }
        assert_eq!(ring.take(100).unwrap_err(), Refused::Full);
        assert!(ring.publish());
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 4);
        assert!(!ring.publish());

        assert_eq!(ring.outstanding().complete(0), Some(100));
        ring.take(101).unwrap();
        assert_eq!(ring.take(102).unwrap_err(), Refused::Full);
    }

    #[test]
    fn an_entry_is_not_used_again_before_its_completion_was_seen() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut ring = work_ring(memory, layout);
        ring.take(1).unwrap();
        ring.take(2).unwrap();
        ring.publish();
        memory
            .word(offset::DEVICE_INDEX)
            .store(2, Ordering::Relaxed);
        assert_eq!(ring.take(3).unwrap_err(), Refused::Full);
        assert_eq!(ring.outstanding().complete(1), Some(2));
        ring.take(3).unwrap();
        ring.take(4).unwrap();
        assert_eq!(ring.take(5).unwrap_err(), Refused::Full);
    }

    #[test]
    fn indices_run_over_the_end() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut ring = work_ring(memory, layout);
        // The state after this many requests.
        ring.next = u32::MAX - 1;
        ring.published = u32::MAX - 1;
        ring.done = u32::MAX - 1;
        ring.outstanding.set_posted(u32::MAX - 1);
        ring.outstanding.complete(u32::MAX - 2).unwrap();
        ring.take(1).unwrap();
        ring.publish();
        assert_eq!(ring.outstanding().complete(u32::MAX - 1), Some(1));
        ring.take(2).unwrap();
        ring.take(3).unwrap();
        assert_eq!(ring.take(4).unwrap_err(), Refused::Full);
        ring.publish();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 1);
        assert_eq!(ring.outstanding().complete(u32::MAX), Some(2));
        assert_eq!(ring.outstanding().complete(0), Some(3));
        ring.take(4).unwrap();
        ring.take(5).unwrap();
        assert_eq!(ring.take(6).unwrap_err(), Refused::Full);
    }

    #[test]
    fn an_absent_ring_is_always_full() {
        let (_buffer, memory, _) = ring(2, 64);
        let mut ring = work_ring(memory, Ring::default());
        assert_eq!(ring.take(1).unwrap_err(), Refused::Full);
        ring.reset();
    }

    #[test]
    fn entries_are_given_back() {
        let (_buffer, memory, layout) = ring(4, 64);
        let mut ring = work_ring(memory, layout);
        ring.take(1).unwrap();
        ring.publish();
        ring.take(2).unwrap();
        ring.take(3).unwrap();
        ring.give_back_one();
        assert_eq!(ring.unpublished(), 1);
        ring.give_back();
        assert!(!ring.publish());
        ring.give_back_one();
        assert_eq!(ring.next, 1, "what is published stays");
        assert_eq!(ring.outstanding().complete(1), None, "what is not does not");
    }
}
