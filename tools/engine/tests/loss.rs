// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How reliable connections recover lost packets.

use std::time::Duration;
use vrnic_engine::{
    Budget, Io, Outbox, Recovery, RnicConfig, Segment, Segmentation,
    psn::Psn,
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, NakCode, Payload, Position, Reth, SendTail, Syndrome,
    },
    testing::{Connection, Line, Node, QpOptions, Send, World},
};
use vrnic_wire::{completion::Status, counter::Counter, qp::QpState, work::SendOpcode};

const MR: usize = 1 << 20;

/// PSN of the first packet of every connection.
const FIRST: u32 = 0xff_fff0;

/// Bytes per packet.
const MTU: usize = 1024;

fn config(recovery: Recovery) -> RnicConfig {
    RnicConfig {
        segmentation: Segmentation::PathMtu,
        recovery,
        ..RnicConfig::default()
    }
}

fn world(recovery: [Recovery; 2]) -> (World, Connection) {
    let mut world = World::of(&recovery.map(config), 2048, 1);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    (world, c)
}

/// Returns what a device immediately answers to a packet.
fn answers(world: &mut World, node: usize, segment: Segment) -> Vec<Segment<'static>> {
    let mut outbox = Outbox::new();
    let Node { rnic, guest } = &mut world.nodes[node];
    let mut io = Io {
        memory: &guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    rnic.receive(segment, &mut io);
    while rnic.poll(Budget::units(16), &mut io) {}
    outbox.segments
}

/// Returns PSN and syndrome of an acknowledgement.
fn acknowledged(answers: &[Segment]) -> Option<(u32, Syndrome)> {
    let [one] = answers else {
        assert!(answers.is_empty(), "{answers:?}");
        return None;
    };
    let Body::Acknowledge(Aeth { syndrome, .. }) = one.body else {
        panic!("{one:?}");
    };
    let syndrome = match syndrome {
        Syndrome::Ack { .. } => Syndrome::ACK,
        other => other,
    };
    Some((one.psn.raw(), syndrome))
}

const MISSING: Syndrome = Syndrome::Nak(NakCode::SequenceError);

fn psn(offset: u32) -> u32 {
    Psn::new(FIRST).add(offset).raw()
}

/// Builds a write of one packet, which is number `offset` of the connection and is filled with this number.
fn write(c: &Connection, offset: u32) -> Segment<'static> {
    let body = Body::Write {
        position: Position::Only,
        reth: Some(Reth {
            address: c.mrs[1].iova + u64::from(offset) * MTU as u64,
            rkey: c.mrs[1].key,
            length: MTU as u32,
        }),
        immediate: None,
    };
    let payload = Payload::Bytes(vec![offset as u8 + 1; MTU]);
    c.packet(0, psn(offset), body, payload)
}

fn send(c: &Connection, offset: u32) -> Segment<'static> {
    let body = Body::Send {
        position: Position::Only,
        tail: SendTail::Plain,
    };
    c.packet(0, psn(offset), body, Payload::Empty)
}

/// Returns the first packet of the first device: an atomic that adds 1 to the start of the second device's memory.
fn increment(c: &Connection) -> Segment<'static> {
    let body = Body::AtomicRequest(AtomicRequest {
        kind: AtomicKind::FetchAdd,
        address: c.mrs[1].iova,
        rkey: c.mrs[1].key,
        compare_add: 1,
        swap: 0,
    });
    c.packet(0, psn(0), body, Payload::Empty)
}

/// Returns which of the first `count` writes were executed.
fn written(c: &Connection, count: usize) -> Vec<u8> {
    let memory = c.mrs[1].arena.get(0, count * MTU);
    memory.iter().step_by(MTU).copied().collect()
}

/// MSNs count completed messages and never decrease.
#[test]
fn answers_that_are_repeated_have_the_msn_of_now() {
    let (mut world, c) = world([Recovery::Selective; 2]);
    let atomic = || increment(&c);
    let msns = |answers: &[Segment]| -> Vec<u32> {
        let msn = |answer: &Segment| match answer.body {
            Body::AtomicAcknowledge { aeth, .. } | Body::Acknowledge(aeth) => aeth.msn,
            _ => panic!("{answer:?}"),
        };
        answers.iter().map(msn).collect()
    };
    assert_eq!(msns(&answers(&mut world, 1, atomic())), [1]);
    assert_eq!(msns(&answers(&mut world, 1, write(&c, 1))), [2]);
    assert_eq!(msns(&answers(&mut world, 1, atomic()))[0], 2);
    assert_eq!(c.mrs[1].arena.get(0, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
}

/// PSNs wrap after 2^24 packets. If a connection has few atomics, the results of older ones are still kept.
#[test]
fn a_repeated_atomic_gets_its_own_result() {
    let (mut world, c) = world([Recovery::GoBackN; 2]);
    let atomic = || increment(&c);
    let original = |answers: &[Segment]| match answers {
        [one] => match one.body {
            Body::AtomicAcknowledge { original, .. } => original,
            _ => panic!("{one:?}"),
        },
        _ => panic!("{answers:?}"),
    };
    assert_eq!(original(&answers(&mut world, 1, atomic())), 0);
    // Reads take many PSNs each. The peer repeats them without length, so that nobody has to send that much.
    let (mut next, mut left) = (1, (1 << 24) - 1);
    while left > 0 {
        let packets = left.min((MR / MTU) as u32);
        for length in [packets * MTU as u32, 0] {
            let body = Body::ReadRequest(Reth {
                address: c.mrs[1].iova,
                rkey: c.mrs[1].key,
                length,
            });
            let read = c.packet(0, psn(next), body, Payload::Empty);
            if length == 0 {
                assert_eq!(answers(&mut world, 1, read).len(), 1);
            } else {
                world.deliver(read);
            }
        }
        (next, left) = (next + packets, left - packets);
    }
    assert_eq!(psn(next), psn(0));
    assert_eq!(original(&answers(&mut world, 1, atomic())), 1);
    assert_eq!(original(&answers(&mut world, 1, atomic())), 1, "repeated");
    assert_eq!(c.mrs[1].arena.get(0, 1), [2]);
}

#[test]
fn what_comes_early_waits_for_its_turn() {
    let (mut world, mut c) = world([Recovery::Selective; 2]);
    for wr_id in 0..2 {
        c.receive(&mut world, 1, wr_id, &[]);
    }
    let early = answers(&mut world, 1, write(&c, 1));
    assert_eq!(acknowledged(&early), Some((psn(0), MISSING)));
    for segment in [
        send(&c, 2),
        write(&c, 1),
        write(&c, 3),
        write(&c, 6),
        send(&c, 7),
    ] {
        let early = answers(&mut world, 1, segment);
        assert_eq!(acknowledged(&early), None, "told once");
    }
    assert_eq!(written(&c, 8), [0; 8], "nothing is executed early");
    assert!(c.recv_cqs[1].drain().is_empty());

    // The answer acknowledges what waited, and reports the next gap.
    let filled = answers(&mut world, 1, write(&c, 0));
    assert_eq!(acknowledged(&filled), Some((psn(4), MISSING)));
    assert_eq!(written(&c, 8), [1, 2, 0, 4, 0, 0, 0, 0]);
    assert_eq!(c.recv_cqs[1].drain().len(), 1);
    let half = answers(&mut world, 1, write(&c, 5));
    assert_eq!(acknowledged(&half), None);
    let whole = answers(&mut world, 1, write(&c, 4));
    assert_eq!(acknowledged(&whole), Some((psn(7), Syndrome::ACK)));
    assert_eq!(written(&c, 8), [1, 2, 0, 4, 5, 6, 7, 0]);
    assert_eq!(c.recv_cqs[1].drain().len(), 1);
    assert_eq!(world.nodes[1].rnic.snapshot().kept_bytes, 0);
    // A requester that starts again from the gap repeats packets that are already known.
    let repeated = answers(&mut world, 1, write(&c, 5));
    assert_eq!(acknowledged(&repeated), Some((psn(7), Syndrome::ACK)));
}

#[test]
fn a_device_may_drop_what_comes_early() {
    let (mut world, c) = world([Recovery::GoBackN; 2]);
    let early = answers(&mut world, 1, write(&c, 1));
    assert_eq!(acknowledged(&early), Some((psn(0), MISSING)));
    assert_eq!(world.nodes[1].rnic.snapshot().kept_bytes, 0);
    let next = answers(&mut world, 1, write(&c, 0));
    assert_eq!(acknowledged(&next), Some((psn(0), Syndrome::ACK)));
    assert_eq!(written(&c, 2), [1, 0]);
}

#[test]
fn what_waits_and_is_refused_ends_the_connection() {
    let (mut world, mut c) = world([Recovery::Selective; 2]);
    answers(&mut world, 1, write(&c, 3));
    answers(&mut world, 1, write(&c, 2));
    let mut wrong = write(&c, 1);
    if let Body::Write {
        reth: Some(reth), ..
    } = &mut wrong.body
    {
        reth.rkey ^= 1;
    }
    answers(&mut world, 1, wrong);
    c.receive(&mut world, 1, 9, &[]);
    let refused = answers(&mut world, 1, write(&c, 0));
    let code = Syndrome::Nak(NakCode::RemoteAccess);
    assert_eq!(acknowledged(&refused), Some((psn(1), code)));
    assert_eq!(written(&c, 4), [1, 0, 0, 0]);
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
    assert_eq!(c.recv_cqs[1].drain()[0].status, Status::Flushed);
    assert_eq!(world.nodes[1].rnic.snapshot().kept_bytes, 0);
}

#[test]
fn a_send_that_waits_and_has_no_receive_is_put_off() {
    let (mut world, mut c) = world([Recovery::Selective; 2]);
    answers(&mut world, 1, send(&c, 1));
    answers(&mut world, 1, write(&c, 2));
    let refused = answers(&mut world, 1, write(&c, 0));
    let put_off = Syndrome::RnrNak { timer: 1 };
    assert_eq!(acknowledged(&refused), Some((psn(1), put_off)));
    assert_eq!(written(&c, 3), [1, 0, 0]);
    c.receive(&mut world, 1, 9, &[]);
    // The peer will retransmit everything after the gap too. Nothing is kept for that.
    assert_eq!(acknowledged(&answers(&mut world, 1, write(&c, 2))), None);
    assert_eq!(world.nodes[1].rnic.snapshot().kept_bytes, 0);
    let taken = answers(&mut world, 1, send(&c, 1));
    assert_eq!(acknowledged(&taken), Some((psn(1), Syndrome::ACK)));
    let last = answers(&mut world, 1, write(&c, 2));
    assert_eq!(acknowledged(&last), Some((psn(2), Syndrome::ACK)));
    assert_eq!(written(&c, 3), [1, 0, 3]);
}

/// A packet far ahead of everything that its sender sends, as a defect may cause.
#[test]
fn a_ghost_far_ahead_is_told_of_once_and_makes_way() {
    let (mut world, c) = world([Recovery::Selective; 2]);
    let ghost = |c: &Connection, offset: u32| Segment {
        psn: Psn::new(psn(offset)),
        ..write(c, 7)
    };
    let told = answers(&mut world, 1, ghost(&c, 5));
    assert_eq!(acknowledged(&told), Some((psn(0), MISSING)));
    assert_eq!(acknowledged(&answers(&mut world, 1, ghost(&c, 1000))), None);
    for offset in 0..4 {
        let next = answers(&mut world, 1, write(&c, offset));
        assert_eq!(acknowledged(&next), Some((psn(offset), Syndrome::ACK)));
    }
    // The packet that arrives later is the right one.
    let early = answers(&mut world, 1, write(&c, 5));
    assert_eq!(acknowledged(&early), Some((psn(4), MISSING)));
    let next = answers(&mut world, 1, write(&c, 4));
    assert_eq!(acknowledged(&next), Some((psn(6), MISSING)));
    assert_eq!(written(&c, 8), [1, 2, 3, 4, 5, 6, 0, 0]);
}

#[test]
fn hostile_peers_fill_no_memory() {
    /// Largest number of bytes that a device keeps.
    const MOST: usize = 64 << 20;
    let (mut world, c) = world([Recovery::Selective; 2]);
    let mut used = 0;
    let mut connections = vec![c];
    for number in 0..6 {
        if number > 0 {
            let more = world.connect([0, 1], &QpOptions::default(), MTU, |_, _| {});
            connections.push(more);
        }
        let c = &connections[number];
        for offset in (1..20_000).chain([1 << 20, (1 << 23) - 1]) {
            // Longer than any frame. The connection would not accept it either.
            let body = Body::Write {
                position: Position::Middle,
                reth: None,
                immediate: None,
            };
            let payload = Payload::Bytes(vec![1; 64 << 10]);
            let early = answers(&mut world, 1, c.packet(0, psn(offset), body, payload));
            assert_eq!(early.len(), usize::from(offset == 1));
        }
        let all = world.nodes[1].rnic.snapshot().kept_bytes;
        // Half of what was left.
        let share = (MOST - used) / 2;
        assert!(
            (share - (66 << 10)..=share).contains(&(all - used)),
            "{all}"
        );
        used = all;
    }
    // The number of small packets is limited too.
    let c = world.connect([0, 1], &QpOptions::default(), MTU, |_, _| {});
    for offset in 1..20_000 {
        answers(&mut world, 1, send(&c, offset));
    }
    let small = world.nodes[1].rnic.snapshot().kept_bytes - used;
    assert!(small <= 8192 * 512, "{small}");
    connections.push(c);
    // One ends, one is reset, one is destroyed.
    for (number, c) in connections.into_iter().enumerate() {
        let node = &mut world.nodes[1];
        if number % 3 == 0 {
            let destroy = vrnic_wire::command::DestroyQp {
                qpn: c.qps[1].qpn.into(),
                reserved: 0.into(),
            };
            node.guest
                .command(&mut node.rnic, destroy)
                .expect("destroy");
            continue;
        }
        let state = [QpState::Reset, QpState::Error][number % 2];
        let attributes = vrnic_wire::qp::QpAttributes {
            state: state.raw(),
            mask: vrnic_wire::qp::attribute::STATE.into(),
            ..Default::default()
        };
        world.modify(1, c.qps[1].qpn, attributes);
    }
    world.settle();
    assert_eq!(world.nodes[1].rnic.snapshot().kept_bytes, 0);
}

/// Posts writes of one packet each.
fn post_writes(world: &mut World, c: &mut Connection, count: u32) {
    for number in 0..count {
        let place = u64::from(number) * MTU as u64;
        let write = Send::new(number.into(), SendOpcode::Write)
            .rdma(c.mrs[1].iova + place, c.mrs[1].key)
            .element(c.mrs[0].sge(place as usize, MTU));
        c.send(world, 0, &write);
    }
}

/// Creates a world in which nothing is delivered in the turn in which it is sent, so that each step of a write is
/// visible.
fn slow_world(recovery: [Recovery; 2]) -> (World, Connection) {
    let (mut world, c) = world(recovery);
    world.line = Some(Line {
        bytes_per_s: 12_500_000_000,
        delay: Duration::from_micros(5),
        queue: 1 << 20,
    });
    (world, c)
}

/// Runs until everything is finished. Returns the requester's numbers of retransmissions and timeouts.
fn finish(world: &mut World, c: &mut Connection, count: u32) -> (u64, u64) {
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), count as usize);
    assert!(done.iter().all(|one| one.status == Status::Success));
    let counters = world.nodes[0].rnic.counters();
    let count = |counter: Counter| counters[counter as usize];
    (count(Counter::Retransmits), count(Counter::Timeouts))
}

/// Runs for `time`, and lets all of it pass even if nothing is left to do.
fn let_pass(world: &mut World, time: Duration) {
    let end = world.now + time;
    world.run(time);
    world.now = world.now.max(end);
}

/// Makes a few exchanges, after which each side knows how long the other takes.
fn warm_up(world: &mut World, c: &mut Connection) {
    for _ in 0..4 {
        post_writes(world, c, 4);
        assert_eq!(finish(world, c, 4), (0, 0));
    }
}

/// Loses those of the first transmissions that `lost` selects.
fn lose(world: &mut World, lost: fn(&Segment) -> bool) {
    world.filter = Some(lost);
    while world.step() {
        world.now = world.now + Duration::from_nanos(10);
    }
    world.filter = None;
}

const AFTER_WARM_UP: u32 = 16;

fn third_and_seventh(segment: &Segment) -> bool {
    let offset = segment.psn.packets_since(Psn::new(psn(AFTER_WARM_UP)));
    offset != 3 && offset != 7
}

fn none_behind_the_eighth(segment: &Segment) -> bool {
    segment.psn.packets_since(Psn::new(psn(AFTER_WARM_UP))) < 8
}

#[test]
fn only_what_is_missing_is_sent_again() {
    let (mut world, mut c) = slow_world([Recovery::Selective; 2]);
    warm_up(&mut world, &mut c);
    post_writes(&mut world, &mut c, 30);
    lose(&mut world, third_and_seventh);
    assert_eq!(finish(&mut world, &mut c, 30), (2, 0));
    let responder = world.nodes[1].rnic.counters();
    assert_eq!(responder[Counter::SequenceNaksSent as usize], 2);
    assert_eq!(responder[Counter::DuplicateRequests as usize], 0);
}

#[test]
fn a_peer_that_drops_what_comes_early_gets_it_again_at_once() {
    for requester in [Recovery::Selective, Recovery::GoBackN] {
        let (mut world, mut c) = slow_world([requester, Recovery::GoBackN]);
        warm_up(&mut world, &mut c);
        for round in 1..4 {
            post_writes(&mut world, &mut c, 30);
            if round == 1 {
                lose(&mut world, third_and_seventh);
            }
            let (again, timeouts) = finish(&mut world, &mut c, 30);
            // Everything from the gap on, and possibly the missing packet alone before that.
            assert!((27..=28 + 23).contains(&again), "{requester:?}: {again}");
            assert_eq!(timeouts, 0);
        }
    }
}

#[test]
fn a_lost_tail_does_not_cost_a_timeout() {
    let (mut world, mut c) = slow_world([Recovery::Selective; 2]);
    warm_up(&mut world, &mut c);
    post_writes(&mut world, &mut c, 12);
    lose(&mut world, none_behind_the_eighth);
    let (again, timeouts) = finish(&mut world, &mut c, 12);
    assert!((4..=5).contains(&again), "{again}");
    assert_eq!(timeouts, 0);
}

#[test]
fn a_lost_acknowledgement_does_not_cost_a_timeout() {
    let (mut world, mut c) = slow_world([Recovery::Selective; 2]);
    warm_up(&mut world, &mut c);
    post_writes(&mut world, &mut c, 12);
    // Longer than all packets take.
    world.filter = Some(|segment| !segment.body.is_response());
    world.run(Duration::from_micros(30));
    world.filter = None;
    let (again, timeouts) = finish(&mut world, &mut c, 12);
    assert!(again >= 1);
    assert_eq!(timeouts, 0);
}

/// The answer to the first packet arrives late, after a retransmission. It says nothing about the packets that follow.
#[test]
fn a_slow_peer_does_not_get_everything_again() {
    let (mut world, mut c) = slow_world([Recovery::Selective; 2]);
    post_writes(&mut world, &mut c, 12);
    let retransmits = |world: &World| {
        let counters = world.nodes[0].rnic.counters();
        counters[Counter::Retransmits as usize]
    };
    // The first probe, without an answer from the peer itself.
    world.filter = Some(|segment| !segment.body.is_response());
    while retransmits(&world) == 0 {
        let_pass(&mut world, Duration::from_micros(10));
    }
    let late = Body::Acknowledge(Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    });
    world.filter = None;
    world.deliver(c.packet(1, FIRST, late, Payload::Empty));
    world.filter = Some(|segment| !segment.body.is_response());
    let_pass(&mut world, Duration::from_micros(100));
    assert_eq!(retransmits(&world), 1);
    // If nothing else arrives, all of it is missing.
    while retransmits(&world) == 1 {
        let_pass(&mut world, Duration::from_micros(10));
    }
    assert_eq!(retransmits(&world), 1 + 11);
    world.filter = None;
    let (again, timeouts) = finish(&mut world, &mut c, 12);
    assert!((12..=13).contains(&again), "{again}");
    assert_eq!(timeouts, 0);
}

/// Creates a world with one connection on a line of 100 ms, for which the local ACK timeout is long enough.
fn long_world() -> (World, Connection) {
    let mut world = World::of(&[Recovery::Selective; 2].map(config), 2048, 1);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        // 1.07 seconds.
        attributes.timeout = 18;
    });
    world.line = Some(Line {
        bytes_per_s: 12_500_000_000,
        delay: Duration::from_millis(50),
        queue: 1 << 20,
    });
    (world, c)
}

/// The first probes are sent before any answer can arrive. They stop when the requester has measured the time of one,
/// which probes must not prevent.
#[test]
fn a_long_line_is_timed_in_spite_of_probes() {
    let (mut world, mut c) = long_world();
    let mut again = Vec::new();
    for _ in 0..8 {
        post_writes(&mut world, &mut c, 1);
        again.push(finish(&mut world, &mut c, 1).0);
    }
    assert!(again[0] > 0, "nothing was probed: {again:?}");
    assert_eq!(again[3..], [again[3]; 5], "{again:?}");
}

/// The requester does not repeat requests to a slow peer that is still busy with them before a quarter of the local ACK
/// timeout has passed, whether the oldest request or a later one is a read.
#[test]
fn a_slow_peer_is_not_asked_for_the_same_data_soon() {
    for writes in 0..=2 {
        let mut world = World::of(&[Recovery::Selective; 2].map(config), 2048, 1);
        let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
            // 1.07 seconds.
            attributes.timeout = 18;
        });
        world.line = slow_world([Recovery::Selective; 2]).0.line;
        // The requests arrive, but no answer does.
        world.filter = Some(|segment| !segment.body.is_response());
        post_writes(&mut world, &mut c, writes);
        let read = Send::new(1, SendOpcode::Read)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, MTU));
        c.send(&mut world, 0, &read);
        let retransmits =
            |world: &World| world.nodes[0].rnic.counters()[Counter::Retransmits as usize];
        let_pass(&mut world, Duration::from_millis(30));
        // Only a write is retransmitted.
        let again = u64::from(writes.min(1));
        assert_eq!(retransmits(&world), again);
        if writes > 0 {
            let late = Body::Acknowledge(Aeth {
                syndrome: Syndrome::ACK,
                msn: writes,
            });
            world.filter = None;
            world.deliver(c.packet(1, psn(writes - 1), late, Payload::Empty));
            world.filter = Some(|segment| !segment.body.is_response());
        }
        let_pass(&mut world, Duration::from_millis(200));
        assert_eq!(retransmits(&world), again, "{writes}");
        world.filter = None;
        let (_, timeouts) = finish(&mut world, &mut c, 1 + writes);
        assert_eq!(timeouts, 0);
    }
}
