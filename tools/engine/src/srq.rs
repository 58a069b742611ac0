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

/// A receive that was read from its queue: its name, and the bytes that it has room for unless it is
/// not valid.
pub(crate) type Entry = (u64, Result<u64, Cause>);

/// Takes the oldest receive of a queue, and appends its elements. `None` if there is none.
///
/// # Errors
///
/// The queue broke just now.
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

/// What a shared receive queue of an XRC domain has more than others.
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
    /// Queue pairs that use it.
    pub(crate) users: u32,
    /// The XRC domain that it is for, if it is for one.
    pub(crate) xrc: Option<Xrc>,
    /// Elements of an entry.
    pub(crate) max_sge: u32,
    queue: WorkQueue,
    /// An event is asked for when fewer receives are left; 0 if none is.
    limit: u32,
    failed: bool,
}

impl Srq {
    /// A shared receive queue over a ring.
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

    /// Takes the oldest receive, and appends its elements. `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Cause::SrqFailed`] if the queue failed before, another one if it did just now.
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

    /// Fails, if it has not yet.
    pub(crate) fn fail(&mut self) -> bool {
        !std::mem::replace(&mut self.failed, true)
    }

    /// Whether the limit was reached since it was set; gives `true` once.
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

    /// Goes on in another ring, in which its entries stand already.
    pub(crate) fn resize<M: Memory>(&mut self, ring: Ring, memory: &M) -> Result<(), Cause> {
        if self.failed {
            return Err(Cause::SrqFailed);
        }
        let moved = self.queue.move_to(ring, memory);
        moved.map_err(|_| Cause::ReceiveProducer)?;
        self.limit = self.limit.min(self.queue.entries());
        Ok(())
    }

    /// Places of the queue.
    pub(crate) fn entries(&self) -> u32 {
        self.queue.entries()
    }

    /// The limit; 0 for none.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.queue.places()
    }

    /// Host ranges that the ring needs.
    pub(crate) fn translations(&self) -> usize {
        self.queue.translations()
    }

    /// What it is doing, for people.
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
