// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flushes and atomic writes (IBTA volume 1, annex A19).

use std::time::Duration;
use vrnic_engine::{
    Cause, Features, RnicConfig,
    segment::{Body, Flush, Payload, Reth},
    testing::{Connection, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{RegisterMr, Status as CommandStatus},
    completion::{Opcode, Status},
    counter::Counter,
    memory::access,
    qp::{QpAttributes, QpState},
    work::{FlushTarget, Selectivity, SendOpcode, placement},
};

const MR: usize = 1 << 16;

fn connected_with(seed: u64, change: impl Fn(usize, &mut QpAttributes)) -> (World, Connection) {
    let mut world = World::pair(seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, change);
    (world, c)
}

fn connected(seed: u64) -> (World, Connection) {
    connected_with(seed, |_, _| {})
}

fn flush(c: &Connection, wr_id: u64) -> Send {
    let (iova, key) = (c.mrs[1].iova, c.mrs[1].key);
    Send::new(wr_id, SendOpcode::Flush).flush(iova, key, MR as u32, placement::GLOBAL)
}

/// Builds an atomic write of `value` to byte `offset` of the peer's region.
fn store(c: &Connection, wr_id: u64, offset: u64, value: u64) -> Send {
    let (iova, key) = (c.mrs[1].iova, c.mrs[1].key);
    Send::new(wr_id, SendOpcode::AtomicWrite).atomic(iova + offset, key, 0, value)
}

/// Returns the status of a request, and the responder's explanation.
fn outcome(world: &mut World, c: &mut Connection, send: &Send) -> (Status, Option<Cause>) {
    c.send(world, 0, send);
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 1);
    let told = world.nodes[1].rnic.next_explanation();
    (done[0].status, told.and_then(|told| told.cause))
}

#[test]
fn an_atomic_write_stores_eight_bytes() {
    let (mut world, mut c) = connected(1);
    c.mrs[1].arena.put(56, &[0xff; 24]);
    c.send(&mut world, 0, &store(&c, 1, 64, 0x0807_0605_0403_0201));
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!((done[0].wr_id, done[0].status), (1, Status::Success));
    assert_eq!(done[0].opcode, Opcode::AtomicWrite);
    let mut expected = [0xff; 24];
    expected[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(c.mrs[1].arena.get(56, 24), expected);
}

#[test]
fn a_flush_follows_the_writes_before_it() {
    let (mut world, mut c) = connected(2);
    c.mrs[0].arena.put(0, b"to be seen");
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 10));
    c.send(&mut world, 0, &write);
    c.send(&mut world, 0, &flush(&c, 2));
    let done = (0..1000).find_map(|_| {
        world.run(Duration::from_micros(1));
        c.send_cqs[0].drain().pop().filter(|done| done.wr_id == 2)
    });
    assert_eq!(done.map(|done| done.status), Some(Status::Success));
    assert_eq!(c.mrs[1].arena.get(0, 10), b"to be seen");
    let counters = world.nodes[0].rnic.counters();
    assert_eq!(counters[Counter::FlushRequests as usize], 1);
}

#[test]
fn all_of_a_region_is_flushed_without_its_address() {
    let (mut world, mut c) = connected(3);
    let whole = |rkey: u32, bits| {
        Send::new(1, SendOpcode::Flush).target(&FlushTarget {
            address: 1.into(),
            rkey: rkey.into(),
            length: u32::MAX.into(),
            placement: bits,
            selectivity: Selectivity::Region.raw(),
            ..FlushTarget::default()
        })
    };
    let send = whole(c.mrs[1].key, placement::GLOBAL);
    assert_eq!(outcome(&mut world, &mut c, &send), (Status::Success, None));
    let send = whole(c.mrs[1].key ^ 0x100, placement::GLOBAL);
    assert_eq!(
        outcome(&mut world, &mut c, &send),
        (Status::RemoteAccess, Some(Cause::RemoteKey))
    );
}

#[test]
fn each_fault_has_its_error() {
    type Make = fn(&Connection) -> Send;
    let invalid = Status::RemoteInvalidRequest;
    let faults: [(Make, (Status, Option<Cause>)); 8] = [
        (
            |c| store(c, 1, 4, 0),
            (invalid, Some(Cause::AtomicAlignment)),
        ),
        (
            |c| store(c, 1, MR as u64, 0),
            (Status::RemoteAccess, Some(Cause::RemoteBounds)),
        ),
        (
            |c| Send::new(1, SendOpcode::AtomicWrite).atomic(c.mrs[1].iova, 5, 0, 0),
            (Status::RemoteAccess, Some(Cause::RemoteKey)),
        ),
        (
            |c| {
                let (iova, key) = (c.mrs[1].iova + 1, c.mrs[1].key);
                Send::new(1, SendOpcode::Flush).flush(iova, key, MR as u32, placement::GLOBAL)
            },
            (Status::RemoteAccess, Some(Cause::RemoteBounds)),
        ),
        (
            |c| Send::new(1, SendOpcode::Flush).flush(c.mrs[1].iova, c.mrs[1].key, 1, 0),
            (Status::LocalQueuePairOperation, None),
        ),
        (
            |c| Send::new(1, SendOpcode::Flush).flush(c.mrs[1].iova, c.mrs[1].key, 1, 4),
            (Status::LocalQueuePairOperation, None),
        ),
        (
            |c| store(c, 1, 0, 0).element(c.mrs[0].sge(0, 8)),
            (Status::LocalQueuePairOperation, None),
        ),
        (
            |c| store(c, 1, 0, 0).inline(&[0; 8]),
            (Status::LocalQueuePairOperation, None),
        ),
    ];
    for (index, (make, expected)) in faults.into_iter().enumerate() {
        let (mut world, mut c) = connected(4);
        let send = make(&c);
        let outcome = outcome(&mut world, &mut c, &send);
        assert_eq!(outcome, expected, "fault {index}");
        assert_eq!(c.mrs[1].arena.get(0, 16), [0; 16]);
    }
}

#[test]
fn a_region_that_gives_no_persistence_refuses_it() {
    let (mut world, mut c) = connected(5);
    let node = &mut world.nodes[1];
    let rights = access::QUEUE_PAIR | access::FLUSH_GLOBAL;
    c.mrs[1] = node.guest.mr(&mut node.rnic, MR, rights);
    let (iova, key) = (c.mrs[1].iova, c.mrs[1].key);
    for bits in [placement::PERSISTENT, placement::ALL] {
        let send = Send::new(1, SendOpcode::Flush).flush(iova, key, 1, bits);
        assert_eq!(
            outcome(&mut world, &mut c, &send),
            (Status::RemoteAccess, Some(Cause::RemoteRights))
        );
        (world, c) = connected(5);
        let node = &mut world.nodes[1];
        c.mrs[1] = node.guest.mr(&mut node.rnic, MR, rights);
    }
}

#[test]
fn the_queue_pair_must_grant_it() {
    let read = access::REMOTE_READ;
    let add = |c: &Connection, wr_id| {
        Send::new(wr_id, SendOpcode::FetchAdd)
            .atomic(c.mrs[1].iova, c.mrs[1].key, 1, 0)
            .element(c.mrs[0].sge(0, 8))
    };
    let makes: [fn(&Connection, u64) -> Send; 3] = [flush, |c, wr_id| store(c, wr_id, 0, 1), add];
    for make in makes {
        let (mut world, mut c) = connected_with(6, |_, attributes| attributes.access = read.into());
        let send = make(&c, 1);
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(
            c.send_cqs[0].drain()[0].status,
            Status::RemoteInvalidRequest
        );
        let told = world.nodes[1].rnic.next_explanation().expect("told");
        assert_eq!(told.cause, Some(Cause::RemoteRights));
        let access = told.access.expect("which access");
        assert_eq!((access.key, access.address), (c.mrs[1].key, c.mrs[1].iova));
    }
}

/// The peer may have as many outstanding as were granted to it, and no more. Not every device counts flushes.
#[test]
fn many_at_once() {
    let depth = |peers: u8| {
        move |side: usize, attributes: &mut QpAttributes| {
            if side == 0 {
                attributes.max_rd_atomic = 16;
            } else {
                attributes.max_dest_rd_atomic = peers;
            }
        }
    };
    let (mut world, mut c) = connected_with(7, depth(16));
    for wr_id in 0..60 {
        let send = if wr_id % 2 == 0 {
            flush(&c, wr_id)
        } else {
            store(&c, wr_id, 8 * wr_id, wr_id)
        };
        c.send(&mut world, 0, &send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 60);
    assert!(done.iter().all(|done| done.status == Status::Success));

    let (mut world, mut c) = connected_with(8, depth(1));
    for wr_id in 0..60 {
        c.send(&mut world, 0, &flush(&c, wr_id));
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert!(done.iter().all(|done| done.status == Status::Success));
}

#[test]
fn a_lost_answer_does_not_repeat_an_atomic_write() {
    let (mut world, mut c) = connected(9);
    world.filter = Some(|segment| !segment.body.is_response());
    c.send(&mut world, 0, &store(&c, 1, 0, 1));
    c.send(&mut world, 0, &flush(&c, 2));
    world.run(Duration::from_millis(1));
    assert_eq!(c.mrs[1].arena.get(0, 8), 1u64.to_le_bytes());
    // Its owner continues to use the word meanwhile.
    c.mrs[1].arena.put(0, &2u64.to_le_bytes());
    world.run(Duration::from_millis(2));
    world.filter = None;
    world.settle();
    let done = c.send_cqs[0].drain();
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(done.len(), 2);
    assert_eq!(c.mrs[1].arena.get(0, 8), 2u64.to_le_bytes());
}

/// Packets of a peer whose device does not check as this one does.
#[test]
fn malformed_requests_are_refused() {
    type Make = fn(Reth) -> (Body, usize);
    let reth = |c: &Connection, length| Reth {
        address: c.mrs[1].iova,
        rkey: c.mrs[1].key,
        length,
    };
    let kinds: [(u32, Make, Cause); 4] = [
        (8, |reth| (Body::AtomicWrite(reth), 4), Cause::PacketLength),
        (8, |reth| (Body::AtomicWrite(reth), 16), Cause::PacketLength),
        (4, |reth| (Body::AtomicWrite(reth), 8), Cause::PacketLength),
        (
            8,
            |remote| {
                let kind = Flush {
                    remote,
                    placement: placement::GLOBAL,
                    selectivity: 3,
                };
                (Body::FlushRequest(kind), 0)
            },
            Cause::FlushKind,
        ),
    ];
    for (length, make, cause) in kinds {
        let (mut world, c) = connected(10);
        c.mrs[1].arena.put(0, &[0xee; 16]);
        let (body, payload) = make(reth(&c, length));
        let payload = match payload {
            0 => Payload::Empty,
            length => Payload::Bytes(vec![0xff; length]),
        };
        world.deliver(c.packet(0, 0xff_fff0, body, payload));
        world.settle();
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
        let told = world.nodes[1].rnic.next_explanation().expect("told");
        assert_eq!(told.cause, Some(cause));
        assert_eq!(c.mrs[1].arena.get(0, 16), [0xee; 16]);
    }
}

#[test]
fn without_the_feature_there_is_nothing_of_it() {
    let config = RnicConfig {
        features: Features {
            memory_placement: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 11);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let send = flush(&c, 1);
    let expected = (Status::LocalQueuePairOperation, None);
    assert_eq!(outcome(&mut world, &mut c, &send), expected);

    let node = &mut world.nodes[0];
    let arena = node.guest.arena(MR);
    let rights = access::LOCAL_WRITE | access::FLUSH_GLOBAL;
    let (pages, _chunks) = node.guest.page_list(&arena, 0, MR);
    let request = RegisterMr {
        pd: node.guest.pd.into(),
        access: rights.into(),
        pages,
        ..RegisterMr::default()
    };
    let refused = node.guest.command(&mut node.rnic, request).unwrap_err();
    assert_eq!(refused.0, CommandStatus::InvalidArgument);

    // A peer that has the feature.
    let mut world = World::of(&[RnicConfig::default(), config], 2048, 12);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    c.mrs[1].arena.put(0, &[0xee; 8]);
    let store = Send::new(1, SendOpcode::AtomicWrite).atomic(c.mrs[1].iova, c.mrs[1].key, 0, 7);
    c.send(&mut world, 0, &store);
    world.settle();
    assert_eq!(
        c.send_cqs[0].drain()[0].status,
        Status::RemoteInvalidRequest
    );
    assert_eq!(c.mrs[1].arena.get(0, 8), [0xee; 8]);
}
