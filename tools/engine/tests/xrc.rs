// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Extended reliable connections (IBTA volume 1, annex A14): which queue a message goes to, whose memory a peer can
//! access, and which objects outlive others.

use std::time::Duration;
use vrnic_engine::{
    Cause, Features, RnicConfig, Segment, Segmentation,
    segment::{Body, Position, SendTail, Service},
    testing::{Completion, Cq, Faults, Mr, Node, Qp, QpOptions, Send, Srq, World},
};
use vrnic_wire::{
    command::{
        CreatePd, CreateQp, DestroyCq, DestroyPd, DestroyQp, DestroySrq, DestroyXrcd, QueryDevice,
        Status as CommandStatus, qp_flags,
    },
    completion::{Opcode, Status},
    counter::Counter,
    event::EventType,
    memory::access,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::SendOpcode,
};

const MR: usize = 1 << 19;
const ENTRIES: u32 = 64;

/// The objects of a process of node 1: a protection domain, a region, a completion queue and a shared receive queue.
struct Process {
    pd: u32,
    mr: Mr,
    cq: Cq,
    srq: Srq,
}

/// An initiator of node 0, and a target of node 1 that serves two processes.
struct Xrc {
    world: World,
    xrcdn: u32,
    initiator: Qp,
    send_cq: Cq,
    source: Mr,
    target: u32,
    processes: [Process; 2],
}

impl Xrc {
    fn new(segmentation: Segmentation, seed: u64) -> Self {
        let config = RnicConfig {
            segmentation,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 4096, &config, seed);
        let Node { rnic, guest } = &mut world.nodes[0];
        let options = QpOptions {
            qp_type: QpType::XrcInitiator,
            ..QpOptions::default()
        };
        let send_cq = guest.cq(rnic, 256, 0);
        let initiator = guest.try_qp(rnic, &options, send_cq.cqn, 0).expect("qp");
        let source = guest.full_mr(rnic, MR);
        let Node { rnic, guest } = &mut world.nodes[1];
        let xrcdn = guest.xrcd(rnic);
        let target = target(&mut world.nodes[1], xrcdn).expect("target");
        let processes = [0, 1].map(|_| process(&mut world.nodes[1], xrcdn));
        let mut xrc = Self {
            world,
            xrcdn,
            initiator,
            send_cq,
            source,
            target,
            processes,
        };
        for (node, qpn, peer, qp_type) in [
            (0, xrc.initiator.qpn, target, QpType::XrcInitiator),
            (1, target, xrc.initiator.qpn, QpType::XrcTarget),
        ] {
            let attributes = QpAttributes {
                access: (access::QUEUE_PAIR | access::FLUSH_GLOBAL).into(),
                ..World::attributes(1 - node, peer)
            };
            xrc.world.bring_up(node, qpn, attributes, qp_type);
        }
        xrc
    }

    fn post(&mut self, send: &Send) {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        assert!(guest.post_send(rnic, &mut self.initiator, send));
    }

    /// Posts receive `wr_id` of `length` bytes for a process.
    fn receive(&mut self, process: usize, wr_id: u64, length: usize) {
        let process = &mut self.processes[process];
        let sge = process.mr.sge(wr_id as usize * 4096, length);
        assert!(process.srq.post(wr_id, &[sge]), "queue is full");
    }

    /// Sends `length` bytes to the queue of a process, with the number of the message as immediate data.
    fn send(&mut self, process: usize, message: u64, length: usize) {
        let place = message as usize % 64 * 4096;
        self.source.arena.put(place, &content(message, length));
        let send = Send::new(message, SendOpcode::SendWithImmediate)
            .immediate(message as u32)
            .element(self.source.sge(place, length))
            .to_srq(self.processes[process].srq.srqn);
        self.post(&send);
    }

    /// Builds a request without local data that accesses memory of the process `of` through the queue of the process
    /// `by`.
    fn access(&self, wr_id: u64, opcode: SendOpcode, by: usize, of: usize) -> Send {
        let mr = &self.processes[of].mr;
        Send::new(wr_id, opcode)
            .rdma(mr.iova, mr.key)
            .element(self.source.sge(0, 8))
            .to_srq(self.processes[by].srq.srqn)
    }

    /// Returns how the next requests of the initiator end, and which events the target gets.
    fn outcome(&mut self) -> (Vec<Status>, Vec<EventType>) {
        self.world.settle();
        let done = self.send_cq.drain();
        let statuses = done.into_iter().map(|done| done.status).collect();
        (statuses, self.events())
    }

    /// Returns the events of node 1 since the last call.
    fn events(&mut self) -> Vec<EventType> {
        std::iter::from_fn(|| self.world.nodes[1].rnic.next_async_event())
            .map(|event| EventType::try_from(event.event_type.get()).expect("event type"))
            .collect()
    }

    fn destroy_srq(&mut self, process: usize) -> Result<(), (CommandStatus, Cause)> {
        let Node { rnic, guest } = &mut self.world.nodes[1];
        let request = DestroySrq {
            srqn: self.processes[process].srq.srqn.into(),
            ..Default::default()
        };
        guest.command(rnic, request).map(drop)
    }
}

/// Creates an XRC target and returns its number.
fn target(node: &mut Node, xrcdn: u32) -> Result<u32, (CommandStatus, Cause)> {
    let options = QpOptions {
        qp_type: QpType::XrcTarget,
        xrcdn,
        ..QpOptions::default()
    };
    let created = node.guest.try_qp(&mut node.rnic, &options, 0, 0);
    Ok(created?.qpn)
}

fn process(node: &mut Node, xrcdn: u32) -> Process {
    let Node { rnic, guest } = node;
    let request = CreatePd {
        context: guest.context.into(),
        ..Default::default()
    };
    let pd = guest.command(rnic, request).expect("pd").pd.get();
    let own = std::mem::replace(&mut guest.pd, pd);
    let mr = guest.full_mr(rnic, MR);
    let cq = guest.cq(rnic, 256, 0);
    let srq = guest.try_xrc_srq(rnic, (ENTRIES, 4), xrcdn, cq.cqn);
    guest.pd = own;
    Process {
        pd,
        mr,
        cq,
        srq: srq.expect("srq"),
    }
}

/// Returns the contents of message `message`.
fn content(message: u64, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u64 * 3 + message * 59 + at as u64 / 256) as u8)
        .collect()
}

fn names(completions: &[Completion]) -> Vec<(u64, Status)> {
    let name = |done: &Completion| (done.wr_id, done.status);
    completions.iter().map(name).collect()
}

const INVALID: ([Status; 1], [EventType; 1]) =
    ([Status::RemoteInvalidRequest], [EventType::QpRequestError]);
const ACCESS: ([Status; 1], [EventType; 1]) = ([Status::RemoteAccess], [EventType::QpAccessError]);

fn same(outcome: &(Vec<Status>, Vec<EventType>), expected: ([Status; 1], [EventType; 1])) {
    assert_eq!(
        (&outcome.0[..], &outcome.1[..]),
        (&expected.0[..], &expected.1[..])
    );
}

/// A fault makes the header of a message name another queue: one of another process, or one that does not exist.
#[test]
fn a_message_goes_to_the_queue_that_its_header_names_by_mistake() {
    for fabric in [Segmentation::Local, Segmentation::PathMtu] {
        let mut xrc = Xrc::new(fabric, 3);
        let other = xrc.processes[1].srq.srqn;
        for value in [other, 0xff_fff0] {
            let fault = format!("wrong-field field=srq value={value}");
            let now = xrc.world.now;
            let mut faults = xrc.world.nodes[0].rnic.faults_mut();
            faults
                .arm(fault.parse().expect("fault"), now)
                .expect("room");
        }
        xrc.receive(0, 0, 100);
        xrc.receive(1, 1, 100);
        xrc.send(0, 0, 100);
        assert_eq!(xrc.outcome(), (vec![Status::Success], vec![]));
        assert_eq!(names(&xrc.processes[1].cq.drain()), [(1, Status::Success)]);
        xrc.send(0, 1, 100);
        same(&xrc.outcome(), INVALID);
        assert_eq!(names(&xrc.processes[0].cq.drain()), []);
    }
}

#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
        let mut xrc = Xrc::new(segmentation, 1);
        for wr_id in 0..8 {
            xrc.receive(0, wr_id, 4096);
            xrc.receive(1, wr_id, 4096);
        }
        let mut taken = [0, 0];
        for (message, to) in [1, 0, 0, 1, 1, 0].into_iter().enumerate() {
            let (message, length) = (message as u64, 3000 + message);
            xrc.send(to, message, length);
            xrc.world.settle();
            assert_eq!(names(&xrc.send_cq.drain()), [(message, Status::Success)]);
            let target = xrc.target;
            let Process { mr, cq, .. } = &mut xrc.processes[to];
            let got = cq.drain();
            assert_eq!(names(&got), [(taken[to], Status::Success)]);
            assert_eq!((got[0].qpn, got[0].immediate), (target, message as u32));
            assert_eq!(got[0].length as usize, length);
            let bytes = mr.arena.get(taken[to] as usize * 4096, length);
            assert!(bytes == content(message, length));
            taken[to] += 1;
            assert!(xrc.processes[1 - to].cq.drain().is_empty());
        }
        let naks = xrc.world.nodes[1].rnic.counters()[Counter::RnrNaksSent as usize];
        assert_eq!(naks, 0, "no receives are promised, so none is waited for");
    }
}

#[test]
fn all_operations_of_a_reliable_connection_work() {
    let mut xrc = Xrc::new(Segmentation::PathMtu, 2);
    xrc.receive(1, 0, 100);
    let (key, iova) = (xrc.processes[1].mr.key, xrc.processes[1].mr.iova);
    let srqn = xrc.processes[1].srq.srqn;
    xrc.source.arena.put(0, &content(9, 5000));
    xrc.processes[1].mr.arena.put(8192, &7u64.to_le_bytes());
    let source = |at, length| xrc.source.sge(at, length);
    let requests = [
        Send::new(0, SendOpcode::Write)
            .rdma(iova + 16384, key)
            .element(source(0, 5000)),
        Send::new(1, SendOpcode::WriteWithImmediate)
            .rdma(iova + 100, key)
            .immediate(77)
            .element(source(0, 10)),
        Send::new(2, SendOpcode::Read)
            .rdma(iova + 16384, key)
            .element(source(8192, 5000)),
        Send::new(3, SendOpcode::FetchAdd)
            .atomic(iova + 8192, key, 5, 0)
            .element(source(16384, 8)),
        Send::new(4, SendOpcode::CompareSwap)
            .atomic(iova + 8192, key, 12, 99)
            .element(source(16392, 8)),
        Send::new(5, SendOpcode::Flush).flush(iova, key, 10, 1),
        Send::new(6, SendOpcode::AtomicWrite).atomic(iova + 8200, key, 0, 55),
    ];
    for request in requests {
        // Bits above the number have no meaning.
        xrc.post(&request.to_srq(srqn | 0xab00_0000));
    }
    xrc.world.settle();
    let all: Vec<_> = (0..7).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(names(&xrc.send_cq.drain()), all);
    let got = xrc.processes[1].cq.drain();
    assert_eq!(names(&got), [(0, Status::Success)]);
    assert_eq!(got[0].opcode, Opcode::ReceiveWriteWithImmediate);
    assert!(xrc.source.arena.get(8192, 5000) == content(9, 5000));
    let word = |arena: &vrnic_engine::testing::Arena, at| arena.get(at, 8);
    assert_eq!(word(&xrc.source.arena, 16384), 7u64.to_le_bytes());
    assert_eq!(word(&xrc.source.arena, 16392), 12u64.to_le_bytes());
    assert_eq!(word(&xrc.processes[1].mr.arena, 8192), 99u64.to_le_bytes());
    assert_eq!(word(&xrc.processes[1].mr.arena, 8200), 55u64.to_le_bytes());
}

#[test]
fn without_a_receive_in_its_queue_a_message_waits() {
    let mut xrc = Xrc::new(Segmentation::Local, 3);
    xrc.receive(1, 0, 100);
    xrc.send(0, 0, 100);
    xrc.world.run(Duration::from_millis(20));
    assert!(xrc.send_cq.drain().is_empty());
    assert!(xrc.world.nodes[1].rnic.counters()[Counter::RnrNaksSent as usize] > 0);
    xrc.receive(0, 5, 100);
    xrc.world.settle();
    assert_eq!(names(&xrc.send_cq.drain()), [(0, Status::Success)]);
    assert_eq!(names(&xrc.processes[0].cq.drain()), [(5, Status::Success)]);
}

#[test]
fn a_number_that_names_no_queue_of_the_domain_is_refused() {
    // A queue that does not exist, one without a domain, one of another domain.
    for case in 0..3 {
        let mut xrc = Xrc::new(Segmentation::Local, 4);
        let Node { rnic, guest } = &mut xrc.world.nodes[1];
        let srqn = match case {
            0 => 0xff_ff00,
            1 => guest.try_srq(rnic, 4, 1, 0).expect("srq").srqn,
            _ => {
                let other = guest.xrcd(rnic);
                process(&mut xrc.world.nodes[1], other).srq.srqn
            }
        };
        xrc.post(&Send::new(1, SendOpcode::Send).to_srq(srqn));
        same(&xrc.outcome(), INVALID);
        assert_eq!(xrc.world.state(1, xrc.target), QpState::Error);
        let why = std::iter::from_fn(|| xrc.world.nodes[1].rnic.next_explanation());
        assert!(
            why.filter_map(|why| why.cause)
                .any(|cause| cause == Cause::XrcSrq)
        );
    }
}

#[test]
fn memory_is_that_of_the_domain_of_the_queue() {
    for opcode in [SendOpcode::Write, SendOpcode::Read] {
        let mut xrc = Xrc::new(Segmentation::Local, 5);
        let own = xrc.access(1, opcode, 0, 0);
        xrc.post(&own);
        xrc.world.settle();
        assert_eq!(names(&xrc.send_cq.drain()), [(1, Status::Success)]);
        // The region of one process through the queue of the other.
        let foreign = xrc.access(2, opcode, 0, 1);
        xrc.post(&foreign);
        same(&xrc.outcome(), ACCESS);
    }
}

/// The answer to a read is generated after the request was accepted, even if other queues were named meanwhile.
#[test]
fn reads_of_several_queues_are_answered_from_their_own_memory() {
    let mut xrc = Xrc::new(Segmentation::PathMtu, 6);
    xrc.world.faults = Faults {
        drop: 60,
        duplicate: 60,
        delay: 60,
        ..Faults::default()
    };
    for round in 0..20 {
        for of in [0, 1] {
            xrc.processes[of]
                .mr
                .arena
                .put(0, &content(round * 2 + of as u64, 20_000));
        }
        for of in [0, 1] {
            let mr = &xrc.processes[of].mr;
            let read = Send::new(round, SendOpcode::Read)
                .rdma(mr.iova, mr.key)
                .element(xrc.source.sge(of * 20_000, 20_000))
                .to_srq(xrc.processes[of].srq.srqn);
            xrc.post(&read);
        }
        xrc.world.settle();
        let done = names(&xrc.send_cq.drain());
        assert_eq!(done, [(round, Status::Success); 2]);
        for of in [0, 1] {
            let bytes = xrc.source.arena.get(of * 20_000, 20_000);
            assert!(bytes == content(round * 2 + of as u64, 20_000));
        }
    }
}

/// A peer that changes the queue in the middle of a message.
#[test]
fn a_message_stays_with_its_queue() {
    let mut xrc = Xrc::new(Segmentation::PathMtu, 7);
    xrc.receive(0, 0, 4096);
    xrc.receive(1, 1, 4096);
    xrc.send(0, 0, 3000);
    let queue = xrc.processes[0].srq.srqn;
    assert_eq!(queue + 1, xrc.processes[1].srq.srqn);
    xrc.world.filter = Some(
        |segment| !matches!(segment.body, Body::Send { position, .. } if position != Position::First),
    );
    xrc.world.run(Duration::from_micros(50));
    xrc.world.filter = None;
    let forged = Segment {
        service: Service::Xrc { srqn: queue + 1 },
        ..middle(&xrc)
    };
    xrc.world.deliver(forged);
    xrc.world.settle();
    assert_eq!(
        names(&xrc.processes[0].cq.drain()),
        [(0, Status::RemoteInvalidRequest)]
    );
    assert!(xrc.processes[1].cq.drain().is_empty());
    assert_eq!(xrc.events(), [], "the receive tells");
    assert_eq!(xrc.world.state(1, xrc.target), QpState::Error);
}

/// Builds the second packet of the initiator's first message.
fn middle(xrc: &Xrc) -> Segment<'static> {
    let Node { rnic, guest } = &xrc.world.nodes[0];
    let qp = rnic.qp(xrc.initiator.qpn, &guest.view).expect("qp");
    Segment {
        path: qp.path,
        source_qpn: xrc.initiator.qpn,
        destination_qpn: xrc.target,
        pkey: 0xffff,
        psn: vrnic_engine::psn::Psn::new(0xff_fff1),
        solicited: false,
        ack_request: true,
        migrated: true,
        service: Service::Xrc {
            srqn: xrc.processes[0].srq.srqn,
        },
        body: Body::Send {
            position: Position::Middle,
            tail: SendTail::Plain,
        },
        payload: vrnic_engine::segment::Payload::Bytes(vec![1; 1024]),
        checksums_ok: false,
        touched: vrnic_engine::segment::Touched::NOT,
    }
}

/// The process goes away while a message for it is in flight: nothing more of it is written, and the connection serves
/// no one else, because the message can never be finished.
#[test]
fn a_queue_can_go_away_at_any_time() {
    let mut xrc = Xrc::new(Segmentation::PathMtu, 8);
    xrc.receive(0, 0, 4096);
    xrc.send(0, 0, 3000);
    xrc.world.filter = Some(
        |segment| !matches!(segment.body, Body::Send { position, .. } if position != Position::First),
    );
    xrc.world.run(Duration::from_micros(50));
    xrc.world.filter = None;
    assert_eq!(
        xrc.processes[0].srq.ring.device_index(),
        1,
        "the receive was taken"
    );
    xrc.destroy_srq(0).expect("destroyed");
    let Node { rnic, guest } = &mut xrc.world.nodes[1];
    let request = DestroyPd {
        pd: xrc.processes[0].pd.into(),
        ..Default::default()
    };
    let busy = guest.command(rnic, request).map(drop);
    assert_eq!(busy, Err((CommandStatus::Busy, Cause::InUse)), "its region");
    same(&xrc.outcome(), INVALID);
    assert!(xrc.processes[0].cq.drain().is_empty());
    let Node { rnic, guest } = &mut xrc.world.nodes[1];
    let request = DestroyCq {
        cqn: xrc.processes[0].cq.cqn.into(),
        ..Default::default()
    };
    guest
        .command(rnic, request)
        .expect("nobody uses it any more");
}

/// A send that is repeated after its queue is gone is acknowledged again.
#[test]
fn requests_that_come_again_after_their_queue_went_away() {
    let mut xrc = Xrc::new(Segmentation::Local, 9);
    xrc.receive(0, 0, 100);
    xrc.world.filter = Some(|segment| !segment.body.is_response());
    xrc.send(0, 0, 100);
    xrc.world.run(Duration::from_micros(50));
    assert_eq!(xrc.processes[0].cq.drain().len(), 1, "it arrived");
    xrc.destroy_srq(0).expect("destroyed");
    xrc.world.filter = None;
    assert_eq!(xrc.outcome().0, [Status::Success]);
}

#[test]
fn a_target_in_error_flushes_what_it_took_and_no_more() {
    let mut xrc = Xrc::new(Segmentation::PathMtu, 10);
    xrc.receive(0, 0, 4096);
    xrc.receive(0, 1, 4096);
    xrc.send(0, 0, 3000);
    xrc.world.filter = Some(
        |segment| !matches!(segment.body, Body::Send { position, .. } if position != Position::First),
    );
    xrc.world.run(Duration::from_micros(50));
    xrc.world.modify(
        1,
        xrc.target,
        QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::Error.raw(),
            ..Default::default()
        },
    );
    xrc.world.run(Duration::from_micros(50));
    assert_eq!(names(&xrc.processes[0].cq.drain()), [(0, Status::Flushed)]);
    assert_eq!(xrc.events(), [], "no queue is its own");
    // The other receive is still available for other targets.
    assert_eq!(xrc.processes[0].srq.ring.device_index(), 1);
}

#[test]
fn a_queue_whose_completions_are_lost_fails_and_others_go_on() {
    let mut xrc = Xrc::new(Segmentation::Local, 11);
    for wr_id in 0..2 {
        xrc.receive(1, wr_id, 100);
    }
    // More completions than the queue has room for.
    let mut message = 0;
    loop {
        xrc.receive(0, message % 64, 100);
        xrc.send(0, message, 10);
        xrc.world.settle();
        xrc.send_cq.drain();
        message += 1;
        let events = xrc.events();
        if !events.is_empty() {
            assert_eq!(events, [EventType::CqError, EventType::SrqError]);
            break;
        }
        assert!(message <= 256);
    }
    assert_eq!(xrc.world.state(1, xrc.target), QpState::ReadyToSend);
    xrc.send(1, 1, 10);
    xrc.world.settle();
    assert_eq!(names(&xrc.send_cq.drain()), [(1, Status::Success)]);
    assert_eq!(xrc.processes[1].cq.drain().len(), 1);
}

#[test]
fn each_end_has_one_half_only() {
    let mut xrc = Xrc::new(Segmentation::Local, 12);
    let dropped =
        |xrc: &Xrc, node: usize| xrc.world.nodes[node].rnic.counters()[Counter::Dropped as usize];
    let request = middle(&xrc);
    let mut path = request.path;
    std::mem::swap(&mut path.source, &mut path.destination);
    // A request for the initiator.
    xrc.world.deliver(Segment {
        path,
        destination_qpn: xrc.initiator.qpn,
        ..request.clone()
    });
    assert_eq!(dropped(&xrc, 0), 1);
    // A response for the target, and packets of other services for it.
    let ack = Body::Acknowledge(vrnic_engine::segment::Aeth {
        syndrome: vrnic_engine::segment::Syndrome::ACK,
        msn: 0,
    });
    xrc.world.deliver(Segment {
        body: ack,
        payload: vrnic_engine::segment::Payload::Empty,
        ..request.clone()
    });
    for service in [Service::Reliable, Service::Unreliable] {
        xrc.world.deliver(Segment {
            service,
            ..request.clone()
        });
    }
    assert_eq!(dropped(&xrc, 1), 3);
    assert_eq!(xrc.world.state(1, xrc.target), QpState::ReadyToSend);
}

#[test]
fn domains_end_after_what_belongs_to_them() {
    let mut xrc = Xrc::new(Segmentation::Local, 13);
    let request = DestroyXrcd {
        xrcdn: xrc.xrcdn.into(),
        ..Default::default()
    };
    let end = |xrc: &mut Xrc| {
        let Node { rnic, guest } = &mut xrc.world.nodes[1];
        guest.command(rnic, request).map(drop)
    };
    let busy = Err((CommandStatus::Busy, Cause::InUse));
    assert_eq!(end(&mut xrc), busy);
    for process in 0..2 {
        xrc.destroy_srq(process)
            .expect("although a target may name it");
    }
    assert_eq!(end(&mut xrc), busy);
    let qpn = xrc.target.into();
    let Node { rnic, guest } = &mut xrc.world.nodes[1];
    let reserved = 0.into();
    guest
        .command(rnic, DestroyQp { qpn, reserved })
        .expect("destroyed");
    end(&mut xrc).expect("destroyed");
    let unknown = Err((CommandStatus::NotFound, Cause::UnknownXrcd));
    assert_eq!(end(&mut xrc), unknown);
    let Node { rnic, guest } = &mut xrc.world.nodes[1];
    let cqn = xrc.processes[0].cq.cqn;
    let srq = guest.try_xrc_srq(rnic, (4, 1), xrc.xrcdn, cqn);
    assert_eq!(srq.map(drop), unknown);
    let node = &mut xrc.world.nodes[1];
    assert_eq!(target(node, xrc.xrcdn).map(drop), unknown);
}

#[test]
fn commands_are_checked() {
    let mut xrc = Xrc::new(Segmentation::Local, 14);
    let xrcdn = xrc.xrcdn;
    let (srqn, cqn) = (xrc.processes[0].srq.srqn, xrc.processes[0].cq.cqn);
    let Node { rnic, guest } = &mut xrc.world.nodes[1];
    let target = CreateQp {
        qp_type: QpType::XrcTarget.raw(),
        xrcdn: xrcdn.into(),
        ..CreateQp::default()
    };
    let initiator = CreateQp {
        context: guest.context.into(),
        pd: guest.pd.into(),
        qp_type: QpType::XrcInitiator.raw(),
        send_cqn: cqn.into(),
        ..CreateQp::default()
    };
    let connection = CreateQp {
        qp_type: QpType::ReliableConnection.raw(),
        recv_cqn: cqn.into(),
        ..initiator
    };
    for good in [target, initiator, connection] {
        guest.command(rnic, good).expect("created");
    }
    let one = 1.into();
    let ring = vrnic_wire::ring::RingLayout {
        header_offset: 0.into(),
        entries_offset: 128.into(),
        entries: 4.into(),
        stride: 64.into(),
    };
    let share = qp_flags::SHARED_RECEIVE_QUEUE;
    let malformed = (CommandStatus::Malformed, Cause::ReservedField);
    let invalid = (CommandStatus::InvalidArgument, Cause::RingLayout);
    let unknown = |cause| (CommandStatus::NotFound, cause);
    let bad = [
        (
            CreateQp {
                context: one,
                ..target
            },
            malformed,
        ),
        (CreateQp { pd: one, ..target }, malformed),
        (
            CreateQp {
                send_cqn: cqn.into(),
                ..target
            },
            malformed,
        ),
        (
            CreateQp {
                recv_cqn: cqn.into(),
                ..target
            },
            malformed,
        ),
        (
            CreateQp {
                srqn: srqn.into(),
                ..target
            },
            malformed,
        ),
        (
            CreateQp {
                flags: qp_flags::SIGNAL_ALL,
                ..target
            },
            malformed,
        ),
        (
            CreateQp {
                send_ring: ring,
                ..target
            },
            invalid,
        ),
        (
            CreateQp {
                recv_ring: ring,
                ..target
            },
            invalid,
        ),
        (
            CreateQp {
                xrcdn: 0.into(),
                ..target
            },
            unknown(Cause::UnknownXrcd),
        ),
        (
            CreateQp {
                xrcdn: one,
                ..initiator
            },
            malformed,
        ),
        (
            CreateQp {
                recv_cqn: cqn.into(),
                ..initiator
            },
            malformed,
        ),
        (
            CreateQp {
                recv_ring: ring,
                ..initiator
            },
            invalid,
        ),
        (
            CreateQp {
                flags: share,
                srqn: srqn.into(),
                ..initiator
            },
            invalid,
        ),
        (
            CreateQp {
                send_cqn: 0.into(),
                ..initiator
            },
            unknown(Cause::UnknownCq),
        ),
        (
            CreateQp {
                xrcdn: one,
                ..connection
            },
            malformed,
        ),
        // A queue of a domain is for the targets of the domain.
        (
            CreateQp {
                flags: share,
                srqn: srqn.into(),
                ..connection
            },
            unknown(Cause::UnknownSrq),
        ),
    ];
    for (index, (request, expected)) in bad.into_iter().enumerate() {
        let refused = guest.command(rnic, request).map(drop);
        assert_eq!(refused, Err(expected), "{index}");
    }
    let refused = guest.try_xrc_srq(rnic, (4, 1), xrcdn, 0).map(drop);
    assert_eq!(refused, Err(unknown(Cause::UnknownCq)));
}

#[test]
fn without_the_features_there_are_no_extended_connections() {
    for features in [
        Features {
            xrc: false,
            ..Features::ALL
        },
        Features {
            shared_receive_queues: false,
            ..Features::ALL
        },
    ] {
        let config = RnicConfig {
            features,
            ..RnicConfig::default()
        };
        let mut world = World::new(1, 256, &config, 15);
        let Node { rnic, guest } = &mut world.nodes[0];
        let unsupported = |cause| Err((CommandStatus::Unsupported, cause));
        let xrcd = guest.command(rnic, vrnic_wire::command::CreateXrcd::default());
        assert_eq!(xrcd.map(drop), unsupported(Cause::CommandCode));
        let cq = guest.cq(rnic, 4, 0);
        let srq = guest.try_xrc_srq(rnic, (4, 1), 1, cq.cqn);
        assert_eq!(srq.map(drop), unsupported(Cause::CommandCode));
        let options = QpOptions {
            qp_type: QpType::XrcInitiator,
            ..QpOptions::default()
        };
        let qp = guest.try_qp(rnic, &options, cq.cqn, 0);
        assert_eq!(qp.map(drop), unsupported(Cause::QpTypeAbsent));
        let limits = guest.command(rnic, QueryDevice {}).expect("limits");
        assert_eq!(limits.max_xrcd.get(), 0);
        let target = target(&mut world.nodes[0], 1);
        assert_eq!(target.map(drop), unsupported(Cause::QpTypeAbsent));
    }
}

#[test]
fn there_are_as_many_domains_as_the_device_says() {
    let mut world = World::new(1, 256, &RnicConfig::default(), 16);
    let Node { rnic, guest } = &mut world.nodes[0];
    let limits = guest.command(rnic, QueryDevice {}).expect("limits");
    for _ in 0..limits.max_xrcd.get() {
        guest.xrcd(rnic);
    }
    let more = guest.command(rnic, vrnic_wire::command::CreateXrcd::default());
    let full = (CommandStatus::NoResources, Cause::LimitReached);
    assert_eq!(more.map(drop), Err(full));
}
