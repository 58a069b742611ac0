// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device does, step by step, for people who watch it: requests are taken from their rings, packets leave and
//! arrive, completions are written, events are raised.
//!
//! A device traces while somebody asks for it, and for a while after the last time. Then it stops by itself, and costs
//! one test at each place. The trace is bounded: whoever asks too rarely misses the oldest steps, and is told how many.

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

/// Steps that are kept.
const KEPT: usize = 1 << 14;

/// How long a device traces after somebody asked.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A packet that was traced.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Queue pair at the other end; 0 if that is not known.
    pub peer_qpn: u32,
    /// What it is, with its extended headers.
    pub body: Body,
    /// Sequence number.
    pub psn: u32,
    /// Bytes of payload.
    pub length: u64,
    /// Partition key.
    pub pkey: u16,
    /// Whether the requester asks for a solicited event.
    pub solicited: bool,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Whether the connection is in the migrated state.
    pub migrated: bool,
    /// The transport service that its opcode names.
    pub service: Service,
    /// Name of the fault that did something to it.
    pub fault: Option<&'static str>,
}

impl Packet {
    /// What there is to say of a segment.
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

/// What a step was.
#[derive(Copy, Clone, Debug)]
pub enum Act {
    /// A request was taken from the send queue.
    Fetched {
        /// Chosen by whoever posted it.
        wr_id: u64,
        /// What it is to do.
        opcode: SendOpcode,
        /// Bytes that it moves.
        length: u64,
    },
    /// A receive was taken.
    TookReceive {
        /// Chosen by whoever posted it.
        wr_id: u64,
        /// The shared receive queue that it was taken from, if it was.
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
    /// The driver was told of an asynchronous event.
    Raised(AsyncEvent),
    /// The queue pair went to another state: behind the other steps of the call that it did so in.
    Moved {
        /// The state before.
        from: QpState,
        /// The state after.
        to: QpState,
    },
}

/// Something that a device did.
#[derive(Copy, Clone, Debug)]
pub struct Traced {
    /// When the call of the device began.
    pub time: Instant,
    /// When it was, in nanoseconds of the clock of whoever asks.
    pub at: u64,
    /// The queue pair that it is about; 0 if it is about none.
    pub qpn: u32,
    /// What it was.
    pub act: Act,
}

/// An object that a step concerns, as it was then.
#[derive(Copy, Clone, Debug)]
pub enum Object {
    /// That key.
    Key(u32, Named),
    /// The completion queue of a completion, with it, or of an event.
    Cq(CqSnapshot),
    /// The shared receive queue of a receive, without it, or of a message that found none, or of an event.
    Srq(SrqSnapshot),
}

/// What the next step of a queue pair that tells of an error concerns, besides what the step names itself.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Concern {
    /// The queue pair.
    pub(crate) qpn: u32,
    /// Key of the access that was refused.
    pub(crate) key: Option<u32>,
    /// Shared receive queue that had no receive.
    pub(crate) srqn: Option<u32>,
}

/// Some steps.
#[derive(Clone, Debug, Default)]
pub struct TracePage {
    /// Number of the first of them. The others follow without a gap.
    pub first: u64,
    /// Steps, oldest first.
    pub steps: Vec<Traced>,
    /// Objects that they concern, each with the place of its step.
    pub objects: Vec<(usize, Object)>,
    /// Steps behind them that there are already.
    pub waiting: usize,
}

/// The youngest steps, each with a number that counts from 0.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Tells the time in nanoseconds; `None` if nothing is traced.
    clock: Option<fn() -> u64>,
    /// When it stops.
    until: u64,
    steps: VecDeque<Traced>,
    /// Objects that they concern, each with the number of its step. A step has two at most.
    objects: VecDeque<(u64, Object)>,
    /// What the next step that tells of an error concerns.
    concern: Option<Concern>,
    /// Number of the next step.
    next: u64,
}

impl Trace {
    /// Whether steps are to be added.
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

    /// The newest step concerns an object.
    fn concerns(&mut self, object: Object) {
        if self.is_on() {
            self.objects.push_back((self.next - 1, object));
        }
    }

    /// Goes on for a while, and gives up to `limit` steps from number `from` on, or the oldest that there are.
    pub(crate) fn look(&mut self, clock: fn() -> u64, from: u64, limit: usize) -> TracePage {
        self.clock = Some(clock);
        self.until = clock().saturating_add(PATIENCE.as_nanos() as u64);
        let oldest = self.next - self.steps.len() as u64;
        // After a reset of the device they count from 0 again.
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
    /// Traces a step, if anybody wants to know.
    #[inline]
    pub(crate) fn note(&mut self, qpn: u32, act: impl FnOnce() -> Act) {
        if self.trace.is_on() {
            self.trace.add(self.now, qpn, act());
        }
    }

    /// A packet leaves.
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

    /// A packet arrived.
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

    /// A receive was taken.
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

    /// A completion was written.
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

    /// The driver is told of an event.
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
            // Nobody looks at guest memory here.
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

    /// The next step of a queue pair that tells of an error concerns that.
    #[inline]
    pub(crate) fn concern(&mut self, concern: Concern) {
        if self.trace.is_on() {
            self.trace.concern = Some(concern);
        }
    }

    /// The newest step is of that queue pair, and tells of an error.
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
        // From a device that was reset since.
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
