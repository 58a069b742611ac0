// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks every step of a replay against the rules that the standard sets for a device.
//!
//! Packets affected by a fault are left out, and so are completions of queue pairs whose completions a fault changed or
//! removed: the effect of a fault is not a violation by the device.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use vrnic_engine::memory::Nowhere;
use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{Body, NakCode, Segment, Syndrome};
use vrnic_engine::{Engine, QpSnapshot, Queue};
use vrnic_wire::command::{CommandCode, Status as CommandStatus};
use vrnic_wire::completion::{Cqe, Opcode, Status};
use vrnic_wire::qp::{MULTICAST_QPN, QpState, QpType};

use crate::story::{Event, Told};

/// Largest distance by which a PSN may be ahead of another (IBTA volume 1, 9.7.2).
const WINDOW: u32 = 1 << 23;

/// A rule of the standard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Sends complete once, and in the order in which they were posted.
    SendOrder,
    /// Receives complete once, and those of a queue pair in the order in which they were posted.
    ReceiveOrder,
    /// After the first failed request of a queue, all requests are flushed.
    Flush,
    /// A queue pair sends requests only if it is ready to, and responses only if it is ready to receive.
    State,
    /// Requests have consecutive PSNs, and no more than 2^23 of them are unacknowledged.
    RequestPsn,
    /// A response has the PSN of a request that arrived.
    ResponsePsn,
    /// The message sequence number of acknowledgements never decreases.
    Msn,
    /// The engine does not panic.
    Panic,
}

impl Rule {
    /// Returns the name of the rule, the rule itself, and its place in the standard.
    pub fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::SendOrder => (
                "send-order",
                "sends complete once and in order",
                "IBTA volume 1, 10.8.5",
            ),
            Self::ReceiveOrder => (
                "receive-order",
                "receives complete once and in order",
                "IBTA volume 1, 10.8.5",
            ),
            Self::Flush => (
                "flush",
                "requests after a failed one in a queue are flushed",
                "IBTA volume 1, 10.10.2",
            ),
            Self::State => (
                "state",
                "packets are sent only in the states that allow it",
                "IBTA volume 1, 10.3.1",
            ),
            Self::RequestPsn => (
                "request-psn",
                "requests have consecutive PSNs, at most 2^23 of them unacknowledged",
                "IBTA volume 1, 9.7.2",
            ),
            Self::ResponsePsn => (
                "response-psn",
                "responses have PSNs of requests that arrived",
                "IBTA volume 1, 9.7.5.1",
            ),
            Self::Msn => ("msn", "the MSN never goes back", "IBTA volume 1, 9.7.7.1"),
            Self::Panic => ("panic", "the engine does not panic", "vrnic"),
        }
    }
}

/// A violation of a rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Number of the call.
    pub call: u64,
    /// Number of the queue pair.
    pub qpn: u32,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text, clause) = self.rule.texts();
        let Self {
            call, qpn, what, ..
        } = self;
        write!(
            f,
            "call {call}: QP {qpn}: {what}; {name}: {text} ({clause})"
        )
    }
}

/// What is known about a queue pair.
#[derive(Debug, Default)]
struct Known {
    /// Sends that have been taken and not completed: indices in the ring, and `wr_id`s.
    sends: VecDeque<(u64, u64)>,
    receives: VecDeque<u64>,
    /// Whether a send has failed, and whether a receive has.
    failed: [bool; 2],
    /// The latest MSN.
    msn: Option<u32>,
    /// The state before the call, and the oldest unacknowledged PSN.
    before: Option<(QpState, u32)>,
    /// Whether it existed before the first call, so that it is unknown which requests it had taken by then.
    old: bool,
}

/// Checks one step after the other.
#[derive(Debug, Default)]
pub struct Checker {
    qps: HashMap<u32, Known>,
    /// For each shared receive queue, the receives that have been taken.
    shared: HashMap<u32, VecDeque<u64>>,
    /// Whether a fault that changes completions or doorbells was armed, so that completions are not checked.
    lies: bool,
    /// Violations found so far.
    pub violations: Vec<Violation>,
    /// Numbers of completions and packets examined.
    pub looked_at: (u64, u64),
}

impl Checker {
    /// Creates a checker for a device whose state before the first call is that of `engine`.
    pub fn new(engine: &Engine) -> Self {
        let mut checker = Self::default();
        for fault in engine.faults().list() {
            checker.armed(&fault.spec.to_string());
        }
        for qp in engine.qp_page(0, usize::MAX, &Nowhere).unwrap_or_default() {
            let known = Known {
                before: Some((qp.state, qp.unacknowledged_psn)),
                old: true,
                ..Known::default()
            };
            checker.qps.insert(qp.number, known);
        }
        checker
    }

    fn armed(&mut self, text: &str) {
        let kinds = ["cqe-", "cq-", "qp-", "srq-", "doorbell-", "event-", "stuck"];
        self.lies |= kinds.iter().any(|kind| text.starts_with(kind));
    }

    fn violates(&mut self, rule: Rule, told: &Told, qpn: u32, what: String) {
        self.violations.push(Violation {
            rule,
            call: told.call,
            qpn,
            what,
        });
    }

    /// Checks the effects of a call. `engine` is the device after the call; none if it panicked.
    pub fn look(&mut self, events: &[Told], engine: Option<&Engine>) {
        for told in events {
            self.event(told, engine);
        }
        let Some(engine) = engine else {
            return;
        };
        let touched: Vec<u32> = events.iter().filter_map(Told::qpn).collect();
        for qpn in touched {
            if let Some(qp) = engine.qp(qpn, &Nowhere) {
                let known = self.qps.entry(qpn).or_default();
                known.before = Some((qp.state, qp.unacknowledged_psn));
            }
        }
    }

    fn event(&mut self, told: &Told, engine: Option<&Engine>) {
        match &told.event {
            Event::Armed(text) => self.armed(text),
            Event::Send {
                queue: Queue::Send(qpn),
                slot,
                wr_id,
                ..
            } => {
                let sends = &mut self.qps.entry(*qpn).or_default().sends;
                // The device may read an entry several times before it takes it.
                if sends.back().is_some_and(|(last, _)| last == slot) {
                    sends.pop_back();
                }
                sends.push_back((*slot, *wr_id));
            }
            Event::Receive { queue, wr_id } => match queue {
                Queue::Receive(qpn) => {
                    let known = self.qps.entry(*qpn).or_default();
                    known.receives.push_back(*wr_id);
                }
                Queue::Shared(srqn) => self.shared.entry(*srqn).or_default().push_back(*wr_id),
                _ => {}
            },
            Event::Command {
                code, qpn, state, ..
            } => self.command(told, *code, *qpn, *state),
            Event::Completed { cqe, .. } => self.completed(told, cqe, engine),
            Event::Left(segment) => self.left(told, segment, engine),
            Event::Panicked(message) => {
                self.violates(Rule::Panic, told, 0, format!("panic: {message}"));
            }
            _ => {}
        }
    }

    fn command(
        &mut self,
        told: &Told,
        code: Option<CommandCode>,
        qpn: Option<u32>,
        state: Option<(u32, QpState)>,
    ) {
        let done = matches!(
            told.event,
            Event::Command {
                status: Some(CommandStatus::Ok),
                ..
            }
        );
        match (code, qpn) {
            (
                Some(CommandCode::CreateQp | CommandCode::CreateScalingQp | CommandCode::DestroyQp),
                Some(qpn),
            ) if done => {
                self.qps.remove(&qpn);
            }
            (Some(CommandCode::ModifyQp | CommandCode::ModifyQpPaths), Some(qpn)) if done => {
                match state {
                    Some((_, QpState::Reset)) => {
                        self.qps.remove(&qpn);
                    }
                    Some(_) => self.qps.entry(qpn).or_default().failed = [false; 2],
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn completed(&mut self, told: &Told, cqe: &Cqe, engine: Option<&Engine>) {
        self.looked_at.0 += 1;
        let (qpn, wr_id) = (cqe.qpn.get(), cqe.wr_id.get());
        if self.lies {
            return;
        }
        let is_receive = Opcode::try_from(cqe.opcode).is_ok_and(is_receive);
        let status = Status::try_from(cqe.status).ok();
        let qp = engine.and_then(|engine| engine.qp(qpn, &Nowhere));
        let srqn = qp.as_ref().and_then(|qp| qp.srqn);
        // Each message to an XRC target contains the number of a queue in the domain.
        let is_target = qp.is_some_and(|qp| qp.qp_type == QpType::XrcTarget);
        let known = self.qps.entry(qpn).or_default();
        let flushed = status == Some(Status::Flushed);
        let late = known.failed[usize::from(is_receive)] && !flushed;
        known.failed[usize::from(is_receive)] |= status != Some(Status::Success);
        let found = if !is_receive {
            // A completion also completes the earlier sends that have no completion of their own.
            let place = known.sends.iter().position(|(_, name)| *name == wr_id);
            place.is_some_and(|place| known.sends.drain(..=place).count() > 0)
        } else if is_target || srqn.is_some() {
            let mut queues = self.shared.iter_mut();
            queues.any(|(number, queue)| {
                let place = queue.iter().position(|name| *name == wr_id);
                let place = place.filter(|_| is_target || srqn == Some(*number));
                place.is_some_and(|place| queue.remove(place).is_some())
            })
        } else {
            known.receives.pop_front_if(|name| *name == wr_id).is_some()
        };
        let found = found || known.old;
        if late {
            let what =
                format!("request {wr_id:#x} completes with {status:?} after a request that failed");
            self.violates(Rule::Flush, told, qpn, what);
        }
        if !found {
            let (rule, kind) = if is_receive {
                (Rule::ReceiveOrder, "receive")
            } else {
                (Rule::SendOrder, "send")
            };
            let what = format!("{kind} {wr_id:#x} completes, but is not the next one");
            self.violates(rule, told, qpn, what);
        }
    }

    fn left(&mut self, told: &Told, segment: &Segment<'_>, engine: Option<&Engine>) {
        self.looked_at.1 += 1;
        let qpn = segment.source_qpn;
        if segment.touched.kind.is_some() || segment.touched.damage.is_some() {
            return;
        }
        let Some(qp) = engine.and_then(|engine| engine.qp(qpn, &Nowhere)) else {
            return;
        };
        let before = self.qps.get(&qpn).and_then(|known| known.before);
        let response =
            segment.body.is_response() || matches!(segment.body, Body::CongestionNotification);
        // In the error state, requests get no response, except that earlier requests are acknowledged.
        let acknowledges = matches!(
            &segment.body,
            Body::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Ack { .. })
        );
        let allows = |state: QpState| match state {
            QpState::ReadyToSend | QpState::SendQueueDrain => true,
            QpState::ReadyToReceive | QpState::SendQueueError => response,
            QpState::Error => acknowledges,
            QpState::Reset | QpState::Init => false,
        };
        // The packet may have been sent before the call changed the state of the queue pair.
        if !allows(qp.state) && !before.is_some_and(|(state, _)| allows(state)) {
            let what = format!("it sends a packet in state {}", qp.state.name());
            self.violates(Rule::State, told, qpn, what);
        }
        let is_reliable = matches!(
            qp.qp_type,
            QpType::ReliableConnection | QpType::XrcInitiator | QpType::XrcTarget
        );
        if !is_reliable || qp.state == QpState::Reset {
            return;
        }
        if response {
            self.response(told, segment, &qp);
        } else if segment.destination_qpn != MULTICAST_QPN {
            self.request(told, segment, &qp);
        }
    }

    fn request(&mut self, told: &Told, segment: &Segment<'_>, qp: &QpSnapshot) {
        let (next, psn) = (Psn::new(qp.send_psn), segment.psn);
        let behind = next.packets_since(psn);
        if behind == 0 || behind > WINDOW {
            let what = format!("it sends PSN {} when the next is {}", psn.raw(), next.raw());
            self.violates(Rule::RequestPsn, told, qp.number, what);
        }
        let open = next.packets_since(Psn::new(qp.unacknowledged_psn));
        if open > WINDOW {
            let what = format!("{open} PSNs are unacknowledged");
            self.violates(Rule::RequestPsn, told, qp.number, what);
        }
    }

    fn response(&mut self, told: &Told, segment: &Segment<'_>, qp: &QpSnapshot) {
        let (expected, psn) = (Psn::new(qp.receive_psn), segment.psn);
        let aeth = match &segment.body {
            Body::Acknowledge(aeth) | Body::AtomicAcknowledge { aeth, .. } => Some(aeth),
            Body::ReadResponse { aeth, .. } => aeth.as_ref(),
            _ => return,
        };
        // A NAK has the PSN of the request that is expected or that failed.
        let ahead_by_one = aeth.is_some_and(|aeth| {
            matches!(
                aeth.syndrome,
                Syndrome::RnrNak { .. }
                    | Syndrome::Nak(
                        NakCode::SequenceError
                            | NakCode::InvalidRequest
                            | NakCode::RemoteAccess
                            | NakCode::RemoteOperation
                    )
            )
        });
        let behind = expected.packets_since(psn);
        if behind > WINDOW || (behind == 0 && !ahead_by_one) {
            let what = format!(
                "it answers PSN {} when {} is expected",
                psn.raw(),
                expected.raw()
            );
            self.violates(Rule::ResponsePsn, told, qp.number, what);
        }
        if let Some(aeth) = aeth {
            let known = self.qps.entry(qp.number).or_default();
            let back = known
                .msn
                .is_some_and(|last| aeth.msn.wrapping_sub(last) & 0xff_ffff > WINDOW);
            let last = known.msn.replace(aeth.msn);
            if back {
                let what = format!("its MSN is {} after {last:?}", aeth.msn);
                self.violates(Rule::Msn, told, qp.number, what);
            }
        }
    }
}

fn is_receive(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Receive | Opcode::ReceiveWriteWithImmediate)
}
