// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use crate::{
    cause::Cause,
    inspect::CqSnapshot,
    memory::{HostRange, Memory},
    ring::{Glance, Ring},
    time::Instant,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};
use vrnic_wire::{
    completion::{Cqe, PHASE_OFFSET, Status},
    ring,
};
use zerocopy::IntoBytes;

/// A completion queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cq {
    /// Context that owns it.
    pub(crate) context: u32,
    /// Completion vector.
    pub(crate) vector: u16,
    /// Queue pairs that use it.
    pub(crate) users: BTreeSet<u32>,
    /// Shared receive queues whose receives complete on it.
    pub(crate) srqs: BTreeSet<u32>,
    ring: Ring,
    /// Whether completions are written even if there is no room for them.
    ignores_overrun: bool,
    producer: u32,
    /// The driver's consumer index as last read.
    consumer: u32,
    /// Number of the arm request that was last answered with an event.
    notified: u32,
    /// Whether an event waits for a buffer of the driver.
    pub(crate) event_waits: bool,
    /// Completions since the last look at the arm word.
    unannounced: Announcement,
    /// Producer index at that time.
    announced: u32,
    /// How long events are held back.
    moderation: Moderation,
    /// An event that is held back.
    held: Option<Held>,
    /// When the queue looks at the event that is held back.
    pub(crate) reminder: Option<Instant>,
    failed: bool,
}

/// Event moderation: events are held back until there are `count` completions, but no longer than `period`.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Moderation {
    pub(crate) count: u32,
    pub(crate) period: Duration,
}

/// An event that is held back.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Held {
    /// Number of completions so far.
    completions: u32,
    /// When the event is raised at the latest.
    due: Instant,
}

/// What to do about an event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing.
    Nothing,
    /// Raise it.
    Raise,
    /// Look at the queue again at this time.
    Wait(Instant),
}

/// Completions that have been written since the last look at the arm word.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Announcement {
    /// None.
    Nothing,
    /// Only unsolicited ones.
    Plain,
    /// At least one that is solicited or an error.
    Solicited,
}

/// Result of writing a completion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was written.
    Done,
    /// It was written as the first since the last look at the arm word.
    First,
    /// It was lost, and so will be all that follow: the queue has just failed.
    Failed(Cause),
    /// It was lost: the queue had failed earlier.
    Lost,
}

impl Cq {
    /// Creates a completion queue with a ring of CQEs.
    pub(crate) fn new(context: u32, vector: u16, ring: Ring, ignores_overrun: bool) -> Self {
        Self {
            context,
            vector,
            users: BTreeSet::new(),
            srqs: BTreeSet::new(),
            ring,
            ignores_overrun,
            producer: 0,
            consumer: 0,
            notified: 0,
            event_waits: false,
            unannounced: Announcement::Nothing,
            announced: 0,
            moderation: Moderation::default(),
            held: None,
            reminder: None,
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
                // If the memory is gone, the flag cannot be set, and no one could read it.
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

    /// Makes the queue fail. Returns whether it had not failed before.
    pub(crate) fn fail<M: Memory>(&mut self, memory: &M) -> bool {
        let _ = self.ring.set_device_flags(ring::flags::OVERRUN, memory);
        !std::mem::replace(&mut self.failed, true)
    }

    /// Returns whether the queue has failed, and loses all completions.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    fn write<M: Memory>(&mut self, cqe: &mut Cqe, memory: &M) -> Result<(), Cause> {
        let entries = self.ring.entries();
        if !self.ignores_overrun && self.producer.wrapping_sub(self.consumer) >= entries {
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
        // If the memory is gone, writing the next completion will fail.
        let _ = self.ring.set_device_index(self.producer, memory);
    }

    /// Looks at the arm word, after a fence that followed the completions, and returns what to do about an event.
    pub(crate) fn take_event<M: Memory>(&mut self, now: Instant, memory: &M) -> Notice {
        let what = std::mem::replace(&mut self.unannounced, Announcement::Nothing);
        if what == Announcement::Nothing {
            return Notice::Nothing;
        }
        let fresh = self.producer.wrapping_sub(self.announced);
        self.announced = self.producer;
        let Ok(arm) = self.ring.arm(memory) else {
            return Notice::Nothing;
        };
        match &mut self.held {
            Some(held) => held.completions = held.completions.saturating_add(fresh),
            None if arm.sequence() == self.notified
                || !arm.wants(what == Announcement::Solicited) =>
            {
                return Notice::Nothing;
            }
            None => {
                self.held = Some(Held {
                    completions: fresh,
                    due: now + self.moderation.period,
                });
            }
        }
        self.release(arm, now)
    }

    /// Decides whether to raise the event that is held back, if there is one.
    fn release(&mut self, arm: ring::Arm, now: Instant) -> Notice {
        let Some(held) = self.held else {
            return Notice::Nothing;
        };
        if held.completions < self.moderation.count && now < held.due {
            return Notice::Wait(held.due);
        }
        self.held = None;
        if std::mem::replace(&mut self.notified, arm.sequence()) == arm.sequence() {
            return Notice::Nothing;
        }
        if std::mem::replace(&mut self.event_waits, true) {
            Notice::Nothing
        } else {
            Notice::Raise
        }
    }

    /// Decides whether the event that is held back is due.
    pub(crate) fn look_at_held<M: Memory>(&mut self, now: Instant, memory: &M) -> Notice {
        match self.ring.arm(memory) {
            Ok(arm) => self.release(arm, now),
            Err(_) => Notice::Nothing,
        }
    }

    /// Changes the event moderation from now on. An event that is held back is due immediately.
    pub(crate) fn moderate(&mut self, moderation: Moderation, now: Instant) {
        self.moderation = moderation;
        if let Some(held) = &mut self.held {
            held.due = now;
        }
    }

    /// Moves to another ring, which already has the unread completions in their places.
    pub(crate) fn resize<M: Memory>(&mut self, ring: Ring, memory: &M) -> Result<(), Cause> {
        if self.failed {
            return Err(Cause::CqFailed);
        }
        let consumer = ring.driver_index(memory).map_err(|_| Cause::RingUnmapped)?;
        let unread = ring::used(self.producer, consumer, self.ring.entries());
        if unread.ok_or(Cause::CqConsumer)? > ring.entries() {
            return Err(Cause::CqTooSmall);
        }
        ring.set_device_index(self.producer, memory)
            .map_err(|_| Cause::RingUnmapped)?;
        self.consumer = consumer;
        self.ring = ring;
        Ok(())
    }

    /// Describes the queue for display.
    pub(crate) fn snapshot(&self, number: u32, glance: Glance<'_>) -> CqSnapshot {
        let entries = self.ring.entries();
        let seen = self.ring.glance_at_index(glance);
        let unread = match seen {
            Ok(Some(consumer)) => ring::used(self.producer, consumer, entries),
            Ok(None) => Some(self.producer.wrapping_sub(self.consumer).min(entries)),
            Err(_) => None,
        };
        let arm = self.ring.glance_at_arm(glance);
        CqSnapshot {
            number,
            context: self.context,
            vector: self.vector,
            entries,
            moderation_count: self.moderation.count,
            moderation_period: self.moderation.period,
            unread,
            exact: seen != Ok(None),
            armed: arm.map(|arm| arm.sequence() != self.notified),
            queue_pairs: self.users.len(),
            failed: self.failed,
        }
    }

    /// Returns the memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.ring.places()
    }

    /// Returns the number of host ranges of the ring.
    pub(crate) fn translations(&self) -> usize {
        self.ring.translations()
    }
}
