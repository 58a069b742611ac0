// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings in guest memory, and work queues that read them.

use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::{HostRange, Memory, Unmapped},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use vrnic_wire::ring::{self, RingHeader, RingLayout, offset};

/// How somebody looks at a word of guest memory who only tells people of it: as [`Memory::glance`].
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
    /// The ring with that layout, which is valid and not absent, in `buffer`.
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

    /// Number of entries, a power of two.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Memory of the entry with free-running index `index`.
    pub(crate) fn entry(&self, index: u32) -> Result<HostRange, Unmapped> {
        let slot = index & (self.entries - 1);
        let start = self.first + u64::from(slot) * u64::from(self.stride);
        self.buffer
            .contiguous(start, self.stride.into())
            .ok_or(Unmapped)
    }

    /// Memory of all entries, as far as they have any.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        let entries = 0..self.entries;
        entries.filter_map(|index| self.entry(index).ok()).collect()
    }

    /// Host ranges that the buffer needs.
    pub(crate) fn translations(&self) -> usize {
        self.buffer.translations()
    }

    /// Reads the index that the driver side writes.
    pub(crate) fn driver_index<M: Memory>(&self, memory: &M) -> Result<u32, Unmapped> {
        memory.load_u32(self.header, offset::DRIVER_INDEX as u64)
    }

    /// Looks at the index that the driver side writes.
    pub(crate) fn glance_at_index(&self, glance: Glance<'_>) -> Result<Option<u32>, Unmapped> {
        glance(self.header, offset::DRIVER_INDEX as u64)
    }

    /// Looks at the arm word.
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
    /// The producer index cannot be.
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
/// Indices run freely: `released <= taken <= producer`. Entries from `released` to `taken` have been
/// read but belong to the device still.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkQueue {
    ring: Option<Ring>,
    producer: u32,
    taken: u32,
    released: u32,
    broken: bool,
}

impl WorkQueue {
    /// A queue over a ring, or one that is always empty.
    pub(crate) fn new(ring: Option<Ring>) -> Self {
        Self {
            broken: ring.is_none(),
            ring,
            producer: 0,
            taken: 0,
            released: 0,
        }
    }

    /// Forgets what was posted, and begins where the driver stands.
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

    /// Gives the queue up: nothing is read from it any more.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// The next entry that was not taken yet: its index and its memory. `None` if there is none, or
    /// the queue is broken.
    ///
    /// # Errors
    ///
    /// The queue broke just now.
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

    /// Entries that are posted and not taken; 0 if the queue is broken.
    pub(crate) fn untaken<M: Memory>(&self, memory: &M) -> u32 {
        let ring = self.ring.as_ref().filter(|_| !self.broken);
        ring.and_then(|ring| {
            let producer = ring.driver_index(memory).ok()?;
            let used = ring::used(producer, self.released, ring.entries())?;
            used.checked_sub(self.taken.wrapping_sub(self.released))
        })
        .unwrap_or(0)
    }

    /// Takes the entry that [`peek`](Self::peek) gave.
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

    /// Goes on in another ring, in which the driver side put what is not taken yet. Everything that was
    /// taken has to be released.
    ///
    /// # Errors
    ///
    /// The producer index of that ring cannot be, or its memory is gone; nothing changed.
    pub(crate) fn move_to<M: Memory>(&mut self, ring: Ring, memory: &M) -> Result<(), Broken> {
        let producer = ring.driver_index(memory)?;
        ring::used(producer, self.released, ring.entries()).ok_or(Broken::Producer)?;
        ring.set_device_index(self.released, memory)?;
        self.producer = producer;
        self.ring = Some(ring);
        Ok(())
    }

    /// Memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.ring.as_ref().map_or_else(Vec::new, Ring::places)
    }

    /// Host ranges that the ring needs.
    pub(crate) fn translations(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::translations)
    }

    /// Number of entries; 0 without a ring.
    pub(crate) fn entries(&self) -> u32 {
        self.ring.as_ref().map_or(0, Ring::entries)
    }

    /// Entries that belong to the device: posted and not released; `None` if the ring is broken. And whether these
    /// are all, and not only those that the device has seen.
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

    /// Memory of a taken entry.
    pub(crate) fn entry(&self, index: u32) -> Result<HostRange, Unmapped> {
        self.ring.as_ref().ok_or(Unmapped)?.entry(index)
    }

    /// Asks posters to ring the doorbell after posting, and looks at the ring anew afterwards.
    pub(crate) fn need_doorbell<M: Memory>(&self, memory: &M) {
        if let Some(ring) = &self.ring {
            // A ring that is gone has no posters.
            let _ = ring.set_device_flags(ring::flags::NEED_DOORBELL, memory);
            memory.fence();
        }
    }
}
