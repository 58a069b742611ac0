// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Path migration: connections migrate to another path on their own, with their peer, or at their owner's request.
//!
//! Each device has two GIDs or LIDs. One path is between the first ones, and another between the second ones.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};
use vrnic_engine::{
    Cause, Features, LinkLayer, RnicConfig, Segment, Segmentation,
    segment::{Body, LidRoute, Path, Payload, Position, SendTail},
    testing::{
        ALTERNATE_TIMEOUT, Connection, Faults, QpOptions, Send, World, lid_of, migration,
        second_gid_of,
    },
};
use vrnic_wire::{
    command::{CommandCode, CommandHeader, ModifyQp, ReplyHeader, Status as CommandStatus},
    completion::Status,
    counter::Counter,
    event::EventType,
    qp::{
        AlternatePath, Migration, QpAttributes, QpState, QpType,
        attribute::{ALTERNATE_PATH, PATH_MIGRATION_STATE, SQ_PSN, STATE},
    },
    work::SendOpcode,
};
use zerocopy::{FromBytes, IntoBytes};

const MR: usize = 1 << 20;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fabric {
    Local,
    Wire,
    InfiniBand,
}

const FABRICS: [Fabric; 3] = [Fabric::Local, Fabric::Wire, Fabric::InfiniBand];

fn world_with(fabric: Fabric, features: Features) -> World {
    let config = RnicConfig {
        segmentation: match fabric {
            Fabric::Local => Segmentation::Local,
            _ => Segmentation::PathMtu,
        },
        link_layer: match fabric {
            Fabric::InfiniBand => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        },
        features,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 1);
    world.add_second_paths();
    // A subnet manager has just come.
    (0..2).for_each(|node| drop(events(&mut world, node)));
    world
}

fn world(fabric: Fabric) -> World {
    world_with(fabric, Features::ALL)
}

fn connect(world: &mut World, qp_type: QpType) -> Connection {
    let options = QpOptions {
        qp_type,
        ..QpOptions::default()
    };
    let addresses = [0, 1].map(|side| world.address_of(1 - side, false));
    let c = world.connect([0, 1], &options, MR, |side, attributes| {
        attributes.address = addresses[side];
    });
    for mr in &c.mrs {
        mr.arena.put(0, &vec![7; MR]);
    }
    c
}

fn events(world: &mut World, node: usize) -> Vec<EventType> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_async_event())
        .map(|event| EventType::try_from(event.event_type.get()).expect("event type"))
        .collect()
}

/// Performs a write of one side, which must arrive.
fn write(world: &mut World, c: &mut Connection, side: usize) {
    let request = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1 - side].iova, c.mrs[1 - side].key)
        .element(c.mrs[side].sge(0, 3000));
    c.send(world, side, &request);
    world.settle();
    let done = c.send_cqs[side].drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, Status::Success);
}

/// Arms both ends for migration to the second or first path.
fn arm(world: &mut World, c: &mut Connection, second: bool) {
    for side in 0..2 {
        c.rearm(world, side, second);
    }
    // The second side learns of the first from a request, and the first of the second from the answer.
    write(world, c, 0);
    assert_eq!(c.migrations(world), [Migration::Armed; 2]);
}

/// Returns whether a packet is on the second path.
fn is_second(segment: &Segment) -> bool {
    match segment.path.lids {
        Some(lids) => lids.destination & 3 == 1,
        None => segment.path.destination[14] == 1,
    }
}

thread_local! {
    /// MigReq of the sent packets of each node.
    static BITS: RefCell<[Vec<bool>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
    /// The path that loses all packets: whether it is the second.
    static BROKEN: Cell<Option<bool>> = const { Cell::new(None) };
}

fn note(segment: &Segment) -> bool {
    let from = match segment.path.lids {
        Some(lids) => usize::from(lids.source >= lid_of(1)),
        None => usize::from(segment.path.source[15] == 2),
    };
    BITS.with_borrow_mut(|bits| bits[from].push(segment.migrated));
    BROKEN.get() != Some(is_second(segment))
}

fn watch(world: &mut World) {
    BITS.set(Default::default());
    BROKEN.set(None);
    world.filter = Some(note);
}

/// Returns MigReq of the packets of each node since the last call, without repetitions.
fn bits() -> [Vec<bool>; 2] {
    BITS.take().map(|mut bits| {
        bits.dedup();
        bits
    })
}

#[test]
fn both_ends_have_to_load_a_path_before_they_are_armed() {
    for fabric in FABRICS {
        for qp_type in [QpType::ReliableConnection, QpType::UnreliableConnection] {
            let mut world = world(fabric);
            let mut c = connect(&mut world, qp_type);
            watch(&mut world);
            let reliable = qp_type == QpType::ReliableConnection;
            let answered = |bit| if reliable { vec![bit] } else { Vec::new() };
            write(&mut world, &mut c, 0);
            assert_eq!(c.migrations(&mut world), [Migration::Migrated; 2]);
            assert_eq!(bits(), [vec![true], answered(true)]);

            c.rearm(&mut world, 0, true);
            write(&mut world, &mut c, 0);
            // The peer's packets say that it has no other path.
            write(&mut world, &mut c, 1);
            let one = [Migration::Rearm, Migration::Migrated];
            assert_eq!(c.migrations(&mut world), one, "{fabric:?}");
            assert_eq!(bits()[0], [false]);

            c.rearm(&mut world, 1, true);
            let both = [Migration::Rearm; 2];
            assert_eq!(c.migrations(&mut world), both, "nothing was sent");
            write(&mut world, &mut c, 1);
            if !reliable {
                let one = [Migration::Armed, Migration::Rearm];
                assert_eq!(c.migrations(&mut world), one, "nothing is answered");
                write(&mut world, &mut c, 0);
            }
            assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);
            assert_eq!(bits()[1], [false]);
            for side in 0..2 {
                assert_eq!(events(&mut world, side), [], "{fabric:?}");
                let paths = world.paths(side, c.qps[side].qpn);
                assert_eq!(paths.alternate, world.alternate_of(1 - side, true));
                assert_eq!(paths.attributes.timeout, if reliable { 8 } else { 0 });
            }
            assert_eq!(c.use_second(&mut world), [false; 2]);
        }
    }
}

/// Traffic of all kinds in both directions, during which the path in use breaks.
#[test]
fn a_connection_outlives_its_path() {
    for fabric in FABRICS {
        for delay in [0, 300, 3000, 30_000] {
            let mut world = world(fabric);
            let mut c = connect(&mut world, QpType::ReliableConnection);
            watch(&mut world);
            c.mrs[0].arena.put(0, &[0; 8]);
            c.mrs[1].arena.put(0, &[0; 8]);
            arm(&mut world, &mut c, true);
            for side in 0..2 {
                c.mrs[side].arena.put(0, &[0; 8]);
                let (iova, key) = (c.mrs[1 - side].iova, c.mrs[1 - side].key);
                for round in 0..8 {
                    c.receive(&mut world, side, round, &[]);
                }
                for round in 0..8 {
                    let sge = |offset, length| c.mrs[side].sge(offset, length);
                    let mine = 100_000 * (side + 1);
                    let (send, write, read, add) = (
                        Send::new(4 * round, SendOpcode::Send),
                        Send::new(4 * round + 1, SendOpcode::Write)
                            .rdma(iova + mine as u64, key)
                            .element(sge(400_000, 50_000)),
                        Send::new(4 * round + 2, SendOpcode::Read)
                            .rdma(iova + 500_000, key)
                            .element(sge(600_000, 50_000)),
                        Send::new(4 * round + 3, SendOpcode::FetchAdd)
                            .atomic(iova, key, 1, 0)
                            .element(sge(700_000, 8)),
                    );
                    for request in [send, write, read, add] {
                        c.send(&mut world, side, &request);
                    }
                }
            }
            let breaks = world.now + Duration::from_nanos(delay);
            while world.now < breaks {
                world.step();
                world.now = world.now + Duration::from_nanos(200);
            }
            BROKEN.set(Some(false));
            for side in 0..2 {
                // In case all others have completed.
                let last = Send::new(32, SendOpcode::Write);
                c.send(&mut world, side, &last);
            }
            world.settle();
            for side in 0..2 {
                let done = c.send_cqs[side].drain();
                let names: Vec<u64> = done.iter().map(|cqe| cqe.wr_id).collect();
                assert_eq!(names, (0..33).collect::<Vec<u64>>(), "{fabric:?} {delay}");
                assert!(done.iter().all(|cqe| cqe.status == Status::Success));
                assert_eq!(c.recv_cqs[side].drain().len(), 8);
                assert_eq!(c.mrs[side].arena.get(0, 8), [8, 0, 0, 0, 0, 0, 0, 0]);
                assert_eq!(events(&mut world, side), [EventType::PathMigrated]);
                let paths = world.paths(side, c.qps[side].qpn);
                assert_eq!(paths.attributes.timeout, ALTERNATE_TIMEOUT);
                assert_eq!(paths.alternate, world.alternate_of(1 - side, true));
            }
            assert_eq!(c.migrations(&mut world), [Migration::Migrated; 2]);
            assert_eq!(c.use_second(&mut world), [true; 2]);

            // It migrates back when the other path breaks.
            BROKEN.set(None);
            arm(&mut world, &mut c, false);
            BROKEN.set(Some(true));
            write(&mut world, &mut c, 1);
            for side in 0..2 {
                assert_eq!(events(&mut world, side), [EventType::PathMigrated]);
            }
            assert_eq!(c.use_second(&mut world), [false; 2]);
        }
    }
}

#[test]
fn who_is_not_armed_fails() {
    for fabric in FABRICS {
        let mut world = world(fabric);
        let mut c = connect(&mut world, QpType::ReliableConnection);
        watch(&mut world);
        c.rearm(&mut world, 0, true);
        write(&mut world, &mut c, 0);
        BROKEN.set(Some(false));
        c.send(&mut world, 0, &Send::new(1, SendOpcode::Write));
        world.settle();
        let done = c.send_cqs[0].drain();
        assert_eq!(done[0].status, Status::RetryExceeded, "{fabric:?}");
        assert_eq!(events(&mut world, 0), []);
    }
}

#[test]
fn both_paths_may_be_broken() {
    let fabric = Fabric::Wire;
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    arm(&mut world, &mut c, true);
    world.filter = Some(|_| false);
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Write));
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::RetryExceeded);
    assert_eq!(events(&mut world, 0), [EventType::PathMigrated]);
    assert_eq!(events(&mut world, 1), []);
    let exceeded = world.nodes[0].rnic.counters()[Counter::RetryExceeded as usize];
    assert_eq!(exceeded, 1, "the first time it helped");
}

#[test]
fn an_owner_migrates_and_the_peer_follows() {
    for fabric in FABRICS {
        for qp_type in [QpType::ReliableConnection, QpType::UnreliableConnection] {
            let mut world = world(fabric);
            let mut c = connect(&mut world, qp_type);
            watch(&mut world);
            for second in [true, false, true] {
                for side in 0..2 {
                    c.rearm(&mut world, side, second);
                }
                write(&mut world, &mut c, 0);
                write(&mut world, &mut c, 1);
                bits();
                assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
                let one = [Migration::Migrated, Migration::Armed];
                assert_eq!(c.migrations(&mut world), one, "the peer does not know");
                write(&mut world, &mut c, 0);
                assert_eq!(c.migrations(&mut world), [Migration::Migrated; 2]);
                write(&mut world, &mut c, 1);
                assert_eq!(c.use_second(&mut world), [second; 2]);
                assert_eq!(events(&mut world, 0), [], "it asked for that");
                assert_eq!(events(&mut world, 1), [EventType::PathMigrated]);
                assert_eq!(bits(), [[true], [true]]);
                // It is already in this state.
                assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
            }
        }
    }
}

/// An owner that rearms as soon as it has migrated does not lose a peer that has not followed yet.
#[test]
fn a_peer_can_follow_when_the_owner_has_rearmed() {
    for fabric in FABRICS {
        for qp_type in [QpType::ReliableConnection, QpType::UnreliableConnection] {
            let mut world = world(fabric);
            let mut c = connect(&mut world, qp_type);
            for side in 0..2 {
                c.rearm(&mut world, side, true);
            }
            write(&mut world, &mut c, 0);
            write(&mut world, &mut c, 1);
            assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);
            watch(&mut world);
            assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
            c.rearm(&mut world, 0, false);
            write(&mut world, &mut c, 0);
            let both = [Migration::Rearm, Migration::Migrated];
            assert_eq!(c.migrations(&mut world), both, "{fabric:?}");
            assert_eq!(c.use_second(&mut world), [true; 2]);
            assert_eq!(events(&mut world, 1), [EventType::PathMigrated]);
            write(&mut world, &mut c, 1);
            c.rearm(&mut world, 1, false);
            write(&mut world, &mut c, 0);
            write(&mut world, &mut c, 1);
            assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);
        }
    }
}

/// After a migration, the alternate path is the path in use, which nobody can migrate to.
#[test]
fn a_path_cannot_be_its_own_alternate() {
    for fabric in FABRICS {
        let mut world = world(fabric);
        let mut c = connect(&mut world, QpType::ReliableConnection);
        arm(&mut world, &mut c, true);
        assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
        write(&mut world, &mut c, 0);
        let refused = Err((CommandStatus::BadState, Cause::MigrationState));
        for side in 0..2 {
            assert_eq!(c.set_migration(&mut world, side, Migration::Rearm), refused);
            let wanted = migration(PATH_MIGRATION_STATE | ALTERNATE_PATH, Migration::Rearm);
            let used = world.alternate_of(1 - side, true);
            assert_eq!(
                world.modify_paths(side, c.qps[side].qpn, wanted, used),
                refused
            );
        }
        assert_eq!(c.migrations(&mut world), [Migration::Migrated; 2]);
    }
}

/// Two paths may have the same addresses and different P_Keys.
#[test]
fn a_path_may_differ_by_its_pkey() {
    let fabric = Fabric::InfiniBand;
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    for side in 0..2 {
        let wanted = migration(PATH_MIGRATION_STATE | ALTERNATE_PATH, Migration::Rearm);
        let mut alternate = world.alternate_of(1 - side, false);
        alternate.pkey_index = 1.into();
        let done = world.modify_paths(side, c.qps[side].qpn, wanted, alternate);
        assert_eq!(done, Ok(()));
    }
    write(&mut world, &mut c, 0);
    assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);
    let qpns = [0, 1].map(|side| c.qps[side].qpn);
    let indices = |world: &mut World| {
        [0, 1].map(|side| world.paths(side, qpns[side]).attributes.pkey_index.get())
    };
    // It was sent before the peer was armed, and overtaken by later packets.
    let mut late = forged(&c, 0xff_fff0);
    late.path = Path {
        lids: Some(LidRoute {
            source: lid_of(1),
            destination: lid_of(0),
            global: false,
        }),
        ..Path::default()
    };
    c.receive(&mut world, 0, 5, &[]);
    world.deliver(late);
    assert_eq!(c.recv_cqs[0].drain().len(), 1);
    assert_eq!(c.migrations(&mut world)[0], Migration::Armed);
    assert_eq!(indices(&mut world), [0, 0]);

    assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
    write(&mut world, &mut c, 0);
    assert_eq!(c.migrations(&mut world), [Migration::Migrated; 2]);
    assert_eq!(indices(&mut world), [1, 1]);
    assert_eq!(events(&mut world, 0), []);
    assert_eq!(events(&mut world, 1), [EventType::PathMigrated]);
}

/// When the owner migrates, requests in flight are sent again immediately, not after a timeout.
#[test]
fn who_migrates_does_not_wait_for_a_timeout() {
    let fabric = Fabric::Wire;
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    arm(&mut world, &mut c, true);
    watch(&mut world);
    BROKEN.set(Some(false));
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Write));
    while world.step() {}
    let before = world.now;
    assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
    world.run(Duration::ZERO);
    assert_eq!(c.send_cqs[0].drain().len(), 1);
    assert!(world.now - before < Duration::from_micros(100));
    assert_eq!(c.use_second(&mut world), [true; 2]);
}

#[test]
fn only_some_steps_exist() {
    let fabric = Fabric::Local;
    let refused = |cause| {
        let status = match cause {
            Cause::MigrationState | Cause::Transition => CommandStatus::BadState,
            Cause::ReservedField => CommandStatus::Malformed,
            _ => CommandStatus::InvalidArgument,
        };
        Err((status, cause))
    };
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    let bad = refused(Cause::AttributeValue);
    assert_eq!(c.set_migration(&mut world, 0, Migration::Armed), bad);
    let step = refused(Cause::MigrationState);
    assert_eq!(
        c.set_migration(&mut world, 0, Migration::Rearm),
        step,
        "no path"
    );
    assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), Ok(()));
    let qpn = c.qps[0].qpn;
    let mut load = |change: fn(&mut QpAttributes, &mut AlternatePath)| {
        let mut wanted = migration(ALTERNATE_PATH, Migration::Migrated);
        let mut path = world.alternate_of(1, true);
        change(&mut wanted, &mut path);
        world.modify_paths(0, qpn, wanted, path)
    };
    assert_eq!(load(|_, path| path.port = 2), bad);
    assert_eq!(load(|_, path| path.port = 0), bad);
    assert_eq!(load(|_, path| path.timeout = 32), bad);
    assert_eq!(load(|_, path| path.pkey_index = 1.into()), bad);
    let no_gid = refused(Cause::GidIndex);
    assert_eq!(load(|_, path| path.address.sgid_index = 9), no_gid);
    let reserved = refused(Cause::ReservedField);
    assert_eq!(load(|_, path| path.reserved = 1.into()), reserved);
    let no_state = |wanted: &mut QpAttributes, _: &mut AlternatePath| {
        wanted.mask = (ALTERNATE_PATH | PATH_MIGRATION_STATE).into();
        wanted.path_migration_state = 3;
    };
    assert_eq!(load(no_state), bad);
    let forbidden = refused(Cause::AttributeForbidden);
    let wrong = |wanted: &mut QpAttributes, _: &mut AlternatePath| {
        wanted.mask = (ALTERNATE_PATH | SQ_PSN).into();
    };
    assert_eq!(load(wrong), forbidden);
    assert_eq!(world.paths(0, qpn).alternate, AlternatePath::default());

    arm(&mut world, &mut c, true);
    assert_eq!(c.set_migration(&mut world, 0, Migration::Armed), bad);
    // Another path can be loaded. After that, both ends have to agree again.
    assert_eq!(c.set_migration(&mut world, 0, Migration::Rearm), Ok(()));
    assert_eq!(c.set_migration(&mut world, 0, Migration::Migrated), step);
    assert_eq!(
        c.migrations(&mut world),
        [Migration::Rearm, Migration::Armed]
    );
    write(&mut world, &mut c, 0);
    assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);

    // A reset clears all of it.
    let reset = QpAttributes {
        mask: STATE.into(),
        state: QpState::Reset.raw(),
        ..QpAttributes::default()
    };
    world.modify(0, qpn, reset);
    let paths = world.paths(0, qpn);
    assert_eq!(paths.alternate, AlternatePath::default());
    assert_eq!(
        paths.attributes.path_migration_state,
        Migration::Migrated.raw()
    );
}

/// Returns a packet for a connection that a stranger, or a peer with other paths, could send.
fn forged(c: &Connection, psn: u32) -> Segment<'static> {
    let body = Body::Send {
        position: Position::Only,
        tail: SendTail::Plain,
    };
    c.packet(1, psn, body, Payload::Empty)
}

#[test]
fn a_path_that_is_not_loaded_is_not_taken() {
    let fabric = Fabric::Wire;
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    arm(&mut world, &mut c, true);
    let mut half = forged(&c, 0xff_fff0);
    half.path.destination = second_gid_of(0);
    half.migrated = true;
    let mut alien = half.clone();
    alien.path.source[0] ^= 1;
    let silent = {
        let mut arming = alien.clone();
        arming.migrated = false;
        let mut pkey = half.clone();
        pkey.pkey = 1;
        let mut notice = half.clone();
        notice.body = Body::CongestionNotification;
        [arming, pkey, notice]
    };
    for segment in silent {
        world.deliver(segment);
        assert_eq!(events(&mut world, 0), []);
    }
    for _ in 0..2 {
        for segment in [&half, &alien] {
            world.deliver(segment.clone());
        }
    }
    let told = world.nodes[0].rnic.next_async_event().expect("an event");
    assert_eq!(told.event_type.get(), EventType::PathMigrationError.raw());
    assert_eq!(told.vendor_error.get(), Cause::MigrationPath.code());
    world.deliver(half.clone());
    assert_eq!(events(&mut world, 0), [], "told once");
    assert_eq!(c.migrations(&mut world), [Migration::Armed; 2]);
    assert_eq!(c.recv_cqs[0].drain(), []);
    // It was sent before the peer was armed, and overtaken by later packets.
    let late = forged(&c, 0xff_fff0);
    assert!(late.migrated);
    c.receive(&mut world, 0, 5, &[]);
    world.deliver(late);
    assert_eq!(c.recv_cqs[0].drain().len(), 1);
    write(&mut world, &mut c, 0);
    assert_eq!(c.use_second(&mut world), [false; 2]);
    // The owner is told again after it has reacted.
    c.rearm(&mut world, 0, true);
    write(&mut world, &mut c, 0);
    world.deliver(half);
    assert_eq!(events(&mut world, 0), [EventType::PathMigrationError]);
}

/// A queue pair that is not armed does not follow its peer, and accepts nothing on a path that it does not use.
#[test]
fn who_is_not_armed_does_not_follow() {
    for state in [Migration::Migrated, Migration::Rearm] {
        let fabric = Fabric::Wire;
        let mut world = world(fabric);
        let c = connect(&mut world, QpType::ReliableConnection);
        if state == Migration::Rearm {
            c.rearm(&mut world, 0, true);
        }
        let dropped = |world: &World| world.nodes[0].rnic.counters()[Counter::Dropped as usize];
        let mut segment = forged(&c, 0xff_fff0);
        segment.path.source = second_gid_of(1);
        segment.path.destination = second_gid_of(0);
        let before = dropped(&world);
        world.deliver(segment);
        assert_eq!(dropped(&world), before + 1);
        assert_eq!(c.migrations(&mut world)[0], state);
        assert_eq!(events(&mut world, 0), []);
    }
}

/// Losses on both paths, and owners that migrate back and forth.
#[test]
fn nothing_is_lost_or_done_twice_on_bad_paths() {
    for fabric in FABRICS {
        for seed in 0..4 {
            let mut world = world(fabric);
            let mut c = connect(&mut world, QpType::ReliableConnection);
            for mr in &c.mrs {
                mr.arena.put(0, &[0; 8]);
            }
            world.faults = Faults {
                drop: 40 + 20 * seed,
                duplicate: 30,
                delay: 60,
                ..Faults::default()
            };
            let mut migrations = 0;
            for round in 0..40u64 {
                for side in 0..2 {
                    let (iova, key) = (c.mrs[1 - side].iova, c.mrs[1 - side].key);
                    let add = Send::new(2 * round, SendOpcode::FetchAdd)
                        .atomic(iova, key, 1, 0)
                        .element(c.mrs[side].sge(700_000, 8));
                    let write = Send::new(2 * round + 1, SendOpcode::Write)
                        .rdma(iova + 4096, key)
                        .element(c.mrs[side].sge(8192, 5000));
                    c.send(&mut world, side, &add);
                    c.send(&mut world, side, &write);
                }
                world.run(Duration::from_micros(50 * (1 + round % 5)));
                let who = (round as usize + seed as usize) % 2;
                migrations += u32::from(c.wander(&mut world, who));
                world.run(Duration::from_micros(30));
                if round % 8 == 7 {
                    world.settle();
                }
            }
            world.settle();
            for side in 0..2 {
                let done = c.send_cqs[side].drain();
                let names: Vec<u64> = done.iter().map(|cqe| cqe.wr_id).collect();
                assert_eq!(names, (0..80).collect::<Vec<u64>>(), "{fabric:?} {seed}");
                assert!(
                    done.iter().all(|cqe| cqe.status == Status::Success),
                    "{done:?}"
                );
                assert_eq!(c.mrs[side].arena.get(0, 8), [40, 0, 0, 0, 0, 0, 0, 0]);
                let told = events(&mut world, side);
                assert!(
                    told.iter().all(|event| *event == EventType::PathMigrated),
                    "{told:?}"
                );
            }
            assert!(migrations > 3, "{fabric:?} {seed}: {migrations}");
        }
    }
}

#[test]
fn without_the_feature_there_is_one_path() {
    let features = Features {
        path_migration: false,
        ..Features::ALL
    };
    let fabric = Fabric::Wire;
    let mut world = world_with(fabric, features);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    watch(&mut world);
    let node = &mut world.nodes[0];
    for (code, length) in [
        (CommandCode::ModifyQpPaths, 144),
        (CommandCode::QueryQpPaths, 8),
    ] {
        let header = CommandHeader {
            code: code.raw().into(),
            reserved: 0.into(),
            length: length.into(),
        };
        let mut request = header.as_bytes().to_vec();
        request.resize(request.len() + length as usize, 0);
        let reply = node.guest.raw_command(&mut node.rnic, &request);
        let (header, _) = ReplyHeader::read_from_prefix(&reply).expect("a header");
        assert_eq!(header.status.get(), CommandStatus::Unsupported.raw());
    }
    for mask in [ALTERNATE_PATH, PATH_MIGRATION_STATE] {
        let request = ModifyQp {
            qpn: c.qps[0].qpn.into(),
            reserved: 0.into(),
            attributes: migration(mask, Migration::Migrated),
        };
        let done = node.guest.command(&mut node.rnic, request).map(|_| ());
        let forbidden = (CommandStatus::InvalidArgument, Cause::AttributeForbidden);
        assert_eq!(done, Err(forbidden));
    }
    // Soft-RoCE never sets the bit.
    let mut segment = forged(&c, 0xff_fff0);
    segment.migrated = false;
    c.receive(&mut world, 0, 5, &[]);
    world.deliver(segment);
    world.settle();
    assert_eq!(c.recv_cqs[0].drain().len(), 1);
    assert_eq!(bits(), [vec![true], Vec::new()], "the acknowledgement");
}

/// MODIFY_QP has no room for an alternate path, but can change the state of the one that is loaded.
#[test]
fn the_short_command_knows_the_state_alone() {
    let fabric = Fabric::Local;
    let mut world = world(fabric);
    let mut c = connect(&mut world, QpType::ReliableConnection);
    arm(&mut world, &mut c, true);
    let node = &mut world.nodes[0];
    let mut modify = |mask, state| {
        let request = ModifyQp {
            qpn: c.qps[0].qpn.into(),
            reserved: 0.into(),
            attributes: migration(mask, state),
        };
        node.guest.command(&mut node.rnic, request).map(|_| ())
    };
    let forbidden = (CommandStatus::InvalidArgument, Cause::AttributeForbidden);
    assert_eq!(modify(ALTERNATE_PATH, Migration::Rearm), Err(forbidden));
    assert_eq!(modify(PATH_MIGRATION_STATE, Migration::Migrated), Ok(()));
    assert_eq!(c.use_second(&mut world), [true, false]);
}
