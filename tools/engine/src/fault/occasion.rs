// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Occasions: the moments at which a fault may fire, and how descriptions refer to them.

use crate::{
    context::Owner,
    segment::{Body, LidRoute, Position, Segment, Service, Syndrome},
};
use serde::{Deserialize, Serialize};
use std::fmt;
use vrnic_wire::{
    command::CommandCode,
    event::EventType,
    qp::{QpState, QpType},
};

/// A place at which the engine asks for faults.
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
    /// Memory was made persistent.
    Sync,
    /// Time passes.
    Time,
}

/// Direction of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// It leaves the device.
    Out = 1,
    /// It arrives at the device.
    In = 2,
}

/// Kinds of packets in descriptions.
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
    Frame,
}

impl PacketKind {
    /// All kinds with their names in descriptions.
    pub const NAMES: [(&'static str, Self); 15] = [
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
        ("frame", Self::Frame),
    ];

    /// Returns the kind of a packet.
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
            Body::Frame { .. } => Self::Frame,
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// Returns the bit in a set.
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Returns the key of remote memory that a packet names.
pub(crate) fn key_of(body: &Body) -> Option<u32> {
    match body {
        Body::Write { reth, .. } => reth.map(|reth| reth.rkey),
        Body::ReadRequest(reth) | Body::AtomicWrite(reth) => Some(reth.rkey),
        Body::AtomicRequest(request) => Some(request.rkey),
        Body::FlushRequest(flush) => Some(flush.remote.rkey),
        _ => None,
    }
}

/// Returns the length of the message in bytes, if the packet tells it: in its headers, or as the only packet.
fn message_of(segment: &Segment<'_>) -> Option<u64> {
    match segment.body {
        Body::Write {
            reth: Some(reth), ..
        }
        | Body::ReadRequest(reth) => Some(reth.length.into()),
        Body::FlushRequest(flush) => Some(flush.remote.length.into()),
        Body::Send {
            position: Position::Only,
            ..
        }
        | Body::ReadResponse {
            position: Position::Only,
            ..
        }
        | Body::AtomicWrite(_)
        | Body::Datagram { .. }
        | Body::Frame { .. } => Some(segment.payload.len()),
        _ => None,
    }
}

/// The queue pair of an occasion.
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

/// An occasion: a moment at which a fault may change something.
#[derive(Clone, Debug)]
pub(crate) struct Occasion {
    pub(crate) seam: Seam,
    pub(crate) qp: Option<Subject>,
    pub(crate) direction: Option<Direction>,
    pub(crate) packet: Option<PacketKind>,
    /// Body, service and LIDs, which determine the headers of a packet.
    pub(crate) headers: Option<(Body, Service, Option<LidRoute>)>,
    pub(crate) psn: Option<u32>,
    /// Length of the payload in bytes.
    pub(crate) size: Option<u64>,
    /// Length of the message in bytes, if the packet tells it.
    pub(crate) message: Option<u64>,
    pub(crate) key: Option<u32>,
    pub(crate) cqn: Option<u32>,
    pub(crate) srqn: Option<u32>,
    /// Whether it is the completion of a send.
    pub(crate) send: Option<bool>,
    pub(crate) code: Option<CommandCode>,
    pub(crate) event: Option<EventType>,
    /// Number of existing objects of the kind that a command creates.
    pub(crate) objects: Option<u32>,
}

impl Occasion {
    /// Creates an occasion without details.
    pub(crate) fn new(seam: Seam) -> Self {
        Self {
            seam,
            qp: None,
            direction: None,
            packet: None,
            headers: None,
            psn: None,
            size: None,
            message: None,
            key: None,
            cqn: None,
            srqn: None,
            send: None,
            code: None,
            event: None,
            objects: None,
        }
    }

    /// Creates the occasion of a packet that leaves, arrives, or is about to be executed.
    pub(crate) fn packet(seam: Seam, direction: Direction, segment: &Segment<'_>) -> Self {
        Self {
            direction: Some(direction),
            packet: Some(PacketKind::of(&segment.body)),
            headers: Some((segment.body, segment.service, segment.path.lids)),
            psn: Some(segment.psn.raw()),
            size: Some(segment.payload.len()),
            message: message_of(segment),
            key: key_of(&segment.body),
            ..Self::new(seam)
        }
    }

    /// Creates the occasion of something about a queue pair.
    pub(crate) fn of_qp(seam: Seam, qp: Subject) -> Self {
        Self {
            qp: Some(qp),
            ..Self::new(seam)
        }
    }

    /// Creates the occasion of a completion that is about to be written.
    pub(crate) fn completion(cqn: u32, send: bool) -> Self {
        Self {
            cqn: Some(cqn),
            send: Some(send),
            ..Self::new(Seam::Completion)
        }
    }

    /// Creates the occasion of a completion event that is about to be raised. It is independent of the acting queue
    /// pair.
    pub(crate) fn notice(cqn: u32) -> Self {
        Self {
            cqn: Some(cqn),
            ..Self::new(Seam::Notice)
        }
    }

    /// Creates the occasion of a command. `objects` is the number of existing objects of the kind that it creates.
    pub(crate) fn command(code: CommandCode, objects: Option<u32>) -> Self {
        Self {
            code: Some(code),
            objects,
            ..Self::new(Seam::Command)
        }
    }

    /// Creates the occasion of an asynchronous event that is about to be raised.
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
