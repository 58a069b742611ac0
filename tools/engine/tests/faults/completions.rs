// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of completions: errors of each status, late ones, lost ones, and their events.

use super::{Case, NONE, OK, OK4, Op, Stage, perform_all, statuses};
use vrnic_engine::{
    Segmentation,
    fault::Kind,
    testing::{QpOptions, Send, World},
};
use vrnic_wire::{
    completion::Status,
    event::EventType,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::SendOpcode,
};

/// The second of four writes completes with an error, those after it are flushed, and the peer notices nothing.
const fn error(fault: &'static str, sends: &'static [Status]) -> Case {
    Case {
        fault,
        node: 0,
        op: Op::Writes(4),
        sends,
        receives: NONE,
        events: [&[], &[]],
        intact: true,
    }
}

/// Statuses of the sends of a case.
macro_rules! then_flushed {
    ($status:ident) => {
        &[
            Status::Success,
            Status::$status,
            Status::Flushed,
            Status::Flushed,
        ]
    };
}

pub(super) const CASES: &[Case] = &[
    error(
        "cqe-loc-qp-op-err qp={qp} nth=2",
        then_flushed!(LocalQueuePairOperation),
    ),
    error(
        "cqe-loc-prot-err qp={qp} nth=2",
        then_flushed!(LocalProtection),
    ),
    error(
        "cqe-wr-flush-err qp={qp} side=send nth=2",
        then_flushed!(Flushed),
    ),
    error(
        "cqe-mw-bind-err cq={cq} nth=2",
        then_flushed!(MemoryManagement),
    ),
    error("cqe-bad-resp-err qp={qp} nth=2", then_flushed!(BadResponse)),
    error(
        "cqe-rem-inv-req-err qp={qp} nth=2",
        then_flushed!(RemoteInvalidRequest),
    ),
    error(
        "cqe-rem-access-err qp={qp} nth=2",
        then_flushed!(RemoteAccess),
    ),
    error(
        "cqe-rem-op-err qp={qp} nth=2",
        then_flushed!(RemoteOperation),
    ),
    error(
        "cqe-retry-exc-err qp={qp} nth=2",
        then_flushed!(RetryExceeded),
    ),
    error(
        "cqe-rnr-retry-exc-err qp={qp} nth=2",
        then_flushed!(RnrRetryExceeded),
    ),
    error(
        "cqe-rem-abort-err qp={qp} nth=2",
        then_flushed!(RemoteAborted),
    ),
    error("cqe-fatal-err qp={qp} nth=2", then_flushed!(Fatal)),
    error(
        "cqe-resp-timeout-err qp={qp} nth=2",
        then_flushed!(ResponseTimeout),
    ),
    error("cqe-general-err qp={qp} nth=2", then_flushed!(General)),
];

#[test]
fn each_status_is_seen_and_what_follows_is_flushed() {
    perform_all(CASES);
}

#[test]
fn what_fails_behind_an_error_is_flushed() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    stage.arm(0, "cqe-general-err qp={qp} side=send");
    // One answer reports that the first request succeeded and that the second failed.
    stage.arm(1, "lost-ack qp={qp} count=all");
    stage.post(Op::Writes(1));
    let (address, rkey) = (stage.victim.mrs[1].iova, stage.victim.mrs[1].key);
    let sge = stage.victim.mrs[0].sge(0, 8);
    let refused = Send::new(1, SendOpcode::Write).rdma(address, rkey ^ 0x10);
    let Stage { world, victim, .. } = &mut stage;
    victim.send(world, 0, &refused.element(sge));
    world.settle();
    let done = victim.send_cqs[0].drain();
    assert_eq!(statuses(&done), [Status::General, Status::Flushed]);
}

#[test]
fn receives_fail_too_and_the_vendor_error_is_the_chosen_one() {
    for (fault, status) in [
        ("cqe-loc-len-err", Status::LocalLength),
        ("cqe-loc-access-err", Status::LocalAccess),
        ("cqe-general-err", Status::General),
    ] {
        let mut stage = Stage::new(Segmentation::PathMtu);
        stage.arm(1, &format!("{fault} qp={{qp}} side=recv nth=2 vendor=81"));
        stage.post_other();
        stage.post(Op::Sends(4));
        stage.world.settle();
        let received = stage.victim.recv_cqs[1].drain();
        let expected = [Status::Success, status, Status::Flushed, Status::Flushed];
        assert_eq!(statuses(&received), expected);
        assert_eq!(received[1].wr_id, 1);
        // The number is that of a documented cause.
        assert_eq!(received[1].cause.map(vrnic_engine::Cause::code), Some(81));
        assert_eq!(received[1].length, 0);
        let qpn = stage.victim.qps[1].qpn;
        assert_eq!(stage.world.state(1, qpn), QpState::Error);
        stage.check_other();
    }
}

#[test]
fn requests_that_want_no_completion_are_flushed_too() {
    // Unsignaled requests after the error, in the same acknowledgement.
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cqe-general-err qp={qp}");
    let Stage { world, victim, .. } = &mut stage;
    let (address, rkey) = (victim.mrs[1].iova, victim.mrs[1].key);
    for wr_id in 0..6 {
        let write = vrnic_engine::testing::Send::new(wr_id, vrnic_wire::work::SendOpcode::Write)
            .rdma(address, rkey)
            .element(victim.mrs[0].sge(0, 100));
        let write = if wr_id == 0 {
            write
        } else {
            write.unsignaled()
        };
        victim.send(world, 0, &write);
    }
    world.settle();
    let done = victim.send_cqs[0].drain();
    let names: Vec<u64> = done.iter().map(|one| one.wr_id).collect();
    assert_eq!(names, [0, 1, 2, 3, 4, 5]);
    assert!(done[1..].iter().all(|one| one.status == Status::Flushed));
}

#[test]
fn a_failed_send_of_a_datagram_stops_its_send_queue_only() {
    let mut stage = Stage::of_type(Segmentation::Local, QpType::UnreliableConnection);
    stage.arm(0, "cqe-loc-prot-err qp={qp}");
    stage.post(Op::Writes(2));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::LocalProtection, Status::Flushed]
    );
    let qpn = stage.victim.qps[0].qpn;
    assert_eq!(stage.world.state(0, qpn), QpState::SendQueueError);
}

#[test]
fn late_completions_come_late_and_in_order() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    stage.arm(0, "cqe-late cq={cq} nth=2 delay=100ms");
    stage.post_other();
    stage.post(Op::Writes(4));
    stage.run(50);
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
    stage.check_other();
    stage.run(60);
    let names: Vec<u64> = stage.victim.send_cqs[0]
        .drain()
        .iter()
        .map(|one| one.wr_id)
        .collect();
    assert_eq!(names, [1, 2, 3]);
    assert!(stage.world.nodes[0].rnic.faults().is_idle());
}

#[test]
fn late_completions_of_a_queue_pair_that_goes_are_forgotten() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cqe-late cq={cq} delay=100ms count=all");
    stage.post(Op::Writes(4));
    stage.run(50);
    let node = &mut stage.world.nodes[0];
    let destroy = vrnic_wire::command::DestroyQp {
        qpn: stage.victim.qps[0].qpn.into(),
        reserved: 0.into(),
    };
    node.guest
        .command(&mut node.rnic, destroy)
        .expect("destroy");
    stage.run(200);
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), NONE);
}

#[test]
fn a_lost_completion_is_lost_and_the_next_is_not() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cqe-lost cq={cq} nth=2");
    stage.post(Op::Writes(4));
    stage.world.settle();
    let names: Vec<u64> = stage.victim.send_cqs[0]
        .drain()
        .iter()
        .map(|one| one.wr_id)
        .collect();
    assert_eq!(names, [0, 2, 3]);
}

#[test]
fn an_overrun_is_told_to_all_who_use_the_queue() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cq-overrun cq={cq} nth=3");
    stage.post_other();
    stage.post(Op::Writes(4));
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), &OK4[..2]);
    assert_eq!(stage.events(0), [EventType::CqError, EventType::QpFatal]);
    stage.check_other();
}

/// Creates a queue pair on a completion queue for sends that has failed, connects it, and lets it do something. Returns
/// its events and its state.
fn after_failure(act: impl FnOnce(&mut Stage)) -> (Vec<EventType>, QpState) {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cq-overrun cq={cq}");
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(stage.events(0), [EventType::CqError, EventType::QpFatal]);
    let Stage { world, victim, .. } = &mut stage;
    for side in 0..2 {
        let node = &mut world.nodes[side];
        let [send, receive] = [&victim.send_cqs, &victim.recv_cqs].map(|cqs| cqs[side].cqn);
        let options = QpOptions::default();
        let qp = node.guest.try_qp(&mut node.rnic, &options, send, receive);
        victim.qps[side] = qp.expect("a queue pair");
    }
    for side in 0..2 {
        let attributes = World::attributes(1 - side, victim.qps[1 - side].qpn);
        let qpn = victim.qps[side].qpn;
        world.bring_up(side, qpn, attributes, QpType::ReliableConnection);
    }
    world.settle();
    assert_eq!(stage.events(0), []);
    act(&mut stage);
    stage.post_other();
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), NONE);
    stage.check_other();
    let qpn = stage.victim.qps[0].qpn;
    (stage.events(0), stage.world.state(0, qpn))
}

#[test]
fn a_queue_pair_that_comes_to_a_failed_queue_is_told_once_when_it_loses_completions() {
    let failed = (vec![EventType::QpFatal], QpState::Error);
    assert_eq!(after_failure(|stage| stage.post(Op::Writes(4))), failed);
    let fail = |stage: &mut Stage| {
        let attributes = QpAttributes {
            state: QpState::Error.raw(),
            mask: attribute::STATE.into(),
            ..Default::default()
        };
        stage.post(Op::Writes(4));
        let qpn = stage.victim.qps[0].qpn;
        stage.world.modify(0, qpn, attributes);
    };
    assert_eq!(after_failure(fail), failed);
    // An access error at the other end.
    let refuse = |stage: &mut Stage| {
        stage.arm(0, "wrong-rkey qp={qp}");
        stage.post(Op::Writes(1));
    };
    assert_eq!(after_failure(refuse), failed);
    // Its receives complete elsewhere.
    let receive = |stage: &mut Stage| {
        let Stage { world, victim, .. } = stage;
        victim.receive(world, 0, 5, &[victim.mrs[0].sge(0, 100)]);
        let send = Send::new(6, SendOpcode::Send).element(victim.mrs[1].sge(0, 100));
        victim.send(world, 1, &send);
        world.settle();
        assert_eq!(statuses(&victim.recv_cqs[0].drain()), OK);
        assert_eq!(statuses(&victim.send_cqs[1].drain()), OK);
    };
    assert_eq!(after_failure(receive), (vec![], QpState::ReadyToSend));
}

/// Arms the queue, lets a write complete, and returns the numbers of completion events then and later.
fn events(fault: &str, arm: bool) -> [usize; 2] {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, fault);
    if arm {
        stage.victim.send_cqs[0].arm(false);
    }
    stage.post(Op::Writes(1));
    let count = |stage: &mut Stage| {
        let rnic = &mut stage.world.nodes[0].rnic;
        std::iter::from_fn(|| rnic.next_completion_event(0)).count()
    };
    stage.run(10);
    let soon = count(&mut stage);
    stage.run(1000);
    let later = count(&mut stage);
    // When armed again, it gets its event.
    stage.victim.send_cqs[0].arm(false);
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(count(&mut stage), 1, "{fault}");
    [soon, later]
}

#[test]
fn completion_events_are_lost_late_or_without_a_cause() {
    assert_eq!(events("cq-event-lost cq={cq} nth=3", true), [1, 0]);
    assert_eq!(events("cq-event-lost cq={cq}", true), [0, 0]);
    assert_eq!(events("cq-event-late cq={cq} delay=300ms", true), [0, 1]);
    assert_eq!(events("cq-event-spurious cq={cq}", false), [1, 0]);
}

#[test]
fn each_status_has_a_name() {
    let count =
        Kind::all().filter(|kind| kind.name.starts_with("cqe-") && kind.name.ends_with("-err"));
    assert_eq!(count.count(), Status::ALL.len() - 1);
}
