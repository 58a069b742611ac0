// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Descriptions of the steps of a device.

use std::fmt::Write;
use std::sync::LazyLock;
use std::time::Instant;

use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{Aeth, Body, Path, Payload, SendTail, Syndrome, Touched};
use vrnic_engine::trace::{Act, Object, Packet, TracePage, Traced};
use vrnic_engine::{Named, Segment};
use vrnic_roce::opcode_name;
use vrnic_wire::completion::{Cqe, Opcode, Status};
use vrnic_wire::event::EventType;

use super::{cq, mr, mw, srq};
use crate::control::protocol::{self, Step, Trace, TracedPacket};

/// Returns the nanoseconds since its first call. Unlike the devices' clock, this one advances during a call to a
/// device.
pub fn clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a page of steps.
pub fn page(page: &TracePage) -> Trace {
    let mut steps: Vec<_> = page.steps.iter().map(step).collect();
    for (place, seen) in &page.objects {
        steps[*place].objects.push(object(seen));
    }
    Trace {
        first: page.first,
        steps,
        waiting: page.waiting,
    }
}

/// Describes an object involved in a step.
pub fn object(object: &Object) -> protocol::Object {
    match *object {
        Object::Key(named, Named::Region(region)) => protocol::Object::Region {
            named,
            mr: mr(region),
        },
        Object::Key(named, Named::Window(window)) => protocol::Object::Window {
            named,
            mw: mw(window),
        },
        Object::Key(named, Named::Removed) => protocol::Object::NoKey {
            named,
            removed: true,
        },
        Object::Key(named, Named::Nothing) => protocol::Object::NoKey {
            named,
            removed: false,
        },
        Object::Cq(seen) => protocol::Object::Cq(cq(seen)),
        Object::Srq(seen) => protocol::Object::Srq(srq(seen)),
    }
}

fn step(step: &Traced) -> Step {
    Step {
        nanoseconds: step.time.as_nanos(),
        at: step.at,
        qpn: step.qpn,
        act: act(&step.act, step.qpn),
        objects: Vec::new(),
    }
}

/// Describes what `qpn` did.
fn act(act: &Act, qpn: u32) -> protocol::Act {
    match act {
        Act::Fetched {
            wr_id,
            opcode,
            length,
        } => protocol::Act::Fetched {
            wr_id: *wr_id,
            opcode: opcode.name().to_owned(),
            length: *length,
        },
        Act::TookReceive { wr_id, srqn } => protocol::Act::TookReceive {
            wr_id: *wr_id,
            srqn: *srqn,
        },
        Act::Sent(packet) => protocol::Act::Sent(self::packet(packet, packet.peer_qpn)),
        Act::Arrived(packet) => protocol::Act::Arrived(self::packet(packet, qpn)),
        Act::Completed { cqn, cqe } => completed(*cqn, cqe),
        Act::Notified { cqn } => protocol::Act::Notified { cqn: *cqn },
        Act::Moved { from, to } => protocol::Act::Moved {
            from: from.name().to_owned(),
            to: to.name().to_owned(),
        },
        Act::Raised(event) => {
            let kind = EventType::try_from(event.event_type.get());
            protocol::Act::Raised {
                event: kind.map_or("?", EventType::name).to_owned(),
                number: event.number.get(),
            }
        }
    }
}

fn completed(cqn: u32, cqe: &Cqe) -> protocol::Act {
    let opcode = Opcode::try_from(cqe.opcode);
    let status = Status::try_from(cqe.status);
    protocol::Act::Completed {
        cqn,
        wr_id: cqe.wr_id.get(),
        opcode: opcode.map_or("?", Opcode::name).to_owned(),
        status: status.map_or("?", Status::name).to_owned(),
        length: cqe.byte_length.get().into(),
        vendor_error: cqe.vendor_error.get(),
    }
}

/// Describes a packet of a capture.
pub fn packet_of(segment: &Segment<'_>) -> TracedPacket {
    let to = segment.destination_qpn;
    packet(&Packet::new(segment, to), to)
}

/// Describes a packet to the queue pair `to`.
fn packet(packet: &Packet, to: u32) -> TracedPacket {
    let aeth = aeth(&packet.body);
    let reth = packet.body.reth();
    let segment = segment(packet, to);
    // A packet that a device traced always has headers.
    let headers = vrnic_roce::headers(&segment, packet.length).unwrap_or_default();
    TracedPacket {
        opcode: opcode_name(&segment),
        psn: packet.psn,
        peer_qpn: packet.peer_qpn,
        length: packet.length,
        ack_request: packet.ack_request,
        syndrome: aeth.map(|aeth| aeth.syndrome.to_string()),
        negative: aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })),
        msn: aeth.map(|aeth| aeth.msn),
        rkey: reth.map(|reth| reth.rkey),
        address: reth.map(|reth| reth.address),
        message_length: reth.map(|reth| reth.length),
        immediate: immediate(&packet.body),
        fault: packet.fault.map(str::to_owned),
        headers: hex(&headers),
    }
}

/// Returns bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Reconstructs what is known about the segment that became a packet to the queue pair `to`.
fn segment(packet: &Packet, to: u32) -> Segment<'static> {
    Segment {
        path: Path::default(),
        source_qpn: 0,
        destination_qpn: to,
        pkey: packet.pkey,
        psn: Psn::new(packet.psn),
        solicited: packet.solicited,
        ack_request: packet.ack_request,
        migrated: packet.migrated,
        service: packet.service,
        body: packet.body,
        payload: Payload::Empty,
        checksums_ok: false,
        touched: Touched::NOT,
    }
}

fn aeth(body: &Body) -> Option<Aeth> {
    match *body {
        Body::ReadResponse { aeth, .. } => aeth,
        Body::Acknowledge(aeth) | Body::AtomicAcknowledge { aeth, .. } => Some(aeth),
        _ => None,
    }
}

fn immediate(body: &Body) -> Option<u32> {
    match *body {
        Body::Write { immediate, .. } | Body::Datagram { immediate, .. } => immediate,
        Body::Send {
            tail: SendTail::Immediate(immediate),
            ..
        } => Some(immediate),
        _ => None,
    }
}
