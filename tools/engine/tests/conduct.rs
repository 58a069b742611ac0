// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which errors each end sees, between guests and in packets. `tools/roce` does the same in frames.

use crate::matrix::{BOTH_HALVES, Network, check, check_flags, check_states};
use vrnic_wire::qp::QpType::{
    Gsi, ReliableConnection, UnreliableConnection, UnreliableDatagram, XrcInitiator,
};

#[test]
fn of_reliable_connections_between_guests() {
    check(ReliableConnection, Network::LOCAL, 5500);
}

#[test]
fn of_reliable_connections_in_packets() {
    check(ReliableConnection, Network::PACKETS, 5500);
}

#[test]
fn of_extended_connections() {
    for network in [Network::LOCAL, Network::PACKETS] {
        check(XrcInitiator, network, 4400);
    }
}

#[test]
fn of_unreliable_connections_between_guests() {
    check(UnreliableConnection, Network::LOCAL, 3900);
}

#[test]
fn of_unreliable_connections_in_packets() {
    check(UnreliableConnection, Network::PACKETS, 3900);
}

#[test]
fn of_datagrams() {
    for network in [Network::LOCAL, Network::PACKETS] {
        check(UnreliableDatagram, network, 2000);
        check(Gsi, network, 2000);
    }
}

#[test]
fn in_every_state() {
    for qp_type in BOTH_HALVES {
        for network in [Network::LOCAL, Network::PACKETS, Network::SUBNET] {
            check_states(qp_type, network);
        }
    }
}

#[test]
fn solicited_and_fenced_requests_fail_alike() {
    check_flags(Network::PACKETS);
}
