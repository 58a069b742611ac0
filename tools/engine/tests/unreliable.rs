// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Unreliable connections: what arrives, what is dropped, and what neither side notices.

use proptest::{collection::vec, prelude::*};
use vrnic_engine::{
    Cause, RnicConfig, Segmentation,
    explain::Happening,
    segment::{Payload, Service},
    testing::{Completion, Connection, Faults, QpOptions, Send, World},
};
use vrnic_wire::{
    completion::{Opcode, Status, flags},
    counter::Counter,
    event::EventType,
    memory::access,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{SendOpcode, Sge, send_flags},
};

const MR: usize = 1 << 20;

/// Where receives begin; sources are before that.
const TARGETS: usize = MR / 2;

fn options() -> QpOptions {
    QpOptions {
        qp_type: QpType::UnreliableConnection,
        ..QpOptions::default()
    }
}

fn world(segmentation: Segmentation, seed: u64) -> World {
    let config = RnicConfig {
        segmentation,
        ..RnicConfig::default()
    };
    World::new(2, 2048, &config, seed)
}

fn pair(segmentation: Segmentation, seed: u64) -> (World, Connection) {
    let mut world = world(segmentation, seed);
    let c = world.connect([0, 1], &options(), MR, |_, _| {});
    for mr in &c.mrs {
        mr.arena.put(0, &pattern(0, TARGETS));
    }
    (world, c)
}

/// Both fabrics.
const SEGMENTATIONS: [Segmentation; 2] = [Segmentation::Local, Segmentation::PathMtu];

/// Returns the bytes of the sources from `offset` on.
fn pattern(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length)
        .map(|at| (at * 13 + at / 256 * 7 + at / 65536) as u8)
        .collect()
}

fn send(c: &Connection, wr_id: u64, offset: usize, length: usize) -> Send {
    Send::new(wr_id, SendOpcode::SendWithImmediate)
        .immediate(wr_id as u32)
        .element(c.mrs[0].sge(offset, length))
}

fn write(c: &Connection, wr_id: u64, offset: usize, length: usize) -> Send {
    Send::new(wr_id, SendOpcode::Write)
        .rdma(c.mrs[1].iova + TARGETS as u64, c.mrs[1].key)
        .element(c.mrs[0].sge(offset, length))
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|done| (done.wr_id, done.status))
        .collect()
}

fn events(world: &mut World, node: usize) -> Vec<EventType> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_async_event())
        .map(|event| EventType::try_from(event.event_type.get()).expect("event type"))
        .collect()
}

/// Returns the causes for which the device of node 1 dropped messages.
fn reasons(world: &mut World) -> Vec<Cause> {
    std::iter::from_fn(|| world.nodes[1].rnic.next_explanation())
        .filter(|told| told.happening == Happening::Dropped)
        .map(|told| told.cause.expect("cause"))
        .collect()
}

fn dropped(world: &World) -> u64 {
    world.nodes[1].rnic.counters()[Counter::Dropped as usize]
}

/// Checks that both sides still work, and that neither was told of anything.
fn expect_unharmed(world: &mut World, c: &Connection) {
    for side in 0..2 {
        assert_eq!(
            world.state(c.nodes[side], c.qps[side].qpn),
            QpState::ReadyToSend
        );
        assert_eq!(events(world, c.nodes[side]), []);
    }
}

/// Checks that a send arrives.
fn expect_working(world: &mut World, c: &mut Connection) {
    c.receive(world, 1, 900, &[c.mrs[1].sge(TARGETS, 5000)]);
    let last = send(c, 901, 777, 4321);
    c.send(world, 0, &last);
    world.settle();
    let got = c.recv_cqs[1].drain();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].status, got[0].length), (Status::Success, 4321));
    assert_eq!(got[0].immediate, 901);
}

#[test]
fn messages_of_all_kinds_arrive() {
    for segmentation in SEGMENTATIONS {
        let (mut world, mut c) = pair(segmentation, 1);
        // Requests complete before their packets arrive, so the packets contain copies of the data.
        world.filter = Some(|segment| {
            assert!(segment.service == Service::Unreliable && !segment.ack_request);
            assert!(!matches!(segment.payload, Payload::Ranges(_)));
            true
        });
        let pieces = [(0, 99_999), (100_100, 0), (200_000, 100_001)];
        let sges: Vec<Sge> = pieces
            .iter()
            .map(|&(at, length)| c.mrs[1].sge(TARGETS + at, length))
            .collect();
        c.receive(&mut world, 1, 1, &sges);
        c.receive(&mut world, 1, 2, &[]);
        c.receive(&mut world, 1, 3, &[]);
        let requests = [
            send(&c, 1, 5, 200_000).flags(send_flags::SOLICITED),
            write(&c, 2, 300_000, 70_001).unsignaled(),
            Send::new(3, SendOpcode::Send),
            Send::new(4, SendOpcode::WriteWithImmediate)
                .rdma(c.mrs[1].iova + MR as u64 - 5, c.mrs[1].key)
                .immediate(8)
                .inline(b"hello"),
            Send::new(5, SendOpcode::Write).flags(send_flags::FENCE),
        ];
        for request in &requests {
            c.send(&mut world, 0, request);
        }
        // The second to arrive overwrites part of the first, because its target overlaps.
        world.settle();
        let done = c.send_cqs[0].drain();
        let names: Vec<u64> = done.iter().map(|done| done.wr_id).collect();
        assert_eq!(names, [1, 3, 4, 5]);
        assert!(done.iter().all(|done| done.status == Status::Success));
        let got = c.recv_cqs[1].drain();
        assert_eq!(
            statuses(&got),
            [1, 2, 3].map(|name| (name, Status::Success))
        );
        assert_eq!(got[0].flags, flags::IMMEDIATE | flags::SOLICITED);
        assert_eq!((got[0].immediate, got[0].length), (1, 200_000));
        assert_eq!((got[1].flags, got[1].length), (0, 0));
        assert_eq!(got[2].opcode, Opcode::ReceiveWriteWithImmediate);
        assert_eq!((got[2].immediate, got[2].length), (8, 5));
        let arena = &c.mrs[1].arena;
        assert!(arena.get(TARGETS, 70_001) == pattern(300_000, 70_001));
        assert!(arena.get(TARGETS + 70_001, 29_998) == pattern(70_006, 29_998));
        assert!(arena.get(TARGETS + 200_000, 100_001) == pattern(100_004, 100_001));
        assert_eq!(arena.get(MR - 5, 5), b"hello");
        assert_eq!(dropped(&world), 0);
        expect_unharmed(&mut world, &c);
    }
}

#[test]
fn the_first_message_establishes_the_connection() {
    let mut world = world(Segmentation::Local, 2);
    let mut c = world.connect([0, 1], &options(), MR, |_, _| {});
    let (qpn, peer) = (c.qps[1].qpn, c.qps[0].qpn);
    let mut go = |state: QpState, mask: u32| {
        let attributes = QpAttributes {
            state: state.raw(),
            mask: (mask | attribute::STATE).into(),
            ..World::attributes(0, peer)
        };
        world.modify(1, qpn, attributes);
    };
    go(QpState::Reset, 0);
    go(
        QpState::Init,
        attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
    );
    go(
        QpState::ReadyToReceive,
        attribute::ADDRESS_VECTOR | attribute::PATH_MTU | attribute::DEST_QPN | attribute::RQ_PSN,
    );
    let request = write(&c, 1, 0, 10);
    c.send(&mut world, 0, &request);
    c.send(&mut world, 0, &request);
    world.settle();
    assert_eq!(events(&mut world, 1), [EventType::CommunicationEstablished]);
    assert_eq!(c.mrs[1].arena.get(TARGETS, 10), c.mrs[0].arena.get(0, 10));
}

#[test]
fn a_message_that_cannot_be_received_is_dropped_and_the_next_one_arrives() {
    for segmentation in SEGMENTATIONS {
        let (mut world, mut c) = pair(segmentation, 3);
        // No receive.
        let request = send(&c, 1, 0, 100_000);
        c.send(&mut world, 0, &request);
        world.settle();
        assert_eq!(reasons(&mut world), [Cause::NoReceive]);
        // Too long for the receive, which stays for the next message.
        c.receive(&mut world, 1, 2, &[c.mrs[1].sge(TARGETS, 99_999)]);
        c.send(&mut world, 0, &request);
        world.settle();
        assert_eq!(reasons(&mut world), [Cause::ReceiveTooShort]);
        let shorter = send(&c, 3, 50, 99_999);
        c.send(&mut world, 0, &shorter);
        world.settle();
        let got = c.recv_cqs[1].drain();
        assert_eq!(statuses(&got), [(2, Status::Success)]);
        assert_eq!(got[0].immediate, 3);
        assert!(c.mrs[1].arena.get(TARGETS, 99_999) == pattern(50, 99_999));
        // Memory that this peer may not write to.
        for (address, rkey, cause) in [
            (c.mrs[1].iova, c.mrs[1].key ^ 0x5500, Cause::RemoteKey),
            (c.mrs[1].iova - 1, c.mrs[1].key, Cause::RemoteBounds),
        ] {
            let bad = Send::new(4, SendOpcode::Write)
                .rdma(address, rkey)
                .element(c.mrs[0].sge(0, 100_000));
            c.send(&mut world, 0, &bad);
            world.settle();
            assert_eq!(reasons(&mut world), [cause]);
        }
        assert!(dropped(&world) >= 4);
        let done = c.send_cqs[0].drain();
        assert!(done.iter().all(|done| done.status == Status::Success));
        expect_unharmed(&mut world, &c);
        expect_working(&mut world, &mut c);
        expect_unharmed(&mut world, &c);
    }
}

#[test]
fn the_queue_pair_says_what_its_peer_may_do() {
    let mut world = world(Segmentation::Local, 4);
    let mut c = world.connect([0, 1], &options(), MR, |_, attributes| {
        attributes.access = access::REMOTE_READ.into();
    });
    let request = write(&c, 1, 0, 10);
    c.mrs[0].arena.put(0, b"not allowed");
    c.send(&mut world, 0, &request);
    world.settle();
    assert_eq!(reasons(&mut world), [Cause::RemoteRights]);
    assert_eq!(c.mrs[1].arena.get(TARGETS, 10), [0; 10]);
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    expect_unharmed(&mut world, &c);
}

#[test]
fn a_bad_receive_ends_its_queue_pair() {
    let bad: [fn(&mut Sge); 2] = [
        |sge| sge.lkey = 0.into(),
        // Only the last byte is outside of the region.
        |sge| sge.address = (sge.address.get() + 1).into(),
    ];
    for spoil in bad {
        let (mut world, mut c) = pair(Segmentation::PathMtu, 5);
        let mut sge = c.mrs[1].sge(0, MR);
        spoil(&mut sge);
        c.receive(&mut world, 1, 1, &[sge]);
        c.receive(&mut world, 1, 2, &[]);
        let request = send(&c, 3, 0, MR);
        c.send(&mut world, 0, &request);
        world.settle();
        assert_eq!(
            statuses(&c.recv_cqs[1].drain()),
            [(1, Status::LocalProtection), (2, Status::Flushed)]
        );
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(3, Status::Success)],
            "the sender does not notice"
        );
        assert_eq!(world.state(0, c.qps[0].qpn), QpState::ReadyToSend);
    }
}

#[test]
fn a_request_that_cannot_be_done_stops_the_send_queue_alone() {
    for segmentation in SEGMENTATIONS {
        let (mut world, mut c) = pair(segmentation, 6);
        let mut unknown = c.mrs[0].sge(0, 10);
        unknown.lkey = 0.into();
        let failing = [
            (
                Send::new(2, SendOpcode::Read).rdma(c.mrs[1].iova, c.mrs[1].key),
                Status::LocalQueuePairOperation,
            ),
            (
                Send::new(2, SendOpcode::SendWithInvalidate).immediate(c.mrs[1].key),
                Status::LocalQueuePairOperation,
            ),
            (
                write(&c, 2, 0, 200_000).element(unknown),
                Status::LocalProtection,
            ),
        ];
        for (request, status) in failing {
            c.receive(&mut world, 1, 1, &[c.mrs[1].sge(TARGETS, 100)]);
            let before = send(&c, 1, 9, 100);
            let after = write(&c, 3, 0, 5);
            for request in [&before, &request, &after] {
                c.send(&mut world, 0, request);
            }
            world.settle();
            assert_eq!(
                statuses(&c.send_cqs[0].drain()),
                [(1, Status::Success), (2, status), (3, Status::Flushed)]
            );
            let got = c.recv_cqs[1].drain();
            assert_eq!(statuses(&got), [(1, Status::Success)]);
            assert_eq!(world.state(0, c.qps[0].qpn), QpState::SendQueueError);
            // It still receives.
            c.receive(&mut world, 0, 7, &[c.mrs[0].sge(TARGETS, 10)]);
            let back = Send::new(8, SendOpcode::Send).inline(b"0123456789");
            c.send(&mut world, 1, &back);
            world.settle();
            assert_eq!(statuses(&c.recv_cqs[0].drain()), [(7, Status::Success)]);
            world.modify(
                0,
                c.qps[0].qpn,
                QpAttributes {
                    mask: attribute::STATE.into(),
                    state: QpState::ReadyToSend.raw(),
                    ..QpAttributes::default()
                },
            );
            expect_working(&mut world, &mut c);
            c.send_cqs[0].drain();
            assert_eq!(reasons(&mut world), [], "no packet seems to be missing");
        }
    }
}

#[test]
fn draining_ends_with_the_message_that_was_begun() {
    let (mut world, mut c) = pair(Segmentation::PathMtu, 7);
    let requests = [write(&c, 1, 0, 400_000), write(&c, 2, 0, 10)];
    for request in &requests {
        c.send(&mut world, 0, request);
    }
    world.step();
    let modify = |world: &mut World, state: QpState, mask: u32| {
        world.modify(
            0,
            c.qps[0].qpn,
            QpAttributes {
                mask: (attribute::STATE | mask).into(),
                state: state.raw(),
                sqd_async_notify: 1,
                ..QpAttributes::default()
            },
        );
    };
    modify(
        &mut world,
        QpState::SendQueueDrain,
        attribute::EN_SQD_ASYNC_NOTIFY,
    );
    assert_eq!(events(&mut world, 0), []);
    world.settle();
    assert_eq!(events(&mut world, 0), [EventType::SendQueueDrained]);
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    assert!(c.mrs[1].arena.get(TARGETS, 400_000) == pattern(0, 400_000));
    modify(&mut world, QpState::ReadyToSend, 0);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::Success)]);
}

#[test]
fn services_do_not_mix() {
    let mut world = world(Segmentation::Local, 8);
    let mut reliable = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let mut unreliable = world.connect([0, 1], &options(), MR, |_, _| {});
    // Each takes the other's peer for its own.
    let pairs = [
        (reliable.qps[0].qpn, unreliable.qps[1].qpn, true),
        (unreliable.qps[0].qpn, reliable.qps[1].qpn, false),
    ];
    for (from, to, is_reliable) in pairs {
        for (node, qpn, peer) in [(0, from, to), (1, to, from)] {
            let of_reliable = is_reliable == (node == 0);
            let reset = QpAttributes {
                mask: attribute::STATE.into(),
                state: QpState::Reset.raw(),
                ..QpAttributes::default()
            };
            world.modify(node, qpn, reset);
            let attributes = World::attributes(1 - node, peer);
            let qp_type = if of_reliable {
                QpType::ReliableConnection
            } else {
                QpType::UnreliableConnection
            };
            world.bring_up(node, qpn, attributes, qp_type);
        }
    }
    for c in [&mut reliable, &mut unreliable] {
        c.mrs[0].arena.put(0, b"secret");
        let request = write(c, 1, 0, 6);
        c.send(&mut world, 0, &request);
    }
    world.settle();
    let done = reliable.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::RetryExceeded)]);
    let done = unreliable.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::Success)]);
    for c in [&reliable, &unreliable] {
        assert_eq!(c.mrs[1].arena.get(TARGETS, 6), [0; 6]);
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::ReadyToSend);
    }
    assert!(dropped(&world) > 1);
}

/// Sends on a bad fabric: everything that is received is one of the messages and complete, the receives are used in
/// order, and neither side sees an error.
fn run_lossy(segmentation: Segmentation, seed: u64, faults: Faults, lengths: &[usize]) {
    let (mut world, mut c) = pair(segmentation, seed);
    world.faults = faults;
    let room = lengths.iter().max().copied().unwrap_or(0).max(5000);
    for (index, _) in lengths.iter().enumerate() {
        let sge = c.mrs[1].sge(TARGETS + index * room, room);
        c.receive(&mut world, 1, index as u64, &[sge]);
    }
    for (index, &length) in lengths.iter().enumerate() {
        let request = send(&c, index as u64, index * 1001, length);
        c.send(&mut world, 0, &request);
    }
    world.settle();
    let done = statuses(&c.send_cqs[0].drain());
    let all: Vec<_> = (0..lengths.len() as u64)
        .map(|name| (name, Status::Success))
        .collect();
    assert_eq!(done, all);
    let got = c.recv_cqs[1].drain();
    let mut seen = Vec::new();
    for (index, done) in got.iter().enumerate() {
        assert_eq!((done.wr_id, done.status), (index as u64, Status::Success));
        let message = done.immediate as usize;
        assert_eq!(done.length as usize, lengths[message]);
        let bytes = c.mrs[1].arena.get(TARGETS + index * room, lengths[message]);
        assert!(bytes == pattern(message * 1001, lengths[message]));
        seen.push(message);
    }
    if faults.delay == 0 && faults.duplicate == 0 {
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    }
    if faults.drop + faults.delay + faults.duplicate == 0 {
        assert_eq!(seen.len(), lengths.len());
    }
    expect_unharmed(&mut world, &c);
    world.faults = Faults::default();
    expect_working(&mut world, &mut c);
}

proptest! {
    #[test]
    fn whole_messages_or_nothing(
        seed in any::<u64>(),
        wire in any::<bool>(),
        drop in prop_oneof![Just(0u32), 1u32..200],
        (duplicate, delay) in prop_oneof![Just((0u32, 0u32)), (0u32..100, 0u32..100)],
        lengths in vec(prop_oneof![0usize..3000, 0usize..15_000], 0..30),
    ) {
        let segmentation = SEGMENTATIONS[usize::from(wire)];
        let faults = Faults { drop, duplicate, delay, ..Faults::default() };
        run_lossy(segmentation, seed, faults, &lengths);
    }
}
