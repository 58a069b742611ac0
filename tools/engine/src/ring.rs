// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings in guest memory, and the work queues that read them.

use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::{HostRange, Memory, Unmapped},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use vrnic_wire::ring::{self, RingHeader, RingLayout, offset};

/// Reads a word of guest memory for display only, like [`Memory::glance`].
pub(crate) type Glance<'a> = &'a dyn Fn(HostRange, u64) -> Result<Option<u32>, Unmapped>;

/// A ring: a header and entries in a buffer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ring {
    buffer: Arc<Buffer>,
    header: HostRange,
    first: u64,
    entries: u32,
    stride: u32,
}

impl Ring {
    /// Creates a ring in `buffer` with this layout, which must be valid and present.
    pub(crate) fn new(buffer: Arc<Buffer>, layout: &RingLayout) -> Result<Self, Cause> {
        let header_offset = u64::from(layout.header_offset.get());
        let header = buffer
            .contiguous(header_offset, size_of::<RingHeader>() as u64)
            .ok_or(Cause::RingLayout)?;
        Ok(Self {
            header,
            first: layout.entries_offset.get().into(),
            entries: layout.entries.get(),
            stride: layout.stride.get(),
            buffer,
        })
    }

    /// Returns the number of entries, a power of two.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the memory of the entry with the free-running index `index`.
    pub(crate) fn entry(&self, index: u32) -> Result<HostRange, Unmapped> {
        let slot = index & (self.entries - 1);
        let start = self.first + u64::from(slot) * u64::from(self.stride);
        self.buffer
            .contiguous(start, self.stride.into())
            .ok_or(Unmapped)
    }

    /// Returns the memory of all entries, except those without memory.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        let entries = 0..self.entries;
        entries.filter_map(|index| self.entry(index).ok()).collect()
    }

    /// Returns the number of host ranges of the buffer.
    pub(crate) fn translations(&self) -> usize {
        self.buffer.translations()
    }

    /// Reads the index that the driver side writes.
    pub(crate) fn driver_index<M: Memory>(&self, memory: &M) -> Result<u32, Unmapped> {
        memory.load_u32(self.header, offset::DRIVER_INDEX as u64)
    }

    /// Reads the index that the driver side writes, for display only.
    pub(crate) fn glance_at_index(&self, glance: Glance<'_>) -> Result<Option<u32>, Unmapped> {
        glance(self.header, offset::DRIVER_INDEX as u64)
    }

    /// Reads the arm word, for display only.
    pub(crate) fn glance_at_arm(&self, glance: Glance<'_>) -> Option<ring::Arm> {
        let word = glance(self.header, offset::ARM as u64);
        word.ok().flatten().map(ring::Arm::from_raw)
    }

    /// Reads the arm word.
    pub(crate) fn arm<M: Memory>(&self, memory: &M) -> Result<ring::Arm, Unmapped> {
        memory
            .load_u32(self.header, offset::ARM as u64)
            .map(ring::Arm::from_raw)
    }

    /// Writes the device's index.
    pub(crate) fn set_device_index<M: Memory>(
        &self,
        index: u32,
        memory: &M,
    ) -> Result<(), Unmapped> {
        memory.store_u32(self.header, offset::DEVICE_INDEX as u64, index)
    }

    /// Writes the device's flags.
    pub(crate) fn set_device_flags<M: Memory>(
        &self,
        flags: u32,
        memory: &M,
    ) -> Result<(), Unmapped> {
        memory.store_u32(self.header, offset::DEVICE_FLAGS as u64, flags)
    }
}

/// Why a work queue cannot be read any more.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The producer index is not possible.
    Producer,
    /// The ring's memory is gone.
    Unmapped,
}

impl From<Unmapped> for Broken {
    fn from(_: Unmapped) -> Self {
        Self::Unmapped
    }
}

/// The device's side of a work queue.
///
/// Indices run freely, with `released <= taken <= producer`. Entries from `released` to `taken` have been read but
/// still belong to the device.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkQueue {
    ring: Option<Ring>,
    producer: u32,
    taken: u32,
    released: u32,
    broken: bool,
}

impl WorkQueue {
    /// Creates a work queue with a ring, or one that is always empty.
    pub(crate) fn new(ring: Option<Ring>) -> Self {
        Self {
            broken: ring.is_none(),
            ring,
            producer: 0,
            taken: 0,
            released: 0,
        }
    }

    /// Discards what was posted, and continues at the index at which the driver side is.
    pub(crate) fn restart<M: Memory>(&mut self, memory: &M) {
        let Some(ring) = &self.ring else {
            return;
        };
        let start = ring.driver_index(memory).and_then(|index| {
            ring.set_device_index(index, memory)?;
            ring.set_device_flags(0, memory)?;
            Ok(index)
        });
        self.broken = start.is_err();
        let start = start.unwrap_or_default();
        (self.producer, self.taken, self.released) = (start, start, start);
    }

    /// Stops reading from the queue for good.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// Returns the index and memory of the next entry that has not been taken. Returns `None` if there is none, or if
    /// the queue is broken.
    ///
    /// # Errors
    ///
    /// The queue has just broken.
    pub(crate) fn peek<M: Memory>(
        &mut self,
        memory: &M,
    ) -> Result<Option<(u32, HostRange)>, Broken> {
        let Some(ring) = self.ring.as_ref().filter(|_| !self.broken) else {
            return Ok(None);
        };
        let mut look = || {
            if self.producer == self.taken {
                let producer = ring.driver_index(memory)?;
                let used = ring::used(producer, self.released, ring.entries());
                if used.is_none_or(|used| used < self.taken.wrapping_sub(self.released)) {
                    return Err(Broken::Producer);
                }
                self.producer = producer;
                if self.producer == self.taken {
                    return Ok(None);
                }
            }
            Ok(Some((self.taken, ring.entry(self.taken)?)))
        };
        let found = look();
        self.broken = found.is_err();
        found
    }

    /// Returns the number of entries that are posted and not taken; 0 if the queue is broken.
    pub(crate) fn untaken<M: Memory>(&self, memory: &M) -> u32 {
        let ring = self.ring.as_ref().filter(|_| !self.broken);
        ring.and_then(|ring| {
            let producer = ring.driver_index(memory).ok()?;
            let used = ring::used(producer, self.released, ring.entries())?;
            used.checked_sub(self.taken.wrapping_sub(self.released))
        })
        .unwrap_or(0)
    }

    /// Returns the index after the last entry that is posted.
    pub(crate) fn end<M: Memory>(&self, memory: &M) -> u32 {
        self.taken.wrapping_add(self.untaken(memory))
    }

    /// Returns the number of entries before `end`, an earlier result of [`end`](Self::end), that belong to the device.
    pub(crate) fn left_before(&self, end: u32) -> u32 {
        let left = end.wrapping_sub(self.released).cast_signed();
        left.max(0).cast_unsigned()
    }

    /// Takes the entry that [`peek`](Self::peek) returned.
    pub(crate) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Gives the oldest `count` taken entries back to the driver side.
    pub(crate) fn release<M: Memory>(&mut self, count: u32, memory: &M) {
        self.released = self.released.wrapping_add(count);
        if let Some(ring) = &self.ring
            && ring.set_device_index(self.released, memory).is_err()
        {
            self.broken = true;
        }
    }

    /// Moves to another ring, to which the driver side has copied the entries that have not been taken. All taken
    /// entries must have been released.
    ///
    /// # Errors
    ///
    /// The producer index of the new ring is not possible, or its memory is gone. Nothing has changed then.
    pub(crate) fn move_to<M: Memory>(&mut self, ring: Ring, memory: &M) -> Result<(), Broken> {
        let producer = ring.driver_index(memory)?;
        ring::used(producer, self.released, ring.entries()).ok_or(Broken::Producer)?;
        ring.set_device_index(self.released, memory)?;
        self.producer = producer;
        self.ring = Some(ring);
        Ok(())
    }

    /// Returns the memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.ring.as_ref().map_or_else(Vec::new, Ring::places)
    }

    /// Returns the number of host ranges of the ring.
    pub(crate) fn translations(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::translations)
    }

    /// Returns the number of entries; 0 without a ring.
    pub(crate) fn entries(&self) -> u32 {
        self.ring.as_ref().map_or(0, Ring::entries)
    }

    /// Returns the number of entries that belong to the device, which are posted and not released, or `None` if the
    /// ring is broken. Also returns whether that number is exact; if not, it counts only those that the device has
    /// seen.
    pub(crate) fn posted(&self, glance: Glance<'_>) -> (Option<u32>, bool) {
        let Some(ring) = &self.ring else {
            return (Some(0), true);
        };
        let seen = ring.glance_at_index(glance);
        let exact = seen != Ok(None);
        let producer = seen.map(|seen| seen.unwrap_or(self.producer)).ok();
        let producer = producer.filter(|_| !self.broken);
        let posted = producer.and_then(|index| ring::used(index, self.released, ring.entries()));
        (posted, exact)
    }

    /// Returns the memory of a taken entry.
    pub(crate) fn entry(&self, index: u32) -> Result<HostRange, Unmapped> {
        self.ring.as_ref().ok_or(Unmapped)?.entry(index)
    }

    /// Asks consumers to ring the doorbell after posting. The caller must look at the ring again afterwards.
    pub(crate) fn need_doorbell<M: Memory>(&self, memory: &M) {
        if let Some(ring) = &self.ring {
            // A ring that is gone has no consumers.
            let _ = ring.set_device_flags(ring::flags::NEED_DOORBELL, memory);
            memory.fence();
        }
    }
}
