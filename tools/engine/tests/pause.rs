// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receivers for which the fabric takes nothing for a while.

use std::time::Duration;
use vrnic_engine::{
    Budget, Io, Outbox, RnicConfig,
    recording::replay,
    testing::{Connection, DatagramEnd, Node, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    completion::Status,
    counter::Counter,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, SendOpcode},
};

const QKEY: u32 = 0x1111_1111;

/// Creates three devices that are recorded.
fn world() -> World {
    World::recorded(&vec![RnicConfig::default(); 3], 4096, 1)
}

fn connect(world: &mut World, from: usize, to: usize) -> Connection {
    world.connect([from, to], &QpOptions::default(), 20_000, |_, _| {})
}

fn request(c: &Connection, wr_id: u64, opcode: SendOpcode) -> Send {
    let peer = &c.mrs[1];
    Send::new(wr_id, opcode)
        .rdma(peer.iova, peer.key)
        .element(c.mrs[0].sge(0, 5000))
}

/// Returns the identifiers of the sends that completed, all of which must be successful.
fn done(c: &mut Connection) -> Vec<u64> {
    let done = c.send_cqs[0].drain().into_iter();
    done.map(|cqe| {
        assert_eq!(cqe.status, Status::Success);
        cqe.wr_id
    })
    .collect()
}

fn pause(world: &mut World, node: usize, receiver: usize) {
    world.nodes[node].rnic.pause(gid_of(receiver));
}

fn resume(world: &mut World, node: usize, receiver: usize) {
    world.nodes[node].rnic.resume(&gid_of(receiver));
}

#[test]
fn only_what_is_for_a_paused_receiver_waits() {
    let mut world = world();
    let mut waits = connect(&mut world, 0, 1);
    let mut goes = connect(&mut world, 0, 2);
    let mut reads = connect(&mut world, 1, 0);
    pause(&mut world, 0, 1);
    for wr_id in 1..=3 {
        for c in [&mut waits, &mut goes] {
            let write = request(c, wr_id, SendOpcode::Write);
            c.send(&mut world, 0, &write);
        }
    }
    let read = request(&reads, 4, SendOpcode::Read);
    reads.send(&mut world, 0, &read);
    world.run(Duration::from_micros(500));
    assert_eq!(done(&mut goes), [1, 2, 3]);
    assert!(done(&mut waits).is_empty() && done(&mut reads).is_empty());
    resume(&mut world, 0, 1);
    world.settle();
    assert_eq!(
        (done(&mut waits), done(&mut reads)),
        (vec![1, 2, 3], vec![4])
    );
    for recording in world.recordings() {
        replay(&recording).expect("replay");
    }
}

#[test]
fn a_peer_is_not_late_while_nothing_is_sent_to_it() {
    let mut world = world();
    let mut c = connect(&mut world, 0, 1);
    let write = request(&c, 1, SendOpcode::Write);
    world.filter = Some(|_| false);
    c.send(&mut world, 0, &write);
    world.run(Duration::from_micros(10));
    pause(&mut world, 0, 1);
    world.run(Duration::from_secs(1));
    assert_eq!(
        world.nodes[0].rnic.counters()[Counter::Timeouts as usize],
        0
    );
    assert_eq!(world.state(0, c.qps[0].qpn), QpState::ReadyToSend);
    // Nor when that has just ended.
    world.filter = None;
    resume(&mut world, 0, 1);
    world.run(Duration::from_millis(2));
    assert_eq!(
        world.nodes[0].rnic.counters()[Counter::Timeouts as usize],
        0
    );
    world.settle();
    assert_eq!(done(&mut c), [1]);
}

#[test]
fn datagrams_wait_in_order_and_are_not_lost() {
    let mut world = world();
    let mut ends = [0, 0, 1, 2]
        .map(|node| DatagramEnd::new(&mut world, node, QpType::UnreliableDatagram, QKEY, 20_000));
    for end in &mut ends[2..] {
        (0..4).for_each(|wr_id| end.receive(&mut world, wr_id, 0, 50));
    }
    let qpns = [ends[2].qp.qpn, ends[3].qp.qpn];
    let send = |world: &mut World, end: &mut DatagramEnd, wr_id, node: usize| {
        let address = AddressVector {
            dgid: gid_of(node),
            ..AddressVector::default()
        };
        let datagram = Send::new(wr_id, SendOpcode::Send)
            .element(end.mr.sge(0, 10))
            .datagram(address, qpns[node - 1], QKEY);
        end.send(world, &datagram);
    };
    let [one, other, paused, free] = &mut ends;
    let sent = |end: &mut DatagramEnd| -> Vec<u64> {
        end.send_cq.drain().iter().map(|cqe| cqe.wr_id).collect()
    };
    pause(&mut world, 0, 1);
    for (wr_id, to) in [(1, 2), (2, 1), (3, 2)] {
        send(&mut world, one, wr_id, to);
    }
    send(&mut world, other, 4, 2);
    for _ in 0..3 {
        // It is asked again and again.
        let Node { rnic, guest } = &mut world.nodes[0];
        guest.ring(rnic, one.qp.slot);
        world.settle();
    }
    assert_eq!((sent(one), sent(other)), (vec![1], vec![4]));
    assert_eq!(
        (paused.recv_cq.drain().len(), free.recv_cq.drain().len()),
        (0, 2)
    );
    resume(&mut world, 0, 1);
    world.settle();
    assert_eq!(sent(one), [2, 3]);
    assert_eq!(
        (paused.recv_cq.drain().len(), free.recv_cq.drain().len()),
        (1, 1)
    );
    // A queue pair that fails meanwhile does not wait.
    pause(&mut world, 0, 1);
    send(&mut world, one, 5, 1);
    world.settle();
    let error = QpAttributes {
        state: QpState::Error.raw(),
        mask: attribute::STATE.into(),
        ..QpAttributes::default()
    };
    world.modify(0, one.qp.qpn, error);
    world.settle();
    let flushed = one.send_cq.drain();
    assert_eq!((flushed[0].wr_id, flushed[0].status), (5, Status::Flushed));
    for recording in world.recordings() {
        replay(&recording).expect("replay");
    }
}

#[test]
fn a_turn_is_short_however_many_wait() {
    const ALL: usize = 200;
    let mut world = World::new(2, 4096, &RnicConfig::default(), 1);
    let mut all: Vec<_> = (0..ALL)
        .map(|_| world.connect([0, 1], &QpOptions::default(), 8, |_, _| {}))
        .collect();
    pause(&mut world, 0, 1);
    for c in &mut all {
        let peer = &c.mrs[1];
        let write = Send::new(0, SendOpcode::Write).rdma(peer.iova, peer.key);
        c.send(&mut world, 0, &write);
    }
    let mut outbox = Outbox::new();
    let Node { rnic, guest } = &mut world.nodes[0];
    let mut io = Io {
        memory: &guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    assert_eq!(rnic.snapshot().ready_qps, ALL);
    for turn in 1..=4 {
        let more = rnic.poll(Budget::units(50), &mut io);
        assert_eq!(
            (rnic.snapshot().ready_qps, more),
            (ALL - 50 * turn, turn < 4)
        );
    }
    assert!(!rnic.prepare_sleep(&mut io) && io.outbox.segments.is_empty());
    rnic.resume(&gid_of(1));
    assert_eq!(rnic.snapshot().ready_qps, ALL);
    world.settle();
    assert!(all.iter_mut().all(|c| done(c) == [0]));
}
