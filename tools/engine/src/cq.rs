// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use crate::{cause::Cause, inspect::CqSnapshot, memory::Memory, ring::Ring};
use rustc_hash::FxHashSet;
use vrnic_wire::{
    completion::{Cqe, PHASE_OFFSET, Status},
    ring,
};
use zerocopy::IntoBytes;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    /// Context that owns it.
    pub(crate) context: u32,
    /// Completion vector.
    pub(crate) vector: u16,
    /// Queue pairs that use it.
    pub(crate) users: FxHashSet<u32>,
    ring: Ring,
    producer: u32,
    /// The driver's consumer index when it was last read.
    consumer: u32,
    /// Number of the arm request that got its event.
    notified: u32,
    /// Whether an event waits for a buffer.
    pub(crate) event_waits: bool,
    /// Completions since the arm word was last looked at.
    unannounced: Announcement,
    failed: bool,
}

/// What completions have been written since the arm word was last looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Announcement {
    /// None.
    Nothing,
    /// Unsolicited ones only.
    Plain,
    /// A solicited one or an error among them.
    Solicited,
}

/// What has to follow after a completion was written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Nothing.
    Done,
    /// It is the first since the arm word was last looked at.
    First,
    /// It was lost, as all from now on: the queue failed just now.
    Failed(Cause),
    /// It was lost: the queue had failed before.
    Lost,
}

impl Cq {
    /// A completion queue over a ring of CQEs.
    pub(crate) fn new(context: u32, vector: u16, ring: Ring) -> Self {
        Self {
            context,
            vector,
            users: FxHashSet::default(),
            ring,
            producer: 0,
            consumer: 0,
            notified: 0,
            event_waits: false,
            unannounced: Announcement::Nothing,
            failed: false,
        }
    }

    /// Writes a completion.
    pub(crate) fn push<M: Memory>(&mut self, mut cqe: Cqe, solicited: bool, memory: &M) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        match self.write(&mut cqe, memory) {
            Ok(()) => {}
            Err(cause) => {
                self.failed = true;
                // If the memory is gone there is nobody to tell in this way.
                let _ = self.ring.set_device_flags(ring::flags::OVERRUN, memory);
                return Pushed::Failed(cause);
            }
        }
        let error = cqe.status != Status::Success.raw();
        let first = self.unannounced == Announcement::Nothing;
        self.unannounced = self.unannounced.max(if solicited || error {
            Announcement::Solicited
        } else {
            Announcement::Plain
        });
        if first { Pushed::First } else { Pushed::Done }
    }

    fn write<M: Memory>(&mut self, cqe: &mut Cqe, memory: &M) -> Result<(), Cause> {
        let entries = self.ring.entries();
        if self.producer.wrapping_sub(self.consumer) >= entries {
            self.consumer = self
                .ring
                .driver_index(memory)
                .map_err(|_| Cause::RingUnmapped)?;
            match ring::used(self.producer, self.consumer, entries) {
                None => return Err(Cause::CqConsumer),
                Some(used) if used == entries => return Err(Cause::CqOverrun),
                Some(_) => {}
            }
        }
        let phase = ring::phase(self.producer, entries);
        cqe.phase = phase ^ 1;
        let bytes = &cqe.as_bytes()[..PHASE_OFFSET];
        self.ring
            .entry(self.producer)
            .and_then(|entry| {
                memory.write(entry, bytes)?;
                memory.store_u8(entry, PHASE_OFFSET as u64, phase)
            })
            .map_err(|_| Cause::RingUnmapped)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Publishes the producer index, which is informative, before the fence that precedes
    /// [`take_event`](Self::take_event).
    pub(crate) fn publish<M: Memory>(&self, memory: &M) {
        // If the memory is gone the next completion finds out.
        let _ = self.ring.set_device_index(self.producer, memory);
    }

    /// Looks at the arm word, after a fence that followed the completions. Whether an event has to
    /// be raised.
    pub(crate) fn take_event<M: Memory>(&mut self, memory: &M) -> bool {
        let what = std::mem::replace(&mut self.unannounced, Announcement::Nothing);
        if what == Announcement::Nothing {
            return false;
        }
        let Ok(arm) = self.ring.arm(memory) else {
            return false;
        };
        if arm.sequence() == self.notified || !arm.wants(what == Announcement::Solicited) {
            return false;
        }
        self.notified = arm.sequence();
        !std::mem::replace(&mut self.event_waits, true)
    }

    /// What it is doing, for people.
    pub(crate) fn snapshot<M: Memory>(&self, number: u32, memory: &M) -> CqSnapshot {
        let entries = self.ring.entries();
        let consumer = self.ring.driver_index(memory).ok();
        CqSnapshot {
            number,
            context: self.context,
            vector: self.vector,
            entries,
            unread: consumer.and_then(|consumer| ring::used(self.producer, consumer, entries)),
            queue_pairs: self.users.len(),
            failed: self.failed,
        }
    }

    /// Host ranges that the ring needs.
    pub(crate) fn translations(&self) -> usize {
        self.ring.translations()
    }
}
