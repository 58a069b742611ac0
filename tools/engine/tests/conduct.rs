// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which errors each end sees, between guests and in packets. `tools/roce` does the same in frames.

use crate::matrix::{BOTH_HALVES, check, check_flags, check_states};
use vrnic_engine::Segmentation::{Local, PathMtu};
use vrnic_wire::qp::QpType::{Gsi, ReliableConnection, UnreliableConnection, UnreliableDatagram};

#[test]
fn of_reliable_connections_between_guests() {
    check(ReliableConnection, Local, None, 3800);
}

#[test]
fn of_reliable_connections_in_packets() {
    check(ReliableConnection, PathMtu, None, 3800);
}

#[test]
fn of_unreliable_connections_between_guests() {
    check(UnreliableConnection, Local, None, 1000);
}

#[test]
fn of_unreliable_connections_in_packets() {
    check(UnreliableConnection, PathMtu, None, 1000);
}

#[test]
fn of_datagrams() {
    check(UnreliableDatagram, Local, None, 500);
    check(Gsi, Local, None, 500);
}

#[test]
fn in_every_state() {
    for qp_type in BOTH_HALVES {
        for segmentation in [Local, PathMtu] {
            check_states(qp_type, segmentation, None);
        }
    }
}

#[test]
fn solicited_and_fenced_requests_fail_alike() {
    check_flags(None, PathMtu);
}
