// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events that wait until the driver supplies buffers for them.

use crate::{
    state::{self, wire},
    {cause::Cause, counter::Counters, time::Instant},
};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque, btree_map::Entry};
use vrnic_wire::{
    counter::Counter,
    event::{AsyncEvent, CompletionEvent, EventType},
};

/// A queue of entries with keys. However long it is, an entry is soon removed.
#[derive(Debug, Serialize, Deserialize)]
struct Line<K: Ord, V> {
    entries: BTreeMap<u64, (K, V)>,
    /// Place of each key among the entries.
    places: BTreeMap<K, u64>,
    next: u64,
}

impl<K: Ord, V> Default for Line<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            places: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<K: Copy + Ord, V> Line<K, V> {
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry at the end unless there is one with its key. Returns whether it was added.
    fn push(&mut self, key: K, value: V) -> bool {
        let Entry::Vacant(place) = self.places.entry(key) else {
            return false;
        };
        place.insert(self.next);
        self.entries.insert(self.next, (key, value));
        self.next += 1;
        true
    }

    /// Takes the first entry.
    fn pop(&mut self) -> Option<(K, V)> {
        let (_, entry) = self.entries.pop_first()?;
        self.places.remove(&entry.0);
        Some(entry)
    }

    /// Removes the entry with this key, if there is one.
    fn remove(&mut self, key: K) {
        if let Some(place) = self.places.remove(&key) {
            self.entries.remove(&place);
        }
    }
}

/// Type of an event, and number of its object.
type Name = (u16, u32);

fn name_of(event: &AsyncEvent) -> Name {
    (event.event_type.get(), event.number.get())
}

/// Asynchronous events that wait. An event that is already waiting is not queued again, so their number is limited by
/// that of the objects. Events of an object are removed when the object is destroyed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AsyncEvents {
    /// Events, each with its `vendor_error`.
    queue: Line<Name, u32>,
    /// Events that a fault delays or has delayed.
    #[serde(serialize_with = "state::set")]
    delayed: FxHashSet<Name>,
    /// Events that a fault delays, and until when.
    #[serde(with = "wire")]
    held: Vec<(Instant, AsyncEvent)>,
    /// Events that were delayed and can now go out.
    #[serde(with = "wire")]
    released: VecDeque<AsyncEvent>,
}

impl AsyncEvents {
    /// Raises an event of the object with this number.
    pub(crate) fn raise(
        &mut self,
        event_type: EventType,
        number: u32,
        cause: Option<Cause>,
        counters: &mut Counters,
    ) {
        let name = (event_type.raw(), number);
        let vendor_error = cause.map_or(0, Cause::code);
        if !self.delayed.contains(&name) && self.queue.push(name, vendor_error) {
            counters.count(Counter::AsyncEvents);
        }
    }

    /// Delays an event that was taken until `due`.
    pub(crate) fn hold(&mut self, event: AsyncEvent, due: Instant) {
        self.delayed.insert(name_of(&event));
        self.held.push((due, event));
    }

    /// Releases events whose delay is over.
    pub(crate) fn release(&mut self, now: Instant) {
        while let Some(index) = self.held.iter().position(|(due, _)| *due <= now) {
            let (_, event) = self.held.remove(index);
            self.released.push_back(event);
        }
    }

    /// Returns when the first delayed event is due.
    pub(crate) fn next_held(&self) -> Option<Instant> {
        self.held.iter().map(|(due, _)| *due).min()
    }

    /// Returns whether there is no event that can go out now.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.released.is_empty()
    }

    /// Takes a released event.
    pub(crate) fn pop_released(&mut self) -> Option<AsyncEvent> {
        let event = self.released.pop_front()?;
        self.delayed.remove(&name_of(&event));
        Some(event)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        let ((event_type, number), vendor_error) = self.queue.pop()?;
        Some(AsyncEvent {
            event_type: event_type.into(),
            number: number.into(),
            vendor_error: vendor_error.into(),
            ..AsyncEvent::default()
        })
    }

    /// Removes the events of an object. `is_kind` returns whether events of a type name objects of its kind.
    pub(crate) fn forget(&mut self, number: u32, is_kind: impl Fn(EventType) -> bool) {
        for kind in EventType::ALL.iter().filter(|kind| is_kind(**kind)) {
            let name = (kind.raw(), number);
            self.queue.remove(name);
            if self.delayed.remove(&name) {
                self.released.retain(|event| name_of(event) != name);
                self.held.retain(|(_, event)| name_of(event) != name);
            }
        }
    }
}

/// Returns whether events of this type name a queue pair.
pub(crate) fn names_qp(event_type: EventType) -> bool {
    matches!(
        event_type,
        EventType::QpFatal
            | EventType::QpRequestError
            | EventType::QpAccessError
            | EventType::CommunicationEstablished
            | EventType::SendQueueDrained
            | EventType::PathMigrated
            | EventType::PathMigrationError
            | EventType::LastWqeReached
    )
}

/// Returns whether events of this type name a shared receive queue.
pub(crate) fn names_srq(event_type: EventType) -> bool {
    matches!(event_type, EventType::SrqError | EventType::SrqLimitReached)
}

/// Returns whether events of this type report the state of a port, and so supersede earlier ones.
pub(crate) fn names_port(event_type: EventType) -> bool {
    matches!(event_type, EventType::PortActive | EventType::PortError)
}

/// Returns whether events of this type name a memory region.
pub(crate) fn names_region(event_type: EventType) -> bool {
    event_type == EventType::PageFault
}

/// Returns whether events of this type name a completion queue.
pub(crate) fn names_cq(event_type: EventType) -> bool {
    event_type == EventType::CqError
}

/// Waiting completion events by vector: at most one per completion queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CompletionEvents {
    vectors: Vec<Line<u32, ()>>,
}

impl CompletionEvents {
    /// Creates empty queues for this number of vectors.
    pub(crate) fn new(vectors: u16) -> Self {
        Self {
            vectors: (0..vectors).map(|_| Line::default()).collect(),
        }
    }

    /// Raises an event of a completion queue that has none waiting.
    pub(crate) fn raise(&mut self, vector: u16, cqn: u32) {
        if let Some(queue) = self.vectors.get_mut(usize::from(vector)) {
            queue.push(cqn, ());
        }
    }

    /// Returns whether a vector has no waiting events.
    pub(crate) fn is_empty(&self, vector: u16) -> bool {
        let queue = self.vectors.get(usize::from(vector));
        queue.is_none_or(Line::is_empty)
    }

    /// Takes the next event of a vector.
    pub(crate) fn pop(&mut self, vector: u16) -> Option<CompletionEvent> {
        let (cqn, ()) = self.vectors.get_mut(usize::from(vector))?.pop()?;
        Some(CompletionEvent {
            cqn: cqn.into(),
            ..CompletionEvent::default()
        })
    }

    /// Forgets the event of a completion queue.
    pub(crate) fn forget(&mut self, vector: u16, cqn: u32) {
        if let Some(queue) = self.vectors.get_mut(usize::from(vector)) {
            queue.remove(cqn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u32 = 1 << 16;

    /// Events of destroyed objects are removed wherever they wait; the others keep their order.
    #[test]
    fn events_are_forgotten_in_any_order() {
        let (mut waiting, mut completion) = (AsyncEvents::default(), CompletionEvents::new(1));
        let mut counters = Counters::new(0);
        for number in 0..MANY {
            waiting.raise(EventType::QpFatal, number, None, &mut counters);
            completion.raise(0, number);
        }
        for number in (1..MANY - 1).rev() {
            waiting.forget(number, names_qp);
            completion.forget(0, number);
        }

        waiting.raise(EventType::QpFatal, 7, None, &mut counters);
        waiting.raise(EventType::QpFatal, 0, None, &mut counters);
        completion.raise(0, 7);
        let numbers: Vec<u32> = std::iter::from_fn(|| waiting.pop())
            .map(|event| event.number.get())
            .collect();
        assert_eq!(numbers, [0, MANY - 1, 7]);
        let cqns: Vec<u32> = std::iter::from_fn(|| completion.pop(0))
            .map(|event| event.cqn.get())
            .collect();
        assert_eq!(cqns, numbers);
        assert!(completion.is_empty(0));
    }
}
