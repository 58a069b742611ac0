// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device does, step by step, for people who watch it: it takes requests from rings, sends and receives packets,
//! writes completions and raises events.
//!
//! A device traces while someone requests its steps, and for a while after the last request. Then it stops on its own;
//! after that, each trace point costs one check. The trace is bounded: a client that asks too rarely misses the oldest
//! steps, and can tell how many from the step numbers.

use crate::{
    event::names_qp,
    inspect::{CqSnapshot, Named, SrqSnapshot},
    memory::Memory,
    resources::Resources,
    ring::Glance,
    segment::{Body, Segment, Service},
    time::Instant,
};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, time::Duration};
use vrnic_wire::{
    completion::{Cqe, Status},
    event::{AsyncEvent, EventType},
    qp::QpState,
    work::SendOpcode,
};

/// Number of steps that are kept.
const KEPT: usize = 1 << 14;

/// How long a device traces after a request for its steps.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A traced packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Queue pair at the other end; 0 if unknown.
    pub peer_qpn: u32,
    /// Kind of packet, with its extended headers.
    pub body: Body,
    /// Sequence number.
    pub psn: u32,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Partition key.
    pub pkey: u16,
    /// Whether the requester requests a solicited event.
    pub solicited: bool,
    /// Whether the requester requests an acknowledgement.
    pub ack_request: bool,
    /// Whether the connection is in the migrated state.
    pub migrated: bool,
    /// The transport service of its opcode.
    pub service: Service,
    /// Name of the fault that acted on it.
    pub fault: Option<&'static str>,
}

impl Packet {
    /// Describes a segment.
    pub fn new(segment: &Segment<'_>, peer_qpn: u32) -> Self {
        Self {
            peer_qpn,
            body: segment.body,
            psn: segment.psn.raw(),
            length: segment.payload.len(),
            pkey: segment.pkey,
            solicited: segment.solicited,
            ack_request: segment.ack_request,
            migrated: segment.migrated,
            service: segment.service,
            fault: segment.touched.kind.map(|kind| kind.name),
        }
    }
}

/// Kind of step.
#[derive(Copy, Clone, Debug)]
pub enum Act {
    /// A request was taken from the send queue.
    Fetched {
        /// Chosen by the consumer that posted it.
        wr_id: u64,
        /// Operation of the request.
        opcode: SendOpcode,
        /// Number of bytes that it transfers.
        length: u64,
    },
    /// A receive was taken.
    TookReceive {
        /// Chosen by the consumer that posted it.
        wr_id: u64,
        /// Shared receive queue from which it was taken, if any.
        srqn: Option<u32>,
    },
    /// A packet left.
    Sent(Packet),
    /// A packet arrived.
    Arrived(Packet),
    /// A completion was written.
    Completed {
        /// The completion queue.
        cqn: u32,
        /// The completion.
        cqe: Cqe,
    },
    /// The event of a completion queue was raised.
    Notified {
        /// The completion queue.
        cqn: u32,
    },
    /// An asynchronous event was passed to the driver.
    Raised(AsyncEvent),
    /// The queue pair changed its state. This follows all other steps of the call in which it did.
    Moved {
        /// The state before.
        from: QpState,
        /// The state after.
        to: QpState,
    },
}

/// A step of a device.
#[derive(Copy, Clone, Debug)]
pub struct Traced {
    /// Time of the call of the device.
    pub time: Instant,
    /// Time of the step in nanoseconds, on the clock of the client.
    pub at: u64,
    /// Queue pair of the step; 0 if none.
    pub qpn: u32,
    /// Kind of step.
    pub act: Act,
}

/// An object that a step concerns, in its state at that time.
#[derive(Copy, Clone, Debug)]
pub enum Object {
    /// This key.
    Key(u32, Named),
    /// The completion queue of a completion, which it includes, or of an event.
    Cq(CqSnapshot),
    /// The shared receive queue of a receive, which it no longer includes, of a message for which there was no receive,
    /// or of an event.
    Srq(SrqSnapshot),
}

/// Objects that the next error step of a queue pair concerns, apart from those that the step itself names.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Concern {
    /// The queue pair.
    pub(crate) qpn: u32,
    /// Key of the refused access.
    pub(crate) key: Option<u32>,
    /// Shared receive queue that had no receive.
    pub(crate) srqn: Option<u32>,
}

/// A page of steps.
#[derive(Clone, Debug, Default)]
pub struct TracePage {
    /// Number of the first step. The others follow without a gap.
    pub first: u64,
    /// Steps, oldest first.
    pub steps: Vec<Traced>,
    /// Objects that the steps concern, each with the index of its step.
    pub objects: Vec<(usize, Object)>,
    /// Number of later steps that are already available.
    pub waiting: usize,
}

/// The youngest steps, each with a number that counts from 0.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Clock that returns nanoseconds; `None` if nothing is traced.
    clock: Option<fn() -> u64>,
    /// When tracing stops.
    until: u64,
    steps: VecDeque<Traced>,
    /// Objects that the steps concern, each with the number of its step. A step has at most two.
    objects: VecDeque<(u64, Object)>,
    /// Objects that the next error step concerns.
    concern: Option<Concern>,
    /// Number of the next step.
    next: u64,
}

impl Trace {
    /// Returns whether steps are to be added.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.clock.is_some()
    }

    #[cold]
    fn add(&mut self, time: Instant, qpn: u32, act: Act) {
        let Some(clock) = self.clock else {
            return;
        };
        let at = clock();
        if at > self.until {
            self.clock = None;
            self.steps = VecDeque::new();
            self.objects = VecDeque::new();
            return;
        }
        if self.steps.len() == KEPT {
            self.steps.pop_front();
            let oldest = self.next + 1 - KEPT as u64;
            while self
                .objects
                .pop_front_if(|(number, _)| *number < oldest)
                .is_some()
            {}
        }
        self.steps.push_back(Traced { time, at, qpn, act });
        self.next += 1;
    }

    /// Adds an object that the newest step concerns.
    fn concerns(&mut self, object: Object) {
        if self.is_on() {
            self.objects.push_back((self.next - 1, object));
        }
    }

    /// Continues tracing for a while, and returns up to `limit` steps from number `from` on, or from the oldest one
    /// that is kept.
    pub(crate) fn look(&mut self, clock: fn() -> u64, from: u64, limit: usize) -> TracePage {
        self.clock = Some(clock);
        self.until = clock().saturating_add(PATIENCE.as_nanos() as u64);
        let oldest = self.next - self.steps.len() as u64;
        // After a reset of the device, numbers start from 0 again.
        let first = if from > self.next {
            oldest
        } else {
            from.max(oldest)
        };
        let skip = (first - oldest) as usize;
        let steps: Vec<_> = self.steps.iter().skip(skip).take(limit).copied().collect();
        let end = first + steps.len() as u64;
        let begin = self.objects.partition_point(|(number, _)| *number < first);
        let objects = self
            .objects
            .range(begin..)
            .take_while(|(number, _)| *number < end);
        TracePage {
            first,
            objects: objects
                .map(|(number, object)| ((number - first) as usize, *object))
                .collect(),
            waiting: self.steps.len() - skip - steps.len(),
            steps,
        }
    }
}

impl Resources {
    /// Traces a step if tracing is on.
    #[inline]
    pub(crate) fn note(&mut self, qpn: u32, act: impl FnOnce() -> Act) {
        if self.trace.is_on() {
            self.trace.add(self.now, qpn, act());
        }
    }

    /// Traces an outgoing packet.
    #[inline]
    pub(crate) fn note_sent<M: Memory>(&mut self, segment: &Segment<'_>, memory: &M) {
        if self.trace.is_on() {
            let qpn = segment.source_qpn;
            self.note(qpn, || {
                Act::Sent(Packet::new(segment, segment.destination_qpn))
            });
            if segment.body.is_negative() {
                self.see_concern(qpn, memory);
            }
        }
    }

    /// Traces a packet that arrived.
    #[inline]
    pub(crate) fn note_arrived(&mut self, segment: &Segment<'_>) {
        if self.trace.is_on() {
            self.note(segment.destination_qpn, || {
                Act::Arrived(Packet::new(segment, segment.source_qpn))
            });
            if let Some(key) = segment.body.key() {
                self.see_key(key);
            }
        }
    }

    /// Traces a receive that was taken.
    #[inline]
    pub(crate) fn note_receive<M: Memory>(
        &mut self,
        qpn: u32,
        wr_id: u64,
        srqn: Option<u32>,
        memory: &M,
    ) {
        if self.trace.is_on() {
            self.note(qpn, || Act::TookReceive { wr_id, srqn });
            if let Some(srqn) = srqn {
                self.see_srq(srqn, &|range, offset| memory.glance(range, offset));
            }
        }
    }

    /// Traces a completion that was written.
    #[inline]
    pub(crate) fn note_completion<M: Memory>(&mut self, cqn: u32, cqe: Cqe, memory: &M) {
        if self.trace.is_on() {
            self.note(cqe.qpn.get(), || Act::Completed { cqn, cqe });
            self.see_cq(cqn, &|range, offset| memory.glance(range, offset));
            if cqe.status != Status::Success.raw() {
                self.see_concern(cqe.qpn.get(), memory);
            }
        }
    }

    /// Traces an event that is passed to the driver.
    #[inline]
    pub(crate) fn note_event(&mut self, event: Option<AsyncEvent>) -> Option<AsyncEvent> {
        if let Some(event) = event
            && self.trace.is_on()
        {
            let (kind, number) = (
                EventType::try_from(event.event_type.get()),
                event.number.get(),
            );
            let about_qp = kind.is_ok_and(names_qp);
            self.note(if about_qp { number } else { 0 }, || Act::Raised(event));
            // Guest memory is not accessible here.
            match kind {
                Ok(EventType::CqError) => self.see_cq(number, &|_, _| Ok(None)),
                Ok(EventType::SrqError | EventType::SrqLimitReached) => {
                    self.see_srq(number, &|_, _| Ok(None));
                }
                Ok(EventType::PageFault) => self.see_key(number),
                _ => {}
            }
        }
        event
    }

    /// Sets the objects that the next error step of a queue pair concerns.
    #[inline]
    pub(crate) fn concern(&mut self, concern: Concern) {
        if self.trace.is_on() {
            self.trace.concern = Some(concern);
        }
    }

    /// Adds the objects that the newest step, an error of this queue pair, concerns.
    fn see_concern<M: Memory>(&mut self, qpn: u32, memory: &M) {
        let Some(concern) = self.trace.concern.take_if(|concern| concern.qpn == qpn) else {
            return;
        };
        if let Some(key) = concern.key {
            self.see_key(key);
        }
        if let Some(srqn) = concern.srqn {
            self.see_srq(srqn, &|range, offset| memory.glance(range, offset));
        }
    }

    fn see_key(&mut self, key: u32) {
        self.trace.concerns(Object::Key(key, self.keys.named(key)));
    }

    fn see_cq(&mut self, cqn: u32, glance: Glance<'_>) {
        if let Some(cq) = self.cqs.get(cqn) {
            self.trace.concerns(Object::Cq(cq.snapshot(cqn, glance)));
        }
    }

    fn see_srq(&mut self, srqn: u32, glance: Glance<'_>) {
        if let Some(srq) = self.srqs.get(srqn) {
            self.trace.concerns(Object::Srq(srq.snapshot(srqn, glance)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static TIME: Cell<u64> = const { Cell::new(0) };
    }

    fn clock() -> u64 {
        TIME.get()
    }

    fn add(trace: &mut Trace, at: u64) {
        TIME.set(at);
        trace.add(Instant::default(), 1, Act::Notified { cqn: 1 });
    }

    #[test]
    fn the_oldest_steps_go_and_pages_follow_each_other() {
        let mut trace = Trace::default();
        assert!(!trace.is_on());
        assert!(trace.look(clock, 0, 10).steps.is_empty());
        for time in 0..KEPT as u64 + 5 {
            add(&mut trace, time);
        }
        let page = trace.look(clock, 0, 10);
        assert_eq!(
            (page.first, page.steps.len(), page.waiting),
            (5, 10, KEPT - 10)
        );
        assert_eq!(page.steps[0].at, 5);
        let page = trace.look(clock, 15, KEPT);
        assert_eq!(
            (page.first, page.steps.len(), page.waiting),
            (15, KEPT - 10, 0)
        );
        let page = trace.look(clock, KEPT as u64 + 5, 10);
        assert_eq!((page.first, page.steps.len()), (KEPT as u64 + 5, 0));
        // The client last saw a device that has been reset since.
        assert_eq!(trace.look(clock, u64::MAX, 1).first, 5);
    }

    #[test]
    fn objects_go_with_their_steps() {
        let mut trace = Trace::default();
        trace.look(clock, 0, 0);
        for time in 0..KEPT as u64 + 5 {
            add(&mut trace, time);
            trace.concerns(Object::Key(time as u32, Named::Nothing));
        }
        assert_eq!(trace.objects.len(), KEPT);
        let page = trace.look(clock, 7, 2);
        let keys: Vec<_> = page
            .objects
            .iter()
            .map(|(place, object)| match object {
                Object::Key(key, _) => (*place, *key),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(keys, [(0, 7), (1, 8)]);
        add(&mut trace, u64::MAX);
        trace.concerns(Object::Key(1, Named::Nothing));
        assert!(trace.objects.is_empty());
    }

    #[test]
    fn it_stops_when_nobody_asks_any_more() {
        let mut trace = Trace::default();
        let patience = PATIENCE.as_nanos() as u64;
        trace.look(clock, 0, 1);
        add(&mut trace, patience);
        assert!(trace.is_on());
        add(&mut trace, patience + 1);
        assert!(!trace.is_on() && trace.steps.capacity() == 0);
        assert_eq!(trace.next, 1, "numbers go on");
        let page = trace.look(clock, 0, 1);
        assert_eq!((page.first, page.steps.len()), (1, 0));
    }
}
