// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What faults delay: packets, completions, events of completion queues, doorbells.

use super::occasion::Direction;
use crate::{
    state::{self, wire},
    {segment::Segment, time::Instant},
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use vrnic_wire::completion::Cqe;

/// Things that may be put off at a time.
const MAX_PARCELS: usize = 4096;

/// Payload bytes of packets that may be put off at a time.
const MAX_BYTES: u64 = 16 << 20;

/// How long a packet waits to be overtaken.
const PATIENCE: Duration = Duration::from_millis(10);

/// Something that is put off.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Parcel {
    /// A packet.
    Packet(Direction, Segment<'static>),
    /// A completion of queue `cqn`.
    Completion(u32, #[serde(with = "wire")] Cqe, bool),
    /// The event of a completion queue.
    Notice(u32),
    /// A doorbell of a context, for a slot.
    Doorbell(u32, u32),
}

/// A packet that waits until others to the same queue pair overtook it.
#[derive(Debug, Serialize, Deserialize)]
struct Overtaken {
    direction: Direction,
    qpn: u32,
    left: u32,
    key: (Instant, u64),
}

/// What is put off, by when it is due, then in the order in which it came.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Later {
    parcels: BTreeMap<(Instant, u64), Parcel>,
    next: u64,
    /// What is put off from a moment on that the device does not know yet, and by how much.
    fresh: Vec<(Duration, Parcel)>,
    bytes: u64,
    overtaken: Vec<Overtaken>,
    /// How many completions of each queue are among them, and when the last is due.
    #[serde(serialize_with = "state::map")]
    completions: FxHashMap<u32, (usize, Instant)>,
}

impl Later {
    pub(crate) fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.fresh.is_empty()
    }

    /// When the next is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        if !self.fresh.is_empty() {
            return Some(Instant::default());
        }
        self.parcels.keys().next().map(|(due, _)| *due)
    }

    /// Puts something off, for which there is room, from the next call on that tells the time.
    pub(crate) fn put_fresh(&mut self, delay: Duration, parcel: Parcel) {
        self.fresh.push((delay, parcel));
    }

    /// Whether there is room for one more, with so many bytes of payload.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.parcels.len() + self.fresh.len() < MAX_PARCELS
            && self.bytes.saturating_add(bytes) <= MAX_BYTES
    }

    /// Puts something off, for which there is room.
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

    /// Takes the next that is due.
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

    /// Lets the next `by` packets to the same queue pair overtake this one.
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

    /// A packet passes: takes those that were overtaken by enough now, oldest first.
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

    /// When the last completion of a queue that is put off is due, if any is.
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

    /// Forgets what is about a completion queue that goes.
    pub(crate) fn forget_cq(&mut self, cqn: u32) {
        self.take_all(|parcel| match parcel {
            Parcel::Completion(number, ..) | Parcel::Notice(number) => *number == cqn,
            _ => false,
        });
    }

    /// Forgets the completions of a queue pair that goes. Its packets stay.
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
