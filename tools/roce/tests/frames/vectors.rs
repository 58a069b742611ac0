// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Frames sent by other implementations.

use crate::segments::{bytes, frame, parts};
use vrnic_engine::segment::Body;
use vrnic_roce::{Carrier, FrameError, HEADROOM, Outline, opcode_name, parse};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|digit| (digit as char).to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// A receiver with only a UDP socket sees neither identification nor flags, and reconstructs them.
fn arrives_by_a_socket(captured: &[u8]) {
    let path = parse(captured).expect("parse").path;
    let length = Outline::of(captured).expect("outline").length;
    let headers = captured.len() - length;
    let mut buffer = [&[0; HEADROOM], &captured[headers..]].concat();
    let frame = Carrier::default().frame(&mut buffer, &path);
    assert_eq!(frame.expect("a frame"), captured);
}

/// A congestion notification from a ConnectX-4 Lx, published with the tests of Scapy.
#[test]
fn congestion_notification_of_an_adapter() {
    let captured = hex(
        "e41d2dab2bc2 7cfe90643b32 0800 45c2 003c 718c 4000 4011 9161 0a001101 0a001201
         0000 12b7 0028 0000 8100 ffff 40000118 00000000
         00000000 00000000 00000000 00000000 82fd002a",
    );
    let segment = parse(&captured).expect("parse");
    assert_eq!(segment.body, Body::CongestionNotification);
    assert_eq!(segment.destination_qpn, 0x118);
    assert_eq!(segment.path.traffic_class, 0xc2);
    assert_eq!(segment.path.hop_limit, 64);
    assert!(bytes(&segment.payload).is_empty());
    let mut ours = frame(&segment);
    // We send no IPv4 identification, which unfragmented packets need not have.
    ours[18..20].copy_from_slice(&captured[18..20]);
    ours[24..26].copy_from_slice(&captured[24..26]);
    let end = ours.len() - 4;
    assert_eq!(ours[..end], captured[..end]);
    arrives_by_a_socket(&captured);
    let mut damaged = captured;
    damaged[45] ^= 1;
    assert_eq!(parse(&damaged).err(), Some(FrameError::Icrc));
}

/// One frame of each kind sent by Soft-RoCE of Linux 7.3 between two VMs, captured by QEMU.
#[test]
fn frames_of_soft_roce() {
    let file = include_bytes!("rxe.pcap").as_slice();
    let mut reader = pcap_file::pcap::PcapReader::new(file).expect("pcap");
    let mut kinds = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let captured = packet.expect("packet").data;
        let segment = parse(&captured).expect("parse");
        arrives_by_a_socket(&captured);
        kinds.push(opcode_name(&segment));
        let ours = frame(&segment);
        let again = parse(&ours).expect("parse");
        assert_eq!(parts(&again), parts(&segment));
        // Ignores the IPv4 identification, the migration bit and what follows from them.
        let mut same = ours.clone();
        for at in [18, 19, 24, 25, 43] {
            same[at] = captured[at];
        }
        let mut end = same.len() - 4;
        if opcode_name(&segment) == "Fetch and Add" {
            // Soft-RoCE sends an uninitialised compare value, where there is none to send.
            end -= 8;
        }
        assert_eq!(same[..end], captured[..end]);
    }
    assert_eq!(
        kinds,
        [
            "RDMA WRITE First",
            "RDMA WRITE Middle",
            "RDMA WRITE Last",
            "Acknowledge",
            "SEND Only",
            "RDMA READ Request",
            "RDMA READ Response First",
            "RDMA READ Response Middle",
            "RDMA READ Response Last",
            "Fetch and Add",
            "Atomic Acknowledge",
            "Compare and Swap",
            "UD SEND Only",
            "RDMA WRITE Only with Immediate",
        ]
    );
}
