// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Opcodes and the extended headers that go with them (IBTA volume 1, table 38; annex A17, 9; annex A19, 4).

use crate::{
    error::{EncodeError, FrameError},
    header::{Aeth, AtomicEth, Deth, FlushEth, LOW_24, Reader, Reth, Writer},
};
use vrnic_engine::{
    Segment,
    segment::{self, AtomicKind, Body, Position, SendTail, Service},
};
use zerocopy::byteorder::big_endian::{U32, U64};

const SEND_FIRST: u8 = 0x00;
const SEND_MIDDLE: u8 = 0x01;
const SEND_LAST: u8 = 0x02;
const SEND_LAST_IMMEDIATE: u8 = 0x03;
const SEND_ONLY: u8 = 0x04;
const SEND_ONLY_IMMEDIATE: u8 = 0x05;
const WRITE_FIRST: u8 = 0x06;
const WRITE_MIDDLE: u8 = 0x07;
const WRITE_LAST: u8 = 0x08;
const WRITE_LAST_IMMEDIATE: u8 = 0x09;
const WRITE_ONLY: u8 = 0x0a;
const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
const READ_REQUEST: u8 = 0x0c;
const READ_RESPONSE_FIRST: u8 = 0x0d;
const READ_RESPONSE_MIDDLE: u8 = 0x0e;
const READ_RESPONSE_LAST: u8 = 0x0f;
const READ_RESPONSE_ONLY: u8 = 0x10;
const ACKNOWLEDGE: u8 = 0x11;
const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
const COMPARE_SWAP: u8 = 0x13;
const FETCH_ADD: u8 = 0x14;
const SEND_LAST_INVALIDATE: u8 = 0x16;
const SEND_ONLY_INVALIDATE: u8 = 0x17;
const FLUSH: u8 = 0x1c;
const ATOMIC_WRITE: u8 = 0x1d;
/// Difference between an opcode of UC and that of RC.
const UNRELIABLE: u8 = 0x20;
const DATAGRAM: u8 = 0x64;
const DATAGRAM_IMMEDIATE: u8 = 0x65;
const CONGESTION_NOTIFICATION: u8 = 0x81;
/// Stands for the opcode of what has none. No transport has this one.
const NO_OPCODE: u8 = 0xff;

/// Difference between an opcode of XRC and that of RC (annex A14).
const XRC: u8 = 0xa0;

/// Position of the transport in an opcode, and the number of RC, the transport whose invalid requests are answered.
const TRANSPORT_SHIFT: u32 = 5;
const RELIABLE_CONNECTION: u8 = 0;

/// Reserved bytes of a congestion notification packet.
type CongestionReserved = [u8; 16];

/// Returns whether an RC opcode is that of a request. In XRC, requests contain the number of a shared receive queue.
fn is_request(opcode: u8) -> bool {
    matches!(
        opcode,
        SEND_FIRST
            ..=READ_REQUEST
                | COMPARE_SWAP
                | FETCH_ADD
                | SEND_LAST_INVALIDATE
                | SEND_ONLY_INVALIDATE
                | FLUSH
                | ATOMIC_WRITE
    )
}

/// Returns the service to which packets with this opcode belong, reading the header that this service puts in front of
/// the others, and the opcode that they would have in RC.
pub(crate) fn read_service(
    opcode: u8,
    reader: &mut Reader<'_>,
) -> Result<(Service, u8), FrameError> {
    const LAST_UNRELIABLE: u8 = UNRELIABLE + WRITE_ONLY_IMMEDIATE;
    const LAST_XRC: u8 = XRC + (1 << TRANSPORT_SHIFT) - 1;
    match opcode {
        UNRELIABLE..=LAST_UNRELIABLE => Ok((Service::Unreliable, opcode - UNRELIABLE)),
        XRC..=LAST_XRC => {
            let opcode = opcode - XRC;
            let srqn = if is_request(opcode) {
                reader.take::<U32>()?.get() & LOW_24
            } else {
                0
            };
            Ok((Service::Xrc { srqn }, opcode))
        }
        _ => Ok((Service::Reliable, opcode)),
    }
}

/// Returns the number of the shared receive queue that a packet contains, if any.
fn queue_of(segment: &Segment<'_>) -> Option<u32> {
    match segment.service {
        Service::Xrc { srqn } if is_request(reliable_opcode_of(&segment.body)) => Some(srqn),
        _ => None,
    }
}

/// Returns the opcode of a packet.
pub(crate) fn opcode_of(segment: &Segment<'_>) -> Result<u8, EncodeError> {
    let opcode = reliable_opcode_of(&segment.body);
    match (segment.service, opcode) {
        (Service::Reliable, _) | (_, CONGESTION_NOTIFICATION) => Ok(opcode),
        (Service::Unreliable, SEND_FIRST..=WRITE_ONLY_IMMEDIATE) => Ok(UNRELIABLE + opcode),
        (Service::Xrc { .. }, _) if opcode >> TRANSPORT_SHIFT == RELIABLE_CONNECTION => {
            Ok(XRC + opcode)
        }
        _ => Err(EncodeError::Headers),
    }
}

/// Returns the opcode that a packet would have in RC.
fn reliable_opcode_of(body: &Body) -> u8 {
    match *body {
        Body::Send { position, tail } => match (position, tail) {
            (Position::First, _) => SEND_FIRST,
            (Position::Middle, _) => SEND_MIDDLE,
            (Position::Last, SendTail::Plain) => SEND_LAST,
            (Position::Last, SendTail::Immediate(_)) => SEND_LAST_IMMEDIATE,
            (Position::Last, SendTail::Invalidate(_)) => SEND_LAST_INVALIDATE,
            (Position::Only, SendTail::Plain) => SEND_ONLY,
            (Position::Only, SendTail::Immediate(_)) => SEND_ONLY_IMMEDIATE,
            (Position::Only, SendTail::Invalidate(_)) => SEND_ONLY_INVALIDATE,
        },
        Body::Write {
            position,
            immediate,
            ..
        } => match (position, immediate.is_some()) {
            (Position::First, _) => WRITE_FIRST,
            (Position::Middle, _) => WRITE_MIDDLE,
            (Position::Last, false) => WRITE_LAST,
            (Position::Last, true) => WRITE_LAST_IMMEDIATE,
            (Position::Only, false) => WRITE_ONLY,
            (Position::Only, true) => WRITE_ONLY_IMMEDIATE,
        },
        Body::ReadRequest(_) => READ_REQUEST,
        Body::AtomicRequest(request) => match request.kind {
            AtomicKind::CompareSwap => COMPARE_SWAP,
            AtomicKind::FetchAdd => FETCH_ADD,
        },
        Body::FlushRequest(_) => FLUSH,
        Body::AtomicWrite(_) => ATOMIC_WRITE,
        Body::ReadResponse { position, .. } => match position {
            Position::First => READ_RESPONSE_FIRST,
            Position::Middle => READ_RESPONSE_MIDDLE,
            Position::Last => READ_RESPONSE_LAST,
            Position::Only => READ_RESPONSE_ONLY,
        },
        Body::Acknowledge(_) => ACKNOWLEDGE,
        Body::AtomicAcknowledge { .. } => ATOMIC_ACKNOWLEDGE,
        Body::Datagram { immediate, .. } => match immediate {
            None => DATAGRAM,
            Some(_) => DATAGRAM_IMMEDIATE,
        },
        Body::Unknown(opcode) => opcode,
        Body::Frame { .. } => NO_OPCODE,
        Body::CongestionNotification => CONGESTION_NOTIFICATION,
    }
}

/// Returns the name of a packet's opcode, for people.
pub fn opcode_name(segment: &Segment<'_>) -> String {
    let name = reliable_opcode_name(&segment.body);
    match segment.service {
        Service::Reliable => name.to_owned(),
        Service::Unreliable => format!("UC {name}"),
        Service::Xrc { .. } => format!("XRC {name}"),
    }
}

fn reliable_opcode_name(body: &Body) -> &'static str {
    match reliable_opcode_of(body) {
        SEND_FIRST => "SEND First",
        SEND_MIDDLE => "SEND Middle",
        SEND_LAST => "SEND Last",
        SEND_LAST_IMMEDIATE => "SEND Last with Immediate",
        SEND_LAST_INVALIDATE => "SEND Last with Invalidate",
        SEND_ONLY => "SEND Only",
        SEND_ONLY_IMMEDIATE => "SEND Only with Immediate",
        SEND_ONLY_INVALIDATE => "SEND Only with Invalidate",
        WRITE_FIRST => "RDMA WRITE First",
        WRITE_MIDDLE => "RDMA WRITE Middle",
        WRITE_LAST => "RDMA WRITE Last",
        WRITE_LAST_IMMEDIATE => "RDMA WRITE Last with Immediate",
        WRITE_ONLY => "RDMA WRITE Only",
        WRITE_ONLY_IMMEDIATE => "RDMA WRITE Only with Immediate",
        READ_REQUEST => "RDMA READ Request",
        READ_RESPONSE_FIRST => "RDMA READ Response First",
        READ_RESPONSE_MIDDLE => "RDMA READ Response Middle",
        READ_RESPONSE_LAST => "RDMA READ Response Last",
        READ_RESPONSE_ONLY => "RDMA READ Response Only",
        ACKNOWLEDGE => "Acknowledge",
        ATOMIC_ACKNOWLEDGE => "Atomic Acknowledge",
        COMPARE_SWAP => "Compare and Swap",
        FETCH_ADD => "Fetch and Add",
        FLUSH => "FLUSH",
        ATOMIC_WRITE => "ATOMIC WRITE",
        DATAGRAM => "UD SEND Only",
        DATAGRAM_IMMEDIATE => "UD SEND Only with Immediate",
        CONGESTION_NOTIFICATION => "Congestion Notification",
        NO_OPCODE => "Ethernet frame",
        _ => "reserved opcode",
    }
}

/// Returns the length of the extended headers of a packet.
pub(crate) fn extended_length(segment: &Segment<'_>) -> usize {
    let immediate = |immediate: &Option<u32>| immediate.map_or(0, |_| size_of::<U32>());
    let service = immediate(&queue_of(segment));
    let body = match &segment.body {
        Body::Send { position, tail } => match tail {
            SendTail::Immediate(_) | SendTail::Invalidate(_) if position.ends() => size_of::<U32>(),
            _ => 0,
        },
        Body::Write {
            reth, immediate: i, ..
        } => reth.map_or(0, |_| size_of::<Reth>()) + immediate(i),
        Body::ReadRequest(_) | Body::AtomicWrite(_) => size_of::<Reth>(),
        Body::FlushRequest(_) => size_of::<FlushEth>() + size_of::<Reth>(),
        Body::AtomicRequest(_) => size_of::<AtomicEth>(),
        Body::ReadResponse { aeth, .. } => aeth.map_or(0, |_| size_of::<Aeth>()),
        Body::Acknowledge(_) => size_of::<Aeth>(),
        Body::AtomicAcknowledge { .. } => size_of::<Aeth>() + size_of::<U64>(),
        Body::Datagram { immediate: i, .. } => size_of::<Deth>() + immediate(i),
        Body::Unknown(_) | Body::Frame { .. } => 0,
        Body::CongestionNotification => size_of::<CongestionReserved>(),
    };
    service + body
}

/// Writes the extended headers of a packet.
pub(crate) fn write_extended(
    segment: &Segment<'_>,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    let optional = |value: Option<u32>, writer: &mut Writer<'_>| match value {
        Some(value) => writer.header(U32::new(value)),
        None => Ok(()),
    };
    optional(queue_of(segment).map(|srqn| srqn & LOW_24), writer)?;
    match segment.body {
        Body::Send { position, tail } => match tail {
            SendTail::Immediate(value) | SendTail::Invalidate(value) if position.ends() => {
                writer.header(U32::new(value))
            }
            _ => Ok(()),
        },
        Body::Write {
            position,
            reth,
            immediate,
        } => {
            if reth.is_some() != position.begins() || (immediate.is_some() && !position.ends()) {
                return Err(EncodeError::Headers);
            }
            if let Some(reth) = reth {
                writer.header(Reth::from(reth))?;
            }
            optional(immediate, writer)
        }
        Body::ReadRequest(reth) | Body::AtomicWrite(reth) => writer.header(Reth::from(reth)),
        Body::FlushRequest(flush) => {
            writer.header(FlushEth::from(flush))?;
            writer.header(Reth::from(flush.remote))
        }
        Body::AtomicRequest(request) => writer.header(AtomicEth::from(request)),
        Body::ReadResponse { position, aeth } => match (position, aeth) {
            (Position::Middle, None) => Ok(()),
            (Position::First | Position::Last | Position::Only, Some(aeth)) => {
                writer.header(Aeth::from(aeth))
            }
            _ => Err(EncodeError::Headers),
        },
        Body::Acknowledge(aeth) => writer.header(Aeth::from(aeth)),
        Body::AtomicAcknowledge { aeth, original } => {
            writer.header(Aeth::from(aeth))?;
            writer.header(U64::new(original))
        }
        Body::Datagram {
            qkey,
            source_qpn,
            immediate,
        } => {
            writer.header(Deth {
                qkey: qkey.into(),
                source: (source_qpn & LOW_24).into(),
            })?;
            optional(immediate, writer)
        }
        Body::Unknown(_) => Ok(()),
        // Only the frame itself can be sent.
        Body::Frame { .. } => Err(EncodeError::Headers),
        Body::CongestionNotification => writer.header(CongestionReserved::default()),
    }
}

/// Reads the extended headers that go with `opcode`.
pub(crate) fn read_body(opcode: u8, reader: &mut Reader<'_>) -> Result<Body, FrameError> {
    let word = |reader: &mut Reader<'_>| reader.take::<U32>().map(U32::get);
    let aeth = |reader: &mut Reader<'_>| reader.take::<Aeth>().and_then(segment::Aeth::try_from);
    let send = |position, tail| Ok(Body::Send { position, tail });
    let write = |position: Position, immediate: bool, reader: &mut Reader<'_>| {
        let reth = if position.begins() {
            Some(reader.take::<Reth>()?.into())
        } else {
            None
        };
        Ok(Body::Write {
            position,
            reth,
            immediate: immediate.then(|| word(reader)).transpose()?,
        })
    };
    let response = |position: Position, reader: &mut Reader<'_>| {
        let has_aeth = position != Position::Middle;
        Ok(Body::ReadResponse {
            position,
            aeth: has_aeth.then(|| aeth(reader)).transpose()?,
        })
    };
    match opcode {
        SEND_FIRST => send(Position::First, SendTail::Plain),
        SEND_MIDDLE => send(Position::Middle, SendTail::Plain),
        SEND_LAST => send(Position::Last, SendTail::Plain),
        SEND_LAST_IMMEDIATE => send(Position::Last, SendTail::Immediate(word(reader)?)),
        SEND_LAST_INVALIDATE => send(Position::Last, SendTail::Invalidate(word(reader)?)),
        SEND_ONLY => send(Position::Only, SendTail::Plain),
        SEND_ONLY_IMMEDIATE => send(Position::Only, SendTail::Immediate(word(reader)?)),
        SEND_ONLY_INVALIDATE => send(Position::Only, SendTail::Invalidate(word(reader)?)),
        WRITE_FIRST => write(Position::First, false, reader),
        WRITE_MIDDLE => write(Position::Middle, false, reader),
        WRITE_LAST => write(Position::Last, false, reader),
        WRITE_LAST_IMMEDIATE => write(Position::Last, true, reader),
        WRITE_ONLY => write(Position::Only, false, reader),
        WRITE_ONLY_IMMEDIATE => write(Position::Only, true, reader),
        READ_REQUEST => Ok(Body::ReadRequest(reader.take::<Reth>()?.into())),
        ATOMIC_WRITE => Ok(Body::AtomicWrite(reader.take::<Reth>()?.into())),
        FLUSH => {
            let header: FlushEth = reader.take()?;
            Ok(Body::FlushRequest(
                header.flush(reader.take::<Reth>()?.into()),
            ))
        }
        READ_RESPONSE_FIRST => response(Position::First, reader),
        READ_RESPONSE_MIDDLE => response(Position::Middle, reader),
        READ_RESPONSE_LAST => response(Position::Last, reader),
        READ_RESPONSE_ONLY => response(Position::Only, reader),
        ACKNOWLEDGE => Ok(Body::Acknowledge(aeth(reader)?)),
        ATOMIC_ACKNOWLEDGE => Ok(Body::AtomicAcknowledge {
            aeth: aeth(reader)?,
            original: reader.take::<U64>()?.get(),
        }),
        COMPARE_SWAP | FETCH_ADD => {
            let kind = if opcode == FETCH_ADD {
                AtomicKind::FetchAdd
            } else {
                AtomicKind::CompareSwap
            };
            let header: AtomicEth = reader.take()?;
            Ok(Body::AtomicRequest(header.request(kind)))
        }
        DATAGRAM | DATAGRAM_IMMEDIATE => {
            let deth: Deth = reader.take()?;
            let immediate = opcode == DATAGRAM_IMMEDIATE;
            Ok(Body::Datagram {
                qkey: deth.qkey.get(),
                source_qpn: deth.source.get() & LOW_24,
                immediate: immediate.then(|| word(reader)).transpose()?,
            })
        }
        CONGESTION_NOTIFICATION => {
            reader.take::<CongestionReserved>()?;
            Ok(Body::CongestionNotification)
        }
        _ if opcode >> TRANSPORT_SHIFT == RELIABLE_CONNECTION => Ok(Body::Unknown(opcode)),
        _ => Err(FrameError::Opcode),
    }
}

/// Returns whether packets of this kind have payload.
pub(crate) fn has_payload(body: &Body) -> bool {
    matches!(
        body,
        Body::Send { .. }
            | Body::Write { .. }
            | Body::AtomicWrite(_)
            | Body::ReadResponse { .. }
            | Body::Datagram { .. }
            | Body::Unknown(_)
    )
}
