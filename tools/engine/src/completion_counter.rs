// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters: how many operations of queue pairs completed, in memory of the guest.
//!
//! The device keeps the counts and only stores them to memory, so nothing that the guest writes there matters. A queue
//! pair without counters has no [`Counting`], and pays for them with one test per operation.

use crate::{
    cause::Cause,
    inspect::CompletionCounterSnapshot,
    limits::MAX_COMPLETION_COUNTERS,
    memory::{HostRange, Memory},
    table::Table,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    command::{CompletionCount, CompletionCounts, CountChange, counted_operations},
    completion::{Opcode, Status},
};

/// Number of bytes of the counts in memory.
pub(crate) const LENGTH: u64 = size_of::<CompletionCounts>() as u64;

/// Number of operations that can be counted.
const OPERATIONS: usize = counted_operations::ALL.count_ones() as usize;

/// An operation that a completion counter can count.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// A send.
    Send,
    /// A receive.
    Receive,
    /// A read.
    Read,
    /// A read by the peer.
    RemoteRead,
    /// A write.
    Write,
    /// A write by the peer.
    RemoteWrite,
}

impl Counted {
    /// Returns the operation of a request with this opcode, or `None` if such requests are not counted.
    pub(crate) fn of_request(opcode: Opcode) -> Option<Self> {
        match opcode {
            Opcode::Send | Opcode::SendSegmented => Some(Self::Send),
            Opcode::Write => Some(Self::Write),
            Opcode::Read => Some(Self::Read),
            _ => None,
        }
    }
}

/// The completion counter of each operation of a queue pair; 0 if there is none.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counting([u32; OPERATIONS]);

impl Counting {
    /// Returns the counter of an operation.
    pub(crate) fn of(&self, what: Counted) -> Option<u32> {
        let number = self.0[what as usize];
        (number != 0).then_some(number)
    }

    /// Adds a counter of the operations in `mask`, which has only [`counted_operations`]. Fails if one of them has a
    /// counter already.
    fn add(&mut self, mask: u32, counter: u32) -> Result<(), Cause> {
        let wanted = |place: usize| mask & (1 << place) != 0;
        if (0..OPERATIONS).any(|place| wanted(place) && self.0[place] != 0) {
            return Err(Cause::CountedAlready);
        }
        for place in (0..OPERATIONS).filter(|&place| wanted(place)) {
            self.0[place] = counter;
        }
        Ok(())
    }

    /// Returns each counter once.
    fn counters(&self) -> impl Iterator<Item = u32> {
        let first = |place: &usize| !self.0[..*place].contains(&self.0[*place]);
        let places = (0..OPERATIONS).filter(|place| self.0[*place] != 0);
        places.filter(first).map(|place| self.0[place])
    }
}

/// A completion counter.
#[derive(Debug, Serialize, Deserialize)]
struct CompletionCounter {
    /// Context that owns it.
    context: u32,
    /// Number of queue pairs that have it.
    users: u32,
    /// The counts, in the order of [`CompletionCount`].
    counts: [u64; CompletionCount::ALL.len()],
    /// Where they are in memory.
    place: HostRange,
}

impl CompletionCounter {
    /// Changes a count, and stores it.
    fn change<M: Memory>(&mut self, count: CompletionCount, value: u64, memory: &M) {
        self.counts[count as usize] = value;
        // The driver may have taken the memory away. The count remains.
        let _ = memory.swap_u64(self.place, 8 * count as u64, value);
    }

    /// Adds to a count, which wraps, and stores it.
    fn add<M: Memory>(&mut self, count: CompletionCount, amount: u64, memory: &M) {
        let value = self.counts[count as usize].wrapping_add(amount);
        self.change(count, value, memory);
    }
}

/// The completion counters of a device.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CompletionCounters(Table<CompletionCounter>);

impl Default for CompletionCounters {
    fn default() -> Self {
        Self(Table::new(1, MAX_COMPLETION_COUNTERS))
    }
}

impl CompletionCounters {
    /// Returns the number of counters.
    pub(crate) fn len(&self) -> u32 {
        self.0.len()
    }

    /// Returns whether there can be no more counters.
    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Creates a counter of a context, and stores its counts, which are 0. Returns its number, or `None` if the limit
    /// is reached.
    pub(crate) fn create<M: Memory>(
        &mut self,
        context: u32,
        place: HostRange,
        memory: &M,
    ) -> Option<u32> {
        let (number, counter) = self.0.insert_with(|_| CompletionCounter {
            context,
            users: 0,
            counts: [0; CompletionCount::ALL.len()],
            place,
        })?;
        for &count in CompletionCount::ALL {
            counter.change(count, 0, memory);
        }
        Some(number)
    }

    /// Removes a counter that no queue pair has. Returns its context.
    pub(crate) fn destroy(&mut self, number: u32) -> Result<u32, Cause> {
        let counter = self.0.get(number).ok_or(Cause::UnknownCompletionCounter)?;
        if counter.users > 0 {
            return Err(Cause::InUse);
        }
        let context = counter.context;
        self.0.remove(number);
        Ok(context)
    }

    /// Returns the counts of a counter.
    pub(crate) fn query(&self, number: u32) -> Result<CompletionCounts, Cause> {
        let counter = self.0.get(number).ok_or(Cause::UnknownCompletionCounter)?;
        let [completions, errors] = counter.counts;
        Ok(CompletionCounts {
            completions: completions.into(),
            errors: errors.into(),
        })
    }

    /// Changes a count of a counter.
    pub(crate) fn modify<M: Memory>(
        &mut self,
        number: u32,
        count: CompletionCount,
        change: CountChange,
        value: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let counter = self.0.get_mut(number);
        let counter = counter.ok_or(Cause::UnknownCompletionCounter)?;
        match change {
            CountChange::Set => counter.change(count, value, memory),
            CountChange::Add => counter.add(count, value, memory),
        }
        Ok(())
    }

    /// Adds a counter of `operations` to what a queue pair of a context counts.
    pub(crate) fn attach(
        &mut self,
        number: u32,
        context: u32,
        operations: u32,
        counting: &mut Option<Box<Counting>>,
    ) -> Result<(), Cause> {
        let counter = self.0.get_mut(number);
        let counter = counter.ok_or(Cause::UnknownCompletionCounter)?;
        if counter.context != context {
            return Err(Cause::ContextMismatch);
        }
        let mut more = counting.as_deref().copied().unwrap_or_default();
        let fresh = more.counters().all(|other| other != number);
        more.add(operations, number)?;
        counter.users += u32::from(fresh);
        *counting = Some(Box::new(more));
        Ok(())
    }

    /// Takes the counters from a queue pair that is destroyed.
    pub(crate) fn detach(&mut self, counting: &Counting) {
        for number in counting.counters() {
            if let Some(counter) = self.0.get_mut(number) {
                counter.users -= 1;
            }
        }
    }

    /// Counts an operation that completed with this status.
    pub(crate) fn count<M: Memory>(
        &mut self,
        counting: &Counting,
        what: Counted,
        status: u8,
        memory: &M,
    ) {
        let count = if status == Status::Success.raw() {
            CompletionCount::Completions
        } else {
            CompletionCount::Errors
        };
        if let Some(number) = counting.of(what)
            && let Some(counter) = self.0.get_mut(number)
        {
            counter.add(count, 1, memory);
        }
    }

    /// Describes up to `limit` counters for display, from slot `first` on.
    pub(crate) fn page(
        &self,
        first: usize,
        limit: usize,
    ) -> Option<Vec<CompletionCounterSnapshot>> {
        let page = self.0.page(first, limit)?;
        let shown = page.map(|(number, counter)| CompletionCounterSnapshot {
            number,
            context: counter.context,
            queue_pairs: counter.users,
            completions: counter.counts[CompletionCount::Completions as usize],
            errors: counter.counts[CompletionCount::Errors as usize],
        });
        Some(shown.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Nowhere, RegionId};

    #[test]
    fn counts_go_on_without_their_memory() {
        let mut counters = CompletionCounters::default();
        let place = HostRange {
            region: RegionId(7),
            offset: 0,
            length: LENGTH,
        };
        let number = counters.create(3, place, &Nowhere).expect("room");
        let mut counting = None;
        let operations = counted_operations::SEND | counted_operations::REMOTE_WRITE;
        let other = counters.attach(number, 4, operations, &mut counting);
        assert_eq!(other, Err(Cause::ContextMismatch));
        assert!(counting.is_none());
        let attached = counters.attach(number, 3, operations, &mut counting);
        assert_eq!(attached, Ok(()));
        let counting = counting.expect("counters");
        for (what, status) in [
            (Counted::Send, Status::Success),
            (Counted::Send, Status::Flushed),
            (Counted::RemoteWrite, Status::Success),
            (Counted::Write, Status::Success),
        ] {
            counters.count(&counting, what, status.raw(), &Nowhere);
        }
        let counts = counters.query(number).expect("counter");
        assert_eq!((counts.completions.get(), counts.errors.get()), (2, 1));
        assert_eq!(counters.destroy(number), Err(Cause::InUse));
        // It has the counter for two operations, and gives it back once.
        counters.detach(&counting);
        assert_eq!(counters.destroy(number), Ok(3));
    }
}
