// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events that wait until the driver supplies buffers for them.

use crate::{
    state::{self, wire},
    {cause::Cause, counter::Counters, time::Instant},
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vrnic_wire::{
    counter::Counter,
    event::{AsyncEvent, CompletionEvent, EventType},
};

/// Asynchronous events that wait. An event that is already waiting is not queued again, so their number is limited by
/// that of the objects. Events of an object are removed when the object is destroyed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AsyncEvents {
    #[serde(with = "wire")]
    queue: VecDeque<AsyncEvent>,
    #[serde(serialize_with = "state::set")]
    waiting: rustc_hash::FxHashSet<(u16, u32)>,
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
        if !self.waiting.insert((event_type.raw(), number)) {
            return;
        }
        counters.count(Counter::AsyncEvents);
        self.queue.push_back(AsyncEvent {
            event_type: event_type.raw().into(),
            number: number.into(),
            vendor_error: cause.map_or(0, Cause::code).into(),
            ..AsyncEvent::default()
        });
    }

    /// Delays an event that was taken until `due`.
    pub(crate) fn hold(&mut self, event: AsyncEvent, due: Instant) {
        self.waiting
            .insert((event.event_type.get(), event.number.get()));
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
        self.waiting
            .remove(&(event.event_type.get(), event.number.get()));
        Some(event)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        let event = self.queue.pop_front()?;
        self.waiting
            .remove(&(event.event_type.get(), event.number.get()));
        Some(event)
    }

    /// Removes the events of an object. `is_kind` returns whether events of a type name objects of its kind.
    pub(crate) fn forget(&mut self, number: u32, is_kind: impl Fn(EventType) -> bool) {
        let of_object = |event_type: u16, owner: u32| {
            owner == number && EventType::try_from(event_type).is_ok_and(&is_kind)
        };
        let waits = |kind: &EventType| self.waiting.contains(&(kind.raw(), number));
        if !EventType::ALL
            .iter()
            .any(|kind| is_kind(*kind) && waits(kind))
        {
            return;
        }
        self.queue
            .retain(|event| !of_object(event.event_type.get(), event.number.get()));
        self.released
            .retain(|event| !of_object(event.event_type.get(), event.number.get()));
        self.held
            .retain(|(_, event)| !of_object(event.event_type.get(), event.number.get()));
        self.waiting
            .retain(|&(kind, owner)| !of_object(kind, owner));
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
    vectors: Vec<VecDeque<u32>>,
}

impl CompletionEvents {
    /// Creates empty queues for this number of vectors.
    pub(crate) fn new(vectors: u16) -> Self {
        Self {
            vectors: vec![VecDeque::new(); usize::from(vectors)],
        }
    }

    /// Raises an event of a completion queue that has none waiting.
    pub(crate) fn raise(&mut self, vector: u16, cqn: u32) {
        if let Some(queue) = self.vectors.get_mut(usize::from(vector)) {
            queue.push_back(cqn);
        }
    }

    /// Returns whether a vector has no waiting events.
    pub(crate) fn is_empty(&self, vector: u16) -> bool {
        let queue = self.vectors.get(usize::from(vector));
        queue.is_none_or(VecDeque::is_empty)
    }

    /// Takes the next event of a vector.
    pub(crate) fn pop(&mut self, vector: u16) -> Option<CompletionEvent> {
        let cqn = self.vectors.get_mut(usize::from(vector))?.pop_front()?;
        Some(CompletionEvent {
            cqn: cqn.into(),
            ..CompletionEvent::default()
        })
    }

    /// Forgets the event of a completion queue.
    pub(crate) fn forget(&mut self, vector: u16, cqn: u32) {
        if let Some(queue) = self.vectors.get_mut(usize::from(vector)) {
            queue.retain(|&waiting| waiting != cqn);
        }
    }
}
