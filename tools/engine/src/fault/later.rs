// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What faults delay: packets, completions, completion events and doorbells.

use super::occasion::Direction;
use crate::{
    state::{self, wire},
    {segment::Segment, time::Instant},
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use vrnic_wire::completion::Cqe;

/// Largest number of items that may be delayed at a time.
const MAX_PARCELS: usize = 4096;

/// Largest total payload of delayed packets in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// How long a packet waits to be overtaken.
const PATIENCE: Duration = Duration::from_millis(10);

/// A delayed item.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Parcel {
    /// A packet.
    Packet(Direction, Segment<'static>),
    /// A completion, with the number of its completion queue and whether it is solicited.
    Completion(u32, #[serde(with = "wire")] Cqe, bool),
    /// The event of a completion queue.
    Notice(u32),
    /// A doorbell: context and slot.
    Doorbell(u32, u32),
}

/// A packet that waits until others to the same queue pair have overtaken it.
#[derive(Debug, Serialize, Deserialize)]
struct Overtaken {
    direction: Direction,
    qpn: u32,
    left: u32,
    key: (Instant, u64),
}

/// Delayed items, by the time when they are due and then in the order in which they were added.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Later {
    parcels: BTreeMap<(Instant, u64), Parcel>,
    next: u64,
    /// Items that were delayed when the current time was unknown, and by how much.
    fresh: Vec<(Duration, Parcel)>,
    bytes: u64,
    overtaken: Vec<Overtaken>,
    /// Number of delayed completions of each completion queue, and when the last is due.
    #[serde(serialize_with = "state::map")]
    completions: FxHashMap<u32, (usize, Instant)>,
}

impl Later {
    pub(crate) fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.fresh.is_empty()
    }

    /// Returns when the next item is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        if !self.fresh.is_empty() {
            return Some(Instant::default());
        }
        self.parcels.keys().next().map(|(due, _)| *due)
    }

    /// Delays an item, for which there must be room, counted from the next call that knows the time.
    pub(crate) fn put_fresh(&mut self, delay: Duration, parcel: Parcel) {
        self.fresh.push((delay, parcel));
    }

    /// Returns whether there is room for one more item, with this many bytes of payload.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.parcels.len() + self.fresh.len() < MAX_PARCELS
            && self.bytes.saturating_add(bytes) <= MAX_BYTES
    }

    /// Delays an item, for which there must be room.
    pub(crate) fn put(&mut self, due: Instant, parcel: Parcel) {
        self.insert(due, parcel);
    }

    fn insert(&mut self, due: Instant, parcel: Parcel) -> (Instant, u64) {
        match &parcel {
            Parcel::Packet(_, segment) => self.bytes += segment.payload.len(),
            Parcel::Completion(cqn, ..) => {
                let (count, last) = self.completions.entry(*cqn).or_default();
                *count += 1;
                *last = (*last).max(due);
            }
            Parcel::Notice(_) | Parcel::Doorbell(..) => {}
        }
        let key = (due, self.next);
        self.next += 1;
        self.parcels.insert(key, parcel);
        key
    }

    fn remove(&mut self, key: (Instant, u64)) -> Option<Parcel> {
        let parcel = self.parcels.remove(&key)?;
        match &parcel {
            Parcel::Packet(_, segment) => {
                self.bytes -= segment.payload.len();
                self.overtaken.retain(|overtaken| overtaken.key != key);
            }
            Parcel::Completion(cqn, ..) => {
                if let Some((count, _)) = self.completions.get_mut(cqn) {
                    *count -= 1;
                    if *count == 0 {
                        self.completions.remove(cqn);
                    }
                }
            }
            Parcel::Notice(_) | Parcel::Doorbell(..) => {}
        }
        Some(parcel)
    }

    /// Takes the next item that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Parcel> {
        for (delay, parcel) in std::mem::take(&mut self.fresh) {
            self.insert(now + delay, parcel);
        }
        let key = *self.parcels.keys().next()?;
        if key.0 > now {
            return None;
        }
        self.remove(key)
    }

    /// Delays a packet until the next `by` packets to the same queue pair have overtaken it.
    pub(crate) fn put_behind(
        &mut self,
        direction: Direction,
        segment: Segment<'static>,
        by: u32,
        now: Instant,
    ) {
        let qpn = segment.destination_qpn;
        let key = self.insert(now + PATIENCE, Parcel::Packet(direction, segment));
        self.overtaken.push(Overtaken {
            direction,
            qpn,
            left: by,
            key,
        });
    }

    /// Counts a packet that passes. Returns the packets that have now been overtaken often enough, oldest first.
    pub(crate) fn pass(&mut self, direction: Direction, qpn: u32) -> Vec<Segment<'static>> {
        let mut keys = Vec::new();
        for overtaken in &mut self.overtaken {
            if overtaken.direction == direction && overtaken.qpn == qpn {
                overtaken.left = overtaken.left.saturating_sub(1);
                if overtaken.left == 0 {
                    keys.push(overtaken.key);
                }
            }
        }
        let parcels = keys.into_iter().filter_map(|key| self.remove(key));
        parcels
            .filter_map(|parcel| match parcel {
                Parcel::Packet(_, segment) => Some(segment),
                _ => None,
            })
            .collect()
    }

    /// Returns when the last delayed completion of a queue is due, if there is one.
    pub(crate) fn last_completion(&self, cqn: u32) -> Option<Instant> {
        self.completions.get(&cqn).map(|(_, due)| *due)
    }

    /// Takes all completions of a queue.
    pub(crate) fn take_completions(&mut self, cqn: u32) -> Vec<(Cqe, bool)> {
        let of_queue =
            |parcel: &Parcel| matches!(parcel, Parcel::Completion(number, ..) if *number == cqn);
        self.take_all(of_queue)
            .into_iter()
            .filter_map(|parcel| match parcel {
                Parcel::Completion(_, cqe, solicited) => Some((cqe, solicited)),
                _ => None,
            })
            .collect()
    }

    /// Drops the items of a completion queue that is destroyed.
    pub(crate) fn forget_cq(&mut self, cqn: u32) {
        self.take_all(|parcel| match parcel {
            Parcel::Completion(number, ..) | Parcel::Notice(number) => *number == cqn,
            _ => false,
        });
    }

    /// Drops the completions of a queue pair that is destroyed. Its packets stay.
    pub(crate) fn forget_qp(&mut self, qpn: u32) {
        self.take_all(
            |parcel| matches!(parcel, Parcel::Completion(_, cqe, _) if cqe.qpn.get() == qpn),
        );
    }

    fn take_all(&mut self, wanted: impl Fn(&Parcel) -> bool) -> Vec<Parcel> {
        let found = self.parcels.iter().filter(|(_, parcel)| wanted(parcel));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        keys.into_iter()
            .filter_map(|key| self.remove(key))
            .collect()
    }
}
