// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Derives what happens in a recording in terms of the verbs: work requests are taken, packets leave and arrive,
//! completions are written.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::num::NonZeroU64;

use vrnic_engine::memory::{HostRange, Nowhere, RegionId};
use vrnic_engine::recording::{Access, Call, Input, Output, Step, Touch};
use vrnic_engine::segment::Gid;
use vrnic_engine::time::Instant;
use vrnic_engine::trace::Object as Seen;
use vrnic_engine::{Engine, Explanation, Queue, RateLimit, Segment};
use vrnic_wire::command::{CommandCode, CommandHeader, ModifyQp, ReplyHeader, Status};
use vrnic_wire::completion::{self, Cqe};
use vrnic_wire::event::{AsyncEvent, EventType};
use vrnic_wire::qp::{QpState, attribute};
use vrnic_wire::work::{ReceiveHeader, SEND_DATA_OFFSET, SendHeader, SendOpcode, Sge, send_flags};
use vrnicd::control::answer::trace::{object, packet_of};
use vrnicd::control::protocol::Object;
use zerocopy::FromBytes;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The device read a send request. It may read the request again until it takes it.
    Send {
        /// The queue.
        queue: Queue,
        /// Index in the ring.
        slot: u64,
        /// Operation.
        opcode: Option<SendOpcode>,
        /// `wr_id` of the request.
        wr_id: u64,
        /// Number of bytes to transfer; none if the request was only read to be flushed.
        length: Option<u64>,
    },
    /// The device read a receive.
    Receive {
        /// The queue.
        queue: Queue,
        /// `wr_id` of the receive.
        wr_id: u64,
    },
    /// A packet left.
    Left(Box<Segment<'static>>),
    /// A packet arrived.
    Arrived(Box<Segment<'static>>),
    /// A completion was written.
    Completed {
        /// Number of the completion queue.
        cqn: u32,
        /// The completion.
        cqe: Box<Cqe>,
    },
    /// A command was answered.
    Command {
        /// Command code, if it is a known one.
        code: Option<CommandCode>,
        /// Status of the reply.
        status: Option<Status>,
        /// The queue pair whose state it changes, and the new state.
        state: Option<(u32, QpState)>,
        /// The queue pair that it concerns.
        qpn: Option<u32>,
    },
    /// An event was reported to the driver.
    Raised(AsyncEvent),
    /// A timer expired.
    Timer,
    /// A fault was armed.
    Armed(String),
    /// The link went up or down.
    Link(bool),
    /// The rate limit of the device was changed.
    Limited(RateLimit),
    /// What is for a receiver waits from now on, or no longer.
    Paused {
        /// GID of the receiver.
        receiver: Gid,
        /// Whether the pause begins.
        begins: bool,
    },
    /// Something went wrong.
    Explained(Box<Explanation>),
    /// The engine panicked.
    Panicked(String),
}

/// Something that happened, with the time.
#[derive(Clone, Debug)]
pub struct Told {
    /// Number of the call.
    pub call: u64,
    /// Time.
    pub now: Instant,
    /// What happened.
    pub event: Event,
    /// The object concerned by an error or event, as it is after the call.
    pub object: Option<Object>,
}

/// Knows the addresses of rings, and therefore the meaning of accesses to guest memory.
#[derive(Debug, Default)]
pub struct Narrator {
    /// For the address of each entry, its queue and index.
    places: HashMap<(RegionId, u64), (Queue, u64)>,
}

impl Narrator {
    /// Creates a narrator for a device whose state before the first call is that of `engine`.
    pub fn new(engine: &Engine) -> Self {
        let mut narrator = Self::default();
        narrator.find_places(engine);
        narrator
    }

    /// Finds the addresses of the entries of all rings.
    fn find_places(&mut self, engine: &Engine) {
        self.places.clear();
        for (queue, entries) in engine.rings() {
            let places = entries.iter().zip(0..);
            self.places
                .extend(places.map(|(entry, slot)| ((entry.region, entry.offset), (queue, slot))));
        }
    }

    /// Returns what a call did. `engine` is the device after the call.
    pub fn tell(&mut self, call: &Call, step: &Step, engine: &Engine) -> Vec<Told> {
        let mut events = Vec::new();
        match &call.input {
            Input::Receive(segment) => events.push(Event::Arrived(segment.clone())),
            Input::Advance => events.push(Event::Timer),
            Input::Arm(text) => events.push(Event::Armed(text.clone())),
            Input::SetLink(up) => events.push(Event::Link(*up)),
            Input::SetRateLimit(limit) => events.push(Event::Limited(*limit)),
            Input::Pause(receiver) => events.push(Event::Paused {
                receiver: *receiver,
                begins: true,
            }),
            Input::Resume(receiver) => events.push(Event::Paused {
                receiver: *receiver,
                begins: false,
            }),
            _ => {}
        }
        for (touch, access) in &step.touches {
            events.extend(self.touched(touch, access));
        }
        let segments = step.segments.iter().cloned();
        events.extend(segments.map(|segment| Event::Left(Box::new(segment))));
        match &step.output {
            Output::Reply(Some(reply)) => {
                if let Input::Execute(request) = &call.input {
                    events.push(command(request, reply));
                }
            }
            Output::AsyncEvent(Some(event)) => events.push(Event::Raised(*event)),
            Output::Explanation(Some(why)) => {
                events.push(Event::Explained(Box::new(why.clone())));
            }
            Output::Panicked(message) => events.push(Event::Panicked(message.clone())),
            _ => {}
        }
        let panicked = matches!(step.output, Output::Panicked(_));
        if !panicked && events.iter().any(moves_rings) {
            self.find_places(engine);
        }
        let told = events.into_iter().map(|event| Told {
            call: call.index,
            now: call.now,
            // After a panic, the engine's state may be inconsistent.
            object: if panicked {
                None
            } else {
                about(&event, engine)
            },
            event,
        });
        told.collect()
    }

    fn touched(&self, touch: &Touch, access: &Access) -> Option<Event> {
        match (touch, access) {
            (Touch::Read(range), Access::Read(bytes)) => self.entry(range, bytes),
            // The last byte is written after the others.
            (Touch::Write(range, bytes), Access::Done) => {
                let mut entry = bytes.clone();
                entry.resize(size_of::<Cqe>(), 0);
                let cqe = Cqe::read_from_bytes(&entry).ok()?;
                match self.places.get(&(range.region, range.offset))? {
                    (Queue::Completion(cqn), _) => Some(Event::Completed {
                        cqn: *cqn,
                        cqe: Box::new(cqe),
                    }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns what the device read, if that was an entry of a ring.
    fn entry(&self, range: &HostRange, bytes: &[u8]) -> Option<Event> {
        let (queue, slot) = *self.places.get(&(range.region, range.offset))?;
        match queue {
            Queue::Send(_) => {
                let (header, _) = SendHeader::read_from_prefix(bytes).ok()?;
                let whole = bytes.len() >= SEND_DATA_OFFSET;
                Some(Event::Send {
                    queue,
                    slot,
                    opcode: SendOpcode::try_from(header.opcode).ok(),
                    wr_id: header.wr_id.get(),
                    length: whole.then(|| payload(&header, &bytes[SEND_DATA_OFFSET..])),
                })
            }
            Queue::Receive(_) | Queue::Shared(_) => {
                let (header, _) = ReceiveHeader::read_from_prefix(bytes).ok()?;
                Some(Event::Receive {
                    queue,
                    wr_id: header.wr_id.get(),
                })
            }
            Queue::Completion(_) => None,
        }
    }
}

/// Returns the object concerned by an error or event, in its current state.
fn about(event: &Event, engine: &Engine) -> Option<Object> {
    let key = |key| Some(Seen::Key(key, engine.key(key)));
    let cq = |cqn| engine.cq(cqn, &Nowhere).map(Seen::Cq);
    let seen = match event {
        Event::Explained(why) => key(why.access?.key),
        Event::Completed { cqn, cqe } if cqe.status != completion::Status::Success.raw() => {
            cq(*cqn)
        }
        Event::Raised(event) => {
            let number = event.number.get();
            match EventType::try_from(event.event_type.get()).ok()? {
                EventType::CqError => cq(number),
                EventType::SrqError | EventType::SrqLimitReached => {
                    engine.srq(number, &Nowhere).map(Seen::Srq)
                }
                EventType::PageFault => key(number),
                _ => None,
            }
        }
        _ => None,
    };
    seen.as_ref().map(object)
}

/// Returns the length of a send's payload, as far as the beginning of its entry tells.
fn payload(header: &SendHeader, data: &[u8]) -> u64 {
    if header.flags & send_flags::INLINE != 0 {
        return header.inline_length.get().into();
    }
    let elements = data.chunks_exact(size_of::<Sge>());
    let elements = elements.take(header.num_sge.get().into());
    let lengths = elements.filter_map(|bytes| Sge::read_from_bytes(bytes).ok());
    lengths.map(|element| u64::from(element.length.get())).sum()
}

/// Returns the event for a command and its reply.
fn command(request: &[u8], reply: &[u8]) -> Event {
    let parsed = CommandHeader::read_from_prefix(request).ok();
    let code = parsed.and_then(|(header, _)| CommandCode::try_from(header.code.get()).ok());
    let body = parsed.map_or(&[][..], |(_, body)| body);
    let header = ReplyHeader::read_from_prefix(reply).ok();
    let status = header.and_then(|(header, _)| Status::try_from(header.status.get()).ok());
    let mut state = None;
    let qpn = match code {
        // One of both begins like the other.
        Some(CommandCode::ModifyQp | CommandCode::ModifyQpPaths) => {
            ModifyQp::read_from_prefix(body).ok().map(|(modify, _)| {
                let wanted = &modify.attributes;
                if wanted.mask.get() & attribute::STATE != 0 {
                    let qpn = modify.qpn.get();
                    state = QpState::try_from(wanted.state)
                        .ok()
                        .map(|state| (qpn, state));
                }
                modify.qpn.get()
            })
        }
        Some(CommandCode::DestroyQp | CommandCode::QueryQp | CommandCode::QueryQpPaths) => {
            let bytes = body.first_chunk::<4>();
            bytes.map(|bytes| u32::from_le_bytes(*bytes))
        }
        Some(CommandCode::CreateQp | CommandCode::CreateScalingQp)
            if status == Some(Status::Ok) =>
        {
            let bytes = reply[size_of::<ReplyHeader>()..].first_chunk::<4>();
            bytes.map(|bytes| u32::from_le_bytes(*bytes))
        }
        _ => None,
    };
    Event::Command {
        code,
        status,
        state: state.filter(|_| status == Some(Status::Ok)),
        qpn,
    }
}

/// Returns whether the rings may have changed.
fn moves_rings(event: &Event) -> bool {
    matches!(
        event,
        Event::Command {
            code: Some(
                CommandCode::CreateQp
                    | CommandCode::CreateScalingQp
                    | CommandCode::DestroyQp
                    | CommandCode::CreateCq
                    | CommandCode::DestroyCq
                    | CommandCode::ResizeCq
                    | CommandCode::CreateSrq
                    | CommandCode::CreateXrcSrq
                    | CommandCode::DestroySrq
                    | CommandCode::ResizeSrq,
            ),
            status: Some(Status::Ok),
            ..
        }
    )
}

impl Told {
    /// Returns the queue pair concerned, if there is one.
    pub fn qpn(&self) -> Option<u32> {
        match &self.event {
            Event::Send { queue, .. } | Event::Receive { queue, .. } => match queue {
                Queue::Send(qpn) | Queue::Receive(qpn) => Some(*qpn),
                Queue::Shared(_) | Queue::Completion(_) => None,
            },
            Event::Left(segment) => Some(segment.source_qpn),
            Event::Arrived(segment) => Some(segment.destination_qpn),
            Event::Completed { cqe, .. } => Some(cqe.qpn.get()),
            Event::Command { qpn, .. } => *qpn,
            Event::Explained(why) => Some(why.number),
            Event::Raised(event) => Some(event.number.get()),
            _ => None,
        }
    }
}

/// Formats a packet briefly, with the queue pair at its other end.
struct Packet<'a>(&'a Segment<'static>);

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = packet_of(self.0);
        let refusal = packet.syndrome.filter(|_| packet.negative);
        let what = refusal.as_ref().unwrap_or(&packet.opcode);
        write!(f, "{what}, PSN {}", packet.psn)?;
        if packet.length != 0 {
            write!(f, ", {} B", packet.length)?;
        }
        if let Some(rkey) = packet.rkey {
            write!(f, ", rkey {rkey:#x}")?;
        }
        if let Some(fault) = packet.fault {
            write!(f, " [{fault}]")?;
        }
        Ok(())
    }
}

/// Width of the guest's column, and of the part of it that precedes an action.
const GUEST: usize = 54;
const BEFORE: usize = 31;

/// Returns the header for lines printed from [`Told`].
pub fn timeline_head() -> String {
    format!(
        "{:>14} {:>7} {:>6}  {:<GUEST$}|\n",
        "seconds", "call", "QP", "guest"
    )
}

impl fmt::Display for Told {
    /// Writes a line of a sequence diagram: the guest is to the left of the bar, the wire to the right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.now.as_nanos();
        let qpn = self.qpn().filter(|qpn| *qpn != 0);
        write!(
            f,
            "{:>4}.{:09} {:>7} {:>6}  ",
            nanoseconds / 1_000_000_000,
            nanoseconds % 1_000_000_000,
            self.call,
            qpn.map_or_else(String::new, |qpn| qpn.to_string()),
        )?;
        let guest = match &self.event {
            Event::Send {
                opcode,
                wr_id,
                length,
                ..
            } => {
                let name = opcode.map_or("?", SendOpcode::name);
                match length {
                    Some(length) => format!("{name} {wr_id:#x}, {length} B -->"),
                    None => format!("{name} {wr_id:#x}, to be flushed -->"),
                }
            }
            Event::Receive { queue, wr_id } => match queue {
                Queue::Shared(srqn) => format!("receive {wr_id:#x} of SRQ {srqn} -->"),
                _ => format!("receive {wr_id:#x} -->"),
            },
            Event::Completed { cqn, cqe } => {
                let opcode = completion::Opcode::try_from(cqe.opcode);
                let opcode = opcode.map_or("?", completion::Opcode::name);
                let status = completion::Status::try_from(cqe.status);
                let status = status.map_or("?", completion::Status::name);
                let wr_id = cqe.wr_id.get();
                format!("<-- CQ {cqn}: {opcode} {wr_id:#x} {status}")
            }
            Event::Command {
                code,
                status,
                state,
                ..
            } => {
                let name =
                    code.map_or_else(|| "unknown command".into(), |code| format!("{code:?}"));
                let to =
                    state.map_or_else(String::new, |(_, state)| format!(" to {}", state.name()));
                match status {
                    Some(Status::Ok) => format!("{name}{to} -->"),
                    Some(status) => format!("{name} --> refused: {status:?}"),
                    None => format!("{name} -->"),
                }
            }
            Event::Raised(event) => {
                let kind = EventType::try_from(event.event_type.get());
                format!("<-- event {}", kind.map_or("?", EventType::name))
            }
            _ => String::new(),
        };
        write!(f, "{guest:<GUEST$}|")?;
        match &self.event {
            Event::Left(segment) => {
                let (peer, packet) = (segment.destination_qpn, Packet(segment));
                let gid = Ipv6Addr::from(segment.path.destination);
                write!(f, " --> {packet}, to QP {peer} of {gid}")
            }
            Event::Arrived(segment) => {
                let gid = Ipv6Addr::from(segment.path.source);
                write!(f, " <-- {}, from {gid}", Packet(segment))
            }
            Event::Timer => f.write_str(" timer"),
            Event::Armed(text) => write!(f, " fault armed: {}", text.escape_debug()),
            Event::Link(up) => write!(f, " link {}", if *up { "up" } else { "down" }),
            Event::Limited(limit) => {
                let rate =
                    |rate: Option<NonZeroU64>| rate.map_or("any".into(), |rate| rate.to_string());
                let (bytes, requests) = (rate(limit.bytes), rate(limit.requests));
                write!(
                    f,
                    " rate limit: {bytes} bytes, {requests} requests a second"
                )
            }
            Event::Paused { receiver, begins } => {
                let what = if *begins { "paused" } else { "resumed" };
                write!(f, " {what}: what is for {}", Ipv6Addr::from(*receiver))
            }
            Event::Explained(why) => {
                write!(f, " {}", vrnicd::control::answer::explanation(0, why))
            }
            Event::Panicked(message) => write!(f, " PANIC: {message}"),
            _ => Ok(()),
        }?;
        match &self.object {
            Some(object) => write!(f, "\n{:BEFORE$}{:<GUEST$}|   {object}", "", ""),
            None => Ok(()),
        }
    }
}
