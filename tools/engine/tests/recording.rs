// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings: they replay exactly, and what is not a recording is refused. The simulation records and replays random
//! worlds. With `VRNIC_REPLAY` in the environment, all worlds of all tests are recorded and replayed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use vrnic_engine::{
    Faults, Rnic, RnicConfig, Segmentation,
    recording::{Access, Call, Failed, Input, Outcome, Output, Player, Recording, ending, replay},
    testing::{QpOptions, Send, World},
    time::Instant,
};
use vrnic_wire::{command::DestroyCq, work::SendOpcode};

/// Creates a world with events that happen on both fabrics: requests of each kind, a lost packet, and a refused one.
fn world(segmentation: Segmentation) -> World {
    let config = RnicConfig {
        segmentation,
        ..RnicConfig::default()
    };
    let mut world = World::recorded(&vec![config; 2], 2048, 5);
    let mut c = world.connect([0, 1], &QpOptions::default(), 100_000, |_, attributes| {
        attributes.timeout = 8;
    });
    let now = world.now;
    let fault = "lost-ack type=rc nth=2".parse().expect("fault");
    world.nodes[1]
        .rnic
        .faults_mut()
        .arm(fault, now)
        .expect("room");
    let (address, key) = (c.mrs[1].iova, c.mrs[1].key);
    let sge = c.mrs[1].sge(0, 50_000);
    c.receive(&mut world, 1, 1, &[sge]);
    let sge = c.mrs[0].sge(0, 50_000);
    for (wr_id, opcode) in [
        (1, SendOpcode::Send),
        (2, SendOpcode::Write),
        (3, SendOpcode::Read),
    ] {
        let send = Send::new(wr_id, opcode).rdma(address, key).element(sge);
        c.send(&mut world, 0, &send);
    }
    let add = Send::new(4, SendOpcode::FetchAdd)
        .atomic(address, key, 1, 0)
        .element(c.mrs[0].sge(0, 8));
    c.send(&mut world, 0, &add);
    world.settle();
    let wrong = Send::new(5, SendOpcode::Write)
        .rdma(address, key ^ 1)
        .element(sge);
    c.send(&mut world, 0, &wrong);
    world.settle();
    assert_eq!(c.send_cqs[0].drain().len(), 5);
    while world.nodes[0].rnic.next_explanation().is_some() {}
    world
}

fn recordings() -> Vec<Vec<u8>> {
    [Segmentation::Local, Segmentation::PathMtu]
        .into_iter()
        .flat_map(|segmentation| world(segmentation).recordings())
        .collect()
}

#[test]
fn a_recording_replays() {
    for recording in recordings() {
        let calls = replay(&recording).expect("replay");
        assert!(calls > 20, "{calls}");
        let mut parsed = Recording::new(&recording).expect("recording");
        assert_eq!(parsed.by_ref().map(Result::unwrap).count() as u64, calls);
        assert_eq!(parsed.ended(), Some("stopped"));
    }
}

#[test]
fn what_the_engine_would_have_done_otherwise_is_told() {
    // Changes the opcode of a work request in the recording.
    let recording = &recordings()[0];
    let calls: Vec<_> = Recording::new(recording)
        .expect("recording")
        .map(Result::unwrap)
        .collect();
    let has_request = |access: &Access| matches!(access, Access::Read(bytes) if bytes.len() >= 64);
    let polls = calls
        .iter()
        .filter(|call| matches!(call.input, Input::Poll(_)));
    let call = polls
        .into_iter()
        .find(|call| call.accesses.iter().any(has_request))
        .expect("a work request is read");
    let Some(Access::Read(entry)) = call.accesses.iter().find(|access| has_request(access)) else {
        unreachable!()
    };
    let place = recording[call.at..]
        .windows(entry.len())
        .position(|bytes| bytes == entry)
        .expect("it is there");
    let mut changed = recording.clone();
    changed[call.at + place] ^= 0xff;
    match replay(&changed) {
        Err(Failed::Divergence(divergence)) => assert_eq!(divergence.call, call.index),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_recording_that_is_cut_short_says_so() {
    let recording = &recordings()[3];
    let whole = replay(recording).expect("replay");
    let mut most = 0;
    for length in (0..recording.len()).rev().step_by(7) {
        let part = &recording[..length];
        let bad = match Player::new(part) {
            Err(bad) => Some(bad),
            Ok(mut player) => {
                let mut calls = 0;
                let bad = loop {
                    match player.next() {
                        None => break None,
                        Some(Ok(_)) => calls += 1,
                        Some(Err(Failed::Bad(bad))) => break Some(bad),
                        Some(Err(other)) => panic!("{length}: {other}"),
                    }
                };
                assert!(calls <= whole && player.recording().ended().is_none());
                most = most.max(calls);
                bad
            }
        };
        if let Some(bad) = bad {
            assert!(bad.at <= length, "{bad}");
        }
    }
    assert!(most + 2 >= whole, "{most} of {whole}");
    let error = replay(&recording[..recording.len() / 2]).unwrap_err();
    assert!(
        error.to_string().contains("in the middle of an item"),
        "{error}"
    );
    assert!(replay(b"").is_err() && replay(b"VRNICREC\x03").is_err());
    let error = replay(b"\xd4\xc3\xb2\xa1 no recording at all").unwrap_err();
    assert!(
        error.to_string().contains("not a vrnic recording"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_changed_harm_nobody() {
    let recordings = recordings();
    let recording = &recordings[1];
    let mut state = 1u64;
    let mut wrong = 0;
    for round in 0..3000 {
        let mut changed = recording.clone();
        for _ in 0..=(round % 3) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let place = (state >> 20) as usize % changed.len();
            changed[place] = (state >> 56) as u8;
        }
        wrong += u32::from(replay(&changed).is_err());
    }
    assert!(wrong > 2000, "{wrong}");
}

#[test]
fn a_panic_is_replayed() {
    let mut world = World::recorded(&[RnicConfig::default()], 2048, 5);
    let now = world.now;
    let fault = "engine-panic".parse().expect("fault");
    let mut faults = world.nodes[0].rnic.faults_mut();
    faults.arm(fault, now).expect("room");
    let panicked = catch_unwind(AssertUnwindSafe(|| world.settle()));
    assert!(panicked.is_err());
    let recording = world.recordings().remove(0);
    let mut player = Player::new(&recording).expect("recording");
    let mut last = None;
    while let Some(step) = player.next() {
        last = Some(step.expect("replay"));
    }
    let (call, step) = last.expect("calls");
    assert_eq!(call.outcome, Outcome::Panicked);
    match step.output {
        Output::Panicked(message) => assert!(message.contains("makes the engine panic")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_watches_what_faults_keep_back_is_not_in_a_recording() {
    for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
        let config = RnicConfig {
            segmentation,
            ..RnicConfig::default()
        };
        let mut world = World::recorded(&vec![config; 2], 2048, 5);
        let mut c = world.connect([0, 1], &QpOptions::default(), 100_000, |_, attributes| {
            attributes.timeout = 8;
        });
        world.watch();
        let now = world.now;
        for fault in ["drop type=rc nth=2", "delay type=rc nth=4"] {
            let fault = fault.parse().expect("fault");
            let mut faults = world.nodes[0].rnic.faults_mut();
            faults.arm(fault, now).expect("room");
        }
        for wr_id in 0..5 {
            let send = Send::new(wr_id, SendOpcode::Write)
                .rdma(c.mrs[1].iova, c.mrs[1].key)
                .element(c.mrs[0].sge(0, 10_000));
            c.send(&mut world, 0, &send);
        }
        world.settle();
        assert_eq!(c.send_cqs[0].drain().len(), 5);
        assert_eq!(world.withheld, 2, "{segmentation:?}");
        for recording in world.recordings() {
            replay(&recording).unwrap_or_else(|why| panic!("{segmentation:?}: {why}"));
        }
    }
}

#[test]
fn a_path_is_written_once() {
    let mut world = world(Segmentation::PathMtu);
    let recording = world.recordings().remove(1);
    let gid = world.nodes[0].rnic.gids().next().expect("a GID").gid;
    let count = |bytes: &[u8]| bytes.windows(16).filter(|bytes| *bytes == gid).count();
    let received = Recording::new(&recording).expect("recording");
    let received =
        received.filter(|call| matches!(&call.as_ref().unwrap().input, Input::Receive(_)));
    assert!(received.count() > 20);
    // In the address handle of the queue pair, and with the first packet.
    assert!(
        (1..=4).contains(&count(&recording)),
        "{}",
        count(&recording)
    );
}

#[test]
fn a_recording_is_bounded() {
    let mut rnic = Rnic::recorded(RnicConfig::default(), "x", 1000);
    let mut before = 0;
    for value in 0..1_000_000 {
        rnic.doorbell(0, value);
        let recorder = rnic.recorder().expect("recorder");
        if recorder.is_over() {
            before = value;
            break;
        }
    }
    assert!(before > 10, "it ends");
    rnic.doorbell(0, 0);
    let recording = rnic.recorder().expect("recorder").take();
    assert!(
        (1000..1100).contains(&recording.len()),
        "{}",
        recording.len()
    );
    let mut parsed = Recording::new(&recording).expect("recording");
    assert_eq!(parsed.by_ref().count(), before as usize + 1);
    assert_eq!(parsed.ended(), Some("full"));
    assert_eq!(replay(&recording), Ok(u64::from(before) + 1));
}

#[test]
fn a_recording_that_is_cut_between_calls_can_be_ended() {
    let mut rnic = Rnic::recorded(RnicConfig::default(), "x", u64::MAX);
    rnic.doorbell(0, 1);
    let mut recording = rnic.recorder().expect("recorder").take();
    recording.extend(ending("cut"));
    let mut player = Player::new(&recording).expect("recording");
    assert_eq!(player.next_time(), Some(Instant::default()));
    assert!(player.next().is_some_and(|step| step.is_ok()));
    assert_eq!(player.next_time(), None);
    assert!(player.next().is_none());
    assert_eq!(player.recording().ended(), Some("cut"));
}

#[test]
fn many_equal_calls_take_two_bytes_each() {
    let mut rnic = Rnic::recorded(RnicConfig::default(), "x", u64::MAX);
    rnic.doorbell(0, 1);
    let first = rnic.recorder().expect("recorder").length();
    for _ in 0..1000 {
        rnic.doorbell(0, 1);
    }
    let recorder = rnic.recorder().expect("recorder");
    assert_eq!(recorder.length(), first + 2000);
    assert_eq!(replay(&recorder.take()), Ok(1001));
}

/// Records a device with a fault that is armed again after a reset, and whose timers are checked.
fn with_a_fault(fault: &str) -> Vec<u8> {
    let mut faults = Faults::default();
    let spec = |text: &str| text.parse().expect("fault");
    faults.arm(spec(fault), Instant::default()).expect("room");
    let mut world = World::recorded(&[RnicConfig::default()], 2048, 5);
    let rnic = &mut world.nodes[0].rnic;
    rnic.set_faults(faults);
    rnic.faults_mut()
        .arm(spec("link-down"), Instant::default())
        .expect("room");
    world.run(Duration::from_millis(1));
    world.recordings().remove(0)
}

/// Returns the first such call.
fn find(recording: &[u8], wanted: impl Fn(&Input) -> bool) -> Call {
    let calls = Recording::new(recording)
        .expect("recording")
        .map(Result::unwrap);
    calls
        .into_iter()
        .find(|call| wanted(&call.input))
        .expect("such a call")
}

#[test]
fn a_time_that_no_clock_reaches_is_refused() {
    let mut recording = with_a_fault("link-flap count=all");
    replay(&recording).expect("replay");
    let call = find(&recording, |input| matches!(input, Input::Advance));
    // The previous call was at 0. This one is at -1, the last nanosecond of the clock, after which nothing can be due.
    assert_eq!(recording[call.at], 2);
    recording[call.at] = 1;
    let error = replay(&recording).unwrap_err().to_string();
    assert!(error.contains("a time is too late"), "{error}");
}

#[test]
fn faults_that_counted_too_much_are_refused() {
    let recording = with_a_fault("drop nth=1000");
    replay(&recording).expect("replay");
    let call = find(&recording, |input| matches!(input, Input::SetFaults(_)));
    // A time and a tag, then the number of the last fault, which is 1: changed to the largest possible number.
    let (before, behind) = (&recording[..call.at + 2], &recording[call.at + 3..]);
    let changed = [before, &[0xff; 9], &[1], behind].concat();
    let error = replay(&changed).unwrap_err();
    assert!(matches!(error, Failed::Bad(_)), "{error}");
}

/// Generates bytes from a seed.
fn bytes(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |state| {
        let next = state.wrapping_mul(6_364_136_223_846_793_005);
        Some(next.wrapping_add(1_442_695_040_888_963_407))
    })
    .map(|state| state >> 33)
}

/// Returns a state of a device with many objects, and its configuration.
fn state() -> (RnicConfig, Vec<u8>) {
    let mut world = world(Segmentation::PathMtu);
    let rnic = &mut world.nodes[1].rnic;
    rnic.record("x", u64::MAX);
    let recording = rnic.take_recorder().expect("recorder").take();
    let header = Recording::new(&recording).expect("recording");
    let header = header.header().clone();
    (header.config, header.state.expect("state"))
}

#[test]
fn a_recording_may_begin_at_any_time() {
    for steps in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
        let config = RnicConfig {
            segmentation: Segmentation::PathMtu,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, 5);
        let mut c = world.connect([0, 1], &QpOptions::default(), 100_000, |_, _| {});
        let sge = c.mrs[0].sge(0, 50_000);
        for wr_id in 0..20 {
            let send = Send::new(wr_id, SendOpcode::Write)
                .rdma(c.mrs[1].iova, c.mrs[1].key)
                .element(sge);
            c.send(&mut world, 0, &send);
        }
        (0..steps).for_each(|_| {
            world.step();
        });
        for node in &mut world.nodes {
            node.rnic.record("x", u64::MAX);
        }
        world.settle();
        // The world checks that each recording replays and ends in the same state.
        assert_eq!(c.send_cqs[0].drain().len(), 20);
    }
}

#[test]
fn what_is_no_state_is_refused() {
    let (config, state) = state();
    let read = |state: &[u8]| vrnic_engine::Engine::from_state(config.clone(), state);
    let engine = read(&state).expect("state");
    assert_eq!(engine.state(state.len()).as_ref(), Some(&state));
    assert_eq!(engine.state(state.len() - 1), None, "it is bounded");
    for length in 0..state.len() {
        assert!(read(&state[..length]).is_none(), "{length}");
    }
    assert!(read(&[&state[..], &[0]].concat()).is_none());
    // A state that is valid although it was changed is the state of a different device.
    let mut random = bytes(1);
    let mut number = |limit: usize| random.next().unwrap() as usize % limit;
    let mut others = 0;
    for _ in 0..3000 {
        let mut changed = state.clone();
        for _ in 0..=number(3) {
            let place = number(changed.len());
            changed[place] = number(256) as u8;
        }
        if let Some(engine) = read(&changed) {
            assert_eq!(engine.state(usize::MAX).as_ref(), Some(&changed));
            others += 1;
        }
    }
    assert!(others > 100, "{others}");
}

#[test]
fn a_state_that_never_was_harms_nobody() {
    let mut world = world(Segmentation::PathMtu);
    world.nodes[0].rnic.record("x", u64::MAX);
    world.run(Duration::from_millis(1));
    let recording = world.recordings().remove(0);
    let length = Recording::new(&recording).expect("recording").position();
    let mut random = bytes(2);
    let mut number = |limit: usize| random.next().unwrap() as usize % limit;
    let mut read = 0;
    for _ in 0..2000 {
        let mut changed = recording.clone();
        let place = length - 1 - number(length / 2);
        changed[place] ^= 1 << number(8);
        match replay(&changed) {
            Err(Failed::Bad(_)) => {}
            // An impossible engine may panic, which is a divergence like any other.
            Ok(_) | Err(Failed::Divergence(_)) => read += 1,
        }
    }
    assert!(read > 100, "{read}");
}

/// Fills as much of a flight recorder as the last calls of a busy device do.
fn fill(rnic: &mut Rnic, calls: u32) {
    (0..calls).for_each(|value| rnic.doorbell(4000, value));
}

#[test]
fn a_panic_leaves_the_last_calls_which_replay() {
    for rounds in 0..5 {
        let mut world = World::pair(5);
        world.nodes[0].rnic.take_recorder();
        world.nodes[0].rnic.keep_flight("x");
        let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
        for wr_id in 0..rounds {
            let send = Send::new(wr_id, SendOpcode::Write)
                .rdma(c.mrs[1].iova, c.mrs[1].key)
                .element(c.mrs[0].sge(0, 4096));
            c.send(&mut world, 0, &send);
            world.settle();
            fill(&mut world.nodes[0].rnic, 150_000);
        }
        let now = world.now;
        let fault = "engine-panic".parse().expect("fault");
        let mut faults = world.nodes[0].rnic.faults_mut();
        faults.arm(fault, now).expect("room");
        catch_unwind(AssertUnwindSafe(|| world.settle())).expect_err("panic");
        let recording = world.nodes[0].rnic.take_flight("failed");
        let recording = recording.expect("a flight");
        assert!(recording.len() < 5 << 20, "{}", recording.len());
        assert!(rounds < 2 || recording.len() > 2 << 20);
        let mut player = Player::new(&recording).expect("recording");
        let mut last = None;
        while let Some(step) = player.next() {
            last = Some(step.expect("replay").0);
        }
        assert_eq!(last.expect("calls").outcome, Outcome::Panicked);
        assert_eq!(player.recording().ended(), Some("failed"));
        assert!(world.nodes[0].rnic.take_flight("again").is_none());
    }
}

#[test]
fn a_recording_takes_the_place_of_the_flight_recorder() {
    let mut rnic = Rnic::new(RnicConfig::default());
    rnic.keep_flight("x");
    fill(&mut rnic, 10);
    assert!(rnic.recorder().is_none() && rnic.take_recorder().is_none());
    rnic.record("x", u64::MAX);
    fill(&mut rnic, 10);
    let mut recorder = rnic.take_recorder().expect("recorder");
    assert_eq!(replay(&recorder.take()), Ok(10));
    // The flight recorder starts again.
    fill(&mut rnic, 7);
    let flight = rnic.take_flight("failed").expect("a flight");
    assert_eq!(replay(&flight), Ok(7));
}

#[test]
fn a_device_with_too_much_state_has_no_flight_until_it_has_less() {
    let mut world = World::new(1, 40_000, &RnicConfig::default(), 5);
    let mut cqs = Vec::new();
    for _ in 0..15_000 {
        let node = &mut world.nodes[0];
        cqs.push(node.guest.cq(&mut node.rnic, 1, 0));
    }
    let state = world.nodes[0]
        .rnic
        .state(usize::MAX)
        .map(|state| state.len());
    assert!(state > Some(512 << 10), "{state:?}");
    let rnic = &mut world.nodes[0].rnic;
    rnic.take_recorder();
    rnic.keep_flight("x");
    fill(rnic, 10);
    assert!(rnic.take_flight("failed").is_none());
    rnic.keep_flight("x");
    fill(rnic, 1);
    for cq in cqs {
        let node = &mut world.nodes[0];
        let request = DestroyCq {
            cqn: cq.cqn.into(),
            ..Default::default()
        };
        node.guest
            .command(&mut node.rnic, request)
            .expect("destroy");
    }
    let rnic = &mut world.nodes[0].rnic;
    fill(rnic, 1 << 16);
    let flight = rnic.take_flight("failed").expect("a flight");
    assert!(replay(&flight).is_ok_and(|calls| calls > 1000));
}
