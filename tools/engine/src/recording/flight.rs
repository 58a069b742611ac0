// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The flight recorder: the last calls of a device, for people.
//!
//! It is always on and has a fixed size. It has one line for each call, but not what was found in guest memory. So it
//! shows what led to a panic, but cannot be replayed.

use crate::{fault::PacketKind, segment::Segment, time::Instant};
use std::fmt;
use vrnic_wire::command::{CommandCode, CommandHeader};
use zerocopy::FromBytes;

/// Number of calls that are remembered.
const CALLS: usize = 2048;

/// Kind of call.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) enum Kind {
    #[default]
    Nothing,
    Command(u16),
    Doorbell,
    Poll,
    Sleep,
    Packet(PacketKind),
    BadPacket,
    Timer,
    Link,
    RateLimit,
    Pause,
    Fault,
    Synced,
}

/// A call. It is small, so that all of them together leave room in the first-level cache.
#[derive(Copy, Clone, Debug, Default)]
struct Flown {
    now: Instant,
    kind: Kind,
    /// Values whose meaning depends on the kind.
    values: (u32, u32),
}

const _: () = assert!(size_of::<Flown>() == 24);

/// The last calls of a device.
#[derive(Debug)]
pub(crate) struct Flight {
    calls: Box<[Flown]>,
    next: usize,
    now: Instant,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            calls: vec![Flown::default(); CALLS].into(),
            next: 0,
            now: Instant::default(),
        }
    }
}

impl Flight {
    /// Sets the time for the following call.
    pub(crate) fn at(&mut self, now: Instant) -> &mut Self {
        self.now = now;
        self
    }

    /// Records a call with values whose meaning depends on its kind.
    pub(crate) fn note(&mut self, kind: Kind, first: u32, second: u32) {
        self.calls[self.next % CALLS] = Flown {
            now: self.now,
            kind,
            values: (first, second),
        };
        self.next = self.next.wrapping_add(1);
    }

    /// Records a command.
    pub(crate) fn command(&mut self, request: &[u8]) {
        let code = CommandHeader::read_from_prefix(request).map(|(header, _)| header.code.get());
        self.note(Kind::Command(code.unwrap_or_default()), 0, 0);
    }

    /// Records a packet that arrived.
    pub(crate) fn packet(&mut self, segment: &Segment<'_>) {
        let kind = Kind::Packet(PacketKind::of(&segment.body));
        self.note(kind, segment.destination_qpn, segment.psn.raw());
    }

    /// Returns the calls in words, oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let (new, old) = self.calls.split_at(self.next % CALLS);
        let all = old.iter().chain(new);
        all.filter(|flown| !matches!(flown.kind, Kind::Nothing))
            .map(Flown::to_string)
    }
}

impl fmt::Display for Flown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.now.as_nanos();
        let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
        write!(f, "{seconds}.{rest:09} s: ")?;
        let (first, second) = self.values;
        match self.kind {
            Kind::Nothing => Ok(()),
            Kind::Command(code) => match CommandCode::try_from(code) {
                Ok(code) => write!(f, "command {code:?}"),
                Err(_) => write!(f, "unknown command {code:#x}"),
            },
            Kind::Doorbell => write!(f, "doorbell of page {first} for slot {second}"),
            Kind::Poll => write!(f, "work, {first} packets sent"),
            Kind::Sleep => f.write_str("nothing to do"),
            Kind::Packet(kind) => {
                write!(f, "packet for QP {first}: {}, PSN {second}", kind.name())
            }
            Kind::BadPacket => f.write_str("damaged packet"),
            Kind::Timer => f.write_str("timer"),
            Kind::Link => f.write_str(match first {
                0 => "link down",
                1 => "link up",
                _ => "port state changed by its subnet",
            }),
            Kind::RateLimit => f.write_str("rate limit changed"),
            Kind::Pause => f.write_str(match first {
                0 => "a receiver takes packets again",
                _ => "a receiver takes no packets",
            }),
            Kind::Fault => f.write_str("faults changed"),
            Kind::Synced => f.write_str("memory was made persistent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        psn::Psn,
        segment::{Aeth, Body, NakCode, Path, Payload, Service, Syndrome, Touched},
    };

    #[test]
    fn the_last_calls_are_remembered() {
        let mut flight = Flight::default();
        assert_eq!(flight.lines().count(), 0);
        for value in 0..CALLS as u32 + 10 {
            let now = Instant::from_nanos(1_000_000_000 + u64::from(value));
            flight.at(now).note(Kind::Doorbell, 3, value);
        }
        let lines: Vec<String> = flight.lines().collect();
        assert_eq!(lines.len(), CALLS);
        assert_eq!(lines[0], "1.000000010 s: doorbell of page 3 for slot 10");
        let nak = Segment {
            path: Path::default(),
            source_qpn: 0,
            destination_qpn: 17,
            pkey: 0,
            psn: Psn::new(5),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Acknowledge(Aeth {
                syndrome: Syndrome::Nak(NakCode::SequenceError),
                msn: 0,
            }),
            payload: Payload::Empty,
            checksums_ok: false,
            touched: Touched::default(),
        };
        flight.packet(&nak);
        let last = flight.lines().last().expect("a line");
        assert!(last.ends_with("packet for QP 17: nak, PSN 5"), "{last}");
        flight.command(&[]);
        let last = flight.lines().last().expect("a line");
        assert!(last.ends_with("unknown command 0x0"), "{last}");
    }
}
