// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared receive queues: which queue pair gets which receive, what the owner is told, and which errors do not spread.

use proptest::{collection::vec, prelude::*};
use vrnic_engine::{
    Cause, RnicConfig, Segmentation,
    testing::{Completion, Cq, Faults, Mr, Node, Qp, QpOptions, Send, Srq, World, gid_of},
    trace::{Act, Object},
};
use vrnic_wire::{
    command::{
        CreatePd, CreateQp, DestroyQp, DestroySrq, ModifySrq, QuerySrq, SrqAttributes,
        Status as CommandStatus, qp_flags,
    },
    completion::Status,
    counter::Counter,
    event::EventType,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, SendOpcode},
};

const MR: usize = 1 << 19;
const ENTRIES: u32 = 64;

/// Queue pairs of node 1 that share their receives, each connected to one of node 0.
struct Shared {
    world: World,
    srq: Srq,
    /// Queue pairs of node 0.
    senders: Vec<Qp>,
    send_cqs: Vec<Cq>,
    /// Queue pairs of node 1.
    receivers: Vec<Qp>,
    recv_cqs: Vec<Cq>,
    mrs: [Mr; 2],
}

impl Shared {
    fn new(types: &[QpType], segmentation: Segmentation, seed: u64) -> Self {
        let config = RnicConfig {
            segmentation,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, seed);
        let mrs = [0, 1].map(|node| {
            let Node { rnic, guest } = &mut world.nodes[node];
            guest.full_mr(rnic, MR)
        });
        let Node { rnic, guest } = &mut world.nodes[1];
        let srq = guest.try_srq(rnic, ENTRIES, 4, 0).expect("srq");
        let mut shared = Self {
            world,
            srq,
            senders: Vec::new(),
            send_cqs: Vec::new(),
            receivers: Vec::new(),
            recv_cqs: Vec::new(),
            mrs,
        };
        for &qp_type in types {
            shared.connect(qp_type);
        }
        shared
    }

    fn connect(&mut self, qp_type: QpType) {
        let srqn = self.srq.srqn;
        let mut make = |node: usize| {
            let options = QpOptions {
                qp_type,
                srqn: (node == 1).then_some(srqn),
                ..QpOptions::default()
            };
            let Node { rnic, guest } = &mut self.world.nodes[node];
            let cq = guest.cq(rnic, 256, 0);
            let qp = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
            (qp, cq)
        };
        let ((sender, send_cq), (receiver, recv_cq)) = (make(0), make(1));
        for (node, qpn, peer) in [(0, sender.qpn, receiver.qpn), (1, receiver.qpn, sender.qpn)] {
            let attributes = QpAttributes {
                qkey: 7.into(),
                ..World::attributes(1 - node, peer)
            };
            self.world.bring_up(node, qpn, attributes, qp_type);
        }
        self.senders.push(sender);
        self.send_cqs.push(send_cq);
        self.receivers.push(receiver);
        self.recv_cqs.push(recv_cq);
    }

    /// Posts receive `wr_id` of `length` bytes, at its own place in the region.
    fn receive(&mut self, wr_id: u64, length: usize) {
        let sge = self.mrs[1].sge(wr_id as usize * 4096, length);
        assert!(self.srq.post(wr_id, &[sge]), "queue is full");
    }

    /// Sends `length` bytes by connection `from`, with the number of the message as immediate data.
    fn send(&mut self, from: usize, message: u64, length: usize) {
        let bytes: Vec<u8> = content(message, length);
        let place = message as usize % 64 * 4096;
        self.mrs[0].arena.put(place, &bytes);
        let mut send = Send::new(message, SendOpcode::SendWithImmediate)
            .immediate(message as u32)
            .element(self.mrs[0].sge(place, length));
        if self.senders.get(from).is_some() && self.is_datagram(from) {
            let address = AddressVector {
                dgid: gid_of(1),
                hop_limit: 1,
                ..AddressVector::default()
            };
            send = send.datagram(address, self.receivers[from].qpn, 7);
        }
        let Node { rnic, guest } = &mut self.world.nodes[0];
        assert!(guest.post_send(rnic, &mut self.senders[from], &send));
    }

    fn is_datagram(&self, from: usize) -> bool {
        let Node { rnic, guest } = &self.world.nodes[0];
        (0..)
            .map_while(|place| rnic.qp_page(place, 1, &guest.view))
            .flatten()
            .any(|qp| {
                qp.number == self.senders[from].qpn && qp.qp_type == QpType::UnreliableDatagram
            })
    }

    /// Queries the shared receive queue.
    fn query(&mut self) -> SrqAttributes {
        let Node { rnic, guest } = &mut self.world.nodes[1];
        let request = QuerySrq {
            srqn: self.srq.srqn.into(),
            ..Default::default()
        };
        guest.command(rnic, request).expect("query")
    }

    fn limit(&mut self, limit: u32) {
        let Node { rnic, guest } = &mut self.world.nodes[1];
        let request = ModifySrq {
            srqn: self.srq.srqn.into(),
            limit: limit.into(),
        };
        guest.command(rnic, request).expect("modify");
    }

    fn resize(&mut self, entries: u32) -> Result<(), (CommandStatus, Cause)> {
        let Node { rnic, guest } = &mut self.world.nodes[1];
        guest.resize_srq(rnic, &mut self.srq, (entries, 4), |_| {})
    }

    fn events(&mut self) -> Vec<(EventType, u32)> {
        std::iter::from_fn(|| self.world.nodes[1].rnic.next_async_event())
            .map(|event| {
                let kind = EventType::try_from(event.event_type.get()).expect("event type");
                (kind, event.number.get())
            })
            .collect()
    }

    fn fail(&mut self, which: usize) {
        let attributes = QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::Error.raw(),
            ..QpAttributes::default()
        };
        self.world.modify(1, self.receivers[which].qpn, attributes);
        self.world.settle();
    }
}

/// Returns the contents of message `message`.
fn content(message: u64, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u64 * 3 + message * 59 + at as u64 / 256) as u8)
        .collect()
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|done| (done.wr_id, done.status))
        .collect()
}

const RC: QpType = QpType::ReliableConnection;
const UC: QpType = QpType::UnreliableConnection;
const UD: QpType = QpType::UnreliableDatagram;

#[test]
fn messages_of_all_queue_pairs_take_receives_in_order() {
    for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
        let mut shared = Shared::new(&[RC, UC, UD, RC], segmentation, 1);
        for wr_id in 0..8 {
            shared.receive(wr_id, 4096);
        }
        for (message, from) in [3, 1, 2, 0, 2, 1].into_iter().enumerate() {
            shared.send(from, message as u64, 3000 + message);
            shared.world.settle();
            let got = shared.recv_cqs[from].drain();
            assert_eq!(statuses(&got), [(message as u64, Status::Success)]);
            assert_eq!(got[0].qpn, shared.receivers[from].qpn);
            assert_eq!(got[0].immediate, message as u32);
            let header = if from == 2 { 40 } else { 0 };
            assert_eq!(got[0].length as usize, 3000 + message + header);
            let bytes = shared.mrs[1]
                .arena
                .get(message * 4096 + header, 3000 + message);
            assert!(bytes == content(message as u64, 3000 + message));
        }
        assert_eq!(shared.srq.ring.device_index(), 6);
        assert_eq!(shared.events(), []);
        // Every request was acknowledged, although no receive was ever announced.
        let naks = shared.world.nodes[1].rnic.counters()[Counter::RnrNaksSent as usize];
        assert_eq!(naks, 0);
    }
}

#[test]
fn without_a_receive_the_sender_waits() {
    let mut shared = Shared::new(&[RC, RC], Segmentation::Local, 2);
    shared.send(0, 1, 100);
    shared.send(1, 2, 100);
    shared.world.run(std::time::Duration::from_millis(50));
    assert!(shared.world.nodes[1].rnic.counters()[Counter::RnrNaksSent as usize] >= 2);
    shared.receive(0, 100);
    shared.receive(1, 100);
    shared.world.settle();
    for which in 0..2 {
        assert_eq!(shared.recv_cqs[which].drain().len(), 1);
        assert_eq!(shared.send_cqs[which].drain()[0].status, Status::Success);
    }
}

#[test]
fn the_limit_is_told_once() {
    let mut shared = Shared::new(&[RC], Segmentation::Local, 3);
    let reached = [(EventType::SrqLimitReached, shared.srq.srqn)];
    for wr_id in 0..6 {
        shared.receive(wr_id, 100);
    }
    shared.limit(4);
    assert_eq!(shared.query().limit.get(), 4);
    for message in 0..2 {
        shared.send(0, message, 10);
    }
    shared.world.settle();
    assert_eq!(shared.events(), [], "four are left");
    shared.send(0, 2, 10);
    shared.world.settle();
    assert_eq!(shared.events(), reached);
    assert_eq!(shared.query().limit.get(), 0);
    shared.send(0, 3, 10);
    shared.world.settle();
    assert_eq!(shared.events(), [], "once");
    // Two are left, so a higher limit has already been reached.
    shared.limit(2);
    assert_eq!(shared.events(), []);
    shared.limit(3);
    assert_eq!(shared.events(), reached);
    shared.limit(2);
    shared.limit(0);
    shared.send(0, 4, 10);
    shared.world.settle();
    assert_eq!(shared.events(), [], "it was taken back");
}

#[test]
fn a_queue_pair_in_error_leaves_the_receives_to_others() {
    let mut shared = Shared::new(&[RC, RC], Segmentation::PathMtu, 4);
    let last =
        |shared: &Shared, which: usize| [(EventType::LastWqeReached, shared.receivers[which].qpn)];
    shared.receive(0, 4096);
    shared.receive(1, 4096);
    // The first packet of a message takes a receive; the others are lost.
    shared.world.filter = Some(|segment| segment.psn.raw() == 0xff_fff0);
    shared.send(0, 1, 4000);
    shared.world.run(std::time::Duration::from_micros(500));
    assert_eq!(shared.srq.ring.device_index(), 1);
    assert_eq!(shared.recv_cqs[0].drain(), []);
    shared.fail(0);
    assert_eq!(
        statuses(&shared.recv_cqs[0].drain()),
        [(0, Status::Flushed)]
    );
    assert_eq!(shared.events(), last(&shared, 0));
    shared.fail(0);
    assert_eq!(shared.events(), [], "once");
    shared.world.filter = None;
    shared.send(1, 2, 500);
    shared.world.settle();
    assert_eq!(
        statuses(&shared.recv_cqs[1].drain()),
        [(1, Status::Success)]
    );
    // A queue pair that took no receive raises its last event too.
    shared.fail(1);
    assert_eq!(shared.events(), last(&shared, 1));
    assert_eq!(shared.recv_cqs[1].drain(), []);
    assert_eq!(shared.query().entries.get(), ENTRIES);
}

#[test]
fn errors_of_a_message_end_its_queue_pair_alone() {
    let mut shared = Shared::new(&[RC, RC], Segmentation::Local, 5);
    shared.receive(0, 99);
    shared.receive(1, 100);
    shared.send(0, 1, 100);
    shared.world.settle();
    assert_eq!(
        statuses(&shared.recv_cqs[0].drain()),
        [(0, Status::LocalLength)]
    );
    let sent = shared.send_cqs[0].drain();
    assert_eq!(statuses(&sent), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(
        shared.events(),
        [(EventType::LastWqeReached, shared.receivers[0].qpn)]
    );
    shared.send(1, 2, 100);
    shared.world.settle();
    assert_eq!(
        statuses(&shared.recv_cqs[1].drain()),
        [(1, Status::Success)]
    );
}

#[test]
fn a_queue_pair_that_goes_takes_the_receive_of_its_message_with_it() {
    let mut shared = Shared::new(&[RC, RC, RC], Segmentation::PathMtu, 6);
    (0..3).for_each(|wr_id| shared.receive(wr_id, 4096));
    // The first packets of messages take receives; the others are lost.
    shared.world.filter = Some(|segment| segment.psn.raw() == 0xff_fff0);
    shared.send(0, 1, 4000);
    shared.send(1, 2, 4000);
    shared.world.run(std::time::Duration::from_micros(500));
    assert_eq!(shared.srq.ring.device_index(), 2);
    let reset = QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::Reset.raw(),
        ..QpAttributes::default()
    };
    let (first, second) = (shared.receivers[0].qpn, shared.receivers[1].qpn);
    shared.world.modify(1, first, reset);
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let request = DestroyQp {
        qpn: second.into(),
        ..Default::default()
    };
    guest.command(rnic, request).expect("destroy");
    shared.world.filter = None;
    shared.send(2, 3, 4000);
    shared.world.settle();
    let received = statuses(&shared.recv_cqs[2].drain());
    assert_eq!(received, [(2, Status::Success)]);
    assert_eq!(shared.recv_cqs[0].drain(), []);
    assert_eq!(shared.recv_cqs[1].drain(), []);
    assert_eq!(shared.events(), []);
}

#[test]
fn an_entry_that_is_not_valid_ends_who_takes_it() {
    let mut shared = Shared::new(&[RC, RC], Segmentation::Local, 7);
    let sges = vec![shared.mrs[1].sge(0, 10); 5];
    // The queue was created for four elements, but the stride has room for more.
    assert!(shared.srq.post(0, &sges));
    shared.receive(1, 100);
    shared.send(0, 1, 10);
    shared.world.settle();
    let receiver = shared.receivers[0].qpn;
    let received = statuses(&shared.recv_cqs[0].drain());
    assert_eq!(received, [(0, Status::LocalQueuePairOperation)]);
    assert_eq!(
        shared.events(),
        [(EventType::LastWqeReached, receiver)],
        "the queue lives"
    );
    shared.send(1, 2, 100);
    shared.world.settle();
    let received = statuses(&shared.recv_cqs[1].drain());
    assert_eq!(received, [(1, Status::Success)]);
}

#[test]
fn elements_belong_to_the_domain_of_the_queue() {
    let mut shared = Shared::new(&[], Segmentation::Local, 6);
    let own = shared.world.nodes[1].guest.pd;
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let request = CreatePd {
        context: guest.context.into(),
        ..Default::default()
    };
    guest.pd = guest.command(rnic, request).expect("pd").pd.get();
    let foreign = guest.full_mr(rnic, 4096);
    shared.connect(RC);
    shared.connect(RC);
    shared.world.nodes[1].guest.pd = own;
    shared.receive(0, 100);
    assert!(shared.srq.post(1, &[foreign.sge(0, 100)]));
    shared.send(0, 1, 100);
    shared.world.settle();
    assert_eq!(
        statuses(&shared.recv_cqs[0].drain()),
        [(0, Status::Success)]
    );
    shared.send(1, 2, 100);
    shared.world.settle();
    let got = shared.recv_cqs[1].drain();
    assert_eq!(statuses(&got), [(1, Status::LocalProtection)]);
    assert_eq!(got[0].cause, Some(Cause::LocalKeyPd));
}

#[test]
fn resizing_keeps_what_is_posted() {
    let mut shared = Shared::new(&[RC], Segmentation::Local, 7);
    let mut next = 0;
    let mut arrived = 0;
    for entries in [8, 128, 64, 4, 256] {
        // So that indices do not begin at a multiple of the size.
        for _ in 0..3 {
            shared.receive(next, 64);
            next += 1;
            shared.send(0, next, 60);
            shared.world.settle();
            arrived += 1;
        }
        for _ in 0..3 {
            shared.receive(next, 64);
            next += 1;
        }
        assert_eq!(shared.resize(entries), Ok(()), "{entries}");
        assert_eq!(shared.query().entries.get(), entries);
        assert_eq!(shared.srq.ring.device_index(), arrived);
        for _ in 0..3 {
            shared.send(0, 1000, 60);
            shared.world.settle();
            arrived += 1;
        }
        assert_eq!(shared.srq.ring.device_index(), arrived);
    }
    let got = statuses(&shared.recv_cqs[0].drain());
    let all: Vec<_> = (0..next).map(|name| (name, Status::Success)).collect();
    assert_eq!(got, all);
    // Fewer entries than receives.
    for _ in 0..5 {
        shared.receive(next, 64);
        next += 1;
    }
    let refused = shared.resize(4);
    assert_eq!(
        refused,
        Err((CommandStatus::InvalidArgument, Cause::ReceiveProducer))
    );
    assert_eq!(shared.query().entries.get(), 256);
    shared.send(0, 1, 60);
    shared.world.settle();
    assert_eq!(shared.recv_cqs[0].drain().len(), 1);
    shared.limit(100);
    assert_eq!(shared.events().len(), 1);
}

#[test]
fn a_wild_index_ends_the_queue_and_those_who_need_it() {
    let mut shared = Shared::new(&[RC, UC, UD, RC], Segmentation::Local, 8);
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let other = guest.cq(rnic, 16, 0);
    shared.srq.ring.index = ENTRIES + 1;
    shared.srq.ring.publish();
    shared.send(0, 1, 10);
    shared.world.settle();
    let receivers: Vec<u32> = shared.receivers.iter().map(|qp| qp.qpn).collect();
    assert_eq!(
        shared.events(),
        [
            (EventType::SrqError, shared.srq.srqn),
            (EventType::QpFatal, receivers[0]),
            (EventType::LastWqeReached, receivers[0]),
        ]
    );
    assert_eq!(
        shared.send_cqs[0].drain()[0].status,
        Status::RemoteOperation
    );
    // A valid index does not bring the queue back.
    shared.srq.ring.index = 0;
    shared.srq.ring.publish();
    shared.receive(5, 100);
    for (from, &receiver) in receivers.iter().enumerate().take(3).skip(1) {
        assert_eq!(shared.world.state(1, receiver), QpState::ReadyToSend);
        shared.send(from, 2, 10);
        shared.world.settle();
        let told = shared.events();
        assert_eq!(
            told,
            [
                (EventType::QpFatal, receiver),
                (EventType::LastWqeReached, receiver)
            ]
        );
    }
    // Queue pairs that need no receive continue.
    let write = Send::new(9, SendOpcode::Write)
        .rdma(shared.mrs[1].iova, shared.mrs[1].key)
        .inline(b"alive");
    let Node { rnic, guest } = &mut shared.world.nodes[0];
    assert!(guest.post_send(rnic, &mut shared.senders[3], &write));
    shared.world.settle();
    assert_eq!(shared.send_cqs[3].drain()[0].status, Status::Success);
    assert_eq!(shared.mrs[1].arena.get(0, 5), b"alive");
    assert!(shared.resize(128).is_err());
    drop(other);
    // The queue can be destroyed after its queue pairs.
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let destroy = DestroySrq {
        srqn: shared.srq.srqn.into(),
        ..Default::default()
    };
    for qpn in receivers {
        let (status, _) = guest.command(rnic, destroy).expect_err("in use");
        assert_eq!(status, CommandStatus::Busy);
        let request = DestroyQp {
            qpn: qpn.into(),
            ..Default::default()
        };
        assert!(guest.command(rnic, request).is_ok());
    }
    assert!(guest.command(rnic, destroy).is_ok());
    assert_eq!(rnic.snapshot().srqs, 0);
}

#[test]
fn events_go_with_their_queue() {
    let mut shared = Shared::new(&[], Segmentation::Local, 9);
    shared.limit(1);
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let destroy = DestroySrq {
        srqn: shared.srq.srqn.into(),
        ..Default::default()
    };
    assert!(guest.command(rnic, destroy).is_ok());
    assert_eq!(shared.events(), []);
}

#[test]
fn the_gsi_shares_nothing() {
    let mut shared = Shared::new(&[], Segmentation::Local, 10);
    let Node { rnic, guest } = &mut shared.world.nodes[1];
    let cq = guest.cq(rnic, 16, 0);
    let request = CreateQp {
        context: guest.context.into(),
        pd: guest.pd.into(),
        qp_type: QpType::Gsi.raw(),
        flags: qp_flags::SHARED_RECEIVE_QUEUE,
        send_cqn: cq.cqn.into(),
        recv_cqn: cq.cqn.into(),
        srqn: shared.srq.srqn.into(),
        ..Default::default()
    };
    let refused = guest.command(rnic, request).err();
    assert_eq!(
        refused.map(|(status, _)| status),
        Some(CommandStatus::InvalidArgument)
    );
}

/// Many senders on a bad fabric: every message of a reliable connection arrives once and complete, in the order of its
/// connection, each in its own receive.
fn run(seed: u64, faults: Faults, wire: bool, messages: &[(usize, usize)], resizes: &[u32]) {
    let segmentation = if wire {
        Segmentation::PathMtu
    } else {
        Segmentation::Local
    };
    let mut shared = Shared::new(&[RC, RC, RC], segmentation, seed);
    shared.world.faults = faults;
    let mut expected: [Vec<u64>; 3] = Default::default();
    for (message, &(from, length)) in messages.iter().enumerate() {
        shared.send(from, message as u64, length);
        expected[from].push(message as u64);
    }
    let mut resizes = resizes.iter().cycle();
    for wr_id in 0..messages.len() as u64 {
        shared.receive(wr_id, 4096);
        if wr_id % 5 == 4 {
            shared.world.run(std::time::Duration::from_micros(300));
            if let Some(&entries) = resizes.next() {
                // It may hold too many receives for this size.
                let _ = shared.resize(entries);
            }
        }
    }
    shared.world.settle();
    let mut names = Vec::new();
    for (from, expected) in expected.iter().enumerate() {
        let got = shared.recv_cqs[from].drain();
        let arrived: Vec<u64> = got.iter().map(|done| done.immediate.into()).collect();
        assert_eq!(arrived, *expected);
        for done in &got {
            assert_eq!(done.status, Status::Success);
            let (_, length) = messages[done.immediate as usize];
            assert_eq!(done.length as usize, length);
            let bytes = shared.mrs[1].arena.get(done.wr_id as usize * 4096, length);
            assert!(bytes == content(done.immediate.into(), length));
            names.push(done.wr_id);
        }
        let sent = shared.send_cqs[from].drain();
        assert!(sent.iter().all(|done| done.status == Status::Success));
        assert_eq!(sent.len(), expected.len());
    }
    names.sort_unstable();
    let all: Vec<u64> = (0..messages.len() as u64).collect();
    assert_eq!(names, all, "each receive once");
    assert_eq!(shared.events(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_message_gets_a_receive_of_its_own(
        seed in any::<u64>(),
        wire in any::<bool>(),
        (drop, duplicate, delay) in prop_oneof![
            Just((0u32, 0u32, 0u32)),
            (0u32..60, 0u32..60, 0u32..100),
        ],
        messages in vec((0usize..3, 0usize..4096), 0..50),
        resizes in vec(prop::sample::select(vec![64u32, 128, 256]), 0..3),
    ) {
        let faults = Faults { drop, duplicate, delay, ..Faults::default() };
        run(seed, faults, wire, &messages, &resizes);
    }

    /// Whatever a process writes to its shared ring, only its own queue pairs are affected.
    #[test]
    fn garbage_in_a_shared_ring(
        seed in any::<u64>(),
        garbage in vec((any::<u16>(), vec(any::<u8>(), 1..60), any::<u32>()), 1..30),
    ) {
        let mut shared = Shared::new(&[RC, UC, UD], Segmentation::Local, seed);
        let mut bystander = shared.world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
        let arena = shared.srq.ring.arena.clone();
        for (round, (place, bytes, index)) in garbage.iter().enumerate() {
            let room = arena.length() - bytes.len();
            arena.put(usize::from(*place) * room / 65536, bytes);
            if index % 2 == 0 {
                shared.srq.ring.index = shared.srq.ring.device_index().wrapping_add(index / 2 % 80);
                shared.srq.ring.publish();
            }
            let from = round % 3;
            let in_flight = round / 3 < 20;
            if in_flight {
                shared.send(from, round as u64, 50);
            }
            shared.limit(index % (ENTRIES + 1));
            shared.world.run(std::time::Duration::from_micros(50));
        }
        shared.world.run(std::time::Duration::from_millis(10));
        let sge = bystander.mrs[1].sge(0, 16);
        bystander.receive(&mut shared.world, 1, 1, &[sge]);
        let send = Send::new(2, SendOpcode::Send).inline(b"unharmed");
        bystander.send(&mut shared.world, 0, &send);
        // A sender without a receive retries forever.
        shared.world.run(std::time::Duration::from_millis(10));
        prop_assert_eq!(statuses(&bystander.recv_cqs[1].drain()), [(1, Status::Success)]);
    }
}

/// Each step of taking a receive comes with the state of the queue after it, and so does each step of a message that
/// finds no receive.
#[test]
fn steps_have_the_shared_receive_queue() {
    let rc = [QpType::ReliableConnection];
    let mut shared = Shared::new(&rc, Segmentation::Local, 21);
    let clock: fn() -> u64 = || 0;
    shared.receive(1, 100);
    shared.receive(2, 100);
    shared.limit(2);
    shared.world.nodes[1].rnic.trace(clock, 0, 0);
    for message in 1..=3 {
        shared.send(0, message, 10);
    }
    for _ in 0..20 {
        shared.world.step();
    }
    assert_eq!(shared.events()[0].0, EventType::SrqLimitReached);
    let page = shared.world.nodes[1].rnic.trace(clock, 0, usize::MAX);
    let seen = page.objects.iter().filter_map(|(place, object)| {
        let Object::Srq(srq) = object else {
            return None;
        };
        assert_eq!(srq.number, shared.srq.srqn);
        let what = match page.steps[*place].act {
            Act::TookReceive { .. } => "receive",
            Act::Sent(packet) if packet.body.is_negative() => "NAK",
            Act::Raised(_) => "event",
            _ => "?",
        };
        Some((what, srq.posted, srq.limit, srq.exact))
    });
    let wanted = [
        ("receive", Some(1), 0, true),
        ("receive", Some(0), 0, true),
        ("NAK", Some(0), 0, true),
        ("event", Some(0), 0, false),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), wanted);
}
