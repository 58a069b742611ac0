// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Datagrams and the general service interface.

use vrnic_engine::{
    Cause,
    testing::{DatagramEnd, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    command::{ContextKind, SetMtu, Status as CommandStatus},
    completion::{Opcode, Status, flags},
    counter::Counter,
    port::Mtu,
    qp::{GSI_QPN, QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, SendOpcode, send_flags},
};

const QKEY: u32 = 0x1111_1111;

fn end(world: &mut World, node: usize, qp_type: QpType) -> DatagramEnd {
    DatagramEnd::new(world, node, qp_type, QKEY, 20_000)
}

fn to(node: usize) -> AddressVector {
    AddressVector {
        dgid: gid_of(node),
        hop_limit: 64,
        traffic_class: 7,
        service_level: 3,
        ..AddressVector::default()
    }
}

fn dropped(world: &World, node: usize) -> u64 {
    world.nodes[node].rnic.counters()[Counter::Dropped as usize]
}

#[test]
fn datagrams_come_with_a_route_header() {
    let mut world = World::pair(1);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    a.mr.arena.put(100, b"some bytes");
    b.receive(&mut world, 7, 1000, 50);
    let send = Send::new(3, SendOpcode::SendWithImmediate)
        .immediate(99)
        .flags(send_flags::SOLICITED)
        .element(a.mr.sge(100, 4))
        .element(a.mr.sge(104, 6))
        .datagram(to(1), b.qp.qpn, QKEY);
    a.send(&mut world, &send);
    // The memory may be reused as soon as the completion is there.
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!((done[0].wr_id, done[0].status), (3, Status::Success));
    let got = b.recv_cq.drain();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].wr_id, got[0].status), (7, Status::Success));
    assert_eq!((got[0].opcode, got[0].length), (Opcode::Receive, 50));
    assert_eq!((got[0].source_qpn, got[0].immediate), (a.qp.qpn, 99));
    assert_eq!(
        got[0].flags,
        flags::GRH | flags::IPV4 | flags::SOURCE_MAC | flags::IMMEDIATE | flags::SOLICITED
    );
    let bytes = b.mr.arena.get(1000, 50);
    assert_eq!(bytes[20], 0x45, "IPv4 in the last 20 of 40 bytes");
    assert_eq!(bytes[21], 7, "traffic class");
    assert_eq!(bytes[28], 64, "hop limit");
    assert_eq!(bytes[32..36], gid_of(0)[12..]);
    assert_eq!(bytes[36..40], gid_of(1)[12..]);
    assert_eq!(&bytes[40..], b"some bytes");
}

#[test]
fn what_does_not_fit_is_dropped_and_the_receive_stays() {
    let mut world = World::pair(2);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    let datagram = |wr_id, length, qkey| {
        Send::new(wr_id, SendOpcode::Send)
            .element(a.mr.sge(0, length))
            .datagram(to(1), b.qp.qpn, qkey)
    };
    let nobody = datagram(1, 10, QKEY);
    let wrong_qkey = datagram(2, 10, QKEY ^ 1);
    let too_long = datagram(3, 11, QKEY);
    let good = datagram(4, 10, QKEY);
    a.send(&mut world, &nobody);
    world.settle();
    b.receive(&mut world, 7, 0, 50);
    for send in [&wrong_qkey, &too_long, &good] {
        a.send(&mut world, send);
    }
    world.settle();
    assert_eq!(dropped(&world, 1), 3);
    assert_eq!(a.send_cq.drain().len(), 4, "senders do not know");
    let got = b.recv_cq.drain();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].wr_id, got[0].status), (7, Status::Success));
    assert_eq!(world.state(1, b.qp.qpn), QpState::ReadyToSend);
}

#[test]
fn a_datagram_holds_what_the_driver_set() {
    let mut world = World::pair(11);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    let set = |world: &mut World, node: usize, mtu: Mtu| {
        let node = &mut world.nodes[node];
        let request = SetMtu {
            port: 1.into(),
            mtu: mtu.raw(),
            ..SetMtu::default()
        };
        node.guest.command(&mut node.rnic, request).expect("an MTU");
    };
    let send = |a: &DatagramEnd, b: &DatagramEnd, wr_id, length| {
        Send::new(wr_id, SendOpcode::Send)
            .element(a.mr.sge(0, length))
            .datagram(to(1), b.qp.qpn, QKEY)
    };
    set(&mut world, 0, Mtu::Mtu1024);
    b.receive(&mut world, 7, 0, 4136);
    let most = send(&a, &b, 1, 1024);
    a.send(&mut world, &most);
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Status::Success);
    assert_eq!(b.recv_cq.drain()[0].length, 1064);

    // A receiver accepts no more than it would send.
    b.receive(&mut world, 8, 0, 4136);
    set(&mut world, 1, Mtu::Mtu512);
    let dropped_before = dropped(&world, 1);
    let most = send(&a, &b, 2, 1024);
    a.send(&mut world, &most);
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Status::Success);
    assert_eq!(dropped(&world, 1), dropped_before + 1);

    let more = send(&a, &b, 3, 1025);
    a.send(&mut world, &more);
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Status::LocalLength);
}

#[test]
fn own_qkey_is_used_on_request() {
    let mut world = World::pair(3);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 0, QpType::UnreliableDatagram);
    b.receive(&mut world, 1, 0, 100);
    let send = Send::new(1, SendOpcode::Send)
        .inline(b"x")
        .datagram(to(0), b.qp.qpn, 1 << 31);
    a.send(&mut world, &send);
    world.settle();
    assert_eq!(b.recv_cq.drain().len(), 1);
}

#[test]
fn errors_of_sends_stop_the_send_queue_only() {
    let mut world = World::pair(4);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    let long = Send::new(1, SendOpcode::Send)
        .element(a.mr.sge(0, 4097))
        .datagram(to(1), b.qp.qpn, QKEY);
    let good = Send::new(2, SendOpcode::Send)
        .element(a.mr.sge(0, 4096))
        .datagram(to(1), b.qp.qpn, QKEY);
    let nowhere = Send::new(3, SendOpcode::Send).datagram(
        AddressVector {
            sgid_index: 9,
            ..to(1)
        },
        b.qp.qpn,
        QKEY,
    );
    a.send(&mut world, &long);
    a.send(&mut world, &good);
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!((done[0].wr_id, done[0].status), (1, Status::LocalLength));
    assert_eq!((done[1].wr_id, done[1].status), (2, Status::Flushed));
    assert_eq!(world.state(0, a.qp.qpn), QpState::SendQueueError);
    // Receiving continues.
    a.receive(&mut world, 5, 0, 100);
    let back = Send::new(1, SendOpcode::Send).datagram(to(0), a.qp.qpn, QKEY);
    b.send(&mut world, &back);
    world.settle();
    assert_eq!(a.recv_cq.drain().len(), 1);
    let resume = QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::ReadyToSend.raw(),
        ..QpAttributes::default()
    };
    world.modify(0, a.qp.qpn, resume);
    b.receive(&mut world, 1, 0, 4136);
    a.send(&mut world, &good);
    a.send(&mut world, &nowhere);
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!((done[0].wr_id, done[0].status), (2, Status::Success));
    assert_eq!(done[1].cause, Some(Cause::WqeAddress));
    assert_eq!(b.recv_cq.drain()[0].length, 4136);
}

#[test]
fn general_services_have_their_own_number_and_qkey() {
    let mut world = World::pair(5);
    let mut a = end(&mut world, 0, QpType::Gsi);
    let mut b = end(&mut world, 1, QpType::Gsi);
    assert_eq!((a.qp.qpn, b.qp.qpn), (GSI_QPN, GSI_QPN));
    b.receive(&mut world, 1, 0, 296);
    let mad = Send::new(1, SendOpcode::Send)
        .element(a.mr.sge(0, 256))
        .datagram(to(1), GSI_QPN, 0x8001_0000);
    a.send(&mut world, &mad);
    world.settle();
    let got = b.recv_cq.drain();
    assert_eq!((got[0].source_qpn, got[0].length), (GSI_QPN, 296));
    assert_eq!(a.send_cq.drain().len(), 1);
    let place = &mut world.nodes[0];
    let options = QpOptions {
        qp_type: QpType::Gsi,
        ..QpOptions::default()
    };
    let (send_cqn, recv_cqn) = (a.send_cq.cqn, a.recv_cq.cqn);
    let refused = place
        .guest
        .try_qp(&mut place.rnic, &options, send_cqn, recv_cqn)
        .expect_err("second GSI");
    assert_eq!(refused, (CommandStatus::Busy, Cause::GsiExists));
}

#[test]
fn processes_have_no_general_services() {
    let mut world = World::pair(6);
    let place = &mut world.nodes[0];
    let (guest, rnic) = (&mut place.guest, &mut place.rnic);
    guest.start(rnic, ContextKind::User, 64);
    let cq = guest.cq(rnic, 8, 0);
    let options = QpOptions {
        qp_type: QpType::Gsi,
        ..QpOptions::default()
    };
    let refused = guest
        .try_qp(rnic, &options, cq.cqn, cq.cqn)
        .expect_err("user context");
    assert_eq!(refused, (CommandStatus::NotPermitted, Cause::KernelOnly));
}
