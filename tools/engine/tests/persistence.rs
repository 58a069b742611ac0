// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flushes to persistent memory (IBTA volume 1, annex A19).

use std::time::Duration;
use vrnic_engine::{
    Cause,
    memory::{HostRange, RegionId},
    segment::{Body, Flush, Payload, Position, Reth},
    testing::{Connection, Mr, Node, Pager, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        DeregisterMr, RegisterMr, ReregisterMr, Status as CommandStatus, mr_flags, reregister_flags,
    },
    completion::Status,
    counter::Counter,
    event::EventType,
    memory::{NULL_KEY, access},
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{FlushTarget, Selectivity, SendOpcode, placement},
};

const MR: usize = 1 << 16;

/// Rights of a region with all kinds of flushes.
const RIGHTS: u32 = access::QUEUE_PAIR | access::PLACEMENT;

/// Creates a connection between devices whose memory is made persistent when a test says so.
fn connected(seed: u64) -> (World, Connection) {
    let mut world = World::pair(seed);
    world.sync_time = None;
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    (world, c)
}

fn flush(mr: &Mr, wr_id: u64) -> Send {
    Send::new(wr_id, SendOpcode::Flush).flush(mr.iova, mr.key, 64, placement::ALL)
}

fn write(c: &Connection, wr_id: u64, bytes: usize) -> Send {
    Send::new(wr_id, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, bytes))
}

/// Returns what the device of the flushed memory wants to make persistent.
fn next_sync(world: &mut World) -> Option<Vec<HostRange>> {
    world.nodes[1].rnic.next_sync()
}

fn synced(world: &mut World, done: bool) {
    world.nodes[1].rnic.synced(done);
}

fn statuses(c: &mut Connection) -> Vec<(u64, Status)> {
    let done = c.send_cqs[0].drain();
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

fn counter(world: &World, node: usize, counter: Counter) -> u64 {
    world.nodes[node].rnic.counters()[counter as usize]
}

fn move_to(world: &mut World, node: usize, qpn: u32, state: QpState) {
    let attributes = QpAttributes {
        mask: attribute::STATE.into(),
        state: state.raw(),
        ..QpAttributes::default()
    };
    world.modify(node, qpn, attributes);
}

#[test]
fn a_flush_is_done_when_memory_survives() {
    let (mut world, mut c) = connected(1);
    c.mrs[0].arena.put(0, b"to be kept");
    c.send(&mut world, 0, &write(&c, 1, 10));
    c.send(&mut world, 0, &flush(&c.mrs[1], 2));
    c.send(&mut world, 0, &write(&c, 3, 20));
    world.run(Duration::from_micros(100));
    assert_eq!(c.mrs[1].arena.get(0, 10), b"to be kept");
    assert_eq!(
        statuses(&mut c),
        [],
        "the write is acknowledged by the flush"
    );
    let ranges = next_sync(&mut world).expect("asked for");
    assert_eq!(ranges.len(), 1);
    assert_eq!(ranges[0].region, RegionId(1));
    assert!(ranges[0].length >= MR as u64);
    assert_eq!(next_sync(&mut world), None, "once");
    world.run(Duration::from_micros(100));
    assert_eq!(statuses(&mut c), []);
    synced(&mut world, true);
    world.settle();
    let expected = [1, 2, 3].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(statuses(&mut c), expected);
    assert_eq!(next_sync(&mut world), None);
}

/// The peer is told to wait each time it asks, and does not give up.
#[test]
fn a_disk_may_take_its_time() {
    let (mut world, mut c) = connected(2);
    for round in 0..3 {
        c.send(&mut world, 0, &flush(&c.mrs[1], 2 * round));
        c.send(&mut world, 0, &write(&c, 2 * round + 1, 10));
        world.run(Duration::from_secs(2));
        assert_eq!(statuses(&mut c), []);
        assert!(next_sync(&mut world).is_some());
        world.run(Duration::from_secs(2));
        assert_eq!(statuses(&mut c), []);
        synced(&mut world, true);
        world.settle();
        let expected = [2 * round, 2 * round + 1].map(|wr_id| (wr_id, Status::Success));
        assert_eq!(statuses(&mut c), expected);
        assert_eq!(next_sync(&mut world), None, "it was done once");
    }
    assert!(counter(&world, 1, Counter::RnrNaksSent) > 0);
}

#[test]
fn a_disk_that_fails_is_told_of() {
    let (mut world, mut c) = connected(3);
    c.send(&mut world, 0, &flush(&c.mrs[1], 1));
    c.send(&mut world, 0, &write(&c, 2, 10));
    world.run(Duration::from_micros(100));
    assert!(next_sync(&mut world).is_some());
    synced(&mut world, false);
    world.settle();
    let expected = [(1, Status::RemoteOperation), (2, Status::Flushed)];
    assert_eq!(statuses(&mut c), expected);
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
    let rnic = &mut world.nodes[1].rnic;
    let events = std::iter::from_fn(|| rnic.next_async_event());
    let fatal = |event: &vrnic_wire::event::AsyncEvent| {
        event.event_type.get() == EventType::QpFatal.raw()
            && event.vendor_error.get() == Cause::FlushFailed.code()
    };
    assert_eq!(events.filter(fatal).count(), 1);
    let told = rnic.next_explanation().and_then(|told| told.cause);
    assert_eq!(told, Some(Cause::FlushFailed));
}

/// Registers memory of node 1.
fn register(world: &mut World, rights: u32) -> Result<Mr, (CommandStatus, Cause)> {
    let Node { rnic, guest } = &mut world.nodes[1];
    let arena = guest.arena(MR);
    guest.try_register(rnic, arena, MR, rights)
}

#[test]
fn memory_that_is_lost_with_the_machine_has_no_such_right() {
    let (mut world, mut c) = connected(4);
    world.memories.set_volatile(true);
    let refused = Some((CommandStatus::InvalidArgument, Cause::NotPersistent));
    assert_eq!(register(&mut world, RIGHTS).err(), refused);
    let mr = register(&mut world, access::QUEUE_PAIR).expect("registered");
    let Node { rnic, guest } = &mut world.nodes[1];
    let request = ReregisterMr {
        pd: guest.pd.into(),
        key: mr.key.into(),
        flags: reregister_flags::ACCESS.into(),
        access: RIGHTS.into(),
        ..ReregisterMr::default()
    };
    let again = guest.command(rnic, request).unwrap_err();
    assert_eq!(again.0, CommandStatus::InvalidArgument);
    world.memories.set_volatile(false);
    let Node { rnic, guest } = &mut world.nodes[1];
    let all = RegisterMr {
        pd: guest.pd.into(),
        access: RIGHTS.into(),
        flags: mr_flags::ALL_MEMORY.into(),
        ..RegisterMr::default()
    };
    let registered = guest.command(rnic, all);
    assert_eq!(registered.err(), refused);

    let key = guest.command(rnic, request).expect("changed").key.get();
    c.mrs[1] = Mr { key, ..mr };
    c.send(&mut world, 0, &flush(&c.mrs[1], 1));
    world.run(Duration::from_micros(100));
    assert!(next_sync(&mut world).is_some());
    synced(&mut world, true);
    world.settle();
    assert_eq!(statuses(&mut c), [(1, Status::Success)]);
}

#[test]
fn a_fast_registration_gives_the_right() {
    for volatile in [false, true] {
        let (mut world, mut c) = connected(10);
        world.memories.set_volatile(volatile);
        let Node { rnic, guest } = &mut world.nodes[1];
        let fast = guest.fast_mr(rnic, 16);
        let iova = 0x12_0000;
        let mut target = fast.target(&c.mrs[1].arena, 0, 8192, iova);
        target.access = RIGHTS.into();
        let send = Send::new(1, SendOpcode::RegisterRegion).target(&target);
        c.send(&mut world, 1, &send);
        world.settle();
        let done = c.send_cqs[1].drain();
        if volatile {
            assert_eq!(done[0].status, Status::MemoryManagement);
            assert_eq!(done[0].cause, Some(Cause::NotPersistent));
            continue;
        }
        assert_eq!(done[0].status, Status::Success);
        c.mrs[1].key = target.key.get();
        c.mrs[1].iova = iova;
        c.send(&mut world, 0, &flush(&c.mrs[1], 2));
        world.run(Duration::from_micros(100));
        assert!(next_sync(&mut world).is_some());
        synced(&mut world, true);
        world.settle();
        assert_eq!(statuses(&mut c), [(2, Status::Success)]);
    }
}

/// Requests before a refused one are answered first, however long that takes.
#[test]
fn a_refusal_waits_for_the_flush_before_it() {
    for patience in [Duration::from_micros(100), Duration::from_secs(1)] {
        let (mut world, mut c) = connected(11);
        c.send(&mut world, 0, &flush(&c.mrs[1], 1));
        let wrong = write(&c, 2, 10).rdma(c.mrs[1].iova, c.mrs[1].key ^ 0x100);
        c.send(&mut world, 0, &wrong);
        world.run(patience);
        assert_eq!(statuses(&mut c), []);
        assert!(next_sync(&mut world).is_some());
        synced(&mut world, true);
        world.settle();
        let expected = [(1, Status::Success), (2, Status::RemoteAccess)];
        assert_eq!(statuses(&mut c), expected);
    }
}

/// A flush that the network repeats after it was answered is not executed again, and nothing waits for it.
#[test]
fn an_old_flush_is_not_waited_for() {
    let (mut world, mut c) = connected(12);
    for wr_id in [1, 2] {
        c.send(&mut world, 0, &flush(&c.mrs[1], wr_id));
        world.run(Duration::from_micros(100));
        assert!(next_sync(&mut world).is_some());
        synced(&mut world, true);
        world.settle();
        assert_eq!(statuses(&mut c), [(wr_id, Status::Success)]);
    }
    for psn in [0xff_fff0, 0xff_fff1, 0xff_fff0] {
        let remote = Reth {
            address: c.mrs[1].iova,
            rkey: c.mrs[1].key,
            length: 64,
        };
        let body = Body::FlushRequest(Flush {
            remote,
            placement: placement::ALL,
            selectivity: Selectivity::Range.raw(),
        });
        world.deliver(c.packet(0, psn, body, Payload::Empty));
        world.settle();
        assert_eq!(next_sync(&mut world), None);
    }
    let wrong = write(&c, 3, 10).rdma(c.mrs[1].iova, c.mrs[1].key ^ 0x100);
    c.send(&mut world, 0, &wrong);
    world.settle();
    assert_eq!(statuses(&mut c), [(3, Status::RemoteAccess)]);
}

/// Data that was written to a page is made persistent even if the page is not present any more.
#[test]
fn pages_that_come_and_go_survive() {
    let (mut world, mut c) = connected(5);
    let mut pager = Pager::new(6);
    let Node { rnic, guest } = &mut world.nodes[1];
    c.mrs[1] = guest.paged_mr(rnic, 0, MR, RIGHTS);
    let region = pager.add(1, &c.mrs[1]);
    c.send(&mut world, 0, &flush(&c.mrs[1], 1));
    pager.map(&mut world, region, 0..4, false);
    c.send(&mut world, 0, &flush(&c.mrs[1], 2));
    world.settle();
    assert_eq!(
        statuses(&mut c),
        [(1, Status::Success), (2, Status::Success)],
        "nothing can have been written"
    );
    c.send(&mut world, 0, &write(&c, 3, 5000));
    for _ in 0..3 {
        world.run(Duration::from_millis(10));
        pager.serve(&mut world);
    }
    world.settle();
    assert_eq!(statuses(&mut c), [(3, Status::Success)]);
    pager.forget(&mut world, region, 0..4);
    c.send(&mut world, 0, &flush(&c.mrs[1], 4));
    world.run(Duration::from_micros(100));
    let ranges = next_sync(&mut world).expect("asked for");
    assert_eq!((ranges[0].region, ranges[0].offset), (RegionId(1), 0));
    synced(&mut world, true);
    world.settle();
    assert_eq!(statuses(&mut c), [(4, Status::Success)]);

    world.memories.set_volatile(true);
    c.send(&mut world, 0, &flush(&c.mrs[1], 5));
    world.settle();
    assert_eq!(statuses(&mut c), [(5, Status::RemoteAccess)]);
    let rnic = &mut world.nodes[1].rnic;
    let told = std::iter::from_fn(|| rnic.next_explanation()).last();
    assert_eq!(told.and_then(|told| told.cause), Some(Cause::NotPersistent));
}

#[test]
fn queue_pairs_take_turns() {
    let (mut world, c) = connected(7);
    let options = QpOptions::default();
    let mut all = vec![c];
    for _ in 0..3 {
        all.push(world.connect([0, 1], &options, MR, |_, _| {}));
    }
    for c in &mut all {
        let send = flush(&c.mrs[1], 1);
        c.send(&mut world, 0, &send);
    }
    world.run(Duration::from_micros(100));
    assert!(next_sync(&mut world).is_some());
    // The one whose turn it is goes away, and so does one that waits.
    for c in &all[..2] {
        move_to(&mut world, 1, c.qps[1].qpn, QpState::Reset);
    }
    assert_eq!(next_sync(&mut world), None);
    synced(&mut world, true);
    for _ in 2..4 {
        assert!(next_sync(&mut world).is_some());
        synced(&mut world, true);
    }
    assert_eq!(next_sync(&mut world), None);
    world.run(Duration::from_micros(100));
    for c in &mut all[2..] {
        assert_eq!(statuses(c), [(1, Status::Success)]);
    }
    world.settle();
    for c in &mut all[..2] {
        assert_eq!(statuses(c), [(1, Status::RetryExceeded)]);
    }
    synced(&mut world, true);
}

/// The result of a flush from before a reset of the queue pair is not taken for that of its current flush.
#[test]
fn an_old_result_is_not_taken_for_a_new_one() {
    let (mut world, mut c) = connected(8);
    c.send(&mut world, 0, &flush(&c.mrs[1], 1));
    world.run(Duration::from_micros(100));
    assert!(next_sync(&mut world).is_some());
    let qpns = [c.qps[0].qpn, c.qps[1].qpn];
    for (node, &qpn) in qpns.iter().enumerate() {
        move_to(&mut world, node, qpn, QpState::Reset);
        let peer = qpns[1 - node];
        let mut attributes = World::attributes(1 - node, peer);
        attributes.access = RIGHTS.into();
        world.bring_up(node, qpn, attributes, QpType::ReliableConnection);
    }
    c.send_cqs[0].drain();
    c.send(&mut world, 0, &flush(&c.mrs[1], 2));
    world.run(Duration::from_micros(100));
    synced(&mut world, true);
    world.run(Duration::from_millis(1));
    assert_eq!(statuses(&mut c), []);
    assert!(next_sync(&mut world).is_some());
    synced(&mut world, true);
    world.settle();
    assert_eq!(statuses(&mut c), [(2, Status::Success)]);
}

#[test]
fn the_region_may_go_away_meanwhile() {
    // Before the peer asks again, and after that.
    for disk_takes in [Duration::from_micros(1), Duration::from_secs(1)] {
        let (mut world, mut c) = connected(9);
        let whole = FlushTarget {
            rkey: c.mrs[1].key.into(),
            placement: placement::PERSISTENT,
            selectivity: Selectivity::Region.raw(),
            ..FlushTarget::default()
        };
        let send = Send::new(1, SendOpcode::Flush).target(&whole);
        c.send(&mut world, 0, &send);
        world.run(Duration::from_micros(100));
        assert!(next_sync(&mut world).is_some());
        let Node { rnic, guest } = &mut world.nodes[1];
        let request = DeregisterMr {
            pd: guest.pd.into(),
            key: c.mrs[1].key.into(),
        };
        guest.command(rnic, request).expect("deregistered");
        world.run(disk_takes);
        synced(&mut world, true);
        world.settle();
        assert_eq!(statuses(&mut c), [(1, Status::Success)], "it did survive");

        let null = FlushTarget {
            rkey: NULL_KEY.into(),
            ..whole
        };
        let send = Send::new(2, SendOpcode::Flush).target(&null);
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(statuses(&mut c), [(2, Status::RemoteAccess)]);
    }
}

/// A receive that a message after the flush has taken is flushed: the message itself is correct.
#[test]
fn a_disk_that_fails_is_not_the_fault_of_a_message() {
    let (mut world, mut c) = connected(13);
    world.filter = Some(|segment| {
        let position = match segment.body {
            Body::Send { position, .. } => position,
            _ => Position::Only,
        };
        position != Position::Last
    });
    let sges = [c.mrs[1].sge(0, MR); 2];
    c.receive(&mut world, 1, 1, &sges);
    c.send(&mut world, 0, &flush(&c.mrs[1], 1));
    let element = c.mrs[0].sge(0, MR);
    let long = Send::new(2, SendOpcode::Send)
        .element(element)
        .element(element);
    c.send(&mut world, 0, &long);
    world.run(Duration::from_micros(100));
    assert!(next_sync(&mut world).is_some());
    synced(&mut world, false);
    world.settle();
    let received = c.recv_cqs[1].drain();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].status, Status::Flushed);
}

/// Peers need not count flushes among the requests that they may have outstanding.
#[test]
fn a_read_need_not_wait_for_a_flush() {
    let mut world = World::pair(14);
    world.sync_time = None;
    let one = |side: usize, attributes: &mut QpAttributes| {
        if side == 1 {
            attributes.max_dest_rd_atomic = 1;
        }
    };
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, one);
    let read = Send::new(3, SendOpcode::Read)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 8));
    for send in [flush(&c.mrs[1], 1), flush(&c.mrs[1], 2), read] {
        c.send(&mut world, 0, &send);
    }
    for _ in 0..2 {
        world.run(Duration::from_micros(100));
        assert!(next_sync(&mut world).is_some());
        synced(&mut world, true);
    }
    world.settle();
    let expected = [1, 2, 3].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(statuses(&mut c), expected);
}
