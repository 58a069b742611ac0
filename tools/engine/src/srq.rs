// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared receive queues (IBTA volume 1, 10.2.9).

use crate::{
    cause::Cause,
    inspect::SrqSnapshot,
    memory::{HostRange, Memory},
    ring::{Broken, Glance, Ring, WorkQueue},
    work,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::work::Sge;

/// A receive that was read from its queue: its `wr_id`, and its size in bytes, or an error if it is not valid.
pub(crate) type Entry = (u64, Result<u64, Cause>);

/// Takes the oldest receive of a queue and appends its elements. Returns `None` if there is none.
///
/// # Errors
///
/// The queue has just broken.
pub(crate) fn take_entry<M: Memory>(
    queue: &mut WorkQueue,
    max_sge: u32,
    elements: &mut Vec<Sge>,
    memory: &M,
) -> Result<Option<Entry>, Cause> {
    let found = queue.peek(memory).map_err(|broken| match broken {
        Broken::Producer => Cause::ReceiveProducer,
        Broken::Unmapped => Cause::RingUnmapped,
    })?;
    let Some((_, entry)) = found else {
        return Ok(None);
    };
    let Ok(read) = work::read_receive(entry, max_sge, memory, elements) else {
        queue.give_up();
        return Err(Cause::RingUnmapped);
    };
    queue.take();
    queue.release(1, memory);
    Ok(Some(read))
}

/// Additional properties of a shared receive queue of an XRC domain.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Xrc {
    /// XRC domain.
    pub(crate) xrcdn: u32,
    /// Completion queue of its receives.
    pub(crate) cqn: u32,
}

/// A shared receive queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Srq {
    /// Context that owns it.
    pub(crate) context: u32,
    /// Protection domain of its elements.
    pub(crate) pd: u32,
    /// Number of queue pairs that use it.
    pub(crate) users: u32,
    /// XRC domain, if it belongs to one, and completion queue.
    pub(crate) xrc: Option<Xrc>,
    /// Largest number of elements of an entry.
    pub(crate) max_sge: u32,
    queue: WorkQueue,
    /// Number of receives below which an event is raised; 0 for none.
    limit: u32,
    failed: bool,
}

impl Srq {
    /// Creates a shared receive queue with a ring.
    pub(crate) fn new(context: u32, pd: u32, max_sge: u32, ring: Ring) -> Self {
        Self {
            context,
            pd,
            users: 0,
            xrc: None,
            max_sge,
            queue: WorkQueue::new(Some(ring)),
            limit: 0,
            failed: false,
        }
    }

    /// Takes the oldest receive and appends its elements. Returns `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Cause::SrqFailed`] if the queue failed earlier, another cause if it has just failed.
    pub(crate) fn take<M: Memory>(
        &mut self,
        elements: &mut Vec<Sge>,
        memory: &M,
    ) -> Result<Option<Entry>, Cause> {
        if self.failed {
            return Err(Cause::SrqFailed);
        }
        let taken = take_entry(&mut self.queue, self.max_sge, elements, memory);
        self.failed = taken.is_err();
        taken
    }

    /// Makes the queue fail. Returns whether it had not failed before.
    pub(crate) fn fail(&mut self) -> bool {
        !std::mem::replace(&mut self.failed, true)
    }

    /// Returns whether the limit has been reached since it was set. Returns true once.
    pub(crate) fn take_limit_event<M: Memory>(&mut self, memory: &M) -> bool {
        let reached = self.limit > 0 && self.queue.untaken(memory) < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// Sets the limit; 0 for none.
    pub(crate) fn set_limit(&mut self, limit: u32) -> Result<(), Cause> {
        if limit > self.queue.entries() {
            return Err(Cause::SrqLimit);
        }
        self.limit = limit;
        Ok(())
    }

    /// Moves to another ring, which already has the entries.
    pub(crate) fn resize<M: Memory>(&mut self, ring: Ring, memory: &M) -> Result<(), Cause> {
        if self.failed {
            return Err(Cause::SrqFailed);
        }
        let moved = self.queue.move_to(ring, memory);
        moved.map_err(|_| Cause::ReceiveProducer)?;
        self.limit = self.limit.min(self.queue.entries());
        Ok(())
    }

    /// Returns the number of entries in the ring.
    pub(crate) fn entries(&self) -> u32 {
        self.queue.entries()
    }

    /// Returns the limit; 0 for none.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.queue.places()
    }

    /// Returns the number of host ranges of the ring.
    pub(crate) fn translations(&self) -> usize {
        self.queue.translations()
    }

    /// Describes the queue for display.
    pub(crate) fn snapshot(&self, number: u32, glance: Glance<'_>) -> SrqSnapshot {
        let (posted, exact) = self.queue.posted(glance);
        SrqSnapshot {
            number,
            context: self.context,
            pd: self.pd,
            entries: self.queue.entries(),
            posted,
            exact,
            limit: self.limit,
            queue_pairs: self.users,
            xrcdn: self.xrc.map(|xrc| xrc.xrcdn),
            cqn: self.xrc.map(|xrc| xrc.cqn),
            failed: self.failed,
        }
    }
}
