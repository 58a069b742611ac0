// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of the wire.

use super::{Case, LONG, NONE, OK, OK4, Op, Stage, perform_all, statuses};
use std::time::Duration;
use vrnic_engine::{Segmentation, explain::Happening, fault::Progress, testing::Send};
use vrnic_wire::{
    completion::Status,
    counter::Counter,
    event::EventType,
    qp::{QpState, QpType},
    work::{AddressVector, SendOpcode},
};

/// A fault that only costs time.
const fn harmless(fault: &'static str, node: usize, op: Op, sends: &'static [Status]) -> Case {
    Case {
        fault,
        node,
        op,
        sends,
        receives: match op {
            Op::Sends(_) => sends,
            _ => NONE,
        },
        events: [&[], &[]],
        intact: true,
    }
}

/// A fault that makes the request fail.
const fn fatal(
    fault: &'static str,
    node: usize,
    op: Op,
    sends: &'static [Status],
    events: &'static [EventType],
    intact: bool,
) -> Case {
    Case {
        fault,
        node,
        op,
        sends,
        receives: NONE,
        events: [&[], events],
        intact,
    }
}

const RETRY: &[Status] = &[Status::RetryExceeded];
const ACCESS: &[Status] = &[Status::RemoteAccess];
const INVALID: &[Status] = &[Status::RemoteInvalidRequest];

pub(super) const CASES: &[Case] = &[
    harmless("drop qp={qp}", 0, Op::LongWrite, OK),
    harmless("drop qp={qp} nth=2", 0, Op::Writes(4), OK4),
    harmless("drop qp={qp} chance=60% count=2", 0, Op::LongWrite, OK),
    harmless("lost-request qp={qp}", 0, Op::Writes(4), OK4),
    harmless("lost-ack qp={qp}", 1, Op::Sends(4), OK4),
    harmless("lost-ack qp={qp}", 1, Op::LongWrite, OK),
    harmless("lost-read-response qp={qp} nth=2", 1, Op::LongRead, OK),
    harmless("lost-atomic-ack qp={qp}", 1, Op::Adds(4), OK4),
    harmless(
        "burst-loss qp={qp} nth=2 chance=1 burst=3 count=3",
        0,
        Op::LongWrite,
        OK,
    ),
    harmless("delay qp={qp}", 0, Op::LongWrite, OK),
    harmless("delay qp={qp} dir=in", 1, Op::Writes(4), OK4),
    harmless("reorder qp={qp}", 0, Op::LongWrite, OK),
    harmless("reorder qp={qp} by=2", 0, Op::Writes(4), OK4),
    harmless("duplicate qp={qp} count=all", 0, Op::Sends(4), OK4),
    harmless("duplicate-atomic qp={qp} count=all", 0, Op::Adds(4), OK4),
    harmless("wrong-psn qp={qp}", 0, Op::LongWrite, OK),
    harmless("wrong-qp qp={qp} value=9999", 0, Op::LongWrite, OK),
    harmless(
        "answers-for-another qp={qp} value=9999",
        1,
        Op::Writes(4),
        OK4,
    ),
    harmless("wrong-source qp={qp}", 0, Op::Writes(4), OK4),
    harmless("wrong-source qp={qp} dir=in", 1, Op::LongWrite, OK),
    harmless("wrong-destination qp={qp}", 0, Op::Writes(4), OK4),
    harmless("wrong-destination qp={qp} dir=in", 1, Op::LongWrite, OK),
    harmless("wrong-version qp={qp}", 0, Op::Sends(4), OK4),
    harmless("wrong-version qp={qp} value=15", 1, Op::LongRead, OK),
    harmless("wrong-pad qp={qp} opcode=ack", 1, Op::Writes(4), OK4),
    harmless("wrong-pad qp={qp} opcode=read-request", 0, Op::LongRead, OK),
    harmless("wrong-pkey qp={qp}", 0, Op::Writes(4), OK4),
    harmless("wrong-credits qp={qp} count=all", 1, Op::Sends(4), OK4),
    harmless("wrong-msn qp={qp} count=all", 1, Op::Sends(4), OK4),
    fatal("partition qp={qp}", 0, Op::Writes(1), RETRY, &[], false),
    fatal("no-answer qp={qp}", 1, Op::Writes(1), RETRY, &[], false),
    // The last packet is shorter.
    fatal(
        "mtu-black-hole qp={qp} size=1000..65536",
        0,
        Op::LongWrite,
        RETRY,
        &[],
        false,
    ),
    Case {
        intact: false,
        ..harmless("corrupt-payload qp={qp}", 0, Op::LongWrite, OK)
    },
    fatal(
        "truncate qp={qp}",
        0,
        Op::LongWrite,
        INVALID,
        &[EventType::QpRequestError],
        false,
    ),
    fatal(
        "wrong-pad qp={qp}",
        0,
        Op::LongWrite,
        INVALID,
        &[EventType::QpRequestError],
        false,
    ),
    fatal(
        "wrong-pad qp={qp} opcode=read-response value=3",
        1,
        Op::LongRead,
        &[Status::BadResponse],
        &[],
        false,
    ),
    fatal(
        "truncate qp={qp}",
        1,
        Op::LongRead,
        &[Status::BadResponse],
        &[],
        false,
    ),
    fatal(
        "wrong-rkey qp={qp}",
        0,
        Op::Writes(1),
        ACCESS,
        &[EventType::QpAccessError],
        false,
    ),
    fatal(
        "wrong-address qp={qp}",
        0,
        Op::Writes(1),
        ACCESS,
        &[EventType::QpAccessError],
        false,
    ),
    fatal(
        "wrong-length qp={qp}",
        0,
        Op::LongWrite,
        INVALID,
        &[EventType::QpRequestError],
        false,
    ),
    fatal(
        "unknown-opcode qp={qp}",
        0,
        Op::Writes(1),
        INVALID,
        &[EventType::QpRequestError],
        false,
    ),
    fatal(
        "key-revoked qp={qp}",
        1,
        Op::Writes(1),
        ACCESS,
        &[EventType::QpAccessError],
        false,
    ),
];

#[test]
fn faults_of_the_wire_are_seen_as_described() {
    perform_all(CASES);
}

/// Arms faults on one stage, posts an operation and runs it. Returns the statuses of the sends.
fn run(stage: &mut Stage, node: usize, faults: &[&str], op: Op) -> Vec<Status> {
    for fault in faults {
        stage.arm(node, fault);
    }
    stage.post_other();
    stage.post(op);
    stage.world.settle();
    stage.check_other();
    statuses(&stage.victim.send_cqs[0].drain())
}

const FABRICS: [Segmentation; 2] = [Segmentation::Local, Segmentation::PathMtu];

#[test]
fn a_nak_that_is_lost_costs_a_probe_or_the_reason() {
    for fabric in FABRICS {
        let mut stage = Stage::new(fabric);
        let faults = ["lost-nak qp={qp}", "nak-sequence qp={qp}"];
        assert_eq!(run(&mut stage, 1, &faults, Op::Writes(1)), OK);
        let counters = stage.world.nodes[0].rnic.counters();
        assert_eq!(counters[Counter::Timeouts as usize], 0);
        assert!(counters[Counter::Retransmits as usize] > 0);

        let mut stage = Stage::new(fabric);
        let faults = ["lost-nak qp={qp}", "nak-remote-access qp={qp}"];
        assert_eq!(run(&mut stage, 1, &faults, Op::Writes(1)), RETRY);

        let mut stage = Stage::new(fabric);
        let faults = ["lost-rnr-nak qp={qp}", "rnr-nak qp={qp}"];
        assert_eq!(run(&mut stage, 1, &faults, Op::Sends(1)), OK);
        assert_eq!(stage.log(1).len(), 2);
    }
}

#[test]
fn a_device_that_does_not_hear_or_is_not_heard_has_done_the_requests_of_its_peer_or_its_own() {
    for fabric in FABRICS {
        // The responder executes the write, but its answer does not arrive.
        let mut stage = Stage::new(fabric);
        assert_eq!(run(&mut stage, 1, &["mute qp={qp}"], Op::Writes(1)), RETRY);
        assert!(stage.is_intact(Op::Writes(1)));
        // The requester does not hear the answer.
        let mut stage = Stage::new(fabric);
        assert_eq!(run(&mut stage, 0, &["deaf qp={qp}"], Op::Writes(1)), RETRY);
        assert!(stage.is_intact(Op::Writes(1)));
        let mut stage = Stage::new(fabric);
        assert_eq!(run(&mut stage, 0, &["mute qp={qp}"], Op::Writes(1)), RETRY);
        assert!(!stage.is_intact(Op::Writes(1)));
    }
}

#[test]
fn damaged_frames_are_counted_by_their_receiver() {
    for fabric in FABRICS {
        for (fault, counter) in [
            ("corrupt-icrc qp={qp}", Counter::IcrcErrors),
            ("truncated-frame qp={qp}", Counter::MalformedPackets),
            ("wrong-version qp={qp}", Counter::MalformedPackets),
        ] {
            for (node, fault) in [(0, fault.to_owned()), (1, format!("{fault} dir=in"))] {
                let mut stage = Stage::new(fabric);
                assert_eq!(run(&mut stage, node, &[&fault], Op::Writes(1)), OK);
                let counters = stage.world.nodes[1].rnic.counters();
                assert_eq!(counters[counter as usize], 1, "{fault}");
            }
        }
        // A pad without a payload.
        let mut stage = Stage::new(fabric);
        let fault = "wrong-pad qp={qp} opcode=ack";
        assert_eq!(run(&mut stage, 1, &[fault], Op::Writes(1)), OK);
        let counters = stage.world.nodes[0].rnic.counters();
        assert_eq!(counters[Counter::MalformedPackets as usize], 1);
    }
}

#[test]
fn ghosts_come_when_their_queue_pair_is_gone_and_harm_nobody() {
    for fabric in FABRICS {
        let mut stage = Stage::new(fabric);
        stage.arm(0, "ghost qp={qp} delay=100ms count=all");
        stage.post(Op::Writes(4));
        stage.run(50);
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK4);
        let before = stage.world.nodes[1].rnic.counters()[Counter::DuplicateRequests as usize];
        // The queue pairs are connected again, with the same numbers and first PSNs, while old packets are in flight.
        for side in 0..2 {
            let qpn = stage.victim.qps[side].qpn;
            stage.world.modify(side, qpn, reset());
        }
        stage.run(200);
        let drops = stage.world.nodes[1].rnic.counters()[Counter::Dropped as usize];
        assert!(drops >= 4, "{drops}");
        assert_eq!(
            stage.world.nodes[1].rnic.counters()[Counter::DuplicateRequests as usize],
            before
        );
        assert!(stage.log(0).len() >= 4);
        stage.post_other();
        stage.world.settle();
        stage.check_other();
    }
}

fn reset() -> vrnic_wire::qp::QpAttributes {
    vrnic_wire::qp::QpAttributes {
        state: QpState::Reset.raw(),
        mask: vrnic_wire::qp::attribute::STATE.into(),
        ..Default::default()
    }
}

#[test]
fn a_slow_link_takes_its_time() {
    for fabric in FABRICS {
        let mut stage = Stage::new(fabric);
        // 200 000 bytes take 20 ms, and no timer expires before the first packet arrives.
        stage.arm(0, "slow-link qp={qp} rate=10000000");
        let start = stage.world.now;
        stage.post(Op::LongWrite);
        while stage.victim.send_cqs[0].unread() == 0
            && stage.world.now - start < Duration::from_secs(10)
        {
            stage.run(1);
        }
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
        let took = stage.world.now - start;
        assert!(took >= Duration::from_millis(19), "{took:?}");
        // Each firing counts, and some are in the log.
        let fired = stage.world.nodes[0].rnic.faults().fired();
        let log = stage.log(0);
        assert_eq!(log.len() as u32, u64::BITS - fired.leading_zeros());
        for (index, firing) in log.iter().enumerate() {
            assert_eq!(
                (firing.number, firing.name),
                ((1 << index) - 1, "slow-link")
            );
        }
        let rnic = &mut stage.world.nodes[0].rnic;
        let explained: u64 = std::iter::from_fn(|| rnic.next_explanation())
            .filter(|what| {
                matches!(
                    what.happening,
                    Happening::Fault {
                        name: "slow-link",
                        ..
                    }
                )
            })
            .map(|what| what.count)
            .sum();
        assert_eq!(explained, fired);
    }
}

#[test]
fn marks_and_notifications_slow_senders_down() {
    for fault in ["ecn-mark qp={qp}", "cnp-storm qp={qp}"] {
        let mut stage = Stage::new(Segmentation::PathMtu);
        // Congestion control treats notifications at the same time as one.
        stage.run(10);
        assert_eq!(run(&mut stage, 0, &[fault], Op::LongWrite), OK, "{fault}");
        let counters = stage.world.nodes[0].rnic.counters();
        assert!(
            counters[Counter::NotificationsHandled as usize] > 0,
            "{fault}"
        );
    }
}

#[test]
fn datagrams_with_another_key_are_dropped_and_wrong_immediates_are_believed() {
    for (fault, arrives) in [
        ("wrong-qkey qp={qp}", None),
        ("wrong-immediate qp={qp} value=9", Some(9)),
        ("drop qp={qp}", None),
    ] {
        let mut stage = Stage::of_type(Segmentation::Local, QpType::UnreliableDatagram);
        stage.arm(0, fault);
        let Stage { world, victim, .. } = &mut stage;
        victim.receive(world, 1, 1, &[victim.mrs[1].sge(0, 1040)]);
        let address = AddressVector {
            dgid: vrnic_engine::testing::gid_of(1),
            ..AddressVector::default()
        };
        let send = Send::new(1, SendOpcode::SendWithImmediate)
            .immediate(5)
            .datagram(address, victim.qps[1].qpn, 0)
            .element(victim.mrs[0].sge(0, 1000));
        victim.send(world, 0, &send);
        world.settle();
        assert_eq!(statuses(&victim.send_cqs[0].drain()), OK);
        let received = victim.recv_cqs[1].drain();
        assert_eq!(
            received.first().map(|one| one.immediate),
            arrives,
            "{fault}"
        );
        assert_eq!(stage.log(0).len(), 1);
    }
    let mut stage = Stage::new(Segmentation::PathMtu);
    stage.arm(0, "wrong-immediate qp={qp} value=9");
    stage.post(Op::WriteImmediate);
    stage.world.settle();
    assert_eq!(stage.victim.recv_cqs[1].drain()[0].immediate, 9);
}

#[test]
fn an_unreliable_connection_loses_the_message_and_no_more() {
    let mut stage = Stage::of_type(Segmentation::PathMtu, QpType::UnreliableConnection);
    stage.arm(0, "drop type=uc nth=2");
    stage.post(Op::Sends(4));
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK4);
    let received = stage.victim.recv_cqs[1].drain();
    assert_eq!(statuses(&received), &OK4[..3]);
}

#[test]
fn faults_are_chained_and_cleared_and_one_packet_has_one_fault() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    let first = stage.arm(0, "drop qp={qp} nth=20");
    let chained = format!("drop qp={{qp}} after-fault={first} count=2");
    let second = stage.arm(0, &chained);
    stage.arm(0, "duplicate qp={qp} opcode=send");
    stage.post(Op::LongWrite);
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
    let ids: Vec<u64> = stage.log(0).iter().map(|firing| firing.id).collect();
    assert_eq!(ids, [first, second, second]);
    let mut faults = stage.world.nodes[0].rnic.faults_mut();
    assert!(!faults.is_idle());
    assert_eq!(faults.clear(Some(first)), 1);
    assert_eq!(faults.clear(Some(first)), 0);
    assert_eq!(faults.clear(None), 2);
    assert!(faults.is_idle() && faults.list().is_empty());
    assert_eq!(faults.log().count(), 3);
}

#[test]
fn a_fault_waits_only_for_one_that_may_fire() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    let first = stage.arm(0, "drop qp={qp} nth=20");
    let never = stage.arm(0, "drop nth=1000 for=1ms");
    let cleared = stage.arm(0, "drop nth=1000");
    stage.world.nodes[0].rnic.faults_mut().clear(Some(cleared));
    stage.run(2);
    stage.post(Op::LongWrite);
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
    // The first fault is done: what waits for it is armed at once.
    let second = stage.arm(0, &format!("duplicate after-fault={first} qp={{qp}}"));
    let now = stage.world.now;
    let faults = stage.world.nodes[0].rnic.faults();
    let listed = faults.list().pop().expect("a fault");
    assert_eq!((listed.id, listed.progress), (second, Progress::Armed));
    assert!(!listed.spec.to_string().contains("after-fault"));
    let mut faults = stage.world.nodes[0].rnic.faults_mut();
    for (id, why) in [
        (never, "has never fired"),
        (cleared, "was cleared"),
        (second + 1, "no fault has the number"),
        (99, "no fault has the number"),
    ] {
        let spec = format!("drop after-fault={id}").parse().expect("valid");
        let refused = faults.arm(spec, now).unwrap_err().to_string();
        assert!(refused.contains(why), "{id}: {refused}");
    }
    assert_eq!(faults.list().len(), 3, "what is refused is not armed");
    stage.post(Op::Writes(1));
    stage.world.settle();
    let last = stage.log(0).pop().expect("a firing");
    assert_eq!((last.id, last.name), (second, "duplicate"));
}

#[test]
fn a_fault_that_waits_in_vain_is_done() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    let progress = |stage: &Stage, id: u64| {
        let listed = stage.world.nodes[0].rnic.faults().list();
        let found = listed.iter().find(|fault| fault.id == id);
        found.expect("listed").progress
    };
    let cleared = stage.arm(0, "drop nth=1000");
    let second = stage.arm(0, &format!("drop qp={{qp}} after-fault={cleared}"));
    let third = stage.arm(0, &format!("drop qp={{qp}} after-fault={second}"));
    let over = stage.arm(0, "drop nth=1000 for=1ms");
    let fourth = stage.arm(0, &format!("drop qp={{qp}} after-fault={over}"));
    for id in [second, third, fourth] {
        assert_eq!(progress(&stage, id), Progress::Waiting);
    }
    assert_eq!(
        stage.world.nodes[0].rnic.faults_mut().clear(Some(cleared)),
        1
    );
    assert_eq!(progress(&stage, second), Progress::Done);
    assert_eq!(progress(&stage, third), Progress::Done);
    stage.run(2);
    stage.post(Op::LongWrite);
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
    assert_eq!(progress(&stage, fourth), Progress::Done);
    assert!(stage.log(0).is_empty());
    assert!(stage.world.nodes[0].rnic.faults().is_idle());
}

#[test]
fn packets_are_chosen_by_the_length_of_their_message() {
    // A packet in the middle of a message does not tell how long the message is.
    for (segmentation, post, fault, fired) in [
        (
            Segmentation::PathMtu,
            Op::Writes(2),
            "duplicate message=1000",
            2,
        ),
        (
            Segmentation::PathMtu,
            Op::Sends(2),
            "duplicate message=1..1000",
            2,
        ),
        (
            Segmentation::PathMtu,
            Op::Sends(2),
            "duplicate message=1001..2000",
            0,
        ),
        (
            Segmentation::PathMtu,
            Op::LongWrite,
            "duplicate message={long}",
            1,
        ),
        (
            Segmentation::PathMtu,
            Op::LongRead,
            "duplicate message={long}",
            1,
        ),
        (
            Segmentation::Local,
            Op::LongRead,
            "duplicate message={long}",
            1,
        ),
    ] {
        let mut stage = Stage::new(segmentation);
        let fault = fault.replace("{long}", &LONG.to_string());
        stage.arm(0, &format!("{fault} qp={{qp}} dir=out count=all"));
        stage.post(post);
        stage.world.settle();
        let statuses = statuses(&stage.victim.send_cqs[0].drain());
        assert!(statuses.iter().all(|status| OK.contains(status)));
        assert_eq!(stage.log(0).len(), fired, "{fault}");
    }
}
