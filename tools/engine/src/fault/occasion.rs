// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Occasions: where a fault may fire, and what descriptions say of that.

use crate::{
    context::Owner,
    segment::{Body, Segment, Service, Syndrome},
};
use serde::{Deserialize, Serialize};
use std::fmt;
use vrnic_wire::{
    command::CommandCode,
    event::EventType,
    qp::{QpState, QpType},
};

/// Where the engine asks for faults.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Seam {
    /// A packet leaves or arrives.
    Packet,
    /// The responder is about to execute the packet that it expects.
    Decision,
    /// A completion is about to be written.
    Completion,
    /// A completion event is about to be raised.
    Notice,
    /// An asynchronous event is about to be raised.
    Event,
    /// A command is about to be executed and answered.
    Command,
    /// A doorbell rings.
    Doorbell,
    /// The timer of a queue pair is about to be set.
    Timer,
    /// Memory was made to survive a loss of power.
    Sync,
    /// Time passes.
    Time,
}

/// Which way a packet goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// It leaves the device.
    Out = 1,
    /// It arrives at the device.
    In = 2,
}

/// What packets are called in descriptions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the field")]
pub enum PacketKind {
    Send,
    Write,
    ReadRequest,
    AtomicRequest,
    Flush,
    AtomicWrite,
    ReadResponse,
    Ack,
    Nak,
    RnrNak,
    AtomicAck,
    UdSend,
    Cnp,
    Unknown,
}

impl PacketKind {
    /// All, by the names that descriptions have for them.
    pub const NAMES: [(&'static str, Self); 14] = [
        ("send", Self::Send),
        ("write", Self::Write),
        ("read-request", Self::ReadRequest),
        ("atomic-request", Self::AtomicRequest),
        ("flush", Self::Flush),
        ("atomic-write", Self::AtomicWrite),
        ("read-response", Self::ReadResponse),
        ("ack", Self::Ack),
        ("nak", Self::Nak),
        ("rnr-nak", Self::RnrNak),
        ("atomic-ack", Self::AtomicAck),
        ("ud-send", Self::UdSend),
        ("cnp", Self::Cnp),
        ("unknown", Self::Unknown),
    ];

    /// What a packet is.
    pub(crate) fn of(body: &Body) -> Self {
        match body {
            Body::Send { .. } => Self::Send,
            Body::Write { .. } => Self::Write,
            Body::ReadRequest(_) => Self::ReadRequest,
            Body::AtomicRequest(_) => Self::AtomicRequest,
            Body::FlushRequest(_) => Self::Flush,
            Body::AtomicWrite(_) => Self::AtomicWrite,
            Body::ReadResponse { .. } => Self::ReadResponse,
            Body::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack { .. } => Self::Ack,
                Syndrome::RnrNak { .. } => Self::RnrNak,
                Syndrome::Nak(_) => Self::Nak,
            },
            Body::AtomicAcknowledge { .. } => Self::AtomicAck,
            Body::Datagram { .. } => Self::UdSend,
            Body::CongestionNotification => Self::Cnp,
            Body::Unknown(_) => Self::Unknown,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// Its bit in a set.
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Key of remote memory that a packet names.
pub(crate) fn key_of(body: &Body) -> Option<u32> {
    match body {
        Body::Write { reth, .. } => reth.map(|reth| reth.rkey),
        Body::ReadRequest(reth) | Body::AtomicWrite(reth) => Some(reth.rkey),
        Body::AtomicRequest(request) => Some(request.rkey),
        Body::FlushRequest(flush) => Some(flush.remote.rkey),
        _ => None,
    }
}

/// The queue pair that an occasion is about.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) qpn: u32,
    pub(crate) peer: u32,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) context: u32,
    pub(crate) owner: Owner,
    /// Whether it belongs to the guest's kernel.
    pub(crate) kernel: bool,
}

/// Something that a fault may change.
#[derive(Clone, Debug)]
pub(crate) struct Occasion {
    pub(crate) seam: Seam,
    pub(crate) qp: Option<Subject>,
    pub(crate) direction: Option<Direction>,
    pub(crate) packet: Option<PacketKind>,
    /// What says which headers a packet has.
    pub(crate) headers: Option<(Body, Service)>,
    pub(crate) psn: Option<u32>,
    /// Payload bytes.
    pub(crate) size: Option<u64>,
    pub(crate) key: Option<u32>,
    pub(crate) cqn: Option<u32>,
    pub(crate) srqn: Option<u32>,
    /// Whether a completion is one of a send.
    pub(crate) send: Option<bool>,
    pub(crate) code: Option<CommandCode>,
    pub(crate) event: Option<EventType>,
    /// Objects that there are of the kind that a command makes.
    pub(crate) objects: Option<u32>,
}

impl Occasion {
    /// One of which nothing is known.
    pub(crate) fn new(seam: Seam) -> Self {
        Self {
            seam,
            qp: None,
            direction: None,
            packet: None,
            headers: None,
            psn: None,
            size: None,
            key: None,
            cqn: None,
            srqn: None,
            send: None,
            code: None,
            event: None,
            objects: None,
        }
    }

    /// A packet leaves, arrives, or is decided about.
    pub(crate) fn packet(seam: Seam, direction: Direction, segment: &Segment<'_>) -> Self {
        Self {
            direction: Some(direction),
            packet: Some(PacketKind::of(&segment.body)),
            headers: Some((segment.body, segment.service)),
            psn: Some(segment.psn.raw()),
            size: Some(segment.payload.len()),
            key: key_of(&segment.body),
            ..Self::new(seam)
        }
    }

    /// Something about a queue pair.
    pub(crate) fn of_qp(seam: Seam, qp: Subject) -> Self {
        Self {
            qp: Some(qp),
            ..Self::new(seam)
        }
    }

    /// A completion is about to be written.
    pub(crate) fn completion(cqn: u32, send: bool) -> Self {
        Self {
            cqn: Some(cqn),
            send: Some(send),
            ..Self::new(Seam::Completion)
        }
    }

    /// An event of a completion queue is about to be raised. The queue pair that acts has nothing to do with it.
    pub(crate) fn notice(cqn: u32) -> Self {
        Self {
            cqn: Some(cqn),
            ..Self::new(Seam::Notice)
        }
    }

    /// A command is about to be executed, of a kind of which there are so many objects.
    pub(crate) fn command(code: CommandCode, objects: Option<u32>) -> Self {
        Self {
            code: Some(code),
            objects,
            ..Self::new(Seam::Command)
        }
    }

    /// An asynchronous event of object `number` is about to be raised.
    pub(crate) fn event(event: EventType) -> Self {
        Self {
            event: Some(event),
            ..Self::new(Seam::Event)
        }
    }
}

impl fmt::Display for Occasion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seam {
            Seam::Packet | Seam::Decision => {
                let verb = match (self.seam, self.direction) {
                    (Seam::Decision, _) => "answer to",
                    (_, Some(Direction::In)) => "in",
                    _ => "out",
                };
                let name = self.packet.map_or("packet", PacketKind::name);
                write!(f, "{verb} {name}, {} bytes", self.size.unwrap_or(0))
            }
            Seam::Completion => match self.send {
                Some(true) => f.write_str("completion of a send"),
                _ => f.write_str("completion of a receive"),
            },
            Seam::Notice => f.write_str("completion event"),
            Seam::Event => match self.event {
                Some(event) => write!(f, "event {event:?}"),
                None => f.write_str("event"),
            },
            Seam::Command => match self.code {
                Some(code) => write!(f, "command {code:?}"),
                None => f.write_str("command"),
            },
            Seam::Doorbell => f.write_str("doorbell"),
            Seam::Timer => f.write_str("timer"),
            Seam::Sync => f.write_str("flush to persistence"),
            Seam::Time => f.write_str("its time came"),
        }
    }
}
