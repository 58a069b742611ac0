// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which side sees which error, with frames.

#[path = "../../engine/tests/matrix/mod.rs"]
mod matrix;

use matrix::{BOTH_HALVES, check, check_flags, check_states};
use vrnic_engine::{
    Segment, Segmentation,
    testing::{GuestView, Wire},
};
use vrnic_roce::{MAX_FRAME, encode, parse};
use vrnic_wire::qp::QpType::{Gsi, ReliableConnection, UnreliableConnection, UnreliableDatagram};

fn frame(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    frame
}

fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    parse(frame).ok()
}

const WIRE: Option<Wire> = Some(Wire {
    encode: frame,
    parse: segment,
});

#[test]
fn of_reliable_connections() {
    check(ReliableConnection, Segmentation::PathMtu, WIRE, 3800);
}

#[test]
fn of_unreliable_connections() {
    check(UnreliableConnection, Segmentation::PathMtu, WIRE, 1000);
}

#[test]
fn of_datagrams() {
    check(UnreliableDatagram, Segmentation::PathMtu, WIRE, 500);
    check(Gsi, Segmentation::PathMtu, WIRE, 500);
}

#[test]
fn in_every_state() {
    for qp_type in BOTH_HALVES {
        check_states(qp_type, Segmentation::PathMtu, WIRE);
    }
}

#[test]
fn solicited_and_fenced_requests_fail_alike() {
    check_flags(WIRE, Segmentation::PathMtu);
}
