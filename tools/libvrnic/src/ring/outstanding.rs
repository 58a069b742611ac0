// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Requests that have been posted to a queue and have not completed.
//!
//! A ring entry identifies its request by a [`Name`]. The application's identifier (`wr_id`) is
//! kept here until the completion is polled. So the provider knows which requests to flush when the
//! device fails, and does not reuse an entry before its completion has been polled.

use super::Refused;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vrnic_wire::completion::{Cqe, Opcode, Status};

/// The identifier of a request on the device: the number of its queue at the completion queue, and
/// the index of its entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Number that the completion queue gave the queue.
    pub queue: u32,
    /// Index of the entry.
    pub index: u32,
}

impl Name {
    /// Returns the name as the `wr_id` of an entry.
    #[inline]
    pub fn to_wire(self) -> u64 {
        u64::from(self.queue) << 32 | u64::from(self.index)
    }

    /// Returns the name in the `wr_id` of a completion.
    #[inline]
    pub fn from_wire(wr_id: u64) -> Self {
        Self {
            queue: (wr_id >> 32) as u32,
            index: wr_id as u32,
        }
    }
}

/// The requests of a send or receive queue that have not completed.
///
/// The thread that posts writes `posted` and the identifiers in free slots; the thread that polls
/// writes `done`. Each holds the lock of its own queue. A reset holds both locks.
#[derive(Debug)]
pub struct Outstanding {
    /// `wr_id`s of the requests `done` to `posted`, by their index modulo the length.
    wr_ids: Box<[AtomicU64]>,
    posted: AtomicU32,
    done: AtomicU32,
    /// Number of the queue pair.
    qpn: AtomicU32,
    /// Opcode of completions that report no success.
    opcode: Opcode,
}

impl Outstanding {
    /// Creates an empty list for a ring of `entries` entries, which is a power of two or 0.
    /// `opcode` is that of sends or of receives. Returns `None` if memory runs out.
    pub fn new(entries: u32, opcode: Opcode) -> Option<Arc<Self>> {
        let mut wr_ids = Vec::new();
        wr_ids.try_reserve_exact(entries as usize).ok()?;
        wr_ids.resize_with(entries as usize, AtomicU64::default);
        Some(Arc::new(Self {
            wr_ids: wr_ids.into_boxed_slice(),
            posted: AtomicU32::new(0),
            done: AtomicU32::new(0),
            qpn: AtomicU32::new(0),
            opcode,
        }))
    }

    /// Sets the number of the queue pair.
    pub fn set_qpn(&self, qpn: u32) {
        self.qpn.store(qpn, Ordering::Relaxed);
    }

    /// Returns the slot of request `index`, or `None` if the ring has no entries.
    #[inline]
    fn wr_id(&self, index: u32) -> Option<&AtomicU64> {
        let mask = self.wr_ids.len().wrapping_sub(1);
        self.wr_ids.get(index as usize & mask)
    }

    /// Returns the index before which all requests are completed, so that their entries and slots
    /// are free.
    #[inline]
    pub fn done(&self) -> u32 {
        // Acquire: the thread that polled has read the identifiers before this index.
        self.done.load(Ordering::Acquire)
    }

    /// Records the `wr_id` of request `index`, whose slot must be free.
    #[inline]
    pub fn remember(&self, index: u32, wr_id: u64) -> Result<(), Refused> {
        let slot = self.wr_id(index).ok_or(Refused::Full)?;
        slot.store(wr_id, Ordering::Relaxed);
        Ok(())
    }

    /// Records that the requests before this index are posted.
    #[inline]
    pub fn set_posted(&self, index: u32) {
        // Release: a thread that flushes sees the identifiers.
        self.posted.store(index, Ordering::Release);
    }

    /// Completes request `index` and all requests before it. Returns the `wr_id` of request
    /// `index`, or `None` if it is not outstanding.
    #[inline]
    pub fn complete(&self, index: u32) -> Option<u64> {
        let done = self.done.load(Ordering::Relaxed);
        let outstanding = self.posted.load(Ordering::Acquire).wrapping_sub(done);
        if index.wrapping_sub(done) >= outstanding {
            return None;
        }
        let wr_id = self.wr_id(index)?.load(Ordering::Relaxed);
        self.done.store(index.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }

    /// Flushes the oldest request. Returns the completion that the device would have written.
    pub fn flush(&self) -> Option<Cqe> {
        let wr_id = self.complete(self.done.load(Ordering::Relaxed))?;
        Some(Cqe {
            wr_id: wr_id.into(),
            qpn: self.qpn.load(Ordering::Relaxed).into(),
            opcode: self.opcode.raw(),
            status: Status::Flushed.raw(),
            ..Cqe::default()
        })
    }

    /// Forgets all requests. The queues must not be posted to or polled at the same time.
    pub fn reset(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(outstanding: &Outstanding, indices: core::ops::Range<u32>) {
        for index in indices.clone() {
            outstanding
                .remember(index, u64::from(index) * 10)
                .expect("there is room");
        }
        outstanding.set_posted(indices.end);
    }

    #[test]
    fn names_survive_the_wire() {
        let name = Name {
            queue: 70_000,
            index: u32::MAX,
        };
        assert_eq!(Name::from_wire(name.to_wire()), name);
    }

    #[test]
    fn a_completion_covers_the_silent_ones_before_it() {
        let outstanding = Outstanding::new(4, Opcode::Send).unwrap();
        post(&outstanding, 0..3);
        assert_eq!(outstanding.complete(3), None, "not posted");
        assert_eq!(outstanding.complete(1), Some(10));
        assert_eq!(outstanding.complete(1), None, "completed");
        assert_eq!(outstanding.complete(0), None, "covered");
        assert_eq!(outstanding.done(), 2);
        post(&outstanding, 3..6);
        assert_eq!(outstanding.complete(5), Some(50));
        assert_eq!(outstanding.flush().map(|cqe| cqe.wr_id.get()), None);
    }

    #[test]
    fn what_is_outstanding_is_flushed_once_and_in_order() {
        let outstanding = Outstanding::new(4, Opcode::Receive).unwrap();
        outstanding.set_qpn(17);
        post(&outstanding, 0..4);
        assert_eq!(outstanding.complete(0), Some(0));
        let flushed: Vec<_> = core::iter::from_fn(|| outstanding.flush()).collect();
        let wr_ids: Vec<_> = flushed.iter().map(|cqe| cqe.wr_id.get()).collect();
        assert_eq!(wr_ids, [10, 20, 30]);
        assert!(flushed.iter().all(|cqe| cqe.qpn.get() == 17
            && cqe.status == Status::Flushed.raw()
            && cqe.opcode == Opcode::Receive.raw()));
        post(&outstanding, 4..5);
        assert_eq!(outstanding.flush().map(|cqe| cqe.wr_id.get()), Some(40));
        assert!(outstanding.flush().is_none());
    }

    #[test]
    fn an_absent_ring_has_no_requests() {
        let outstanding = Outstanding::new(0, Opcode::Send).unwrap();
        assert_eq!(outstanding.remember(0, 1), Err(Refused::Full));
        assert_eq!(outstanding.complete(0), None);
        assert!(outstanding.flush().is_none());
    }
}
