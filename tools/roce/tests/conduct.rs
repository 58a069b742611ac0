// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which side sees which error, with the frames of Ethernet and the transport packets of InfiniBand.

#[path = "../../engine/tests/matrix/mod.rs"]
mod matrix;

use matrix::{BOTH_HALVES, Network, check, check_flags, check_states};
use vrnic_engine::{
    Segment,
    segment::{LidRoute, Path},
    testing::{GuestView, Wire},
};
use vrnic_roce::{MAX_FRAME, encode, encode_transport, parse, parse_transport};
use vrnic_wire::{
    port::NO_VLAN,
    qp::QpType::{Gsi, ReliableConnection, UnreliableConnection, UnreliableDatagram, XrcInitiator},
};

fn frame(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    frame
}

fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    parse(frame).ok()
}

const ETHERNET: Network = Network::PACKETS.with(Wire {
    encode: frame,
    parse: segment,
});

/// Returns a transport packet behind the LIDs of both ends.
fn packet(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let lids = segment.path.lids.expect("LIDs");
    assert!(!lids.global, "nothing has a global route header here");
    let mut rest = Vec::new();
    let bth = encode_transport(segment, view, &mut rest).expect("packet");
    let lids = [lids.source.to_be_bytes(), lids.destination.to_be_bytes()];
    [lids.as_flattened(), &bth, &rest].concat()
}

fn transport(packet: &[u8]) -> Option<Segment<'_>> {
    let (&[s0, s1, d0, d1], packet) = packet.split_first_chunk()?;
    let (bth, rest) = packet.split_first_chunk()?;
    let path = Path {
        vlan: NO_VLAN,
        lids: Some(LidRoute {
            source: u16::from_be_bytes([s0, s1]),
            destination: u16::from_be_bytes([d0, d1]),
            global: false,
        }),
        ..Path::default()
    };
    parse_transport(bth, rest, path).ok()
}

const SUBNET: Network = Network::SUBNET.with(Wire {
    encode: packet,
    parse: transport,
});

#[test]
fn of_reliable_connections() {
    check(ReliableConnection, ETHERNET, 5500);
}

#[test]
fn of_reliable_connections_on_a_subnet() {
    check(ReliableConnection, SUBNET, 5500);
}

#[test]
fn of_extended_connections() {
    check(XrcInitiator, ETHERNET, 4400);
    check(XrcInitiator, SUBNET, 4400);
}

#[test]
fn of_unreliable_connections() {
    check(UnreliableConnection, ETHERNET, 3900);
    check(UnreliableConnection, SUBNET, 3900);
}

#[test]
fn of_datagrams() {
    for network in [ETHERNET, SUBNET] {
        check(UnreliableDatagram, network, 2000);
        check(Gsi, network, 2000);
    }
}

#[test]
fn in_every_state() {
    for qp_type in BOTH_HALVES {
        for network in [ETHERNET, SUBNET] {
            check_states(qp_type, network);
        }
    }
}

#[test]
fn solicited_and_fenced_requests_fail_alike() {
    for network in [ETHERNET, SUBNET] {
        check_flags(network);
    }
}
