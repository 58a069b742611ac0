// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receive queue: turns work requests into receive entries.

use super::{Refused, WorkRing};
use crate::memory::full_fence;
use vrnic_wire::ring::flags;
use vrnic_wire::work::{RECEIVE_DATA_OFFSET, ReceiveHeader, Sge};

/// The receive queue of a queue pair.
#[derive(Debug)]
pub struct ReceiveQueue {
    ring: WorkRing,
    max_sge: u32,
    /// Whether posting is allowed in the state of the queue pair.
    accepts: bool,
}

impl ReceiveQueue {
    /// Creates a queue in the reset state, for requests of up to `max_sge` elements.
    pub fn new(ring: WorkRing, max_sge: u32) -> Self {
        let mut queue = Self {
            ring,
            max_sge,
            accepts: false,
        };
        queue.set_max_sge(max_sge);
        queue
    }

    /// Sets the largest number of elements in a request, limited by the size of the entries.
    pub fn set_max_sge(&mut self, max_sge: u32) {
        let room = self
            .ring
            .stride()
            .saturating_sub(RECEIVE_DATA_OFFSET as u32);
        self.max_sge = max_sge.min(room / size_of::<Sge>() as u32);
    }

    /// Returns the ring of the queue.
    pub fn ring(&self) -> &WorkRing {
        &self.ring
    }

    /// Sets whether requests may be posted.
    pub fn set_accepts(&mut self, accepts: bool) {
        self.accepts = accepts;
    }

    /// Resets the queue, as the device does when its queue pair is reset.
    pub fn reset(&mut self) {
        self.accepts = false;
        self.ring.reset();
    }

    /// Queues a request. [`ReceiveQueue::publish`] passes it to the device.
    #[inline(always)]
    pub fn push(
        &mut self,
        wr_id: u64,
        elements: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Refused> {
        let count = elements.len();
        if !self.accepts || count > self.max_sge as usize {
            return Err(Refused::Invalid);
        }
        let (entry, name) = self.ring.take(wr_id)?;
        let header = ReceiveHeader {
            wr_id: name.to_wire().into(),
            num_sge: (count as u16).into(),
            ..ReceiveHeader::default()
        };
        entry.write(0, &header);
        entry.write_all(RECEIVE_DATA_OFFSET, elements);
        Ok(())
    }

    /// Publishes the queued requests to the device. Returns whether the caller must ring the
    /// doorbell; otherwise the device looks when a message arrives.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if !self.ring.publish() {
            return false;
        }
        // Either the device, when it sets the flag, sees the new index, or we see the flag.
        full_fence();
        self.ring.device_flags() & flags::NEED_DOORBELL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::outstanding::Name;
    use super::super::tests::{ring, work_ring};
    use super::*;
    use core::sync::atomic::Ordering;
    use vrnic_wire::ring::offset;

    fn sge(n: u32) -> Sge {
        Sge {
            address: u64::from(n).into(),
            length: n.into(),
            lkey: n.into(),
        }
    }

    #[test]
    fn receives_are_encoded_and_bounded() {
        let (_buffer, memory, layout) = ring(2, 64);
        let mut queue = ReceiveQueue::new(work_ring(memory, layout), 2);
        assert_eq!(
            queue.push(1, core::iter::empty()),
            Err(Refused::Invalid),
            "reset"
        );
        queue.set_accepts(true);
        queue.push(5, [sge(1), sge(2)].into_iter()).unwrap();
        assert_eq!(
            queue.push(6, [sge(1), sge(2), sge(3)].into_iter()),
            Err(Refused::Invalid)
        );
        queue.push(7, core::iter::empty()).unwrap();
        assert_eq!(queue.push(8, core::iter::empty()), Err(Refused::Full));
        assert!(!queue.publish());
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 2);
        let first: ReceiveHeader = memory.read(1024);
        let name = |index| Name { queue: 3, index }.to_wire();
        assert_eq!((first.wr_id.get(), first.num_sge.get()), (name(0), 2));
        assert_eq!(memory.read::<Sge>(1024 + RECEIVE_DATA_OFFSET + 16), sge(2));
        let second: ReceiveHeader = memory.read(1024 + 64);
        assert_eq!((second.wr_id.get(), second.num_sge.get()), (name(1), 0));
    }

    #[test]
    fn a_queue_in_error_is_rung() {
        let (_buffer, memory, layout) = ring(4, 64);
        let mut queue = ReceiveQueue::new(work_ring(memory, layout), 1);
        queue.set_accepts(true);
        memory
            .word(offset::DEVICE_FLAGS)
            .store(flags::NEED_DOORBELL, Ordering::Relaxed);
        assert!(!queue.publish(), "nothing to ring for");
        queue.push(1, core::iter::empty()).unwrap();
        assert!(queue.publish());
    }
}
