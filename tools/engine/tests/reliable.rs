// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reliable connections, one feature after the other.

use std::time::Duration;
use vrnic_engine::{
    Budget, Cause, Io, Outbox, RnicConfig, Segment,
    segment::{Aeth, Body, NakCode, Payload, Syndrome},
    testing::{Completion, Connection, Faults, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    completion::{Opcode, Status, flags},
    counter::Counter,
    event::EventType,
    memory::access,
    port::Mtu,
    qp::{QpAttributes, QpState, QpType, attribute},
    ring,
    work::{SendOpcode, Sge, send_flags},
};

const MR: usize = 1 << 20;

fn connected(world: &mut World) -> Connection {
    world.connect([0, 1], &QpOptions::default(), MR, |_, _| {})
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length)
        .map(|index| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ salt)
        .collect()
}

fn events(world: &mut World, node: usize) -> Vec<(EventType, u32)> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_async_event())
        .map(|event| {
            let kind = EventType::try_from(event.event_type.get()).expect("event type");
            (kind, event.number.get())
        })
        .collect()
}

#[test]
fn sends_go_from_elements_to_elements() {
    let mut world = World::pair(1);
    let mut c = connected(&mut world);
    let data = pattern(300_000, 1);
    c.mrs[0].arena.put(100, &data);
    let pieces = [(0, 1), (5, 0), (10, 199_999), (400_000, 100_000)];
    let sges: Vec<Sge> = pieces
        .iter()
        .map(|&(offset, length)| c.mrs[1].sge(offset, length))
        .collect();
    c.receive(&mut world, 1, 7, &sges);
    let send = Send::new(3, SendOpcode::SendWithImmediate)
        .immediate(0x1234_5678)
        .element(c.mrs[0].sge(100, 300_000));
    c.send(&mut world, 0, &send);
    world.settle();

    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(3, Status::Success)]);
    assert_eq!(done[0].opcode, Opcode::Send);
    let received = c.recv_cqs[1].drain();
    assert_eq!(statuses(&received), [(7, Status::Success)]);
    assert_eq!(received[0].length, 300_000);
    assert_eq!(received[0].flags, flags::IMMEDIATE);
    assert_eq!(received[0].immediate, 0x1234_5678);
    let mut arrived = Vec::new();
    for (offset, length) in pieces {
        arrived.extend(c.mrs[1].arena.get(offset, length));
    }
    assert!(arrived == data);
}

#[test]
fn writes_and_reads_move_data_both_ways() {
    let mut world = World::pair(2);
    let mut c = connected(&mut world);
    let data = pattern(500_000, 2);
    c.mrs[0].arena.put(0, &data);
    let (address, rkey) = (c.mrs[1].iova + 333, c.mrs[1].key);
    let write = Send::new(1, SendOpcode::Write)
        .unsignaled()
        .rdma(address, rkey)
        .element(c.mrs[0].sge(0, 500_000));
    let read = Send::new(2, SendOpcode::Read)
        .rdma(address + 1000, rkey)
        .element(c.mrs[0].sge(600_000, 100_000))
        .element(c.mrs[0].sge(700_001, 100_000));
    c.send(&mut world, 0, &write);
    c.send(&mut world, 0, &read);
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(2, Status::Success)]);
    assert_eq!((done[0].opcode, done[0].length), (Opcode::Read, 200_000));
    assert!(c.mrs[1].arena.get(333, 500_000) == data);
    assert!(c.mrs[0].arena.get(600_000, 100_000) == data[1000..101_000]);
    assert!(c.mrs[0].arena.get(700_001, 100_000) == data[101_000..201_000]);
    assert!(c.recv_cqs[1].drain().is_empty());
}

#[test]
fn write_with_immediate_takes_a_receive() {
    let mut world = World::pair(3);
    let mut c = connected(&mut world);
    c.receive(&mut world, 1, 9, &[]);
    let write = Send::new(1, SendOpcode::WriteWithImmediate)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .immediate(5)
        .inline(b"hello");
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    let received = c.recv_cqs[1].drain();
    assert_eq!(received[0].opcode, Opcode::ReceiveWriteWithImmediate);
    assert_eq!((received[0].length, received[0].immediate), (5, 5));
    assert_eq!(c.mrs[1].arena.get(0, 5), b"hello");
}

#[test]
fn atomics_return_the_old_value() {
    let mut world = World::pair(4);
    let mut c = connected(&mut world);
    c.mrs[1].arena.put(64, &10u64.to_le_bytes());
    let (address, rkey) = (c.mrs[1].iova + 64, c.mrs[1].key);
    let add = Send::new(1, SendOpcode::FetchAdd)
        .atomic(address, rkey, 5, 0)
        .element(c.mrs[0].sge(0, 8));
    let swap = Send::new(2, SendOpcode::CompareSwap)
        .atomic(address, rkey, 15, 99)
        .element(c.mrs[0].sge(8, 8));
    let fail = Send::new(3, SendOpcode::CompareSwap)
        .atomic(address, rkey, 15, 1)
        .element(c.mrs[0].sge(16, 4))
        .element(c.mrs[0].sge(30, 4));
    for send in [&add, &swap, &fail] {
        c.send(&mut world, 0, send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(
        statuses(&done),
        [1, 2, 3].map(|wr_id| (wr_id, Status::Success))
    );
    assert_eq!(done[0].opcode, Opcode::FetchAdd);
    assert_eq!(done[1].opcode, Opcode::CompareSwap);
    let word = |offset| {
        let bytes = c.mrs[0].arena.get(offset, 8);
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    };
    assert_eq!((word(0), word(8)), (10, 15));
    assert_eq!(c.mrs[0].arena.get(16, 4), 99u32.to_le_bytes());
    assert_eq!(c.mrs[1].arena.get(64, 8), 99u64.to_le_bytes());
}

#[test]
fn unaligned_atomics_are_invalid_requests() {
    let mut world = World::pair(5);
    let mut c = connected(&mut world);
    let add = Send::new(1, SendOpcode::FetchAdd)
        .atomic(c.mrs[1].iova + 4, c.mrs[1].key, 5, 0)
        .element(c.mrs[0].sge(0, 8));
    c.send(&mut world, 0, &add);
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
    assert!(events(&mut world, 1).contains(&(EventType::QpRequestError, c.qps[1].qpn)));
}

#[test]
fn zero_length_messages_need_no_key() {
    let mut world = World::pair(6);
    let mut c = connected(&mut world);
    c.receive(&mut world, 1, 1, &[]);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send));
    c.send(&mut world, 0, &Send::new(2, SendOpcode::Write).rdma(1, 2));
    c.send(&mut world, 0, &Send::new(3, SendOpcode::Read).rdma(3, 4));
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [1, 2, 3].map(|wr_id| (wr_id, Status::Success))
    );
    assert_eq!(c.recv_cqs[1].drain()[0].length, 0);
}

#[test]
fn loopback_on_one_device() {
    let mut world = World::pair(7);
    let mut c = world.connect([0, 0], &QpOptions::default(), MR, |_, _| {});
    c.mrs[0].arena.put(0, b"to myself");
    c.receive(&mut world, 1, 1, &[c.mrs[1].sge(0, 100)]);
    let send = Send::new(1, SendOpcode::Send).element(c.mrs[0].sge(0, 9));
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(statuses(&c.recv_cqs[1].drain()), [(1, Status::Success)]);
    assert_eq!(c.mrs[1].arena.get(0, 9), b"to myself");
}

#[test]
fn receiver_not_ready_is_waited_for() {
    let mut world = World::pair(8);
    let mut c = connected(&mut world);
    let send = Send::new(1, SendOpcode::Send).inline(b"patience");
    c.send(&mut world, 0, &send);
    world.run(Duration::from_millis(1));
    assert!(c.send_cqs[0].poll().is_none());
    c.receive(&mut world, 1, 4, &[c.mrs[1].sge(0, 8)]);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    assert_eq!(c.mrs[1].arena.get(0, 8), b"patience");
}

/// Soft-RoCE answers requests after a send without a receive with a sequence error. That would make the requester
/// repeat both immediately, or use up its retries if the answer is late.
#[test]
fn sequence_errors_do_not_shorten_the_wait_for_a_receive() {
    let mut world = World::pair(44);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.retry_count = 1;
        // 67 ms.
        attributes.timeout = 14;
        // 3.84 ms.
        attributes.min_rnr_timer = 17;
    });
    let naks = |world: &World| world.nodes[1].rnic.counters()[Counter::RnrNaksSent as usize];
    for wr_id in 0..2 {
        c.send(&mut world, 0, &Send::new(wr_id, SendOpcode::Send));
    }
    world.run(Duration::from_micros(100));
    assert_eq!(naks(&world), 1);
    for round in 0..6 {
        if round == 3 {
            // The time is over, and the retransmission is lost.
            world.filter = Some(|_| false);
            world.run(Duration::from_millis(4));
        }
        let body = Body::Acknowledge(Aeth {
            syndrome: Syndrome::Nak(NakCode::SequenceError),
            msn: 0,
        });
        world.deliver(Segment {
            ack_request: false,
            ..c.packet(1, 0xff_fff0, body, Payload::Empty)
        });
        world.run(Duration::from_micros(100));
        assert_eq!(naks(&world), 1, "nothing is sent again before its time");
    }
    world.filter = None;
    for wr_id in 0..2 {
        c.receive(&mut world, 1, wr_id, &[]);
    }
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(0, Status::Success), (1, Status::Success)]
    );
}

#[test]
fn rnr_retries_run_out() {
    let mut world = World::pair(9);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.rnr_retry = 3;
    });
    for wr_id in 1..4 {
        c.send(
            &mut world,
            0,
            &Send::new(wr_id, SendOpcode::Send).unsignaled(),
        );
    }
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [
            (1, Status::RnrRetryExceeded),
            (2, Status::Flushed),
            (3, Status::Flushed)
        ]
    );
    assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::ReadyToSend);
}

#[test]
fn a_peer_that_vanished_exhausts_the_retries() {
    let mut world = World::pair(10);
    let mut c = connected(&mut world);
    world.filter = Some(|_| false);
    c.receive(&mut world, 0, 50, &[]);
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 100));
    c.send(&mut world, 0, &write);
    let start = world.now;
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::RetryExceeded)]
    );
    assert_eq!(statuses(&c.recv_cqs[0].drain()), [(50, Status::Flushed)]);
    // Eight attempts of 4.096 µs times 2 to the 8.
    let waited = world.now - start;
    assert!(waited >= Duration::from_nanos(8 * 4096 * 256), "{waited:?}");
    assert!(waited < Duration::from_nanos(16 * 4096 * 256), "{waited:?}");
}

#[test]
fn access_is_checked_at_the_peer() {
    for (index, (offset, length, right)) in [
        (MR.cast_signed() as i64 - 10, 11, Cause::RemoteBounds),
        (-1, 4, Cause::RemoteBounds),
        (i64::MAX, 4, Cause::RemoteBounds),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::pair(20 + index as u64);
        let mut c = connected(&mut world);
        let address = c.mrs[1].iova.wrapping_add_signed(offset);
        let write = Send::new(1, SendOpcode::Write)
            .rdma(address, c.mrs[1].key)
            .element(c.mrs[0].sge(0, length));
        c.receive(&mut world, 1, 5, &[]);
        c.send(&mut world, 0, &write);
        c.send(&mut world, 0, &Send::new(2, SendOpcode::Send));
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(1, Status::RemoteAccess), (2, Status::Flushed)]
        );
        assert_eq!(statuses(&c.recv_cqs[1].drain()), [(5, Status::Flushed)]);
        let event = world.nodes[1].rnic.next_async_event();
        let event = std::iter::once(event)
            .chain(std::iter::from_fn(|| {
                Some(world.nodes[1].rnic.next_async_event())
            }))
            .map_while(|event| event)
            .find(|event| event.event_type.get() == EventType::QpAccessError.raw())
            .expect("access error event");
        assert_eq!(event.vendor_error.get(), right.code());
    }
}

#[test]
fn stale_and_foreign_keys_are_refused() {
    let mut world = World::pair(30);
    let mut c = connected(&mut world);
    let key = c.mrs[1].key;
    let node = &mut world.nodes[1];
    let request = vrnic_wire::command::DeregisterMr {
        pd: node.guest.pd.into(),
        key: key.into(),
    };
    node.guest
        .command(&mut node.rnic, request)
        .expect("deregister");
    let read = Send::new(1, SendOpcode::Read)
        .rdma(c.mrs[1].iova, key)
        .element(c.mrs[0].sge(0, 4));
    c.send(&mut world, 0, &read);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::RemoteAccess)]
    );
}

#[test]
fn local_errors_complete_after_what_came_before() {
    let mut world = World::pair(31);
    let mut c = connected(&mut world);
    let (address, rkey) = (c.mrs[1].iova, c.mrs[1].key);
    let good = Send::new(1, SendOpcode::Read)
        .rdma(address, rkey)
        .element(c.mrs[0].sge(0, 300_000));
    let mut sge = c.mrs[0].sge(0, 8);
    sge.lkey = (c.mrs[0].key ^ 1).into();
    let bad = Send::new(2, SendOpcode::Write)
        .rdma(address, rkey)
        .element(sge);
    for send in [&good, &bad, &good] {
        c.send(&mut world, 0, send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(
        statuses(&done),
        [
            (1, Status::Success),
            (2, Status::LocalProtection),
            (1, Status::Flushed)
        ]
    );
    assert_eq!(done[1].cause, Some(Cause::LocalKey));
}

#[test]
fn garbage_entries_fail_alone() {
    let mut world = World::pair(32);
    let mut c = connected(&mut world);
    let mut garbage = Send::new(2, SendOpcode::Send);
    garbage.header.opcode = 200;
    c.send(&mut world, 0, &garbage);
    c.send(&mut world, 0, &Send::new(3, SendOpcode::Send));
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(
        statuses(&done),
        [(2, Status::LocalQueuePairOperation), (3, Status::Flushed)]
    );
    assert_eq!(done[0].cause, Some(Cause::WqeOpcode));
    // Requests that are posted to a queue pair in the error state are flushed too.
    c.send(&mut world, 0, &Send::new(4, SendOpcode::Send));
    c.receive(&mut world, 0, 5, &[]);
    assert_ne!(c.qps[0].rq.device_flags() & ring::flags::NEED_DOORBELL, 0);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(4, Status::Flushed)]);
    assert_eq!(statuses(&c.recv_cqs[0].drain()), [(5, Status::Flushed)]);
}

#[test]
fn messages_that_are_too_long_fail_at_both_ends() {
    let mut world = World::pair(33);
    let mut c = connected(&mut world);
    c.receive(&mut world, 1, 1, &[c.mrs[1].sge(0, 10)]);
    let send = Send::new(1, SendOpcode::Send).inline(b"eleven byte");
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::RemoteInvalidRequest)]
    );
    assert_eq!(statuses(&c.recv_cqs[1].drain()), [(1, Status::LocalLength)]);
}

#[test]
fn bad_receive_elements_fail_at_both_ends() {
    let mut world = World::pair(34);
    let mut c = connected(&mut world);
    let mut sge = c.mrs[1].sge(0, 100);
    sge.lkey = 1.into();
    c.receive(&mut world, 1, 1, &[sge]);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send).inline(b"x"));
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::RemoteOperation)]
    );
    assert_eq!(
        statuses(&c.recv_cqs[1].drain()),
        [(1, Status::LocalProtection)]
    );
}

#[test]
fn wild_producer_indices_are_fatal_to_their_queue_pair() {
    let mut world = World::pair(36);
    let mut c = connected(&mut world);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Write));
    c.qps[0].sq.index = 1000;
    c.qps[0].sq.publish();
    world.settle();
    assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    assert_eq!(events(&mut world, 0), [(EventType::QpFatal, c.qps[0].qpn)]);
}

#[test]
fn fences_hold_back_until_reads_are_done() {
    let mut world = World::pair(37);
    let mut c = connected(&mut world);
    c.mrs[1].arena.put(0, b"old");
    c.mrs[0].arena.put(0, b"new");
    let (address, rkey) = (c.mrs[1].iova, c.mrs[1].key);
    let read = Send::new(1, SendOpcode::Read)
        .rdma(address, rkey)
        .element(c.mrs[0].sge(100, 3));
    // Without the fence, the read data could be sent before it arrived.
    let write = Send::new(2, SendOpcode::Write)
        .flags(send_flags::FENCE)
        .rdma(address + 10, rkey)
        .element(c.mrs[0].sge(100, 3));
    c.send(&mut world, 0, &read);
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(c.mrs[1].arena.get(10, 3), b"old");
}

#[test]
fn draining_ends_with_an_event() {
    let mut world = World::pair(38);
    let mut c = connected(&mut world);
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, MR));
    c.send(&mut world, 0, &write);
    world.step();
    let drain = QpAttributes {
        mask: (attribute::STATE | attribute::EN_SQD_ASYNC_NOTIFY).into(),
        state: QpState::SendQueueDrain.raw(),
        sqd_async_notify: 1,
        ..QpAttributes::default()
    };
    world.modify(0, c.qps[0].qpn, drain);
    c.send(&mut world, 0, &Send { ..write.clone() });
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    assert_eq!(
        events(&mut world, 0),
        [(EventType::SendQueueDrained, c.qps[0].qpn)]
    );
    let resume = QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::ReadyToSend.raw(),
        ..QpAttributes::default()
    };
    world.modify(0, c.qps[0].qpn, resume);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    // Once more, with nothing to drain.
    world.modify(0, c.qps[0].qpn, drain);
    assert_eq!(
        events(&mut world, 0),
        [(EventType::SendQueueDrained, c.qps[0].qpn)]
    );
}

#[test]
fn armed_queues_raise_one_event_per_request() {
    let mut world = World::pair(39);
    let mut c = connected(&mut world);
    let event = |world: &mut World, vector| world.nodes[1].rnic.next_completion_event(vector);
    for wr_id in 0..4 {
        c.receive(&mut world, 1, wr_id, &[]);
    }
    c.recv_cqs[1].arm(true);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send));
    world.settle();
    assert!(event(&mut world, 1).is_none(), "not solicited");
    c.send(
        &mut world,
        0,
        &Send::new(1, SendOpcode::Send).flags(send_flags::SOLICITED),
    );
    world.settle();
    let raised = event(&mut world, 1).expect("solicited event");
    assert_eq!(raised.cqn.get(), c.recv_cqs[1].cqn);
    c.send(
        &mut world,
        0,
        &Send::new(1, SendOpcode::Send).flags(send_flags::SOLICITED),
    );
    world.settle();
    assert!(event(&mut world, 1).is_none(), "not armed");
    c.recv_cqs[1].arm(false);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send));
    world.settle();
    assert!(event(&mut world, 1).is_some());
    assert!(event(&mut world, 0).is_none(), "other vector");
}

#[test]
fn overrun_queues_fail_their_queue_pairs() {
    let mut world = World::pair(40);
    let mut c = connected(&mut world);
    let rounds = c.send_cqs[0].ring.layout.entries.get() + 1;
    for wr_id in 0..rounds {
        c.send(&mut world, 0, &Send::new(wr_id.into(), SendOpcode::Write));
        world.settle();
    }
    assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    let happened = events(&mut world, 0);
    assert!(happened.contains(&(EventType::CqError, c.send_cqs[0].cqn)));
    assert!(happened.contains(&(EventType::QpFatal, c.qps[0].qpn)));
    assert_eq!(c.send_cqs[0].drain().len(), rounds as usize - 1);
    assert_eq!(
        c.send_cqs[0].ring.device_flags() & ring::flags::OVERRUN,
        ring::flags::OVERRUN
    );
}

#[test]
fn reset_forgets_everything() {
    let mut world = World::pair(41);
    let mut c = connected(&mut world);
    world.filter = Some(|_| false);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Write));
    c.receive(&mut world, 0, 1, &[]);
    world.run(Duration::from_micros(10));
    let reset = QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::Reset.raw(),
        ..QpAttributes::default()
    };
    for side in 0..2 {
        world.modify(side, c.qps[side].qpn, reset);
    }
    world.filter = None;
    world.settle();
    assert!(c.send_cqs[0].drain().is_empty() && c.recv_cqs[0].drain().is_empty());
    for side in 0..2 {
        let attributes = World::attributes(1 - side, c.qps[1 - side].qpn);
        world.bring_up(
            side,
            c.qps[side].qpn,
            attributes,
            QpType::ReliableConnection,
        );
    }
    c.receive(&mut world, 1, 2, &[]);
    c.send(&mut world, 0, &Send::new(3, SendOpcode::Send));
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(3, Status::Success)]);
    assert_eq!(statuses(&c.recv_cqs[1].drain()), [(2, Status::Success)]);
}

#[test]
fn lost_acknowledgements_do_not_repeat_effects() {
    let mut world = World::pair(42);
    let mut c = connected(&mut world);
    c.mrs[1].arena.put(0, &1u64.to_le_bytes());
    world.filter = Some(|segment| !segment.body.is_response());
    let add = Send::new(1, SendOpcode::FetchAdd)
        .atomic(c.mrs[1].iova, c.mrs[1].key, 1, 0)
        .element(c.mrs[0].sge(0, 8));
    c.send(&mut world, 0, &add);
    world.run(Duration::from_millis(3));
    world.filter = None;
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    assert_eq!(c.mrs[1].arena.get(0, 8), 2u64.to_le_bytes(), "added once");
    assert_eq!(c.mrs[0].arena.get(0, 8), 1u64.to_le_bytes());
}

#[test]
fn many_segments_survive_a_bad_fabric() {
    for seed in 0..20 {
        let config = RnicConfig {
            segmentation: vrnic_engine::Segmentation::PathMtu,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, seed);
        let mut c = connected(&mut world);
        world.faults = Faults {
            drop: 30,
            duplicate: 40,
            delay: 40,
            ..Faults::default()
        };
        let data = pattern(100_000, seed as u8);
        c.mrs[0].arena.put(0, &data);
        c.receive(&mut world, 1, 1, &[c.mrs[1].sge(200_000, 100_000)]);
        let (address, rkey) = (c.mrs[1].iova, c.mrs[1].key);
        let sends = [
            Send::new(1, SendOpcode::Write)
                .rdma(address, rkey)
                .element(c.mrs[0].sge(0, 100_000)),
            Send::new(2, SendOpcode::Read)
                .rdma(address, rkey)
                .element(c.mrs[0].sge(400_000, 100_000)),
            Send::new(3, SendOpcode::Send).element(c.mrs[0].sge(0, 100_000)),
        ];
        for send in &sends {
            c.send(&mut world, 0, send);
        }
        world.settle();
        let done = c.send_cqs[0].drain();
        assert_eq!(
            statuses(&done),
            [1, 2, 3].map(|wr_id| (wr_id, Status::Success)),
            "seed {seed}"
        );
        assert!(c.mrs[1].arena.get(0, 100_000) == data);
        assert!(c.mrs[0].arena.get(400_000, 100_000) == data);
        assert!(c.mrs[1].arena.get(200_000, 100_000) == data);
    }
}

#[test]
fn the_longest_message_is_two_gibibytes() {
    const LONGEST: usize = 1 << 31;
    let mut world = World::new(2, 4096, &RnicConfig::default(), 44);
    let mut c = connected(&mut world);
    // The same 64 KiB again and again, and a byte more than a message may have.
    let big = [0, 1].map(|index| {
        let node = &mut world.nodes[index];
        let arena = node.guest.arena(65536).repeated(LONGEST / 65536 + 1);
        node.guest
            .register(&mut node.rnic, arena, LONGEST + 1, access::QUEUE_PAIR)
    });
    let data = pattern(65536, 9);
    big[0].arena.put(0, &data);
    let element = |offset: u64, length: u32| Sge {
        address: (big[0].iova + offset).into(),
        length: length.into(),
        lkey: big[0].key.into(),
    };
    for opcode in [SendOpcode::Write, SendOpcode::Read] {
        let send = Send::new(1, opcode)
            .rdma(big[1].iova, big[1].key)
            .element(element(0, 1 << 31));
        c.send(&mut world, 0, &send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::Success); 2]);
    assert_eq!(done[1].length, 1 << 31);
    assert!(big[1].arena.get(0, 65536) == data && big[0].arena.get(0, 65536) == data);
    let send = Send::new(2, SendOpcode::Write)
        .rdma(big[1].iova, big[1].key)
        .element(element(0, 1 << 31))
        .element(element(0, 1));
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::LocalLength)]);
}

#[test]
fn sequence_errors_are_told_once() {
    let mut world = World::pair(43);
    let mut c = connected(&mut world);
    world.faults.delay = 1;
    // The first packet is lost, the others arrive.
    world.filter = Some(|segment| segment.psn.raw() != 0xff_fff0);
    for wr_id in 0..5 {
        c.send(&mut world, 0, &Send::new(wr_id, SendOpcode::Write));
    }
    world.step();
    world.filter = Some(|segment| match segment.body {
        Body::Acknowledge(aeth) => aeth.syndrome == Syndrome::Nak(NakCode::SequenceError),
        _ => false,
    });
    let before = world.delivered;
    world.run(Duration::from_micros(100));
    assert_eq!(world.delivered - before, 1, "one NAK");
    world.filter = None;
    world.settle();
    assert_eq!(c.send_cqs[0].drain().len(), 5);
}

#[test]
fn events_of_received_segments_are_told_by_the_next_poll() {
    let mut world = World::pair(45);
    let mut c = connected(&mut world);
    c.receive(&mut world, 1, 1, &[]);
    c.recv_cqs[1].arm(false);
    world.settle();
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send));
    let mut outbox = Outbox::new();
    let now = world.now;
    let [sender, receiver] = &mut world.nodes[..] else {
        panic!("two nodes");
    };
    let mut io = Io {
        memory: &sender.guest.view,
        now,
        outbox: &mut outbox,
    };
    assert!(sender.rnic.poll(Budget::units(100), &mut io));
    let segment = outbox.segments.pop().expect("send");
    let mut io = Io {
        memory: &receiver.guest.view,
        now,
        outbox: &mut outbox,
    };
    receiver.rnic.receive(segment, &mut io);
    assert!(
        receiver.rnic.poll(Budget::default(), &mut io),
        "an event is work"
    );
    assert!(receiver.rnic.next_completion_event(1).is_some());
}

#[test]
#[ignore = "takes a minute"]
fn the_longest_read_in_the_smallest_packets() {
    const LONGEST: usize = 1 << 31;
    let config = RnicConfig {
        segmentation: vrnic_engine::Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 4096, &config, 46);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.path_mtu = Mtu::Mtu256.raw();
    });
    let big = [0, 1].map(|index| {
        let node = &mut world.nodes[index];
        let arena = node.guest.arena(65536).repeated(LONGEST / 65536);
        node.guest
            .register(&mut node.rnic, arena, LONGEST, access::QUEUE_PAIR)
    });
    let data = pattern(65536, 3);
    big[1].arena.put(0, &data);
    let read = Send::new(1, SendOpcode::Read)
        .rdma(big[1].iova, big[1].key)
        .element(Sge {
            address: big[0].iova.into(),
            length: (1 << 31).into(),
            lkey: big[0].key.into(),
        });
    // As many packets as a requester may have in flight, so what follows has to wait.
    c.send(&mut world, 0, &read);
    c.send(&mut world, 0, &read);
    c.send(&mut world, 0, &Send::new(2, SendOpcode::Write));
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(
        statuses(&done),
        [
            (1, Status::Success),
            (1, Status::Success),
            (2, Status::Success)
        ]
    );
    assert!(big[0].arena.get(0, 65536) == data);
}

/// Messages of zero bytes work there as anywhere.
#[test]
fn a_region_of_no_bytes_has_keys() {
    for length in [0, 1] {
        let mut world = World::pair(1);
        let empty = [0, 1].map(|node| {
            let Node { rnic, guest } = &mut world.nodes[node];
            let arena = guest.arena(4096);
            guest.register(rnic, arena, 0, access::LOCAL_WRITE | access::REMOTE_WRITE)
        });
        let attempt = |world: &mut World, opcode| {
            let mut c = connected(world);
            let (local, remote) = match opcode {
                SendOpcode::Read => (&empty[0], &c.mrs[1]),
                _ => (&c.mrs[0], &empty[1]),
            };
            let send = Send::new(1, opcode)
                .rdma(remote.iova, remote.key)
                .element(local.sge(0, length));
            c.send(world, 0, &send);
            world.settle();
            let done = c.send_cqs[0].drain()[0];
            (done.status, done.cause)
        };
        let write = attempt(&mut world, SendOpcode::Write);
        let read = attempt(&mut world, SendOpcode::Read);
        if length == 0 {
            assert_eq!(
                (write, read),
                ((Status::Success, None), (Status::Success, None))
            );
        } else {
            assert_eq!(write, (Status::RemoteAccess, Some(Cause::PeerAccess)));
            let why = Some(Cause::LocalBounds);
            assert_eq!(read, (Status::LocalProtection, why));
        }
    }
}
