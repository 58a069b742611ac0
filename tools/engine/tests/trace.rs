// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Steps that report an error come with the objects that they concern, in their state at that time.

use vrnic_engine::{
    MrSnapshot, Named, RnicConfig,
    recording::Player,
    testing::{Connection, QpOptions, Send, World},
    trace::{Act, Object, TracePage},
};
use vrnic_wire::{
    command::DeregisterMr, completion::Status, event::EventType, memory::access, work::SendOpcode,
};

const MR: usize = 8192;

fn clock() -> u64 {
    0
}

/// Returns all steps of a node so far. Tracing starts with the first call.
fn trace(world: &mut World, node: usize) -> TracePage {
    world.nodes[node].rnic.trace(clock, 0, usize::MAX)
}

fn connection(seed: u64) -> (World, Connection) {
    let mut world = World::recorded(&[RnicConfig::default(), RnicConfig::default()], 2048, seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.rnr_retry = 1;
        attributes.min_rnr_timer = 1;
    });
    for node in 0..2 {
        assert!(trace(&mut world, node).steps.is_empty());
    }
    (world, c)
}

/// Performs a write from side 0, which must fail.
fn write(world: &mut World, c: &mut Connection, key: u32) {
    let write = Send::new(7, SendOpcode::Write)
        .rdma(c.mrs[1].iova, key)
        .element(c.mrs[0].sge(0, 100));
    c.send(world, 0, &write);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::RemoteAccess);
}

/// Returns the objects of the steps that `is_it` selects.
fn objects(page: &TracePage, is_it: impl Fn(&Act) -> bool) -> Vec<Object> {
    let chosen = page
        .objects
        .iter()
        .filter(|(place, _)| is_it(&page.steps[*place].act));
    chosen.map(|(_, object)| *object).collect()
}

fn is_nak(act: &Act) -> bool {
    matches!(act, Act::Sent(packet) if packet.body.is_negative())
}

fn has_key(act: &Act) -> bool {
    matches!(act, Act::Arrived(packet) if packet.body.key().is_some())
}

fn is_error(act: &Act) -> bool {
    matches!(act, Act::Completed { cqe, .. } if cqe.status != Status::Success.raw())
}

#[test]
fn a_refused_write_has_the_region_that_its_key_names() {
    let (mut world, mut c) = connection(1);
    let node = &mut world.nodes[1];
    let mr = node.guest.mr(&mut node.rnic, MR, access::LOCAL_WRITE);
    write(&mut world, &mut c, mr.key);
    let there = trace(&mut world, 1);
    for seen in [objects(&there, has_key), objects(&there, is_nak)] {
        let [Object::Key(key, Named::Region(region))] = seen[..] else {
            panic!("{seen:?}");
        };
        let MrSnapshot {
            length,
            iova,
            access,
            pd,
            valid,
            ..
        } = region;
        assert_eq!((key, region.key), (mr.key, mr.key));
        assert_eq!((iova, length, valid), (mr.iova, Some(MR as u64), true));
        assert_eq!((access, pd), (access::LOCAL_WRITE, world.nodes[1].guest.pd));
    }
    // The key does not belong to the requester, which has the completion queue with the completion.
    let here = trace(&mut world, 0);
    let seen = objects(&here, is_error);
    let [Object::Cq(cq)] = seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(
        (cq.number, cq.unread, cq.exact),
        (c.send_cqs[0].cqn, Some(1), true)
    );
    assert_eq!((cq.armed, cq.failed), (Some(false), false));
}

#[test]
fn a_key_names_nothing_or_what_was_removed() {
    let (mut world, mut c) = connection(2);
    let wrong = c.mrs[1].key ^ 0x5a5a_0000;
    write(&mut world, &mut c, wrong);
    let seen = objects(&trace(&mut world, 1), is_nak);
    assert!(
        matches!(seen[..], [Object::Key(_, Named::Nothing)]),
        "{seen:?}"
    );

    let (mut world, mut c) = connection(3);
    let node = &mut world.nodes[1];
    let key = c.mrs[1].key;
    let gone = DeregisterMr {
        pd: node.guest.pd.into(),
        key: key.into(),
    };
    node.guest
        .command(&mut node.rnic, gone)
        .expect("deregister");
    write(&mut world, &mut c, key);
    let seen = objects(&trace(&mut world, 1), is_nak);
    assert!(
        matches!(seen[..], [Object::Key(_, Named::Removed)]),
        "{seen:?}"
    );
}

#[test]
fn a_failed_request_has_its_queue_and_its_local_key() {
    let (mut world, mut c) = connection(4);
    let mut sge = c.mrs[0].sge(0, 100);
    sge.lkey = (c.mrs[0].key ^ 1).into();
    c.send_cqs[0].arm(true);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send).element(sge));
    world.settle();
    let seen = objects(&trace(&mut world, 0), is_error);
    let [Object::Cq(cq), Object::Key(key, Named::Region(region))] = seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!((cq.unread, cq.armed), (Some(1), Some(true)));
    assert_eq!((key, region.key), (c.mrs[0].key ^ 1, c.mrs[0].key));
}

#[test]
fn a_queue_that_overran_is_there_with_its_event() {
    let (mut world, mut c) = connection(5);
    let entries = 2 * QpOptions::default().entries;
    for wr_id in 0..=entries {
        c.send(
            &mut world,
            0,
            &Send::new(wr_id.into(), SendOpcode::Write).rdma(c.mrs[1].iova, c.mrs[1].key),
        );
        world.settle();
    }
    while world.nodes[0].rnic.next_async_event().is_some() {}
    let fatal = EventType::CqError.raw();
    let seen = objects(
        &trace(&mut world, 0),
        |act| matches!(act, Act::Raised(event) if event.event_type.get() == fatal),
    );
    let [Object::Cq(cq)] = seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(
        (cq.unread, cq.entries, cq.failed),
        (Some(entries), entries, true)
    );
}

/// Tracing does not change what is recorded, and a replay has the same objects as the device.
#[test]
fn a_replay_has_the_same_objects() {
    let (mut world, mut c) = connection(6);
    let wrong = c.mrs[1].key ^ 0x5a5a_0000;
    write(&mut world, &mut c, wrong);
    let live = [0, 1].map(|node| trace(&mut world, node));
    for (recording, live) in world.recordings().iter().zip(live) {
        let mut player = Player::new(recording).expect("recording");
        player.trace(clock, 0, 0);
        while let Some(step) = player.next() {
            step.expect("it replays");
        }
        let page = player.trace(clock, 0, usize::MAX);
        let objects = objects(&page, |act| is_nak(act) || is_error(act));
        assert_eq!(objects.len(), 1, "{objects:?}");
        match objects[0] {
            Object::Key(_, named) => assert!(matches!(named, Named::Nothing)),
            Object::Cq(cq) => {
                assert_eq!((cq.unread, cq.exact, cq.armed), (Some(1), false, None));
            }
            Object::Srq(srq) => panic!("{srq:?}"),
        }
        assert_eq!(
            page.steps.len() - live.steps.len(),
            page.steps
                .iter()
                .take_while(|step| matches!(step.act, Act::Moved { .. }))
                .count()
        );
    }
}
