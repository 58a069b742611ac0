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
    /// Shared receive queues that complete on it.
    pub(crate) srqs: BTreeSet<u32>,
    ring: Ring,
    /// Whether completions are written where there is no room for them.
    ignores_overrun: bool,
    producer: u32,
    /// The driver's consumer index when it was last read.
    consumer: u32,
    /// Number of the arm request that got its event.
    notified: u32,
    /// Whether an event waits for a buffer.
    pub(crate) event_waits: bool,
    /// Completions since the arm word was last looked at.
    unannounced: Announcement,
    /// The producer index then.
    announced: u32,
    /// How long events are held back.
    moderation: Moderation,
    /// An event that is held back.
    held: Option<Held>,
    /// When it is looked at next because of that.
    pub(crate) reminder: Option<Instant>,
    failed: bool,
}

/// How long events are held back: until there are so many completions, but no longer than that time.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Moderation {
    pub(crate) count: u32,
    pub(crate) period: Duration,
}

/// An event that is held back.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Held {
    /// Completions so far.
    completions: u32,
    /// When it is raised at the latest.
    due: Instant,
}

/// What to do about an event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing.
    Nothing,
    /// Raise it.
    Raise,
    /// Look at the queue again at that time.
    Wait(Instant),
}

/// What completions have been written since the arm word was last looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

    /// Fails, if it has not yet.
    pub(crate) fn fail<M: Memory>(&mut self, memory: &M) -> bool {
        let _ = self.ring.set_device_flags(ring::flags::OVERRUN, memory);
        !std::mem::replace(&mut self.failed, true)
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
        // If the memory is gone the next completion finds out.
        let _ = self.ring.set_device_index(self.producer, memory);
    }

    /// Looks at the arm word, after a fence that followed the completions.
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

    /// Lets the event that is held back go, if there is one and it is time.
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

    /// Looks whether the event that is held back is due.
    pub(crate) fn look_at_held<M: Memory>(&mut self, now: Instant, memory: &M) -> Notice {
        match self.ring.arm(memory) {
            Ok(arm) => self.release(arm, now),
            Err(_) => Notice::Nothing,
        }
    }

    /// Holds events back in another way from now on. One that is held back is due.
    pub(crate) fn moderate(&mut self, moderation: Moderation, now: Instant) {
        self.moderation = moderation;
        if let Some(held) = &mut self.held {
            held.due = now;
        }
    }

    /// Goes on in another ring, in which what was written so far has its places.
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

    /// What it is doing, for people.
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

    /// Memory of all entries.
    pub(crate) fn places(&self) -> Vec<HostRange> {
        self.ring.places()
    }

    /// Host ranges that the ring needs.
    pub(crate) fn translations(&self) -> usize {
        self.ring.translations()
    }
}
