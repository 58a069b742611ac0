// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fairness: every turn is short, whatever there is to do, and everyone gets one.

use std::time::Duration;
use vrnic_engine::{
    Budget, Io, Outbox, RnicConfig, Segment,
    segment::LOCAL_MTU,
    testing::{Connection, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::ContextKind,
    counter::Counter,
    event::EventType,
    notify::{self, SlotBits},
    qp::{QpAttributes, QpState, QpType},
    work::SendOpcode,
};

const LONG: usize = 256 * 1024;
const SHORT: usize = 8;

/// Creates two devices with this number of connections from the first to the second.
fn connected(count: usize, length: usize) -> (World, Vec<Connection>) {
    let mut world = World::new(2, 4096, &RnicConfig::default(), 1);
    let connect = |_| world.connect([0, 1], &QpOptions::default(), length, |_, _| {});
    let all = (0..count).map(connect).collect();
    (world, all)
}

fn write(world: &mut World, c: &mut Connection, length: usize) {
    let peer = &c.mrs[1];
    let write = Send::new(0, SendOpcode::Write)
        .rdma(peer.iova, peer.key)
        .element(c.mrs[0].sge(0, length));
    c.send(world, 0, &write);
}

/// Returns what the first device sends in a turn. It is lost.
fn turn(world: &mut World, budget: Budget) -> Vec<Segment<'static>> {
    let mut outbox = Outbox::new();
    let Node { rnic, guest } = &mut world.nodes[0];
    let mut io = Io {
        memory: &guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    rnic.poll(budget, &mut io);
    outbox.segments
}

fn bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.payload.len()).sum()
}

#[test]
fn turns_are_bounded_by_bytes() {
    const TURNS: u64 = 20;
    for budget in [10_000, 48 * 1024, 64 * 1024, 200 * 1024] {
        let (mut world, mut all) = connected(20, LONG);
        for c in &mut all {
            write(&mut world, c, LONG);
        }
        let mut sent = 0;
        for number in 1..=TURNS {
            sent += bytes(&turn(
                &mut world,
                Budget {
                    units: 64,
                    bytes: budget,
                },
            ));
            // The last segment may exceed what is left; later turns make up for that.
            let fair = budget * number;
            assert!(sent <= fair + u64::from(LOCAL_MTU), "{sent} of {fair}");
            assert!(sent + u64::from(LOCAL_MTU) > fair, "{sent} of {fair}");
        }
    }
}

#[test]
fn short_messages_pass_long_ones() {
    let (mut world, mut all) = connected(2, LONG);
    let [long, short] = &mut all[..] else {
        panic!("two connections");
    };
    let budget = Budget {
        units: 64,
        bytes: LOCAL_MTU.into(),
    };
    (0..4).for_each(|_| write(&mut world, long, LONG));
    turn(&mut world, budget);
    for _ in 0..5 {
        write(&mut world, short, SHORT);
        let mut sent = turn(&mut world, budget);
        sent.append(&mut turn(&mut world, budget));
        let passed = (sent.iter()).filter(|segment| segment.payload.len() == SHORT as u64);
        assert_eq!(passed.count(), 1);
    }
}

#[test]
fn timers_run_out_a_few_at_a_time() {
    const ALL: usize = 200;
    let (mut world, mut all) = connected(ALL, SHORT);
    for c in &mut all {
        write(&mut world, c, SHORT);
    }
    while !turn(&mut world, Budget::units(64)).is_empty() {}
    world.now = world.now + Duration::from_secs(10);
    let (mut repeated, mut turns) = (0, 0);
    let due =
        |world: &World| (world.nodes[0].rnic.next_deadline()).is_some_and(|at| at <= world.now);
    while due(&world) {
        let mut outbox = Outbox::new();
        let now = world.now;
        let Node { rnic, guest } = &mut world.nodes[0];
        rnic.advance(&mut Io {
            memory: &guest.view,
            now,
            outbox: &mut outbox,
        });
        assert!(rnic.snapshot().ready_qps <= 64);
        repeated += turn(&mut world, Budget::units(1000)).len();
        turns += 1;
    }
    assert_eq!(repeated, ALL);
    assert!(turns > 1);
}

#[test]
fn contexts_take_turns() {
    const CONTEXTS: usize = 70;
    let mut world = World::new(2, 4096, &RnicConfig::default(), 1);
    let mut all: Vec<_> = (0..CONTEXTS)
        .map(|_| {
            let Node { rnic, guest } = &mut world.nodes[0];
            guest.start(rnic, ContextKind::User, 64);
            let c = world.connect([0, 1], &QpOptions::default(), SHORT, |_, _| {});
            let Node { rnic, guest } = &mut world.nodes[0];
            rnic.doorbell(guest.page, c.qps[0].slot);
            (c, guest.area().clone())
        })
        .collect();
    // From now on, the device polls all of them.
    (0..3).for_each(|_| drop(turn(&mut world, Budget::units(1000))));
    for (c, area) in &mut all {
        assert_ne!(
            area.get_u32(notify::FLAGS_OFFSET) & notify::flags::POLLING,
            0
        );
        let peer = &c.mrs[1];
        let write = Send::new(0, SendOpcode::Write)
            .rdma(peer.iova, peer.key)
            .element(c.mrs[0].sge(0, SHORT));
        assert!(c.qps[0].sq.post(&write.entry()));
        let bits = SlotBits::new(c.qps[0].slot);
        area.or_u64(bits.pending_offset, bits.pending_mask);
        area.or_u64(bits.summary_offset, bits.summary_mask);
    }
    let sent = [(); 3].map(|()| turn(&mut world, Budget::units(1000)).len());
    assert_eq!(sent, [32, 32, 6]);
}

/// A device does not keep others waiting, however many rings its guest claims.
#[test]
fn contexts_with_many_rings_take_several_turns() {
    const CONTEXTS: u64 = 40;
    const SLOTS: u32 = 4096;
    const MOST: u64 = 300;
    let mut world = World::new(2, 4096, &RnicConfig::default(), 1);
    let rings = |world: &World| {
        let counters = world.nodes[0].rnic.counters();
        counters[Counter::InvalidDoorbells as usize]
    };
    for _ in 0..CONTEXTS {
        let Node { rnic, guest } = &mut world.nodes[0];
        guest.start(rnic, ContextKind::User, SLOTS);
        let area = guest.area();
        area.put(notify::PENDING_OFFSET, &[0xff; SLOTS as usize / 8]);
        area.put(notify::SUMMARY_OFFSET, &[0xff; 8]);
        rnic.doorbell(guest.page, 0);
    }
    let mut before = rings(&world);
    let end = before + CONTEXTS * u64::from(SLOTS);
    while before < end {
        turn(&mut world, Budget::units(64));
        let now = rings(&world);
        assert!((1..=MOST).contains(&(now - before)), "{}", now - before);
        before = now;
    }
}

#[test]
fn the_queue_pairs_of_a_failed_completion_queue_are_told_a_few_at_a_time() {
    const ALL: usize = 200;
    let mut world = World::new(2, 8192, &RnicConfig::default(), 1);
    let Node { rnic, guest } = &mut world.nodes[0];
    let cq = guest.cq(rnic, 4, 0);
    let options = QpOptions {
        qp_type: QpType::UnreliableDatagram,
        entries: 8,
        ..QpOptions::default()
    };
    let create = |_| guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
    let mut qps: Vec<_> = (0..ALL).map(create).collect();
    let attributes = QpAttributes {
        port: 1,
        ..QpAttributes::default()
    };
    world.bring_up(0, qps[0].qpn, attributes, options.qp_type);
    let Node { rnic, guest } = &mut world.nodes[0];
    for wr_id in 0..8 {
        // A datagram is not written, so all of them complete at once.
        let bad = Send::new(wr_id, SendOpcode::Write);
        assert!(guest.post_send(rnic, &mut qps[0], &bad));
    }
    let (mut told, mut turns) = (0, 0);
    while told < ALL {
        turn(&mut world, Budget::units(64));
        let rnic = &mut world.nodes[0].rnic;
        let events = std::iter::from_fn(|| rnic.next_async_event());
        let fatal = EventType::QpFatal.raw();
        let now = events.filter(|event| event.event_type.get() == fatal);
        let now = now.count();
        assert!(now <= 64, "{now}");
        (told, turns) = (told + now, turns + 1);
        assert!(turns < 100, "{told}");
    }
    assert_eq!(told, ALL);
    world.settle();
    assert_eq!(world.state(0, qps[ALL - 1].qpn), QpState::Error);
}
