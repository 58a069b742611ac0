// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests each rule: violations are found, and the effects of faults are not reported.

use std::path::Path;
use std::time::Duration;

use vrnic_engine::fault::Kind;
use vrnic_engine::memory::Nowhere;
use vrnic_engine::recording::Player;
use vrnic_engine::segment::{Body, Syndrome};
use vrnic_engine::testing::{QpOptions, Send, World};
use vrnic_engine::{Engine, RnicConfig, Segmentation};
use vrnic_replay::check::{Checker, Rule, Violation};
use vrnic_replay::story::{Event, Narrator, Told};
use vrnic_wire::completion::{Opcode, Status};
use vrnic_wire::qp::QpState;
use vrnic_wire::work::SendOpcode;

/// Exchanges messages of each kind between two devices, the first of which has a fault.
fn world(fault: &str) -> World {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    let mut world = World::recorded(&vec![config; 2], 4096, 5);
    let mut c = world.connect([0, 1], &QpOptions::default(), 20_000, |_, attributes| {
        attributes.timeout = 8;
        attributes.retry_count = 2;
    });
    if !fault.is_empty() {
        let now = world.now;
        let spec = fault.parse().expect("fault");
        let mut faults = world.nodes[0].rnic.faults_mut();
        faults.arm(spec, now).expect("room");
    }
    for round in 0..6 {
        for side in [0, 1] {
            let sge = c.mrs[side].sge(0, 9_000);
            c.receive(&mut world, side, 100 + round, &[sge]);
        }
        for side in [0, 1] {
            let target = &c.mrs[1 - side];
            let (address, key) = (target.iova, target.key);
            for (number, opcode) in
                (1..).zip([SendOpcode::Send, SendOpcode::Write, SendOpcode::Read])
            {
                let send = Send::new(round * 10 + number, opcode)
                    .rdma(address, key)
                    .element(c.mrs[side].sge(0, 9_000));
                c.send(&mut world, side, &send);
            }
        }
        // A device that a fault slows down may stay busy indefinitely.
        let mut idle = 0;
        for _ in 0..5000 {
            idle = if world.step() { 0 } else { idle + 1 };
            if idle == 500 {
                break;
            }
            let passes = if idle == 0 { 200 } else { 100_000 };
            world.now = world.now + Duration::from_nanos(passes);
        }
        for side in [0, 1] {
            c.send_cqs[side].drain();
            c.recv_cqs[side].drain();
        }
    }
    world
}

/// Checks a recording. `change` modifies the events of each call.
fn checked(recording: &[u8], mut change: impl FnMut(&mut Vec<Told>, &Engine)) -> Checker {
    let mut player = Player::new(recording).expect("a recording");
    let (mut narrator, mut checker) = (Narrator::new(player.rnic()), Checker::new(player.rnic()));
    while let Some(step) = player.next() {
        let (call, step) = step.expect("replay");
        let mut events = narrator.tell(&call, &step, player.rnic());
        change(&mut events, player.rnic());
        checker.look(&events, Some(player.rnic()));
    }
    checker
}

/// Returns the violations found in a recording in which much happens.
fn check(recording: &[u8], change: impl FnMut(&mut Vec<Told>, &Engine)) -> Vec<Violation> {
    let checker = checked(recording, change);
    let (completions, packets) = checker.looked_at;
    assert!(completions > 20 && packets > 50, "{completions} {packets}");
    checker.violations
}

/// Calls `change` with the first event that satisfies `wanted`, after skipping `skip` of these. Returns the violations
/// found then.
fn changed(
    recording: &[u8],
    skip: usize,
    wanted: impl Fn(&Event) -> bool,
    change: impl Fn(&mut Vec<Told>, usize),
) -> Vec<Rule> {
    let mut left = Some(skip);
    let found = check(recording, |events, _| {
        let mut at = 0;
        while at < events.len() {
            if wanted(&events[at].event) {
                match left {
                    None => {}
                    Some(0) => {
                        left = None;
                        change(events, at);
                        return;
                    }
                    Some(more) => left = Some(more - 1),
                }
            }
            at += 1;
        }
    });
    assert_eq!(left, None, "there is such an event");
    let mut rules: Vec<Rule> = found.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

fn completes(receive: bool) -> impl Fn(&Event) -> bool {
    move |event| match event {
        Event::Completed { cqe, .. } => {
            receive == (Opcode::try_from(cqe.opcode) == Ok(Opcode::Receive))
        }
        _ => false,
    }
}

fn requests(event: &Event) -> bool {
    matches!(event, Event::Left(segment) if matches!(segment.body, Body::Write { .. }))
}

fn acknowledges(event: &Event) -> bool {
    let Event::Left(segment) = event else {
        return false;
    };
    let Body::Acknowledge(aeth) = segment.body else {
        return false;
    };
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}

#[test]
fn a_device_that_keeps_the_rules_breaks_none() {
    for recording in world("").recordings() {
        let found = check(&recording, |_, _| {});
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn what_completes_twice_or_not_in_turn_is_found() {
    let recording = &world("").recordings()[0];
    for (receive, rule) in [(false, Rule::SendOrder), (true, Rule::ReceiveOrder)] {
        let twice = changed(recording, 3, completes(receive), |events, at| {
            events.insert(at, events[at].clone());
        });
        assert_eq!(twice, [rule]);
        let other = changed(recording, 3, completes(receive), |events, at| {
            let Event::Completed { cqe, .. } = &mut events[at].event else {
                unreachable!()
            };
            cqe.wr_id = 0xdead.into();
        });
        assert!(other.contains(&rule), "{other:?}");
    }
}

#[test]
fn what_succeeds_behind_a_failure_is_found() {
    let recording = &world("").recordings()[0];
    for receive in [false, true] {
        let found = changed(recording, 2, completes(receive), |events, at| {
            let Event::Completed { cqe, .. } = &mut events[at].event else {
                unreachable!()
            };
            cqe.status = Status::RemoteAccess.raw();
        });
        assert_eq!(found, [Rule::Flush]);
    }
}

#[test]
fn packets_with_a_wrong_psn_or_msn_are_found() {
    let recording = &world("").recordings()[0];
    for add in [500, 1 << 23] {
        let found = changed(recording, 5, requests, |events, at| {
            let Event::Left(segment) = &mut events[at].event else {
                unreachable!()
            };
            segment.psn = segment.psn.add(add);
        });
        assert_eq!(found, [Rule::RequestPsn], "{add}");
        let found = changed(recording, 5, acknowledges, |events, at| {
            let Event::Left(segment) = &mut events[at].event else {
                unreachable!()
            };
            segment.psn = segment.psn.add(add);
        });
        assert_eq!(found, [Rule::ResponsePsn], "{add}");
    }
    let found = changed(recording, 5, acknowledges, |events, at| {
        let Event::Left(segment) = &mut events[at].event else {
            unreachable!()
        };
        let Body::Acknowledge(aeth) = &mut segment.body else {
            unreachable!()
        };
        aeth.msn = aeth.msn.wrapping_sub(3) & 0xff_ffff;
    });
    assert_eq!(found, [Rule::Msn]);
}

#[test]
fn packets_of_a_queue_pair_that_may_not_send_are_found() {
    let recording = &world("qp-error qp=2 after=120ms").recordings()[0];
    let mut packet = None;
    check(recording, |events, _| {
        let found = events.iter().find(|told| requests(&told.event));
        packet = packet.take().or_else(|| found.cloned());
    });
    let packet = packet.expect("a packet");
    let Event::Left(segment) = &packet.event else {
        unreachable!()
    };
    let qpn = segment.source_qpn;
    for state in [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::Error,
    ] {
        let mut sent = 0;
        let found = check(recording, |events, engine| {
            let now = engine.qp(qpn, &Nowhere).map(|qp| qp.state);
            if now == Some(state) {
                sent += 1;
                events.push(packet.clone());
            }
        });
        assert!(sent > 0, "{state:?}");
        assert!(
            found.iter().any(|violation| violation.rule == Rule::State),
            "{state:?}: {found:?}"
        );
    }
}

#[test]
fn what_a_fault_does_is_no_violation() {
    let (mut fired, mut wrong) = (0, Vec::new());
    for kind in Kind::all().filter(|kind| kind.name != "engine-panic") {
        let mut world = world(kind.name);
        fired += usize::from(world.nodes[0].rnic.faults().log().next().is_some());
        for recording in world.recordings() {
            let checker = checked(&recording, |_, _| {});
            if let Some(violation) = checker.violations.first() {
                // Keeps the recording for examination with vrnic-replay.
                let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kind.name);
                std::fs::write(&file, &recording).expect("a file");
                wrong.push(format!("{}: {violation}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(fired > 40, "{fired} kinds of faults fired");
}
