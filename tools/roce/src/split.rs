// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Splits segments that are longer than a packet, as on the local fabric, into packets.

use vrnic_engine::{
    Segment,
    memory::HostRange,
    segment::{Body, Payload, Position, SendTail},
};

/// Calls `packet` with each of the packets that make up `segment`, with a payload of at most `mtu` bytes. They all have
/// the segment's sequence number.
pub fn split(segment: &Segment<'_>, mtu: u64, mut packet: impl FnMut(&Segment<'_>)) {
    let total = segment.payload.len();
    if total <= mtu {
        return packet(segment);
    }
    let count = total.div_ceil(mtu);
    for index in 0..count {
        let (first, last) = (index == 0, index + 1 == count);
        let offset = index * mtu;
        packet(&Segment {
            body: body(&segment.body, first, last),
            payload: piece(&segment.payload, offset, mtu.min(total - offset)),
            solicited: segment.solicited && last,
            ack_request: segment.ack_request && last,
            ..*segment
        });
    }
}

/// Returns the position of a packet in its message. `first` and `last` tell whether it is the first and the last packet
/// of the segment at `position`.
fn within(position: Position, first: bool, last: bool) -> Position {
    match (position.begins() && first, position.ends() && last) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    }
}

fn body(whole: &Body, first: bool, last: bool) -> Body {
    match *whole {
        Body::Send { position, tail } => Body::Send {
            position: within(position, first, last),
            tail: if last { tail } else { SendTail::Plain },
        },
        Body::Write {
            position,
            reth,
            immediate,
        } => Body::Write {
            position: within(position, first, last),
            reth: reth.filter(|_| first),
            immediate: immediate.filter(|_| last),
        },
        Body::ReadResponse { position, aeth } => {
            let position = within(position, first, last);
            Body::ReadResponse {
                position,
                aeth: aeth.filter(|_| position != Position::Middle),
            }
        }
        other => other,
    }
}

/// Returns `length` bytes of a payload, starting at `offset`. The payload must contain them.
fn piece<'a>(whole: &'a Payload<'_>, offset: u64, length: u64) -> Payload<'a> {
    let part = |bytes: &'a [u8]| {
        let (start, end) = (offset as usize, (offset + length) as usize);
        Payload::Frame(bytes.get(start..end).unwrap_or_default())
    };
    match whole {
        Payload::Empty => Payload::Empty,
        Payload::Bytes(bytes) => part(bytes),
        Payload::Frame(bytes) => part(bytes),
        Payload::Ranges(ranges) => {
            let (mut skip, mut left) = (offset, length);
            let mut parts: Vec<HostRange> = Vec::new();
            for range in ranges {
                let skipped = skip.min(range.length);
                skip -= skipped;
                let taken = left.min(range.length - skipped);
                if taken > 0 {
                    parts.extend(range.slice(skipped, taken));
                    left -= taken;
                }
            }
            Payload::Ranges(parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::{
        memory::RegionId,
        psn::Psn,
        segment::{Path, Reth, Service},
    };

    fn segment(body: Body, payload: Payload<'static>) -> Segment<'static> {
        Segment {
            path: Path::default(),
            source_qpn: 1,
            destination_qpn: 2,
            pkey: 0xffff,
            checksums_ok: false,
            touched: vrnic_engine::segment::Touched::NOT,
            psn: Psn::new(9),
            solicited: true,
            ack_request: true,
            migrated: true,
            service: Service::Reliable,
            body,
            payload,
        }
    }

    #[test]
    fn a_message_in_one_segment_becomes_a_message_of_packets() {
        let reth = Reth {
            address: 1,
            rkey: 2,
            length: 10,
        };
        let body = Body::Write {
            position: Position::Only,
            reth: Some(reth),
            immediate: Some(7),
        };
        let mut seen = Vec::new();
        split(
            &segment(body, Payload::Bytes((0..10).collect())),
            4,
            |packet| {
                let Payload::Frame(bytes) = packet.payload else {
                    panic!("not borrowed");
                };
                seen.push((packet.body, bytes.to_vec(), packet.ack_request));
            },
        );
        let write = |position, reth, immediate| Body::Write {
            position,
            reth,
            immediate,
        };
        assert_eq!(
            seen,
            [
                (
                    write(Position::First, Some(reth), None),
                    vec![0, 1, 2, 3],
                    false
                ),
                (write(Position::Middle, None, None), vec![4, 5, 6, 7], false),
                (write(Position::Last, None, Some(7)), vec![8, 9], true),
            ]
        );
    }

    #[test]
    fn parts_of_a_message_stay_parts() {
        let body = |position| Body::Send {
            position,
            tail: SendTail::Plain,
        };
        let positions = |position| {
            let mut seen = Vec::new();
            let payload = Payload::Bytes(vec![0; 8]);
            split(&segment(body(position), payload), 4, |packet| {
                seen.push(packet.body);
            });
            seen
        };
        assert_eq!(
            positions(Position::First),
            [body(Position::First), body(Position::Middle)]
        );
        assert_eq!(
            positions(Position::Middle),
            [body(Position::Middle), body(Position::Middle)]
        );
        assert_eq!(
            positions(Position::Last),
            [body(Position::Middle), body(Position::Last)]
        );
    }

    #[test]
    fn ranges_are_cut_where_packets_end() {
        let range = |offset, length| HostRange {
            region: RegionId(3),
            offset,
            length,
        };
        let body = Body::ReadResponse {
            position: Position::Middle,
            aeth: None,
        };
        let payload = Payload::Ranges(vec![range(100, 3), range(200, 6)]);
        let mut seen = Vec::new();
        split(&segment(body, payload), 4, |packet| {
            if let Payload::Ranges(ranges) = &packet.payload {
                seen.push(ranges.clone());
            }
        });
        assert_eq!(
            seen,
            [
                vec![range(100, 3), range(200, 1)],
                vec![range(201, 4)],
                vec![range(205, 1)]
            ]
        );
    }
}
