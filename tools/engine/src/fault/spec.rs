// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Descriptions of faults: `NAME [KEY=VALUE]…`.
//!
//! The fault's preset is parsed first, then the words of the description. [`KEYS`] lists all words.

use super::{
    field::Field,
    occasion::{Occasion, PacketKind, Seam},
    table::Kind,
};
use crate::{context::Owner, state::wire};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};
use vrnic_wire::{
    command::{self, CommandCode},
    event::EventType,
    port::Mtu,
    qp::{MAX_PSN, QpState, QpType},
};

/// Longest description in bytes.
pub const MAX_TEXT: usize = 1024;

/// Longest time in a description.
const MAX_TIME: Duration = Duration::from_secs(86_400);

/// Time for a unit of work in a device that is not slow.
const UNIT: Duration = Duration::from_micros(1);

/// Largest slowdown: a second per unit.
const MAX_FACTOR: u64 = 1_000_000;

/// The set of all packets that a responder sends.
const RESPONSES: u32 = PacketKind::ReadResponse.bit()
    | PacketKind::Ack.bit()
    | PacketKind::Nak.bit()
    | PacketKind::RnrNak.bit()
    | PacketKind::AtomicAck.bit();

/// The set of all packets that a requester of a connection sends.
const REQUESTS: u32 = PacketKind::Send.bit()
    | PacketKind::Write.bit()
    | PacketKind::ReadRequest.bit()
    | PacketKind::AtomicRequest.bit()
    | PacketKind::Flush.bit()
    | PacketKind::AtomicWrite.bit()
    | PacketKind::Unknown.bit();

/// A word in descriptions.
#[derive(Debug)]
pub struct Key {
    /// The word.
    pub name: &'static str,
    /// Format of its value.
    pub value: &'static str,
    /// Its meaning.
    pub text: &'static str,
    /// Seams at which all faults accept it. A fault of another seam accepts it if its kind does.
    seams: &'static [Seam],
}

/// Seams that have a queue pair.
const OF_QPS: &[Seam] = &[
    Seam::Packet,
    Seam::Decision,
    Seam::Completion,
    Seam::Doorbell,
    Seam::Timer,
    Seam::Sync,
];
const OF_PACKETS: &[Seam] = &[Seam::Packet, Seam::Decision];
const COUNTED: &[Seam] = &[
    Seam::Packet,
    Seam::Decision,
    Seam::Completion,
    Seam::Notice,
    Seam::Event,
    Seam::Command,
    Seam::Doorbell,
    Seam::Timer,
    Seam::Sync,
];
const ALL: &[Seam] = &[
    Seam::Packet,
    Seam::Decision,
    Seam::Completion,
    Seam::Notice,
    Seam::Event,
    Seam::Command,
    Seam::Doorbell,
    Seam::Timer,
    Seam::Sync,
    Seam::Time,
];

const fn key(
    name: &'static str,
    value: &'static str,
    text: &'static str,
    seams: &'static [Seam],
) -> Key {
    Key {
        name,
        value,
        text,
        seams,
    }
}

/// All words of descriptions.
pub const KEYS: &[Key] = &[
    key(
        "qp",
        "N or N..M",
        "only queue pairs with this number",
        OF_QPS,
    ),
    key(
        "peer",
        "N or N..M",
        "only queue pairs whose peer has this number",
        OF_QPS,
    ),
    key(
        "type",
        "rc, uc, ud, gsi, raw, xrc-ini, xrc-tgt, rq, joined by |",
        "only queue pairs of this type; faults do not affect QP1 unless gsi or its number is given",
        OF_QPS,
    ),
    key(
        "state",
        "reset, init, rtr, rts, sqd, sqe, err, joined by |",
        "only queue pairs in this state",
        OF_QPS,
    ),
    key(
        "context",
        "N",
        "only queue pairs of this context (a process has one context for each device that it opens)",
        OF_QPS,
    ),
    key(
        "process",
        "a name",
        "only queue pairs of processes with this name, cut to 15 bytes as in ps; those of the guest's kernel have the \
         name kernel",
        OF_QPS,
    ),
    key(
        "pid",
        "N",
        "only queue pairs of the process with this number in the guest",
        OF_QPS,
    ),
    key(
        "dir",
        "out, in, both",
        "only packets that the device sends, that it receives, or both",
        &[Seam::Packet],
    ),
    key(
        "opcode",
        "packets, joined by |, or request, response",
        "only packets of these kinds: send, write, read-request, atomic-request, flush, atomic-write, read-response, ack, nak, rnr-nak, atomic-ack, ud-send, cnp, unknown, frame",
        OF_PACKETS,
    ),
    key(
        "psn",
        "N or N..M",
        "only packets with this PSN; a range may wrap around",
        OF_PACKETS,
    ),
    key(
        "size",
        "N or N..M",
        "only packets with this many bytes of payload",
        OF_PACKETS,
    ),
    key(
        "message",
        "N or N..M",
        "only packets that say that their message has this many bytes: the first of a write, read and flush requests, \
         and packets that contain a whole message",
        OF_PACKETS,
    ),
    key(
        "key",
        "N",
        "only packets that name this remote key",
        OF_PACKETS,
    ),
    key(
        "cq",
        "N",
        "only this completion queue",
        &[Seam::Completion, Seam::Notice],
    ),
    key("srq", "N", "only this shared receive queue", &[]),
    key(
        "side",
        "send, recv",
        "only completions of sends, or of receives",
        &[Seam::Completion],
    ),
    key(
        "code",
        "a command, such as create-qp",
        "only this command",
        &[Seam::Command],
    ),
    key(
        "event",
        "an event, such as port-error",
        "only this asynchronous event",
        &[Seam::Event],
    ),
    key(
        "nth",
        "N",
        "the number of the first match on which it fires, counted from 1",
        COUNTED,
    ),
    key(
        "every",
        "N",
        "every Nth match, starting with the one that nth selects",
        COUNTED,
    ),
    key(
        "chance",
        "0.01 or 1%",
        "fires only on this fraction of the matches; the seed and the number of the match decide",
        COUNTED,
    ),
    key("seed", "N", "the seed for chance; default 1", COUNTED),
    key(
        "burst",
        "N",
        "each time it fires, it also fires on the next N-1 matches",
        COUNTED,
    ),
    key(
        "count",
        "N or all",
        "how many times it fires before it is done",
        ALL,
    ),
    key(
        "after",
        "time",
        "does not fire until this much time has passed since it was armed",
        ALL,
    ),
    key(
        "for",
        "time",
        "how long it can fire, or how long a lasting fault stays in effect",
        ALL,
    ),
    key(
        "after-fault",
        "N",
        "does not fire until fault N has fired; at once if it has",
        ALL,
    ),
    key(
        "after-event",
        "an event, such as port-error",
        "does not fire until the driver has been given this asynchronous event",
        ALL,
    ),
    key(
        "interval",
        "time",
        "time between two firings",
        &[Seam::Time],
    ),
    key(
        "delay",
        "time",
        "how long the delay is: 10us, 5ms, 1.5s",
        &[],
    ),
    key(
        "factor",
        "N",
        "how many times as long as usual (a microsecond) a unit of work takes",
        &[],
    ),
    key(
        "by",
        "N",
        "the number of packets that overtake, or of extra copies",
        &[],
    ),
    key("bytes", "N", "how many bytes are left of the packet", &[]),
    key("rate", "N", "bytes per second", &[]),
    key(
        "vendor",
        "N",
        "the vendor_err of the completion, or the vendor_error of the reply",
        &[],
    ),
    key(
        "field",
        "the name of a field",
        "the field that changes, of packets that have it: opcode, solicited, pkey, destination-qp, ack-request, migrated, psn, qkey, source-qp, srq, address, rkey, length, swap, compare-add, original, placement, selectivity, credits, rnr-timer, msn, immediate, invalidate-key, traffic-class, flow-label, hop-limit, source-port, pad, version, source-gid, destination-gid, source-mac, destination-mac, source-lid, destination-lid",
        &[],
    ),
    key("value", "N", "the new value, or the amount to add", &[]),
    key(
        "status",
        "a status, such as busy",
        "the status of the reply: unsupported, malformed, invalid-argument, not-found, busy, no-resources, bad-address, bad-state, not-permitted, device-failed",
        &[],
    ),
    key("limit", "N", "the number of objects that can exist", &[]),
    key("mtu", "256, 512, 1024, 2048, 4096", "the MTU", &[]),
];

/// Error in a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSpec(String);

impl BadSpec {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for BadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSpec {}

/// An inclusive range of numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span(u64, u64);

impl Span {
    fn has(self, value: u64) -> bool {
        let Self(first, last) = self;
        if first <= last {
            (first..=last).contains(&value)
        } else {
            value >= first || value <= last
        }
    }
}

/// Place at which a fault fires.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) qp: Option<Span>,
    peer: Option<Span>,
    types: Option<u32>,
    states: Option<u32>,
    context: Option<u32>,
    process: Option<[u8; 16]>,
    pid: Option<u32>,
    directions: Option<u32>,
    packets: Option<u32>,
    psn: Option<Span>,
    size: Option<Span>,
    message: Option<Span>,
    key: Option<u32>,
    pub(crate) cq: Option<u32>,
    pub(crate) srq: Option<u32>,
    side: Option<bool>,
    code: Option<CommandCode>,
    event: Option<EventType>,
}

/// Returns whether the actual value `fits` the wanted one, if one is wanted.
fn fits<W, T>(wanted: Option<W>, there: Option<T>, fits: impl Fn(W, T) -> bool) -> bool {
    match (wanted, there) {
        (None, _) => true,
        (Some(wanted), Some(there)) => fits(wanted, there),
        (Some(_), None) => false,
    }
}

impl Place {
    /// Returns whether an occasion is at this place.
    pub(crate) fn has(&self, on: &Occasion) -> bool {
        let qp = on.qp;
        let is_gsi = qp.is_some_and(|qp| matches!(qp.qp_type, QpType::Gsi | QpType::Smi));
        let spared = is_gsi && self.qp.is_none() && self.types.is_none();
        !spared
            && fits(self.qp, qp, |span, qp| span.has(qp.qpn.into()))
            && fits(self.peer, qp, |span, qp| span.has(qp.peer.into()))
            && fits(self.types, qp, |set, qp| set & type_bit(qp.qp_type) != 0)
            && fits(self.states, qp, |set, qp| set & state_bit(qp.state) != 0)
            && fits(self.context, qp, |context, qp| context == qp.context)
            && (qp.is_none() && self.names_no_process()
                || qp.is_some_and(|qp| self.is_of(&qp.owner)))
            && fits(self.directions, on.direction, |set, way| {
                set & way as u32 != 0
            })
            && fits(self.packets, on.packet, |set, kind| set & kind.bit() != 0)
            && fits(self.psn, on.psn, |span, psn| span.has(psn.into()))
            && fits(self.size, on.size, Span::has)
            && fits(self.message, on.message, Span::has)
            && fits(self.key, on.key, |wanted, key| wanted == key)
            && fits(self.cq, on.cqn, |wanted, cqn| wanted == cqn)
            && fits(self.srq, on.srqn, |wanted, srqn| wanted == srqn)
            && fits(self.side, on.send, |wanted, send| wanted == send)
            && fits(self.code, on.code, |wanted, code| wanted == code)
            && fits(self.event, on.event, |wanted, event| wanted == event)
    }

    /// Returns whether it applies to all processes.
    fn names_no_process(&self) -> bool {
        self.process.is_none() && self.pid.is_none()
    }

    /// Returns whether it applies to objects of this process.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.process.is_none_or(|name| name == owner.name)
            && self.pid.is_none_or(|pid| pid == owner.pid)
    }

    /// Returns whether it applies to all objects of a device.
    pub(crate) fn names_nobody(&self) -> bool {
        self.qp.is_none()
            && self.peer.is_none()
            && self.context.is_none()
            && self.names_no_process()
            && self.cq.is_none()
            && self.srq.is_none()
    }
}

fn type_bit(qp_type: QpType) -> u32 {
    1 << qp_type.raw()
}

fn state_bit(state: QpState) -> u32 {
    1 << state.raw()
}

/// When a fault fires.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    nth: u64,
    every: u64,
    /// Probability in units of 2^-32.
    chance: u64,
    seed: u64,
    pub(crate) burst: u64,
    pub(crate) count: u64,
    pub(crate) after: Duration,
    pub(crate) lasts: Option<Duration>,
    pub(crate) after_fault: Option<u64>,
    pub(crate) after_event: Option<EventType>,
    pub(crate) interval: Duration,
}

/// Probability 1.
const CERTAIN: u64 = 1 << 32;

impl Moment {
    /// Returns whether something must happen before it can fire.
    pub(crate) fn waits(&self) -> bool {
        self.after_fault.is_some() || self.after_event.is_some()
    }

    /// Returns a random number that depends on the seed, the position in the stream, and its purpose.
    pub(crate) fn draw(&self, position: u64, purpose: u64) -> u64 {
        // SplitMix64.
        let mut z = self
            .seed
            .wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_add(purpose.wrapping_mul(0xd1b5_4a32_d192_ed03));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns whether it fires at this position of its stream.
    pub(crate) fn hits(&self, position: u64) -> bool {
        position >= self.nth
            && (position - self.nth).is_multiple_of(self.every)
            && (self.draw(position, 0) >> 32) < self.chance
    }
}

/// Arguments of a fault.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Args {
    pub(crate) delay: Duration,
    pub(crate) by: u32,
    pub(crate) bytes: Option<u64>,
    pub(crate) rate: Option<u64>,
    pub(crate) vendor: Option<u32>,
    pub(crate) field: Option<Field>,
    pub(crate) value: Option<u64>,
    #[serde(with = "wire")]
    pub(crate) status: Option<command::Status>,
    pub(crate) limit: Option<u32>,
    #[serde(with = "wire")]
    pub(crate) mtu: Option<Mtu>,
}

/// A valid description of a fault.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its kind.
    pub kind: &'static Kind,
    text: String,
    pub(crate) place: Place,
    pub(crate) moment: Moment,
    pub(crate) args: Args,
}

impl fmt::Display for Spec {
    /// Writes the original text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Spec {
    type Err = BadSpec;

    fn from_str(text: &str) -> Result<Self, BadSpec> {
        if text.len() > MAX_TEXT {
            return Err(BadSpec::new(format!(
                "a description has at most {MAX_TEXT} bytes"
            )));
        }
        let mut words = text.split_ascii_whitespace();
        let name = words
            .next()
            .ok_or_else(|| BadSpec::new("there is no name"))?;
        let kind = Kind::find(name)
            .ok_or_else(|| BadSpec::new(format!("no fault is called `{}`", name.escape_debug())))?;
        let mut spec = Self {
            kind,
            text: name.to_owned(),
            place: Place::default(),
            moment: Moment {
                nth: 1,
                every: 1,
                chance: CERTAIN,
                seed: 1,
                burst: 1,
                count: 1,
                after: Duration::ZERO,
                lasts: None,
                after_fault: None,
                after_event: None,
                interval: Duration::ZERO,
            },
            args: Args {
                by: 1,
                ..Args::default()
            },
        };
        for word in kind.preset.split_ascii_whitespace() {
            if let Some((key, value)) = word.split_once('=') {
                spec.set(key, value)?;
            }
        }
        let mut given: Vec<&str> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| {
                BadSpec::new(format!("`{}` is not KEY=VALUE", word.escape_debug()))
            })?;
            if !kind.has_key(key) {
                let known: Vec<&str> = kind.keys().map(|key| key.name).collect();
                let (key, known) = (key.escape_debug(), known.join(", "));
                return Err(BadSpec::new(format!(
                    "`{name}` has no `{key}`; it has {known}"
                )));
            }
            if given.contains(&key) {
                return Err(BadSpec::new(format!("`{key}` is given twice")));
            }
            given.push(key);
            spec.set(key, value)?;
            spec.text.push(' ');
            spec.text.push_str(word);
        }
        if let (Some(field), Some(value)) = (spec.args.field, spec.args.value)
            && value > field.max()
        {
            return Err(BadSpec::new(format!(
                "`value={value}` is more than the {} bits of the field have",
                field.bits()
            )));
        }
        if spec.moment.after_fault.is_some() && spec.moment.after_event.is_some() {
            return Err(BadSpec::new(
                "a fault waits for `after-fault` or `after-event`, not for both",
            ));
        }
        Ok(spec)
    }
}

impl Spec {
    /// Returns the description of the same fault, which waits for no other one.
    pub(crate) fn without_wait(mut self) -> Self {
        self.moment.after_fault = None;
        let words = self.text.split(' ');
        let kept: Vec<&str> = words
            .filter(|word| !word.starts_with("after-fault="))
            .collect();
        self.text = kept.join(" ");
        self
    }

    /// Returns what it waits for before it can fire, in words.
    pub fn awaits(&self) -> Option<String> {
        let fault = self.moment.after_fault.map(|id| id.to_string());
        fault.or_else(|| self.moment.after_event.map(kebab))
    }

    /// Checks that a switch port can have the fault: a port sees packets, and knows only what they tell about queue
    /// pairs.
    ///
    /// # Errors
    ///
    /// The fault is not one of packets, or the description names something that packets do not tell.
    pub fn check_for_port(&self) -> Result<(), BadSpec> {
        let Kind { name, .. } = self.kind;
        if !self.kind.fits_ports() {
            return Err(BadSpec::new(format!(
                "`{name}` is a fault of a device; a port of the switch can have only faults of packets"
            )));
        }
        let Place {
            states,
            context,
            process,
            pid,
            ..
        } = &self.place;
        if self.moment.after_event.is_some() {
            return Err(BadSpec::new(
                "`after-event` works only on a device; a port of the switch raises no events",
            ));
        }
        let unknown = [
            ("state", states.is_some()),
            ("context", context.is_some()),
            ("process", process.is_some()),
            ("pid", pid.is_some()),
        ];
        match unknown.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(BadSpec::new(format!(
                "`{key}` works only on a device; packets do not contain it"
            ))),
            None => Ok(()),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadSpec> {
        let Self {
            place,
            moment,
            args,
            ..
        } = self;
        let wrong = |expected: &str| {
            BadSpec::new(format!(
                "`{key}={}`: expected {expected}",
                value.escape_debug()
            ))
        };
        let number = |max: u64| {
            parse_number(value)
                .filter(|n| *n <= max)
                .ok_or_else(|| wrong(&format!("a number up to {max}")))
        };
        let small = || number(u32::MAX.into()).map(|n| n as u32);
        let positive = || {
            number(u64::MAX)?
                .checked_sub(1)
                .map(|n| n + 1)
                .ok_or_else(|| wrong("a number of at least 1"))
        };
        let span = |max: u64| parse_span(value, max).ok_or_else(|| wrong("a number or a range"));
        let time = || parse_time(value).ok_or_else(|| wrong("a time such as 10us, 5ms or 1.5s"));
        let event = || {
            let mut events = EventType::ALL.iter();
            let event = events.find(|event| kebab(**event) == value);
            event
                .copied()
                .ok_or_else(|| wrong("an event such as port-error"))
        };
        match key {
            "qp" => place.qp = Some(span(MAX_PSN.into())?),
            "peer" => place.peer = Some(span(MAX_PSN.into())?),
            "type" => {
                let bit = |name: &str| {
                    let types = [
                        ("rc", QpType::ReliableConnection),
                        ("uc", QpType::UnreliableConnection),
                        ("ud", QpType::UnreliableDatagram),
                        ("gsi", QpType::Gsi),
                        ("raw", QpType::RawPacket),
                        ("xrc-ini", QpType::XrcInitiator),
                        ("xrc-tgt", QpType::XrcTarget),
                        ("rq", QpType::ReceiveQueue),
                    ];
                    let found = types.iter().find(|(known, _)| *known == name);
                    found.map(|(_, qp_type)| type_bit(*qp_type))
                };
                place.types = Some(set_of(value, bit).ok_or_else(|| wrong("types"))?);
            }
            "state" => {
                let bit = |name: &str| {
                    let states = [
                        ("reset", QpState::Reset),
                        ("init", QpState::Init),
                        ("rtr", QpState::ReadyToReceive),
                        ("rts", QpState::ReadyToSend),
                        ("sqd", QpState::SendQueueDrain),
                        ("sqe", QpState::SendQueueError),
                        ("err", QpState::Error),
                    ];
                    let found = states.iter().find(|(known, _)| *known == name);
                    found.map(|(_, state)| state_bit(*state))
                };
                place.states = Some(set_of(value, bit).ok_or_else(|| wrong("states"))?);
            }
            "context" => place.context = Some(small()?),
            "process" => {
                let mut name = [0; 16];
                let room = name.get_mut(..value.len()).filter(|room| room.len() < 16);
                room.ok_or_else(|| wrong("a name of at most 15 bytes"))?
                    .copy_from_slice(value.as_bytes());
                place.process = Some(name);
            }
            "pid" => place.pid = Some(small()?),
            "dir" => {
                place.directions = Some(match value {
                    "out" => 1,
                    "in" => 2,
                    "both" => 3,
                    _ => return Err(wrong("out, in or both")),
                });
            }
            "opcode" => {
                let bits = |name: &str| match name {
                    "request" => Some(REQUESTS),
                    "response" => Some(RESPONSES),
                    name => {
                        let mut names = PacketKind::NAMES.iter();
                        let found = names.find(|(known, _)| *known == name);
                        found.map(|(_, kind)| kind.bit())
                    }
                };
                place.packets = Some(set_of(value, bits).ok_or_else(|| wrong("packets"))?);
            }
            "psn" => place.psn = Some(span(MAX_PSN.into())?),
            "size" => place.size = Some(span(u64::MAX)?),
            "message" => place.message = Some(span(u64::MAX)?),
            "key" => place.key = Some(small()?),
            "cq" => place.cq = Some(small()?),
            "srq" => place.srq = Some(small()?),
            "side" => {
                place.side = Some(match value {
                    "send" => true,
                    "recv" => false,
                    _ => return Err(wrong("send or recv")),
                });
            }
            "code" => {
                let mut codes = CommandCode::ALL.iter();
                let code = codes.find(|code| kebab(**code) == value);
                place.code = Some(*code.ok_or_else(|| wrong("a command such as create-qp"))?);
            }
            "event" => place.event = Some(event()?),
            "nth" => moment.nth = positive()?,
            "every" => moment.every = positive()?,
            "chance" => {
                moment.chance =
                    parse_chance(value).ok_or_else(|| wrong("a number such as 0.01 or 1%"))?;
            }
            "seed" => moment.seed = number(u64::MAX)?,
            "burst" => moment.burst = positive()?,
            "count" if value == "all" => moment.count = u64::MAX,
            "count" => moment.count = positive()?,
            "after" => moment.after = time()?,
            "for" => moment.lasts = Some(time()?),
            "after-fault" => moment.after_fault = Some(positive()?),
            "after-event" => moment.after_event = Some(event()?),
            "interval" => moment.interval = time()?,
            "delay" => args.delay = time()?,
            "factor" => args.delay = UNIT.saturating_mul(number(MAX_FACTOR)?.max(1) as u32),
            "by" => args.by = number(1024)?.max(1) as u32,
            "bytes" => args.bytes = Some(number(u64::MAX)?),
            "rate" => args.rate = Some(positive()?),
            "vendor" => args.vendor = Some(small()?),
            "field" => {
                let field = Field::find(value);
                args.field = Some(field.ok_or_else(|| wrong("a field such as ack-request"))?);
            }
            "value" => args.value = Some(number(u64::MAX)?),
            "status" => {
                let mut all = command::Status::ALL.iter();
                let found =
                    all.find(|status| kebab(**status) == value && **status != command::Status::Ok);
                args.status = Some(*found.ok_or_else(|| wrong("a status such as busy"))?);
            }
            "limit" => args.limit = Some(small()?),
            "mtu" => {
                let mut all = Mtu::ALL.iter();
                let found = all.find(|mtu| mtu.bytes().to_string() == value);
                args.mtu = Some(*found.ok_or_else(|| wrong("256, 512, 1024, 2048 or 4096"))?);
            }
            _ => {
                return Err(BadSpec::new(format!(
                    "there is no `{}`",
                    key.escape_debug()
                )));
            }
        }
        Ok(())
    }
}

impl Key {
    /// Returns whether all faults of a seam accept it.
    pub(super) fn is_of(&self, seam: Seam) -> bool {
        self.seams.contains(&seam)
    }
}

/// Converts a name to lower case with dashes.
pub(crate) fn kebab(name: impl fmt::Debug) -> String {
    let mut text = String::new();
    for letter in format!("{name:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn set_of(text: &str, bits: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    text.split('|')
        .try_fold(0, |set, name| Some(set | bits(name)?))
}

fn parse_number(text: &str) -> Option<u64> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.strip_prefix("0x") {
        Some(hex) if digits(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits(text) => text.parse().ok(),
        _ => None,
    }
}

fn parse_span(text: &str, max: u64) -> Option<Span> {
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (parse_number(first)?, parse_number(last)?),
        None => (parse_number(text)?, parse_number(text)?),
    };
    (first <= max && last <= max).then_some(Span(first, last))
}

/// Parses a number that is not negative, without exponents and other surprises.
fn parse_decimal(text: &str) -> Option<f64> {
    let plain = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    (text.len() <= 20 && text.bytes().all(plain)).then_some(())?;
    text.parse().ok()
}

fn parse_time(text: &str) -> Option<Duration> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let time = Duration::try_from_secs_f64(parse_decimal(number)? * unit).ok()?;
    (time <= MAX_TIME).then_some(time)
}

fn parse_chance(text: &str) -> Option<u64> {
    let part = match text.strip_suffix('%') {
        Some(percent) => parse_decimal(percent)? / 100.0,
        None => parse_decimal(text)?,
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "CERTAIN is a power of 2, and the product lies between 0 and it"
    )]
    (0.0..=1.0)
        .contains(&part)
        .then_some((part * CERTAIN as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn descriptions_are_read_and_written() {
        let text =
            "drop opcode=ack|nak qp=0x11 nth=3 every=2 chance=12.5% seed=7 count=all after=1.5ms";
        let spec: Spec = format!("  {} ", text.replace(' ', "  ")).parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(spec.kind.name, "drop");
        assert_eq!(spec.moment.chance, CERTAIN / 8);
        assert_eq!(spec.moment.after, Duration::from_micros(1500));
        assert_eq!(spec.moment.count, u64::MAX);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("", "no name"),
            ("drip", "no fault is called `drip`"),
            ("drop nth", "not KEY=VALUE"),
            ("drop nth=0", "at least 1"),
            ("drop nth=-1", "a number"),
            ("drop nth=0x", "a number"),
            ("drop nth=1 nth=2", "twice"),
            ("drop chance=1.5", "0.01"),
            ("drop chance=nan", "0.01"),
            ("drop chance=1e-3", "0.01"),
            ("drop after=5", "a time"),
            ("drop after=9999999999999999999s", "a time"),
            ("drop code=create-qp", "has no `code`"),
            ("drop type=xrc", "types"),
            ("drop process=sixteen-letters-", "15 bytes"),
            ("drop opcode=", "packets"),
            ("drop psn=0..16777216", "a range"),
            ("command-fails code=nothing", "create-qp"),
            ("command-fails status=ok", "busy"),
            ("drop vendor=1", "has no `vendor`"),
            ("wrong-field field=color", "ack-request"),
            ("wrong-field field=pkey value=65536", "16 bits"),
            ("wrong-pkey field=psn", "has no `field`"),
            ("drop message=1..", "a range"),
            ("drop after-event=nothing", "port-error"),
            ("drop after-event=port-error after-fault=1", "not for both"),
        ] {
            assert!(error(text).contains(why), "{text}: {}", error(text));
        }
        assert!(error(&"x".repeat(2000)).contains("1024"));
    }

    #[test]
    fn all_fields_are_listed() {
        let key = KEYS.iter().find(|key| key.name == "field").unwrap();
        let listed: Vec<&str> = key.text.split_once(": ").unwrap().1.split(", ").collect();
        let all: Vec<&str> = Field::ALL.iter().map(|(name, ..)| *name).collect();
        assert_eq!(listed, all);
    }

    #[test]
    fn ranges_of_psns_wrap_around() {
        let span = parse_span("0xfffff0..15", MAX_PSN.into()).unwrap();
        assert!(span.has(0xff_ffff) && span.has(3) && !span.has(16) && !span.has(0xff_ffef));
    }

    #[test]
    fn chance_is_what_it_says_and_follows_from_the_seed() {
        let draw = |seed: u64| -> Vec<u64> {
            let text = format!("drop chance=10% seed={seed} count=all");
            let spec: Spec = text.parse().unwrap();
            (1..=10_000)
                .filter(|position| spec.moment.hits(*position))
                .collect()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        assert!((900..1100).contains(&draw(5).len()), "{}", draw(5).len());
    }
}
