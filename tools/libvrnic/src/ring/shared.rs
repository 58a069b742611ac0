// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The shared receive queue: receives that any of its queue pairs may take.
//!
//! Receives complete in any order and at any of several completion queues, and an entry is reused
//! once the device has taken it. So the application's identifier of a receive (`wr_id`) is not kept
//! with the entry. It is kept in a separate slot, a "place", whose number identifies the receive
//! until its completion is polled.

use super::Refused;
use super::outstanding::Name;
use crate::memory::{Field, Shared};
use crate::spinlock::SpinLock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use vrnic_wire::abi::Ring;
use vrnic_wire::ring::offset;
use vrnic_wire::work::{RECEIVE_DATA_OFFSET, ReceiveHeader, Sge};

/// Bit set in the number of a shared receive queue and never in a number that a completion queue
/// assigns.
const SHARED: u32 = 1 << 31;

/// `wr_id`s of the receives that have not completed, each in its own place.
#[derive(Debug, Default)]
pub struct Places {
    wr_ids: Vec<Option<u64>>,
    free: Vec<u32>,
}

impl Places {
    /// Stores `wr_id` and returns its place, or `None` if memory runs out.
    #[inline]
    fn keep(&mut self, wr_id: u64) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            self.wr_ids[place as usize] = Some(wr_id);
            return Some(place);
        }
        let place = u32::try_from(self.wr_ids.len()).ok()?;
        self.wr_ids.try_reserve(1).ok()?;
        // Reserves the room that `take` needs.
        self.free.try_reserve(self.wr_ids.len() + 1).ok()?;
        self.wr_ids.push(Some(wr_id));
        Some(place)
    }

    /// Removes and returns the `wr_id` in a place, which becomes free.
    #[inline]
    pub fn take(&mut self, place: u32) -> Option<u64> {
        let wr_id = self.wr_ids.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(wr_id)
    }
}

/// The receives of a shared receive queue, as the completion queues that they complete at need
/// them.
#[derive(Clone, Debug)]
pub struct SharedReceives {
    /// Number of the queue, unique in the process.
    pub number: u32,
    /// `wr_id`s of the receives. May be locked while a work queue or completion queue is locked.
    pub places: Arc<SpinLock<Places>>,
}

impl SharedReceives {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed) | SHARED,
            places: Arc::new(SpinLock::new(Places::default())),
        }
    }

    /// Returns whether a name is that of a receive of a shared receive queue.
    #[inline]
    pub fn has(name: Name) -> bool {
        name.queue & SHARED != 0
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedQueue {
    memory: Shared,
    layout: Ring,
    /// Index of the next entry to write.
    next: u32,
    /// `next` as last published to the device.
    published: u32,
    /// The device's index as last read: entries before it are free.
    taken: u32,
    max_sge: u32,
    receives: SharedReceives,
}

impl SharedQueue {
    /// Creates the queue described by `layout` in `memory`, which is zeroed.
    pub fn new(memory: Shared, layout: Ring, max_sge: u32) -> Self {
        Self {
            memory,
            layout,
            next: 0,
            published: 0,
            taken: 0,
            max_sge,
            receives: SharedReceives::new(),
        }
    }

    /// Sets the largest number of elements in a request, limited by the size of the entries.
    pub fn set_max_sge(&mut self, max_sge: u32) {
        let room = self.layout.stride - RECEIVE_DATA_OFFSET as u32;
        self.max_sge = max_sge.min(room / size_of::<Sge>() as u32);
    }

    /// Returns its receives, for completion queues.
    pub fn receives(&self) -> &SharedReceives {
        &self.receives
    }

    /// Returns the size of an entry in bytes.
    pub fn stride(&self) -> u32 {
        self.layout.stride
    }

    fn word(&self, offset: usize) -> Field<AtomicU32> {
        self.memory
            .word(self.layout.header_offset as usize + offset)
    }

    /// Updates the index of the first entry that the device has not taken. Ignores an index in the
    /// ring that is out of range.
    fn look(&mut self) {
        let index = u32::from_le(self.word(offset::DEVICE_INDEX).load(Ordering::Acquire));
        if self.published.wrapping_sub(index) <= self.layout.entries {
            self.taken = index;
        }
    }

    fn entry(memory: &Shared, layout: &Ring, index: u32) -> Shared {
        let slot = (index & (layout.entries - 1)) as usize;
        let stride = layout.stride as usize;
        memory.part(layout.entries_offset as usize + slot * stride, stride)
    }

    /// Queues a request. [`SharedQueue::publish`] passes it to the device.
    pub fn push(
        &mut self,
        wr_id: u64,
        elements: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Refused> {
        let count = elements.len();
        if count > self.max_sge as usize {
            return Err(Refused::Invalid);
        }
        if self.next.wrapping_sub(self.taken) >= self.layout.entries {
            self.look();
            if self.next.wrapping_sub(self.taken) >= self.layout.entries {
                return Err(Refused::Full);
            }
        }
        let kept = self.receives.places.lock().keep(wr_id);
        let name = Name {
            queue: self.receives.number,
            index: kept.ok_or(Refused::Full)?,
        };
        let entry = Self::entry(&self.memory, &self.layout, self.next);
        let header = ReceiveHeader {
            wr_id: name.to_wire().into(),
            num_sge: (count as u16).into(),
            ..ReceiveHeader::default()
        };
        entry.write(0, &header);
        entry.write_all(RECEIVE_DATA_OFFSET, elements);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Publishes the queued requests to the device, which looks when a message arrives.
    pub fn publish(&mut self) {
        if self.next != self.published {
            self.published = self.next;
            // Release: the device sees the entries before the index.
            self.word(offset::DRIVER_INDEX)
                .store(self.next.to_le(), Ordering::Release);
        }
    }

    /// Copies the entries that the device has not taken to another ring, under the same indices,
    /// and publishes all of them there. Returns `Full` if the other ring is too small.
    pub fn copy_to(&mut self, memory: &Shared, layout: &Ring) -> Result<(), Refused> {
        self.look();
        if self.next.wrapping_sub(self.taken) > layout.entries {
            return Err(Refused::Full);
        }
        let mut index = self.taken;
        while index != self.next {
            let from = Self::entry(&self.memory, &self.layout, index);
            let to = Self::entry(memory, layout, index);
            for word in (0..self.layout.stride as usize).step_by(size_of::<u32>()) {
                let value = from.word(word).load(Ordering::Relaxed);
                to.word(word).store(value, Ordering::Relaxed);
            }
            index = index.wrapping_add(1);
        }
        memory
            .word(layout.header_offset as usize + offset::DRIVER_INDEX)
            .store(self.next.to_le(), Ordering::Release);
        Ok(())
    }

    /// Switches to another ring, as the device does. [`copy_to`](Self::copy_to) has copied the
    /// remaining entries.
    pub fn move_to(&mut self, memory: Shared, layout: Ring) {
        (self.memory, self.layout) = (memory, layout);
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ring;
    use super::*;

    fn sge(n: u32) -> Sge {
        Sge {
            address: u64::from(n).into(),
            length: n.into(),
            lkey: n.into(),
        }
    }

    fn device_takes(memory: &Shared, index: u32) {
        memory
            .word(offset::DEVICE_INDEX)
            .store(index.to_le(), Ordering::Release);
    }

    fn name_at(memory: &Shared, layout: &Ring, index: u32) -> Name {
        let header: ReceiveHeader = SharedQueue::entry(memory, layout, index).read(0);
        Name::from_wire(header.wr_id.get())
    }

    #[test]
    fn an_entry_is_free_once_it_is_taken_and_a_name_once_it_is_completed() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut queue = SharedQueue::new(memory, layout, 2);
        queue.push(10, [sge(1), sge(2)].into_iter()).unwrap();
        queue.push(11, core::iter::empty()).unwrap();
        assert_eq!(queue.push(12, core::iter::empty()), Err(Refused::Full));
        assert_eq!(
            queue.push(12, [sge(1), sge(2), sge(3)].into_iter()),
            Err(Refused::Invalid)
        );
        queue.publish();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 2);
        let names = [0, 1].map(|index| name_at(&memory, &layout, index));
        assert!(names.into_iter().all(SharedReceives::has));
        assert_ne!(names[0], names[1]);
        device_takes(&memory, 1);
        queue.push(12, core::iter::empty()).unwrap();
        queue.publish();
        let third = name_at(&memory, &layout, 2);
        let places = queue.receives().places.clone();
        // Receives complete in any order.
        assert_eq!(places.lock().take(third.index), Some(12));
        assert_eq!(places.lock().take(names[0].index), Some(10));
        assert_eq!(places.lock().take(names[0].index), None);
        assert_eq!(places.lock().take(names[1].index), Some(11));
        assert_eq!(places.lock().take(77), None);
    }

    #[test]
    fn what_the_device_did_not_take_moves() {
        let (_old, memory, layout) = ring(4, 64);
        let mut queue = SharedQueue::new(memory, layout, 2);
        for wr_id in 0..4 {
            queue.push(wr_id, [sge(wr_id as u32)].into_iter()).unwrap();
        }
        queue.publish();
        device_takes(&memory, 1);
        let (_small, small, small_layout) = ring(2, 64);
        assert_eq!(queue.copy_to(&small, &small_layout), Err(Refused::Full));
        let (_new, new, new_layout) = ring(8, 64);
        queue.copy_to(&new, &new_layout).unwrap();
        assert_eq!(new.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 4);
        device_takes(&new, 2);
        queue.move_to(new, new_layout);
        for index in 2..4 {
            assert_eq!(
                name_at(&new, &new_layout, index),
                name_at(&memory, &layout, index)
            );
            let element: Sge = SharedQueue::entry(&new, &new_layout, index).read(16);
            assert_eq!(element, sge(index));
        }
        for wr_id in 4..10 {
            queue.push(wr_id, core::iter::empty()).unwrap();
        }
        assert_eq!(queue.push(10, core::iter::empty()), Err(Refused::Full));
    }

    #[test]
    fn an_index_that_cannot_be_is_not_believed() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut queue = SharedQueue::new(memory, layout, 0);
        for wr_id in 0..2 {
            queue.push(wr_id, core::iter::empty()).unwrap();
        }
        queue.publish();
        device_takes(&memory, 3);
        assert_eq!(queue.push(2, core::iter::empty()), Err(Refused::Full));
    }
}
