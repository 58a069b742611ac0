// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Keys that work requests change: fast registration, invalidation, and the local DMA key.

use vrnic_engine::{
    Budget, Cause, Features, Io, Outbox, RnicConfig, Segmentation,
    segment::{Body, Payload, Reth},
    testing::{Completion, Connection, FastMr, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AllocateMr, ContextKind, CreatePd, DeregisterMr, DestroyPd, MwType, QueryDevice,
        Status as CommandStatus,
    },
    completion::{Opcode, Status, flags},
    counter::Counter,
    memory::{KEY_INDEX_MASK, LOCAL_DMA_KEY, NULL_KEY, access},
    qp::QpState,
    work::{RegisterTarget, SendOpcode, Sge, send_flags},
};

const MR: usize = 1 << 16;
const IOVA: u64 = 0x5000_0000;
const RIGHTS: u32 = access::QUEUE_PAIR;

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

fn connected(seed: u64) -> (World, Connection) {
    let mut world = World::pair(seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    (world, c)
}

fn fast(world: &mut World, node: usize) -> FastMr {
    let Node { rnic, guest } = &mut world.nodes[node];
    guest.fast_mr(rnic, 16)
}

/// Builds a write of side 0 to side 1.
fn write(c: &Connection, wr_id: u64, address: u64, rkey: u32, bytes: &[u8]) -> Send {
    c.mrs[0].arena.put(0, bytes);
    Send::new(wr_id, SendOpcode::Write)
        .rdma(address, rkey)
        .element(c.mrs[0].sge(0, bytes.len()))
}

#[test]
fn a_region_is_registered_used_invalidated_and_registered_anew() {
    let (mut world, mut c) = connected(1);
    let mut mr = fast(&mut world, 1);
    let first = mr.key;
    let mut keys = vec![first];
    for round in 0..3u64 {
        let register = mr.register(10 * round, &c.mrs[1], RIGHTS, IOVA + round * 0x10000);
        c.send(&mut world, 1, &register);
        world.settle();
        let done = c.send_cqs[1].drain();
        assert_eq!(statuses(&done), [(10 * round, Status::Success)]);
        assert_eq!(
            (done[0].opcode, done[0].length),
            (Opcode::RegisterRegion, 0)
        );
        assert_eq!(mr.key & KEY_INDEX_MASK, first & KEY_INDEX_MASK);
        assert!(!keys.contains(&mr.key));
        keys.push(mr.key);

        let bytes = [round as u8 + 1; 9000];
        let address = IOVA + round * 0x10000 + 5000;
        let write = write(&c, 1, address, mr.key, &bytes);
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
        assert_eq!(c.mrs[1].arena.get(5000, 9000), bytes);

        c.send(&mut world, 1, &mr.invalidate(10 * round + 1));
        world.settle();
        let done = c.send_cqs[1].drain();
        assert_eq!(statuses(&done), [(10 * round + 1, Status::Success)]);
        assert_eq!(done[0].opcode, Opcode::LocalInvalidate);
    }
    let local = world.nodes[1].rnic.counters()[Counter::LocalRequests as usize];
    assert_eq!(local, 6);
    // None of the keys is valid any more.
    let stale = write(&c, 1, IOVA, keys[2], b"late");
    c.send(&mut world, 0, &stale);
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::RemoteAccess)]);
}

#[test]
fn addresses_of_a_registration_can_count_from_zero() {
    let (mut world, mut c) = connected(1);
    let mut mr = fast(&mut world, 1);
    let rights = RIGHTS | access::ZERO_BASED;
    for (offset, length) in [(0, 8192), (520, 9000), (4095, 2)] {
        let iova = (offset % 4096) as u64;
        let mut target = mr.target(&c.mrs[1].arena, offset, length, iova);
        target.access = rights.into();
        mr.key = target.key.get();
        let register = Send::new(1, SendOpcode::RegisterRegion).target(&target);
        c.send(&mut world, 1, &register);
        let bytes = vec![length as u8; length];
        let first = write(&c, 2, 0, mr.key, &bytes);
        world.settle();
        c.send(&mut world, 0, &first);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::Success)]);
        assert_eq!(c.mrs[1].arena.get(offset, length), bytes);
        c.send(&mut world, 1, &mr.invalidate(3));
        world.settle();
        let done = c.send_cqs[1].drain();
        let expected = [(1, Status::Success), (3, Status::Success)];
        assert_eq!(statuses(&done), expected);
    }
    // Nothing may be beyond the end, and no offset may be beyond the first page.
    let mut target = mr.target(&c.mrs[1].arena, 520, 100, 520);
    target.access = rights.into();
    mr.key = target.key.get();
    let register = Send::new(4, SendOpcode::RegisterRegion).target(&target);
    c.send(&mut world, 1, &register);
    world.settle();
    let beyond = write(&c, 5, 93, mr.key, b"beyond!!");
    c.send(&mut world, 0, &beyond);
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(5, Status::RemoteAccess)]);

    let (mut world, mut c) = connected(1);
    let mr = fast(&mut world, 1);
    let mut target = mr.target(&c.mrs[1].arena, 520, 100, 4096 + 520);
    target.access = rights.into();
    let register = Send::new(6, SendOpcode::RegisterRegion).target(&target);
    c.send(&mut world, 1, &register);
    world.settle();
    let done = c.send_cqs[1].drain();
    assert_eq!(statuses(&done), [(6, Status::MemoryManagement)]);
    assert_eq!(done[0].cause, Some(Cause::AccessRights));
}

#[test]
fn every_stale_key_is_refused() {
    for (registered, tried, cause) in [
        (false, 0, Cause::RemoteFree),
        (false, 1, Cause::RemoteKey),
        (true, 0, Cause::RemoteKey),
        (true, 2, Cause::RemoteKey),
    ] {
        let (mut world, mut c) = connected(2);
        let mut mr = fast(&mut world, 1);
        let first = mr.key;
        if registered {
            let register = mr.register(1, &c.mrs[1], RIGHTS, IOVA);
            c.send(&mut world, 1, &register);
            world.settle();
        }
        let key = first & KEY_INDEX_MASK | first.wrapping_add(tried) & 0xff;
        let write = write(&c, 1, IOVA, key, b"late");
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(1, Status::RemoteAccess)]
        );
        let event = world.nodes[1].rnic.next_async_event();
        let event = event.expect("access error");
        assert_eq!(Cause::from_code(event.vendor_error.get()), Some(cause));
    }
}

#[test]
fn registration_takes_effect_before_what_follows_it() {
    let (mut world, mut c) = connected(3);
    let mut mr = fast(&mut world, 0);
    c.mrs[0].arena.put(100, b"before");
    c.receive(&mut world, 1, 1, &[c.mrs[1].sge(0, 64)]);
    let register = mr.register(1, &c.mrs[0], access::LOCAL_WRITE, IOVA);
    let element = Sge {
        address: (IOVA + 100).into(),
        length: 6.into(),
        lkey: mr.key.into(),
    };
    let send = Send::new(2, SendOpcode::Send).element(element);
    for send in [register.unsignaled(), send, mr.invalidate(3)] {
        c.send(&mut world, 0, &send);
    }
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(2, Status::Success), (3, Status::Success)]
    );
    assert_eq!(c.mrs[1].arena.get(0, 6), b"before");

    // After it, the key cannot be used.
    c.send(
        &mut world,
        0,
        &Send::new(4, SendOpcode::Send).element(element),
    );
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(4, Status::LocalProtection)]);
    assert_eq!(done[0].cause, Some(Cause::LocalFree));
}

#[test]
fn an_invalidation_waits_for_what_is_under_way() {
    let (mut world, mut c) = connected(4);
    let mut mr = fast(&mut world, 0);
    let register = mr.register(1, &c.mrs[0], RIGHTS, IOVA);
    c.send(&mut world, 0, &register);
    // Nothing arrives: the read and the write have to be retransmitted, with the key.
    world.filter = Some(|_| false);
    let element = |offset: u64| Sge {
        address: (IOVA + offset).into(),
        length: 4096.into(),
        lkey: mr.key.into(),
    };
    c.mrs[1].arena.put(0, &[7; 4096]);
    let read = Send::new(2, SendOpcode::Read)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(element(8192));
    let write = Send::new(3, SendOpcode::Write)
        .rdma(c.mrs[1].iova + 8192, c.mrs[1].key)
        .element(element(0));
    for send in [read, write, mr.invalidate(4)] {
        c.send(&mut world, 0, &send);
    }
    world.run(std::time::Duration::from_micros(100));
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    world.filter = None;
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [
            (2, Status::Success),
            (3, Status::Success),
            (4, Status::Success)
        ]
    );
    assert_eq!(c.mrs[0].arena.get(8192, 4096), [7; 4096]);
}

/// When the key of data that is under way to a peer becomes invalid, the guest may use the memory for something else,
/// which is not for the peer.
#[test]
fn an_answer_under_way_has_nothing_from_after_an_invalidation() {
    /// PSN of the first packet of every connection.
    const FIRST: u32 = 0xff_fff0;
    for windowed in [false, true] {
        let (mut world, mut c) = connected(9);
        let Node { rnic, guest } = &mut world.nodes[1];
        let mr = guest.mr(rnic, MR, access::LOCAL_WRITE | access::MW_BIND);
        let mut window = guest.mw(rnic, MwType::Type2);
        let mut fast = guest.fast_mr(rnic, 16);
        let (give, take, address, rkey) = if windowed {
            let bind = window.bind(1, &mr, 0, MR, access::REMOTE_READ);
            (bind, window.invalidate(2), mr.iova, window.key)
        } else {
            let register = fast.register(1, &mr, RIGHTS, IOVA);
            (register, fast.invalidate(2), IOVA, fast.key)
        };
        c.send(&mut world, 1, &give);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[1].drain()), [(1, Status::Success)]);

        mr.arena.put(0, &[1; 4096]);
        let reth = Reth {
            address,
            rkey,
            length: 4096,
        };
        let read = c.packet(0, FIRST, Body::ReadRequest(reth), Payload::Empty);
        let mut outbox = Outbox::new();
        let mut turns = |world: &mut World, read| {
            let Node { rnic, guest } = &mut world.nodes[1];
            let mut io = Io {
                memory: &guest.view,
                now: world.now,
                outbox: &mut outbox,
            };
            if let Some(read) = read {
                rnic.receive(read, &mut io);
            }
            while rnic.poll(Budget::units(16), &mut io) {}
            std::mem::take(&mut io.outbox.segments)
        };
        let mut answers = turns(&mut world, Some(read));
        c.send(&mut world, 1, &take);
        assert!(turns(&mut world, None).is_empty());
        assert_eq!(statuses(&c.send_cqs[1].drain()), [(2, Status::Success)]);
        mr.arena.put(0, &[2; 4096]);
        let mut arrived = Vec::new();
        for answer in &mut answers {
            answer.detach(&world.nodes[1].guest.view).unwrap();
            arrived.extend_from_slice(answer.payload.bytes());
        }
        assert_eq!(arrived, [1; 4096]);
    }
}

#[test]
fn a_registration_is_not_done_twice_when_requests_are_sent_again() {
    let (mut world, mut c) = connected(5);
    let mut mr = fast(&mut world, 0);
    world.filter = Some(|_| false);
    let write = write(&c, 1, c.mrs[1].iova, c.mrs[1].key, b"again");
    let register = mr.register(2, &c.mrs[0], RIGHTS, IOVA);
    for send in [write, register] {
        c.send(&mut world, 0, &send);
    }
    world.run(std::time::Duration::from_micros(100));
    world.filter = None;
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::Success), (2, Status::Success)]
    );
}

#[test]
fn a_peer_invalidates_with_a_send() {
    let (mut world, mut c) = connected(6);
    let mut mr = fast(&mut world, 1);
    let register = mr.register(1, &c.mrs[1], RIGHTS, IOVA);
    c.send(&mut world, 1, &register);
    c.receive(&mut world, 1, 7, &[c.mrs[1].sge(0, MR)]);
    world.settle();
    let send = Send::new(2, SendOpcode::SendWithInvalidate)
        .immediate(mr.key)
        .element(c.mrs[0].sge(0, MR));
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::Success)]);
    let received = c.recv_cqs[1].drain();
    assert_eq!(statuses(&received), [(7, Status::Success)]);
    assert_eq!(received[0].flags, flags::INVALIDATED);
    assert_eq!(received[0].immediate, mr.key);
    // It is free: registering it needs no invalidation.
    let register = mr.register(3, &c.mrs[1], RIGHTS, IOVA);
    c.send(&mut world, 1, &register);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[1].drain()),
        [(1, Status::Success), (3, Status::Success)]
    );
}

/// Errors in a key that a peer invalidates.
#[test]
fn a_peer_invalidates_nothing_else() {
    for case in 0..4 {
        let (mut world, mut c) = connected(7);
        let mut mr = fast(&mut world, 1);
        let (key, cause) = match case {
            0 => (c.mrs[1].key, Cause::RemoteInvalidate),
            1 => (mr.key, Cause::RemoteFree),
            2 => {
                let register = mr.register(1, &c.mrs[1], RIGHTS, IOVA);
                c.send(&mut world, 1, &register);
                (mr.key.wrapping_sub(1), Cause::RemoteKey)
            }
            _ => {
                // A region of another protection domain of the same guest.
                let Node { rnic, guest } = &mut world.nodes[1];
                let create = CreatePd {
                    context: guest.context.into(),
                    ..Default::default()
                };
                let own = guest.pd;
                guest.pd = guest.command(rnic, create).expect("pd").pd.get();
                let foreign = guest.fast_mr(rnic, 16);
                guest.pd = own;
                (foreign.key, Cause::RemoteKeyPd)
            }
        };
        c.receive(&mut world, 1, 7, &[]);
        world.settle();
        let send = Send::new(2, SendOpcode::SendWithInvalidate).immediate(key);
        c.send(&mut world, 0, &send);
        world.settle();
        // The message arrived; the invalidation only concerns the receiver and its keys.
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::Success)]);
        let received = c.recv_cqs[1].drain();
        assert_eq!(
            statuses(&received),
            [(7, Status::RemoteInvalidRequest)],
            "{case}"
        );
        assert_eq!(received[0].cause, Some(cause));
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
    }
}

#[test]
fn each_fault_of_a_registration_is_found() {
    type Change = fn(&mut RegisterTarget, &FastMr);
    let faults: [(Change, Cause); 13] = [
        (
            |target, mr| target.key = (mr.key ^ 0x100).into(),
            Cause::RegisterKey,
        ),
        (
            |target, _| target.access = access::REMOTE_WRITE.into(),
            Cause::AccessRights,
        ),
        (
            |target, _| target.access = (1 << 10).into(),
            Cause::AccessRights,
        ),
        (|target, _| target.length = 0.into(), Cause::RegionLength),
        (
            |target, _| target.length = u64::MAX.into(),
            Cause::RegionLength,
        ),
        (
            |target, _| target.iova = (u64::MAX - 4095).into(),
            Cause::RegionLength,
        ),
        (|target, _| target.page_shift = 11, Cause::RegisterPages),
        (|target, _| target.page_shift = 49, Cause::RegisterPages),
        (
            |target, _| target.page_count = 1.into(),
            Cause::RegisterPages,
        ),
        (
            |target, _| target.page_count = 3.into(),
            Cause::RegisterPages,
        ),
        (
            |target, _| {
                target.page_count = 17.into();
                target.length = (17 * 4096).into();
            },
            Cause::RegisterPages,
        ),
        (
            |_, mr| mr.table.put(8, &0x123u64.to_le_bytes()),
            Cause::PageMisaligned,
        ),
        (
            |_, mr| mr.table.put(8, &(1u64 << 60).to_le_bytes()),
            Cause::PageUnmapped,
        ),
    ];
    for (index, (change, cause)) in faults.into_iter().enumerate() {
        let (mut world, mut c) = connected(8);
        let mr = fast(&mut world, 0);
        let mut target = mr.target(&c.mrs[0].arena, 0, 8192, IOVA);
        target.access = RIGHTS.into();
        change(&mut target, &mr);
        let send = Send::new(1, SendOpcode::RegisterRegion).target(&target);
        c.send(&mut world, 0, &send);
        world.settle();
        let done = c.send_cqs[0].drain();
        assert_eq!(
            statuses(&done),
            [(1, Status::MemoryManagement)],
            "fault {index}"
        );
        assert_eq!(done[0].cause, Some(cause), "fault {index}");
        assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
        let Node { rnic, guest } = &mut world.nodes[0];
        let destroy = DeregisterMr {
            pd: guest.pd.into(),
            key: (mr.key ^ 0x55).into(),
        };
        guest
            .command(rnic, destroy)
            .expect("the lowest byte is the owner's");
    }
}

#[test]
fn local_operations_fail_in_their_turn() {
    let (mut world, mut c) = connected(9);
    let mut mr = fast(&mut world, 0);
    let register = mr.register(1, &c.mrs[0], RIGHTS, IOVA);
    let again = mr.register(3, &c.mrs[0], RIGHTS, IOVA);
    let write = write(&c, 2, c.mrs[1].iova, c.mrs[1].key, b"first");
    let never = Send::new(4, SendOpcode::Write);
    for send in [register, write, again, never] {
        c.send(&mut world, 0, &send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(
        statuses(&done),
        [
            (1, Status::Success),
            (2, Status::Success),
            (3, Status::MemoryManagement),
            (4, Status::Flushed)
        ]
    );
    assert_eq!(done[2].cause, Some(Cause::RegisterValid));
    assert_eq!(c.mrs[1].arena.get(0, 5), b"first");

    // In the error state, local operations are flushed without effect.
    c.send(&mut world, 0, &mr.invalidate(5));
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(5, Status::Flushed)]);
}

#[test]
fn entries_of_local_operations_are_checked() {
    for case in 0..3 {
        let (mut world, mut c) = connected(10);
        let mut mr = fast(&mut world, 0);
        let send = match case {
            0 => mr.invalidate(1).element(c.mrs[0].sge(0, 0)),
            1 => mr.invalidate(1).inline(b""),
            _ => {
                let register = mr.register(1, &c.mrs[0], RIGHTS, IOVA);
                register.flags(send_flags::INLINE)
            }
        };
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(1, Status::LocalQueuePairOperation)],
            "{case}"
        );
    }
}

#[test]
fn reserved_members_of_a_target_are_not_looked_at() {
    let (mut world, mut c) = connected(11);
    let mut mr = fast(&mut world, 0);
    let mut register = mr.register(1, &c.mrs[0], RIGHTS, IOVA);
    register.target[29..].fill(0xff);
    let mut invalidate = mr.invalidate(2);
    invalidate.target.fill(0xff);
    let mut write = write(&c, 3, c.mrs[1].iova, c.mrs[1].key, b"x");
    write.target[12..].fill(0xff);
    for send in [register, invalidate, write] {
        c.send(&mut world, 0, &send);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert!(done.len() == 3 && done.iter().all(|done| done.status == Status::Success));
}

#[test]
fn the_local_dma_key_names_all_memory_for_its_owner_alone() {
    let (mut world, mut c) = connected(12);
    c.mrs[0].arena.put(0, b"by bus address");
    let local = Sge {
        address: c.mrs[0].arena.address(0).into(),
        length: 14.into(),
        lkey: LOCAL_DMA_KEY.into(),
    };
    let target = Sge {
        address: c.mrs[1].arena.address(4096).into(),
        length: 14.into(),
        lkey: LOCAL_DMA_KEY.into(),
    };
    c.receive(&mut world, 1, 1, &[target]);
    c.send(
        &mut world,
        0,
        &Send::new(1, SendOpcode::Send).element(local),
    );
    world.settle();
    assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
    assert_eq!(statuses(&c.recv_cqs[1].drain()), [(1, Status::Success)]);
    assert_eq!(c.mrs[1].arena.get(4096, 14), b"by bus address");

    // Addresses outside of the guest's memory are not valid.
    let nowhere = Sge {
        address: (1 << 60).into(),
        ..local
    };
    c.send(
        &mut world,
        0,
        &Send::new(2, SendOpcode::Send).element(nowhere),
    );
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(2, Status::LocalProtection)]);
    assert_eq!(done[0].cause, Some(Cause::LocalUnmapped));

    // Peers cannot use it.
    let (mut world, mut c) = connected(13);
    let remote = c.mrs[1].arena.address(0);
    let write = write(&c, 3, remote, LOCAL_DMA_KEY, b"no");
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(3, Status::RemoteAccess)]
    );
}

#[test]
fn the_null_key_gives_zeros_and_keeps_nothing() {
    for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
        let config = RnicConfig {
            segmentation,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, 31);
        become_a_process(&mut world);
        let mut c = world.connect([0, 1], &QpOptions::default(), 200_000, |_, _| {});
        let null = |address: u64, length: u32| Sge {
            address: address.into(),
            length: length.into(),
            lkey: NULL_KEY.into(),
        };
        let (remote, rkey) = (c.mrs[1].iova, c.mrs[1].key);
        c.mrs[0].arena.put(0, b"between");
        c.mrs[1].arena.put(0, &vec![0xff; 200_000]);

        let send = Send::new(1, SendOpcode::Send)
            .element(null(u64::MAX - 3, 100_000))
            .element(c.mrs[0].sge(0, 7))
            .element(null(0, 13));
        let kept = c.mrs[1].sge(50_000, 60_000);
        c.receive(&mut world, 1, 1, &[null(5, 50_000), kept]);
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, Status::Success)]);
        assert_eq!(statuses(&c.recv_cqs[1].drain()), [(1, Status::Success)]);
        let received = c.mrs[1].arena.get(0, 200_000);
        assert!(received[..50_000].iter().all(|byte| *byte == 0xff));
        assert!(received[50_000..100_000].iter().all(|byte| *byte == 0));
        assert_eq!(&received[100_000..100_007], b"between");
        assert_eq!(
            received[100_007..100_021],
            *[&[0; 13][..], &[0xff]].concat()
        );

        let read = Send::new(2, SendOpcode::Read)
            .rdma(remote, rkey)
            .element(null(0, 150_000));
        let add = Send::new(3, SendOpcode::FetchAdd)
            .atomic(remote, rkey, 2, 0)
            .element(null(0, 8));
        c.send(&mut world, 0, &read);
        c.send(&mut world, 0, &add);
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(2, Status::Success), (3, Status::Success)]
        );
        assert_eq!(c.mrs[1].arena.get(0, 8), 1u64.to_le_bytes());

        // Peers cannot use it.
        let write = write(&c, 4, 0, NULL_KEY, b"no");
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(4, Status::RemoteAccess)]
        );
    }
}

#[test]
fn the_null_key_is_a_feature() {
    let features = Features {
        null_key: false,
        ..Features::ALL
    };
    let config = RnicConfig {
        features,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 32);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let element = Sge {
        address: 0.into(),
        length: 8.into(),
        lkey: NULL_KEY.into(),
    };
    c.send(
        &mut world,
        0,
        &Send::new(1, SendOpcode::Send).element(element),
    );
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::LocalProtection)]);
    assert_eq!(done[0].cause, Some(Cause::LocalKey));
}

/// Makes everything that node 0 creates from now on belong to a process.
fn become_a_process(world: &mut World) {
    let Node { rnic, guest } = &mut world.nodes[0];
    guest.start(rnic, ContextKind::User, 64);
}

#[test]
fn processes_register_nothing_fast() {
    let mut world = World::pair(14);
    let kernel = fast(&mut world, 0);
    become_a_process(&mut world);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let Node { rnic, guest } = &mut world.nodes[0];
    let table = guest.arena(128);
    let (list, _chunks) = guest.page_list(&table, 0, 128);
    let allocate = AllocateMr {
        pd: guest.pd.into(),
        max_pages: 16.into(),
        table: list,
    };
    let refused = guest.command(rnic, allocate).unwrap_err();
    assert_eq!(refused, (CommandStatus::NotPermitted, Cause::KernelOnly));

    let dma = Sge {
        address: table.address(0).into(),
        length: 8.into(),
        lkey: LOCAL_DMA_KEY.into(),
    };
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send).element(dma));
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(statuses(&done), [(1, Status::LocalProtection)]);
    assert_eq!(done[0].cause, Some(Cause::LocalKey));

    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let register = kernel.clone().register(2, &c.mrs[0], RIGHTS, IOVA);
    c.send(&mut world, 0, &register);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(2, Status::LocalQueuePairOperation)]
    );
}

#[test]
fn commands_are_checked_and_undone() {
    let mut world = World::pair(15);
    let Node { rnic, guest } = &mut world.nodes[0];
    let limits = guest.command(rnic, QueryDevice {}).expect("limits");
    let most = limits.max_fast_registration_pages.get();
    let table = guest.arena(most as usize * 8 + 8);
    let mut try_with = |pages: u32, length: usize, offset: usize| {
        let (list, chunks) = guest.page_list(&table, offset, length);
        let request = AllocateMr {
            pd: guest.pd.into(),
            max_pages: pages.into(),
            table: list,
        };
        let result = guest.command(rnic, request);
        guest.free(chunks);
        result.map(|reply| reply.key.get())
    };
    let refused = |status, cause| Err((status, cause));
    assert_eq!(
        try_with(0, 8, 0),
        refused(CommandStatus::InvalidArgument, Cause::TableLength)
    );
    assert_eq!(
        try_with(most + 1, most as usize * 8 + 8, 0),
        refused(CommandStatus::InvalidArgument, Cause::TableLength)
    );
    assert_eq!(
        try_with(2, 8, 0),
        refused(CommandStatus::BadAddress, Cause::PageListShape)
    );
    assert_eq!(
        try_with(1, 8, 8),
        refused(CommandStatus::BadAddress, Cause::PageListShape)
    );
    let before = guest_snapshot(&world);
    let Node { rnic, guest } = &mut world.nodes[0];
    let mr = guest.fast_mr(rnic, most);
    let busy = DestroyPd {
        pd: guest.pd.into(),
        ..Default::default()
    };
    let refused = guest.command(rnic, busy).unwrap_err();
    assert_eq!(refused, (CommandStatus::Busy, Cause::InUse));
    let deregister = DeregisterMr {
        pd: guest.pd.into(),
        key: mr.key.into(),
    };
    guest.command(rnic, deregister).expect("deregister");
    assert_eq!(guest_snapshot(&world), before);
}

fn guest_snapshot(world: &World) -> (usize, usize) {
    let snapshot = world.nodes[0].rnic.snapshot();
    (snapshot.mrs, snapshot.translations)
}

#[test]
fn without_the_feature_there_is_nothing_of_it() {
    let config = RnicConfig {
        features: Features::default(),
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 16);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let Node { rnic, guest } = &mut world.nodes[0];
    let limits = guest.command(rnic, QueryDevice {}).expect("limits");
    assert_eq!(limits.max_fast_registration_pages.get(), 0);
    let refused = guest.command(rnic, AllocateMr::default()).unwrap_err();
    assert_eq!(refused, (CommandStatus::Unsupported, Cause::CommandCode));
    let sge = Sge {
        address: c.mrs[0].arena.address(0).into(),
        length: 8.into(),
        lkey: LOCAL_DMA_KEY.into(),
    };
    c.send(&mut world, 0, &Send::new(1, SendOpcode::Send).element(sge));
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(1, Status::LocalProtection)]
    );
    for opcode in [SendOpcode::LocalInvalidate, SendOpcode::RegisterRegion] {
        let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
        c.send(&mut world, 0, &Send::new(1, opcode));
        world.settle();
        assert_eq!(
            statuses(&c.send_cqs[0].drain()),
            [(1, Status::LocalQueuePairOperation)]
        );
    }
}
