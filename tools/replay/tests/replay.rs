// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs the program on recordings of small worlds.

use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vrnic_engine::recording::{Outcome, Player, replay};
use vrnic_engine::testing::{QpOptions, Send, World};
use vrnic_engine::{Rnic, RnicConfig, Segmentation};
use vrnic_wire::work::SendOpcode;

fn file(name: &str, recording: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, recording).expect("a file");
    path
}

fn run(file: &Path, arguments: &[&str]) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_vrnic-replay");
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program)
        .arg(file)
        .args(arguments)
        .output()
        .expect("vrnic-replay");
    let text = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    (status.success(), text.into_owned())
}

/// Returns two devices between which much happens, ending with a refused write.
fn world(segmentation: Segmentation, fault: &str) -> (World, u32) {
    let config = RnicConfig {
        segmentation,
        ..RnicConfig::default()
    };
    let mut world = World::recorded(&vec![config; 2], 4096, 5);
    let mut busy = Vec::new();
    for _ in 0..3 {
        busy.push(
            world.connect([0, 1], &QpOptions::default(), 20_000, |_, attributes| {
                attributes.timeout = 8;
                attributes.retry_count = 2;
            }),
        );
    }
    if !fault.is_empty() {
        let now = world.now;
        let spec = fault.parse().expect("fault");
        world.nodes[0]
            .rnic
            .faults_mut()
            .arm(spec, now)
            .expect("room");
    }
    for round in 0..10u64 {
        for c in &mut busy {
            let sge = c.mrs[1].sge(0, 9_000);
            c.receive(&mut world, 1, round, &[sge]);
            for (wr_id, opcode) in [
                (1, SendOpcode::Send),
                (2, SendOpcode::Write),
                (3, SendOpcode::Read),
            ] {
                let send = Send::new(round * 10 + wr_id, opcode)
                    .rdma(c.mrs[1].iova, c.mrs[1].key)
                    .element(c.mrs[0].sge(0, 9_000));
                c.send(&mut world, 0, &send);
            }
        }
        world.settle();
        for c in &mut busy {
            c.send_cqs[0].drain();
            c.recv_cqs[1].drain();
        }
    }
    let last = &mut busy[2];
    let send = Send::new(0x777, SendOpcode::Write)
        .rdma(last.mrs[1].iova, last.mrs[1].key ^ 1)
        .element(last.mrs[0].sge(0, 100));
    last.send(&mut world, 0, &send);
    world.settle();
    let qpn = last.qps[0].qpn;
    (world, qpn)
}

#[test]
fn what_happened_is_told() {
    for (name, segmentation) in [
        ("local", Segmentation::Local),
        ("wire", Segmentation::PathMtu),
    ] {
        let (mut world, qpn) = world(segmentation, "");
        while world.nodes[1].rnic.next_explanation().is_some() {}
        let [recording, of_the_peer] = &world.recordings()[..] else {
            unreachable!()
        };
        // The peer refuses the last write, and is in the error state when it says so.
        let (good, text) = run(&file(&format!("{name}-peer"), of_the_peer), &["--check"]);
        assert!(good && text.contains("checked, 0 violations"), "{text}");
        // The reason is shown together with the region that the key almost matches.
        let (_, text) = run(&file(&format!("{name}-peer"), of_the_peer), &["--timeline"]);
        let told = text.find("sent NAK: remote access error");
        let region = text.find(": region (its key is 0x");
        assert!(told.is_some() && told < region, "{text}");
        let recording = file(name, recording);
        let (good, text) = run(&recording, &["--check"]);
        assert!(good, "{text}");
        assert!(
            text.contains("the replay is equal to the recording"),
            "{text}"
        );
        assert!(text.contains("the recording ends: stopped"), "{text}");
        assert!(text.contains("checked, 0 violations"), "{text}");
        let (good, text) = run(&recording, &["--timeline", "--qpn", &qpn.to_string()]);
        assert!(good, "{text}");
        for (first, second) in [
            ("ModifyQp to RTS -->", "SEND 0x1, 9000 B -->"),
            ("SEND 0x1, 9000 B -->", "--> SEND "),
            ("--> SEND ", "SEND 0x1 IBV_WC_SUCCESS"),
            ("SEND 0x1 IBV_WC_SUCCESS", "RDMA WRITE 0x777, 100 B -->"),
            ("RDMA WRITE 0x777, 100 B -->", ", 100 B, rkey 0x"),
            (", 100 B, rkey 0x", "<-- NAK: remote access error, PSN "),
            (
                "<-- NAK: remote access error, PSN ",
                "RDMA WRITE 0x777 IBV_WC_REM_ACCESS_ERR",
            ),
            ("RDMA WRITE 0x777 IBV_WC_REM_ACCESS_ERR", " of 128 unread"),
        ] {
            let [first, second] = [first, second].map(|part| text.find(part));
            assert!(
                first.is_some() && first < second,
                "{first:?} {second:?}: {text}"
            );
        }
        // Lines of other queue pairs are left out with the filter, and shown without it.
        let of_another = |text: &str| {
            let lines = text.lines().skip(1);
            let mut numbers = lines.filter_map(|line| line.split_whitespace().nth(2)?.parse().ok());
            numbers.any(|number: u32| number != qpn)
        };
        assert!(!of_another(&text), "{text}");
        assert!(of_another(&run(&recording, &["--timeline"]).1));
        let (good, text) = run(&recording, &["--explain", &qpn.to_string()]);
        assert!(
            good && text.contains("RDMA WRITE completed with IBV_WC_REM_ACCESS_ERR"),
            "{text}"
        );
        let (good, text) = run(&recording, &["--explain", &(qpn - 1).to_string()]);
        assert!(good && text.contains("nothing went wrong on QP"), "{text}");
        let (good, text) = run(&recording, &["--until", "#30"]);
        assert!(
            good && text.contains("31 calls") && text.contains("QP 2: "),
            "{text}"
        );
        let (good, text) = run(&recording, &["--until", "0.000000001"]);
        assert!(
            good && text.contains("QP 4: ReliableConnection, RTS"),
            "{text}"
        );
    }
}

#[test]
fn a_replay_stops_before_the_time_that_is_named() {
    let (mut world, _) = world(Segmentation::PathMtu, "drop type=rc nth=9 count=all");
    let recording = world.recordings().remove(0);
    let mut player = Player::new(&recording).expect("a recording");
    let mut times = Vec::new();
    while let Some(next) = player.next_time() {
        let (call, _) = player.next().expect("a call").expect("replay");
        assert_eq!(call.now, next);
        times.push(next.as_nanos());
    }
    assert!(player.next().is_none());
    // The first call of a moment long after the previous call.
    let first = (1..times.len())
        .rev()
        .find(|&at| times[at] > times[at - 1])
        .expect("time passes");
    let file = file("until", &recording);
    for (time, calls) in [(times[first], first), (times[first] - 1, first)] {
        let until = format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
        let (good, text) = run(&file, &["--until", &until]);
        assert!(
            good && text.contains(&format!(" {calls} calls in")),
            "{until}, {calls}: {text}"
        );
        assert!(!text.contains("the recording ends"), "{text}");
    }
    let (good, text) = run(&file, &["--until", "1000000"]);
    assert!(
        good && text.contains(&format!(" {} calls in", times.len())),
        "{text}"
    );
    for nonsense in ["-1", "x", "#x", "inf", "1e300"] {
        assert!(
            !run(&file, &[&format!("--until={nonsense}")]).0,
            "{nonsense}"
        );
    }
}

#[test]
fn what_the_recording_tells_is_explained_as_what_it_left() {
    let (mut world, qpn) = world(Segmentation::Local, "");
    while world.nodes[0].rnic.next_explanation().is_some() {}
    let recording = file("told", &world.recordings()[0]);
    let (good, text) = run(&recording, &["--explain", &qpn.to_string()]);
    let once = text
        .matches("RDMA WRITE completed with IBV_WC_REM_ACCESS_ERR")
        .count()
        == 1;
    assert!(good && once, "{text}");
}

#[test]
fn what_is_broken_says_so() {
    let (mut world, _) = world(Segmentation::Local, "");
    let whole = world.recordings().remove(0);
    let cut = file("cut", &whole[..whole.len() - 4]);
    let (good, text) = run(&cut, &[]);
    assert!(!good && text.contains("in the middle of an item"), "{text}");
    let other = file("other", b"#!/bin/sh\necho no recording\n");
    let (good, text) = run(&other, &[]);
    assert!(
        !good && text.contains("this is not a vrnic recording"),
        "{text}"
    );
    let (good, text) = run(Path::new("/nonexistent"), &[]);
    assert!(!good && text.contains("cannot read"), "{text}");
    // Text in a recording cannot control the terminal.
    let mut rnic = Rnic::recorded(RnicConfig::default(), "\x1b[2J", 1000);
    let recorder = rnic.recorder().expect("a recorder");
    recorder.end("\x1b[2J");
    let (good, text) = run(&file("escapes", &recorder.take()), &["--timeline"]);
    assert!(
        good && text.contains("\\u{1b}[2J") && !text.contains('\x1b'),
        "{text:?}"
    );
    let mut changed = whole.clone();
    let place = whole.len() - 300;
    changed[place] ^= 1;
    let (good, text) = run(&file("changed", &changed), &[]);
    assert!(!good, "{text}");
}

#[test]
fn the_smallest_recording_that_still_fails() {
    let (mut world, _) = world(Segmentation::PathMtu, "drop type=rc nth=9 count=all");
    let recordings = world.recordings();
    let recording = file("lost", &recordings[0]);
    let (good, text) = run(&recording, &["--timeline"]);
    assert!(good && text.contains("IBV_WC_RETRY_EXC_ERR"), "{text}");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small");
    let to = out.to_str().expect("a name");
    std::fs::write(&out, "something else, which everybody may read").expect("a file");
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o644)).expect("rights");
    let (good, text) = run(
        &recording,
        &["--minimise", to, "--fails", "IBV_WC_RETRY_EXC_ERR"],
    );
    assert!(good, "{text}");
    // The file contains the keys of the device, so it must be private.
    let mode = |path: &Path| {
        std::fs::metadata(path)
            .expect("a file")
            .permissions()
            .mode()
    };
    assert_eq!(mode(&out) & 0o777, 0o600);
    let small = std::fs::read(&out).expect("the smaller one");
    let (before, after) = (replay(&recordings[0]).unwrap(), replay(&small).unwrap());
    assert!(after * 3 < before, "{after} of {before} calls");
    let (good, text) = run(&out, &["--timeline", "--check"]);
    assert!(good && text.contains("IBV_WC_RETRY_EXC_ERR"), "{text}");
    let (good, text) = run(&recording, &["--minimise", to, "--fails", "no such thing"]);
    assert!(!good && text.contains("does not happen"), "{text}");
    let (good, text) = run(&recording, &["--minimise", to]);
    assert!(
        !good && text.contains("nothing fails in this recording"),
        "{text}"
    );
}

#[test]
fn a_panic_becomes_small() {
    let config = RnicConfig::default();
    let mut world = World::recorded(&[config], 2048, 5);
    let connection = world.connect([0, 0], &QpOptions::default(), 4096, |_, _| {});
    let now = world.now;
    let fault = "engine-panic".parse().expect("fault");
    world.nodes[0]
        .rnic
        .faults_mut()
        .arm(fault, now)
        .expect("room");
    assert!(catch_unwind(AssertUnwindSafe(|| world.settle())).is_err());
    drop(connection);
    let recording = file("panic", &world.recordings()[0]);
    let (good, text) = run(&recording, &["--timeline"]);
    assert!(good, "{text}");
    assert!(
        text.contains("the engine panics, as it did: an injected fault"),
        "{text}"
    );
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small-panic");
    let to = out.to_str().expect("a name");
    let (good, text) = run(&recording, &["--minimise", to]);
    assert!(good, "{text}");
    let small = std::fs::read(&out).expect("the smaller one");
    let mut player = Player::new(&small).expect("a recording");
    let mut calls = Vec::new();
    while let Some(step) = player.next() {
        calls.push(step.expect("replay").0);
    }
    assert_eq!(
        calls.last().map(|call| call.outcome),
        Some(Outcome::Panicked)
    );
    // The two calls that arm the fault and in which it fires.
    assert_eq!(calls.len(), 2, "{calls:?}");
}
