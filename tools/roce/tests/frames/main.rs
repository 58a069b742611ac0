// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random segments survive being encoded as frames and parsed again. Damaged frames are rejected.

mod segments;
mod vectors;

use proptest::{collection::vec, prelude::*};
use segments::{bytes, frame, has_payload, no_memory, parts, segment};
use vrnic_engine::{
    Segment,
    memory::{HostRange, RegionId},
    segment::{Aeth, Body, Path, Payload, Position, SendTail, Service, Syndrome},
    testing::Memories,
};
use vrnic_roce::{EncodeError, FrameError, MAX_FRAME, encode, parse};
use vrnic_wire::port::NO_VLAN;

/// Protection of a byte of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Protection {
    /// Nothing in this layer; Ethernet's FCS protects it.
    Ethernet,
    /// Nothing, because switches and routers change it.
    Variant,
    /// This is the UDP checksum itself. Frames have none, and a changed bit may make it the correct one, which does no
    /// harm.
    UdpChecksum,
    /// A checksum or the invariant CRC.
    Covered,
}

/// Returns the protection of bit `bit` in byte `at` of a frame with path `path`.
fn protection(path: &Path, at: usize, bit: u8) -> Protection {
    let ethernet = if path.vlan == NO_VLAN { 14 } else { 18 };
    let Some(at) = at.checked_sub(ethernet) else {
        return Protection::Ethernet;
    };
    let ipv4 = path.source[..10] == [0; 10];
    let (l3, udp) = match (path.roce_v1, ipv4) {
        (true, _) => (40, 0),
        (false, true) => (20, 8),
        (false, false) => (40, 8),
    };
    let variant = match at.checked_sub(l3 + udp) {
        // FECN, BECN, reserved.
        Some(at) => at == 4,
        None if l3 == 20 => false,
        None => (at == 0 && bit < 4) || matches!(at, 1..=3 | 7),
    };
    if variant {
        Protection::Variant
    } else if udp != 0 && matches!(at.checked_sub(l3), Some(6 | 7)) {
        Protection::UdpChecksum
    } else {
        Protection::Covered
    }
}

/// Returns a segment without the fields that may change on the way.
fn invariant(segment: &Segment) -> String {
    let mut path = segment.path;
    path.traffic_class = 0;
    path.flow_label = 0;
    path.hop_limit = 0;
    format!(
        "{:?} {:?}",
        path,
        (segment.body, parts(segment).2, parts(segment).3)
    )
}

proptest! {
    #[test]
    fn round_trip(segment in segment()) {
        let frame = frame(&segment);
        prop_assert!(frame.len() <= MAX_FRAME);
        let parsed = parse(&frame).expect("parse");
        prop_assert_eq!(parts(&parsed), parts(&segment));
    }

    /// Ethernet pads short frames.
    #[test]
    fn padded_round_trip(segment in segment(), pad in 0usize..64) {
        let mut frame = frame(&segment);
        frame.extend(vec![0xaa; pad]);
        let parsed = parse(&frame).expect("parse");
        prop_assert_eq!(parts(&parsed), parts(&segment));
    }

    #[test]
    fn every_flipped_bit_is_found(segment in segment()) {
        let good = frame(&segment);
        let mut frame = good.clone();
        // All bits of the headers and the end, and some bits of a long payload.
        let step = |at: usize| if at < 140 || at + 40 > good.len() { 1 } else { 37 };
        let mut at = 0;
        while at < good.len() {
            for bit in 0..8 {
                frame[at] ^= 1 << bit;
                let parsed = parse(&frame);
                match protection(&segment.path, at, bit) {
                    Protection::Covered => prop_assert!(parsed.is_err(), "byte {} bit {}", at, bit),
                    Protection::UdpChecksum => match parsed {
                        Ok(parsed) => prop_assert_eq!(parts(&parsed), parts(&segment)),
                        Err(error) => prop_assert_eq!(error, FrameError::UdpChecksum),
                    },
                    Protection::Variant => {
                        let parsed = parsed.expect("variant");
                        prop_assert_eq!(invariant(&parsed), invariant(&segment));
                    }
                    Protection::Ethernet => {
                        if let Ok(parsed) = parsed {
                            prop_assert_eq!(parts(&parsed).1, parts(&segment).1);
                        }
                    }
                }
                frame[at] ^= 1 << bit;
            }
            at += step(at);
        }
    }

    #[test]
    fn every_truncation_is_refused(segment in segment()) {
        let frame = frame(&segment);
        for length in 0..frame.len() {
            prop_assert_eq!(parse(&frame[..length]).err(), Some(FrameError::Truncated), "{}", length);
        }
    }

    /// A sender can compute a valid CRC over any contents.
    #[test]
    fn anything_with_a_valid_crc(
        segment in segment(),
        changes in vec((any::<u16>(), any::<u8>()), 1..8),
    ) {
        let mut frame = frame(&segment);
        let start = if segment.path.vlan == NO_VLAN { 14 } else { 18 };
        let l3 = if !segment.path.roce_v1 && segment.path.source[..10] == [0; 10] { 20 } else { 40 };
        let udp = if segment.path.roce_v1 { 0 } else { 8 };
        let transport = start + l3 + udp;
        let end = frame.len() - 4;
        for (at, value) in changes {
            frame[transport + usize::from(at) % (end - transport)] = value;
        }
        // Computes the CRC over the same bytes from its definition, bit by bit.
        let mut covered = vec![0xff; 8];
        covered.extend(&frame[start..end]);
        let ip = &mut covered[8..];
        if l3 == 20 {
            for at in [1, 8, 10, 11, 26, 27] {
                ip[at] = 0xff;
            }
        } else {
            ip[0] |= 0x0f;
            for at in [1, 2, 3, 7] {
                ip[at] = 0xff;
            }
            if udp == 8 {
                ip[46..48].fill(0xff);
            }
        }
        ip[l3 + udp + 4] = 0xff;
        let crc = bitwise_crc(&covered);
        frame[end..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(parsed) = parse(&frame) {
            // Whatever it is, it can be encoded, and the result is the same except for reserved bits.
            let again = segments::frame(&parsed);
            let twice = parse(&again).expect("parse");
            prop_assert_eq!(parts(&twice), parts(&parsed));
            prop_assert!(has_payload(&parsed.body) || bytes(&parsed.payload).is_empty());
        } else {
            prop_assert_ne!(parse(&frame).err(), Some(FrameError::Icrc));
        }
    }

    #[test]
    fn garbage(bytes in vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}

/// Computes Ethernet's CRC as its polynomial defines it.
fn bitwise_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

fn some_segment() -> Segment<'static> {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&[10, 0, 0, 1]);
    Segment {
        path: Path {
            source: gid,
            destination: gid,
            vlan: NO_VLAN,
            hop_limit: 1,
            ..Path::default()
        },
        source_qpn: 0,
        destination_qpn: 2,
        pkey: 0xffff,
        checksums_ok: false,
        touched: vrnic_engine::segment::Touched::NOT,
        psn: vrnic_engine::psn::Psn::new(3),
        solicited: false,
        ack_request: true,
        migrated: true,
        service: Service::Reliable,
        body: Body::Send {
            position: Position::Only,
            tail: SendTail::Plain,
        },
        payload: Payload::Bytes(b"payload".to_vec()),
    }
}

#[test]
fn payload_is_read_from_guest_memory() {
    let memories = Memories::new();
    let view = memories.add(4096);
    view.put(vrnic_engine::testing::BASE + 100, b"0123456789");
    let range = |offset, length| HostRange {
        region: RegionId(0),
        offset,
        length,
    };
    let mut segment = some_segment();
    segment.payload = Payload::Ranges(vec![range(105, 3), range(100, 2)]);
    let mut buffer = [0; MAX_FRAME];
    let length = encode(&segment, &view, &mut buffer).expect("frame");
    let parsed = parse(&buffer[..length]).expect("parse");
    assert_eq!(bytes(&parsed.payload), b"56701");
    view.unmap();
    assert_eq!(
        encode(&segment, &view, &mut buffer),
        Err(EncodeError::Unmapped)
    );
}

#[test]
fn what_does_not_fit_is_not_sent() {
    let mut segment = some_segment();
    let mut small = [0; 60];
    assert_eq!(
        encode(&segment, &no_memory(), &mut small),
        Err(EncodeError::TooLong)
    );
    segment.payload = Payload::Bytes(vec![0; 65536]);
    let mut large = vec![0; 70_000];
    assert_eq!(
        encode(&segment, &no_memory(), &mut large),
        Err(EncodeError::TooLong)
    );
    segment.payload = Payload::Empty;
    segment.path.destination = [0xfe; 16];
    assert_eq!(
        encode(&segment, &no_memory(), &mut large),
        Err(EncodeError::MixedAddresses)
    );
    segment = some_segment();
    segment.service = Service::Unreliable;
    assert!(encode(&segment, &no_memory(), &mut large).is_ok());
    segment.body = Body::Send {
        position: Position::Only,
        tail: SendTail::Invalidate(1),
    };
    assert_eq!(
        encode(&segment, &no_memory(), &mut large),
        Err(EncodeError::Headers)
    );
}

/// Headers of XRC (IBTA volume 1, annex A14): requests contain the number of a shared receive queue in front of all
/// other headers, and responses do not.
#[test]
fn requests_of_extended_connections_name_a_queue() {
    const BTH: usize = 14 + 20 + 8;
    let mut segment = some_segment();
    segment.service = Service::Xrc { srqn: 0x1_2345 };
    let request = frame(&segment);
    assert_eq!(request[BTH], 0xa4);
    assert_eq!(request[BTH + 12..BTH + 16], [0, 1, 0x23, 0x45]);
    assert_eq!(request[BTH + 16..BTH + 23], *b"payload");
    assert_eq!(parts(&parse(&request).expect("parse")), parts(&segment));
    assert_eq!(vrnic_roce::opcode_name(&segment), "XRC SEND Only");

    segment.service = Service::Xrc { srqn: 0 };
    segment.payload = Payload::Empty;
    segment.body = Body::Acknowledge(Aeth {
        syndrome: Syndrome::ACK,
        msn: 7,
    });
    let response = frame(&segment);
    assert_eq!(response[BTH], 0xb1);
    assert_eq!(response.len(), BTH + 12 + 4 + 4);
    assert_eq!(parts(&parse(&response).expect("parse")), parts(&segment));

    // For an unknown opcode, it is also unknown whether the packet contains the number of a queue.
    segment.body = Body::Unknown(0x1f);
    assert_eq!(frame(&segment)[BTH], 0xbf);
    segment.body = Body::Datagram {
        qkey: 1,
        source_qpn: 1,
        immediate: None,
    };
    assert_eq!(
        encode(&segment, &no_memory(), &mut [0; 4096]),
        Err(EncodeError::Headers)
    );
}

/// Tests each class of errors with a frame that has only this error.
#[test]
fn errors_are_named() {
    const IP: usize = 14;
    const UDP: usize = 34;
    const BTH: usize = UDP + 8;
    let good = frame(&some_segment());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        parse(&frame).map(|_| ()).expect_err("no error")
    };
    let checksum = |frame: &mut Vec<u8>| {
        frame[IP + 10..IP + 12].fill(0);
        let sum: u32 = frame[IP..UDP]
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    };
    assert_eq!(with(&|f| f[12] = 9), FrameError::NotRoce);
    assert_eq!(with(&|f| f[IP + 9] = 6), FrameError::NotRoce, "TCP");
    assert_eq!(with(&|f| f[UDP + 3] ^= 1), FrameError::NotRoce, "port");
    assert_eq!(with(&|f| f.truncate(50)), FrameError::Truncated);
    assert_eq!(with(&|f| f[IP] = 0x65), FrameError::IpVersion);
    assert_eq!(with(&|f| f[IP] = 0x44), FrameError::IpVersion);
    assert_eq!(with(&|f| f[IP + 6] = 0x20), FrameError::Fragment);
    assert_eq!(with(&|f| f[IP + 8] = 3), FrameError::IpChecksum);
    assert_eq!(with(&|f| f[UDP + 5] ^= 4), FrameError::UdpLength);
    assert_eq!(with(&|f| f[UDP + 7] = 4), FrameError::UdpChecksum);
    assert_eq!(with(&|f| f[UDP + 20] ^= 1), FrameError::Icrc);
    let shorter = |f: &mut Vec<u8>| {
        f.pop();
        f[IP + 3] -= 1;
        f[UDP + 5] -= 1;
        checksum(f);
    };
    assert_eq!(with(&shorter), FrameError::Length);
    let options = |f: &mut Vec<u8>| {
        f[IP] = 0x46;
        f[IP + 3] += 4;
        f.splice(UDP..UDP, [1, 1, 1, 1]);
    };
    assert_eq!(with(&options), FrameError::IpOptions);
    let tag = |vlan: [u8; 4]| {
        move |f: &mut Vec<u8>| {
            f.splice(12..12, vlan);
        }
    };
    assert_eq!(with(&tag([0x81, 0, 0x0f, 0xff])), FrameError::Vlan);
    assert_eq!(with(&tag([0x88, 0xa8, 0, 1])), FrameError::Vlan);
    let twice = |f: &mut Vec<u8>| {
        f.splice(12..12, [0x81, 0, 0, 5, 0x81, 0, 0, 6]);
    };
    assert_eq!(with(&twice), FrameError::Vlan);

    // Bytes after the CRC.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        with(&|f| {
            let end = f.len() - 4;
            change(f);
            let mut covered = vec![0xff; 8];
            covered.extend(&f[IP..end]);
            for at in [1, 8, 10, 11, 26, 27, 32] {
                covered[8 + at] = 0xff;
            }
            let crc = bitwise_crc(&covered);
            f[end..].copy_from_slice(&crc.to_le_bytes());
        })
    };
    assert_eq!(sealed(&|f| f[BTH + 1] |= 1), FrameError::Version);
    assert_eq!(sealed(&|f| f[BTH] = 0x66), FrameError::Opcode, "UD");
    assert_eq!(sealed(&|f| f[BTH] = 0x2c), FrameError::Opcode, "UC READ");
    assert_eq!(sealed(&|f| f[BTH] = 0x37), FrameError::Opcode, "UC, a key");
    assert_eq!(
        sealed(&|f| f[BTH] = 0x13),
        FrameError::Truncated,
        "AtomicETH"
    );
    assert_eq!(sealed(&|f| f[BTH] = 0x11), FrameError::Syndrome);
    let ack = |f: &mut Vec<u8>| {
        f[BTH] = 0x11;
        f[BTH + 12] = 0x60;
    };
    assert_eq!(sealed(&ack), FrameError::Payload);
    let mut empty = some_segment();
    empty.payload = Payload::Empty;
    let mut frame = frame(&empty);
    frame[BTH + 1] |= 0x30;
    let end = frame.len() - 4;
    let mut covered = vec![0xff; 8];
    covered.extend(&frame[IP..end]);
    for at in [1, 8, 10, 11, 26, 27, 32] {
        covered[8 + at] = 0xff;
    }
    let crc = bitwise_crc(&covered);
    frame[end..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(parse(&frame).err(), Some(FrameError::Pad));
}

#[test]
fn a_priority_tag_is_no_vlan() {
    let mut frame = frame(&some_segment());
    frame.splice(12..12, [0x81, 0x00, 0xa0, 0x00]);
    let parsed = parse(&frame).expect("parse");
    assert_eq!(parsed.path.vlan, NO_VLAN);
    assert_eq!(parsed.path.service_level, 5);
}
