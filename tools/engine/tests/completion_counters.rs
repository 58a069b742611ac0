// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters: how many operations of queue pairs completed.

use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;
use vrnic_engine::{
    Cause, Features, RnicConfig, Segmentation,
    testing::{Arena, Connection, Faults, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AttachCompletionCounter, Command, CompletionCount, CompletionCounts, CountChange,
        CreateCompletionCounter, DestroyCompletionCounter, DestroyQp, ModifyCompletionCounter,
        QueryCompletionCounter, QueryDevice, Status, counted_operations as counted,
    },
    completion::Status as Done,
    memory::PageList,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::SendOpcode,
};

const MR: usize = 1 << 16;

/// Offset of the counts in their page.
const OFFSET: usize = 48;

/// A completion counter and its memory.
struct Counter {
    node: usize,
    number: u32,
    arena: Arena,
}

impl Counter {
    /// Returns what is in memory: completions and errors.
    fn stored(&self) -> (u64, u64) {
        let bytes = self.arena.get(OFFSET, 16);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (word(0), word(8))
    }

    /// Returns what the device says, which must be what is in memory.
    fn counts(&self, world: &mut World) -> (u64, u64) {
        let counts = query(world, self.node, self.number).expect("counter");
        let told = (counts.completions.get(), counts.errors.get());
        assert_eq!(told, self.stored());
        told
    }
}

fn command<C: Command>(
    world: &mut World,
    node: usize,
    request: C,
) -> Result<C::Reply, (Status, Cause)> {
    let node = &mut world.nodes[node];
    node.guest.command(&mut node.rnic, request)
}

fn try_create(world: &mut World, node: usize, pages: PageList) -> Result<u32, (Status, Cause)> {
    let request = CreateCompletionCounter {
        context: world.nodes[node].guest.context.into(),
        pages,
        ..CreateCompletionCounter::default()
    };
    command(world, node, request).map(|created| created.counter.get())
}

fn create(world: &mut World, node: usize) -> Counter {
    let guest = &mut world.nodes[node].guest;
    let arena = guest.arena(4096);
    arena.put(0, &[0xff; 4096]);
    let (pages, _) = guest.page_list(&arena, OFFSET, 16);
    let number = try_create(world, node, pages).expect("created");
    assert_ne!(number, 0);
    // Nothing but the counts was written.
    assert_eq!(arena.get(0, OFFSET), [0xff; OFFSET]);
    assert_eq!(arena.get(OFFSET, 16), [0; 16]);
    assert_eq!(arena.get(OFFSET + 16, 16), [0xff; 16]);
    Counter {
        node,
        number,
        arena,
    }
}

fn attach(
    world: &mut World,
    counter: &Counter,
    qpn: u32,
    mask: u32,
) -> Result<(), (Status, Cause)> {
    let request = AttachCompletionCounter {
        qpn: qpn.into(),
        counter: counter.number.into(),
        operations: mask.into(),
        ..AttachCompletionCounter::default()
    };
    command(world, counter.node, request).map(|_| ())
}

fn modify(
    world: &mut World,
    counter: &Counter,
    count: u16,
    change: u16,
    value: u64,
) -> Result<(), (Status, Cause)> {
    let request = ModifyCompletionCounter {
        counter: counter.number.into(),
        count: count.into(),
        change: change.into(),
        value: value.into(),
    };
    command(world, counter.node, request).map(|_| ())
}

fn query(world: &mut World, node: usize, number: u32) -> Result<CompletionCounts, (Status, Cause)> {
    let request = QueryCompletionCounter {
        counter: number.into(),
        ..QueryCompletionCounter::default()
    };
    command(world, node, request)
}

fn destroy(world: &mut World, counter: &Counter) -> Result<(), (Status, Cause)> {
    let request = DestroyCompletionCounter {
        counter: counter.number.into(),
        ..DestroyCompletionCounter::default()
    };
    command(world, counter.node, request).map(|_| ())
}

/// Creates two guests with devices that are recorded.
fn recorded(seed: u64) -> World {
    World::recorded(&[RnicConfig::default(), RnicConfig::default()], 2048, seed)
}

/// Takes the queue pair of one side of a connection back to the state RESET.
fn reset(world: &mut World, c: &Connection, side: usize) {
    let attributes = QpAttributes {
        state: QpState::Reset.raw(),
        mask: attribute::STATE.into(),
        ..QpAttributes::default()
    };
    world.modify(c.nodes[side], c.qps[side].qpn, attributes);
}

/// Brings both queue pairs of a connection in the state RESET up.
fn restart(world: &mut World, c: &Connection, qp_type: QpType) {
    for side in 0..2 {
        let attributes = World::attributes(c.nodes[1 - side], c.qps[1 - side].qpn);
        world.bring_up(c.nodes[side], c.qps[side].qpn, attributes, qp_type);
    }
}

/// Connects two queue pairs, each with a counter of its own for each operation, in the order of their bits.
fn counted_connection(world: &mut World, qp_type: QpType) -> (Connection, [Vec<Counter>; 2]) {
    let options = QpOptions {
        qp_type,
        ..QpOptions::default()
    };
    let c = world.connect([0, 1], &options, MR, |_, _| {});
    let counters = [0, 1].map(|side| {
        reset(world, &c, side);
        let of = |bit| {
            let counter = create(world, c.nodes[side]);
            attach(world, &counter, c.qps[side].qpn, 1u32 << bit).expect("attached");
            counter
        };
        (0..counted::ALL.count_ones()).map(of).collect()
    });
    restart(world, &c, qp_type);
    (c, counters)
}

fn all(world: &mut World, counters: &[Counter]) -> Vec<(u64, u64)> {
    counters
        .iter()
        .map(|counter| counter.counts(world))
        .collect()
}

/// Returns a request with a key of the peer.
fn request(c: &Connection, side: usize, opcode: SendOpcode, length: usize) -> Send {
    let send = Send::new(7, opcode).element(c.mrs[side].sge(0, length));
    match opcode {
        SendOpcode::Write | SendOpcode::WriteWithImmediate | SendOpcode::Read => {
            send.rdma(c.mrs[1 - side].iova, c.mrs[1 - side].key)
        }
        _ => send,
    }
}

fn end(mut world: World) {
    for recording in world.recordings() {
        let mut player = vrnic_engine::recording::Player::new(&recording).expect("recording");
        while let Some(step) = player.next() {
            step.expect("the same again");
        }
    }
}

#[test]
fn unsignalled_requests_and_operations_of_the_peer_count() {
    let mut world = recorded(1);
    let (mut c, counters) = counted_connection(&mut world, QpType::ReliableConnection);
    for _ in 0..3 {
        let sge = c.mrs[1].sge(0, 100);
        c.receive(&mut world, 1, 1, &[sge]);
    }
    for (opcode, times) in [
        (SendOpcode::Send, 2),
        (SendOpcode::WriteWithImmediate, 1),
        (SendOpcode::Write, 4),
        (SendOpcode::Read, 5),
    ] {
        for _ in 0..times {
            let send = request(&c, 0, opcode, 100).unsignaled();
            c.send(&mut world, 0, &send);
        }
    }
    // Atomics belong to none of the operations.
    let (address, key) = (c.mrs[1].iova, c.mrs[1].key);
    let atomic = Send::new(9, SendOpcode::FetchAdd)
        .element(c.mrs[0].sge(0, 8))
        .atomic(address, key, 1, 0);
    c.send(&mut world, 0, &atomic);
    world.settle();
    assert_eq!(c.send_cqs[0].drain().len(), 1);
    let of = |counts: [u64; 6]| counts.map(|count| (count, 0)).to_vec();
    // Send, receive, read, remote read, write, remote write.
    assert_eq!(all(&mut world, &counters[0]), of([2, 0, 5, 0, 5, 0]));
    assert_eq!(all(&mut world, &counters[1]), of([0, 3, 0, 5, 0, 5]));
    end(world);
}

#[test]
fn errors_and_flushes_count_apart() {
    let mut world = recorded(2);
    let (mut c, counters) = counted_connection(&mut world, QpType::ReliableConnection);
    let sge = c.mrs[1].sge(0, 100);
    for _ in 0..2 {
        c.receive(&mut world, 1, 1, &[sge]);
    }
    let bad = Send::new(1, SendOpcode::Write)
        .element(c.mrs[0].sge(0, 10))
        .rdma(c.mrs[1].iova, c.mrs[1].key ^ 0x5500);
    let good = request(&c, 0, SendOpcode::Write, 10).unsignaled();
    c.send(&mut world, 0, &good);
    c.send(&mut world, 0, &bad);
    for opcode in [SendOpcode::Send, SendOpcode::Read, SendOpcode::Write] {
        let send = request(&c, 0, opcode, 10).unsignaled();
        c.send(&mut world, 0, &send);
    }
    world.settle();
    let statuses: Vec<_> = c.send_cqs[0]
        .drain()
        .iter()
        .map(|done| done.status)
        .collect();
    let flushed = [Done::Flushed; 3];
    assert_eq!(statuses, [&[Done::RemoteAccess][..], &flushed].concat());
    let zero = (0, 0);
    assert_eq!(
        all(&mut world, &counters[0]),
        [(0, 1), zero, (0, 1), zero, (1, 2), zero]
    );
    // Its receives are flushed, and the write that was refused does not count.
    assert_eq!(
        all(&mut world, &counters[1]),
        [zero, (0, 2), zero, zero, zero, (1, 0)]
    );
    end(world);
}

#[test]
fn a_fault_makes_what_it_breaks_an_error() {
    let mut world = recorded(3);
    let (mut c, counters) = counted_connection(&mut world, QpType::ReliableConnection);
    let (now, fault) = (world.now, "cqe-rem-op-err".parse().expect("fault"));
    let mut faults = world.nodes[0].rnic.faults_mut();
    faults.arm(fault, now).expect("armed");
    let send = request(&c, 0, SendOpcode::Write, 10);
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Done::RemoteOperation);
    assert_eq!(counters[0][4].counts(&mut world), (0, 1));
    end(world);
}

#[test]
fn datagrams_count() {
    let mut world = World::pair(4);
    let (mut c, counters) = counted_connection(&mut world, QpType::UnreliableDatagram);
    let sge = c.mrs[1].sge(0, 100);
    c.receive(&mut world, 1, 1, &[sge]);
    let to = World::attributes(1, 0).address;
    for _ in 0..2 {
        let send = Send::new(1, SendOpcode::Send)
            .element(c.mrs[0].sge(0, 20))
            .unsignaled()
            .datagram(to, c.qps[1].qpn, 0);
        c.send(&mut world, 0, &send);
    }
    world.settle();
    assert_eq!(counters[0][0].counts(&mut world), (2, 0));
    // There was no receive for the second one.
    assert_eq!(counters[1][1].counts(&mut world), (1, 0));
}

#[test]
fn counts_can_be_set_and_added_to_and_wrap() {
    let mut world = World::pair(5);
    let (mut c, counters) = counted_connection(&mut world, QpType::ReliableConnection);
    let counter = &counters[0][4];
    let [set, add] = [CountChange::Set.raw(), CountChange::Add.raw()];
    let [completions, errors] = CompletionCount::ALL else {
        panic!("two counts");
    };
    let (completions, errors) = (completions.raw(), errors.raw());
    assert_eq!(
        modify(&mut world, counter, completions, set, u64::MAX - 1),
        Ok(())
    );
    assert_eq!(modify(&mut world, counter, errors, add, 5), Ok(()));
    assert_eq!(counter.counts(&mut world), (u64::MAX - 1, 5));
    for expected in [u64::MAX, 0, 1] {
        let send = request(&c, 0, SendOpcode::Write, 10).unsignaled();
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(counter.counts(&mut world), (expected, 5));
    }
    assert_eq!(modify(&mut world, counter, errors, add, u64::MAX), Ok(()));
    assert_eq!(
        modify(&mut world, counter, completions, add, 1 << 63),
        Ok(())
    );
    assert_eq!(counter.counts(&mut world), ((1 << 63) + 1, 4));
    for (count, change) in [(2, set), (0, 2), (u16::MAX, add)] {
        let refused = modify(&mut world, counter, count, change, 1);
        let expected = (Status::InvalidArgument, Cause::CountedOperations);
        assert_eq!(refused, Err(expected));
    }
    // What the guest writes does not matter, and lasts until the device counts.
    counter.arena.put(OFFSET, &[0xaa; 16]);
    let send = request(&c, 0, SendOpcode::Write, 10).unsignaled();
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(counter.stored(), ((1 << 63) + 2, 0xaaaa_aaaa_aaaa_aaaa));
}

#[test]
fn a_counter_stays_as_long_as_a_queue_pair_has_it() {
    let mut world = World::pair(6);
    let options = QpOptions::default();
    let c = world.connect([0, 1], &options, MR, |_, _| {});
    let other = world.connect([0, 1], &options, MR, |_, _| {});
    let counter = create(&mut world, 0);
    let second = create(&mut world, 0);
    let [qpn, other_qpn] = [c.qps[0].qpn, other.qps[0].qpn];
    let late = Err((Status::BadState, Cause::CountedLate));
    assert_eq!(attach(&mut world, &counter, qpn, counted::SEND), late);
    reset(&mut world, &c, 0);
    reset(&mut world, &other, 0);
    for wrong in [0, counted::ALL + 1, u32::MAX] {
        let refused = attach(&mut world, &counter, qpn, wrong);
        let expected = (Status::InvalidArgument, Cause::CountedOperations);
        assert_eq!(refused, Err(expected));
    }
    let (send, write) = (counted::SEND, counted::WRITE);
    attach(&mut world, &counter, qpn, send).expect("attached");
    let twice = Err((Status::Busy, Cause::CountedAlready));
    assert_eq!(attach(&mut world, &counter, qpn, send | write), twice);
    assert_eq!(attach(&mut world, &second, qpn, send), twice);
    // What was refused attached nothing.
    attach(&mut world, &counter, qpn, write).expect("attached");
    attach(&mut world, &second, qpn, counted::READ).expect("attached");
    attach(&mut world, &counter, other_qpn, counted::ALL).expect("attached");
    let busy = Err((Status::Busy, Cause::InUse));
    let destroy_qp = |world: &mut World, qpn: u32| {
        let request = DestroyQp {
            qpn: qpn.into(),
            ..DestroyQp::default()
        };
        command(world, 0, request).expect("destroyed");
    };
    assert_eq!(destroy(&mut world, &counter), busy);
    assert_eq!(destroy(&mut world, &second), busy);
    let rnic = &world.nodes[0].rnic;
    let shown = rnic.completion_counter_page(0, 10).expect("counters");
    let shown: Vec<_> = shown
        .iter()
        .map(|one| (one.number, one.queue_pairs))
        .collect();
    assert_eq!(shown, [(counter.number, 2), (second.number, 1)]);
    assert!(rnic.completion_counter_page(2, 10).is_none());
    destroy_qp(&mut world, qpn);
    assert_eq!(destroy(&mut world, &second), Ok(()));
    assert_eq!(destroy(&mut world, &counter), busy);
    destroy_qp(&mut world, other_qpn);
    assert_eq!(world.nodes[0].rnic.snapshot().completion_counters, 1);
    let before = world.nodes[0].rnic.snapshot().translations;
    assert_eq!(destroy(&mut world, &counter), Ok(()));
    assert_eq!(world.nodes[0].rnic.snapshot().translations, before - 1);
    assert_eq!(world.nodes[0].rnic.snapshot().completion_counters, 0);
    let gone = (Status::NotFound, Cause::UnknownCompletionCounter);
    assert_eq!(destroy(&mut world, &counter), Err(gone));
    assert_eq!(modify(&mut world, &counter, 0, 0, 1), Err(gone));
    assert_eq!(query(&mut world, 0, counter.number), Err(gone));
    assert_eq!(query(&mut world, 0, 0), Err(gone));
    reset(&mut world, &c, 1);
    let stranger = Counter { node: 1, ..counter };
    assert_eq!(attach(&mut world, &stranger, c.qps[1].qpn, send), Err(gone));
}

#[test]
fn counters_of_other_contexts_and_without_good_memory_are_refused() {
    let mut world = World::pair(7);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    reset(&mut world, &c, 0);
    let Node { rnic, guest } = &mut world.nodes[0];
    guest.start(rnic, vrnic_wire::command::ContextKind::User, 64);
    let counter = create(&mut world, 0);
    let foreign = (Status::NotPermitted, Cause::ContextMismatch);
    let refused = attach(&mut world, &counter, c.qps[0].qpn, counted::SEND);
    assert_eq!(refused, Err(foreign));
    let unknown = attach(&mut world, &counter, 0xdead, counted::SEND);
    assert_eq!(unknown, Err((Status::NotFound, Cause::UnknownQp)));

    let arena = world.nodes[0].guest.arena(3 * 4096);
    for (offset, length) in [(8, 16), (0, 8), (0, 24), (4088, 16), (4, 16)] {
        let guest = &mut world.nodes[0].guest;
        let (pages, _) = guest.page_list(&arena, offset, length);
        let refused = try_create(&mut world, 0, pages).map_err(|(status, _)| status);
        assert_eq!(refused, Err(Status::BadAddress), "{offset} {length}");
    }
    let (pages, chunk) = world.nodes[0].guest.page_list(&arena, 0, 16);
    chunk.put(16, &u64::MAX.to_le_bytes());
    let refused = try_create(&mut world, 0, pages).map_err(|(status, _)| status);
    assert_eq!(refused, Err(Status::BadAddress));
    assert_eq!(world.nodes[0].rnic.snapshot().completion_counters, 1);
}

#[test]
fn there_are_as_many_as_the_device_says_and_none_without_the_feature() {
    let mut config = RnicConfig::default();
    let mut world = World::new(1, 512, &config, 8);
    let limit = |world: &mut World| {
        let limits = command(world, 0, QueryDevice {}).expect("limits");
        limits.max_completion_counters.get()
    };
    let first = create(&mut world, 0);
    let (pages, _chunk) = world.nodes[0].guest.page_list(&first.arena, 0, 16);
    // They may even have the same memory.
    for _ in 1..limit(&mut world) {
        try_create(&mut world, 0, pages).expect("room");
    }
    let full = Err((Status::NoResources, Cause::LimitReached));
    assert_eq!(try_create(&mut world, 0, pages), full);
    destroy(&mut world, &first).expect("unused");
    try_create(&mut world, 0, pages).expect("room again");

    config.features = Features {
        completion_counters: false,
        ..Features::ALL
    };
    let mut world = World::new(1, 64, &config, 9);
    assert_eq!(limit(&mut world), 0);
    let arena = world.nodes[0].guest.arena(4096);
    let (pages, _chunk) = world.nodes[0].guest.page_list(&arena, 0, 16);
    let absent = (Status::Unsupported, Cause::CommandCode);
    assert_eq!(try_create(&mut world, 0, pages), Err(absent));
    let counter = Counter {
        node: 0,
        number: 1,
        arena,
    };
    assert_eq!(attach(&mut world, &counter, 1, 1), Err(absent));
    assert_eq!(modify(&mut world, &counter, 0, 0, 1), Err(absent));
    assert_eq!(query(&mut world, 0, 1), Err(absent));
    assert_eq!(destroy(&mut world, &counter), Err(absent));
}

/// Operations of the random test, and how often each is unsignalled.
fn operation() -> impl Strategy<Value = (SendOpcode, usize, bool)> {
    let opcode = prop::sample::select(vec![
        SendOpcode::Send,
        SendOpcode::Write,
        SendOpcode::WriteWithImmediate,
        SendOpcode::Read,
    ]);
    (opcode, 1usize..5000, any::<bool>())
}

proptest! {
    /// Whatever the network does, each operation of a reliable connection counts once, at both ends.
    #[test]
    fn each_operation_counts_once(
        operations in vec(operation(), 1..40),
        loss in 0u32..200,
        seed in any::<u64>(),
    ) {
        let config = RnicConfig {
            segmentation: Segmentation::PathMtu,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, seed);
        let (mut c, counters) = counted_connection(&mut world, QpType::ReliableConnection);
        world.faults = Faults {
            drop: loss,
            duplicate: loss,
            delay: loss,
            ..Faults::default()
        };
        let mut model: BTreeMap<(usize, u32), u64> = BTreeMap::new();
        let mut count = |side, bit: u32| *model.entry((side, bit)).or_default() += 1;
        for (opcode, length, signalled) in &operations {
            let receives = matches!(opcode, SendOpcode::Send | SendOpcode::WriteWithImmediate);
            if receives {
                let sge = c.mrs[1].sge(0, MR);
                c.receive(&mut world, 1, 1, &[sge]);
                count(1, counted::RECEIVE);
            }
            let send = request(&c, 0, *opcode, *length);
            let send = if *signalled { send } else { send.unsignaled() };
            c.send(&mut world, 0, &send);
            match opcode {
                SendOpcode::Send => count(0, counted::SEND),
                SendOpcode::Read => {
                    count(0, counted::READ);
                    count(1, counted::REMOTE_READ);
                }
                _ => {
                    count(0, counted::WRITE);
                    count(1, counted::REMOTE_WRITE);
                }
            }
        }
        world.settle();
        let done = c.send_cqs[0].drain();
        prop_assume!(done.iter().all(|done| done.status == Done::Success));
        let signalled = operations.iter().filter(|(_, _, signalled)| *signalled).count();
        prop_assume!(world.state(0, c.qps[0].qpn) == QpState::ReadyToSend);
        prop_assert_eq!(done.len(), signalled);
        for (side, counters) in counters.iter().enumerate() {
            for (bit, counter) in counters.iter().enumerate() {
                let expected = model.get(&(side, 1 << bit)).copied().unwrap_or(0);
                prop_assert_eq!(counter.counts(&mut world), (expected, 0), "{} {}", side, bit);
            }
        }
    }
}
