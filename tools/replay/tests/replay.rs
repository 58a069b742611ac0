// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The program, on recordings of small worlds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vrnic_engine::recording::{Outcome, Player, replay};
use vrnic_engine::testing::{QpOptions, Send, World};
use vrnic_engine::{RnicConfig, Segmentation};
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

/// Two devices between which much happens, a refused write at the end.
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
        let recording = file(name, &world.recordings()[0]);
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
            ("Send 0x1, 9000 B -->", "--> SEND "),
            ("--> SEND ", "Send 0x1 Success"),
            ("Send 0x1 Success", "Write 0x777, 100 B"),
            ("Write 0x777, 100 B", "<-- NAK (remote access)"),
            ("<-- NAK (remote access)", "Write 0x777 RemoteAccess"),
        ] {
            let [first, second] = [first, second].map(|part| text.find(part));
            assert!(
                first.is_some() && first < second,
                "{first:?} {second:?}: {text}"
            );
        }
        let (good, text) = run(&recording, &["--explain", &qpn.to_string()]);
        assert!(
            good && text.contains("Write completed with RemoteAccess"),
            "{text}"
        );
        let (good, text) = run(&recording, &["--until", "#30"]);
        assert!(
            good && text.contains("31 calls") && text.contains("QP 2: "),
            "{text}"
        );
        let (good, text) = run(&recording, &["--until", "0.000000001"]);
        assert!(
            good && text.contains("QP 4: ReliableConnection, ReadyToSend"),
            "{text}"
        );
    }
}

#[test]
fn what_is_broken_says_so() {
    let (mut world, _) = world(Segmentation::Local, "");
    let whole = world.recordings().remove(0);
    let cut = file("cut", &whole[..whole.len() - 4]);
    let (good, text) = run(&cut, &[]);
    assert!(
        !good && text.contains("in the middle of something"),
        "{text}"
    );
    let other = file("other", b"#!/bin/sh\necho no recording\n");
    let (good, text) = run(&other, &[]);
    assert!(
        !good && text.contains("this is no recording of vrnic"),
        "{text}"
    );
    let (good, text) = run(Path::new("/nonexistent"), &[]);
    assert!(!good && text.contains("cannot read"), "{text}");
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
    assert!(good && text.contains("RetryExceeded"), "{text}");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small");
    let to = out.to_str().expect("a name");
    let (good, text) = run(&recording, &["--minimise", to, "--fails", "RetryExceeded"]);
    assert!(good, "{text}");
    let small = std::fs::read(&out).expect("the smaller one");
    let (before, after) = (replay(&recordings[0]).unwrap(), replay(&small).unwrap());
    assert!(after * 3 < before, "{after} of {before} calls");
    let (good, text) = run(&out, &["--timeline", "--check"]);
    assert!(good && text.contains("RetryExceeded"), "{text}");
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
        text.contains("the engine panics, as it did: a fault that was armed"),
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
    // The fault, and the turn in which it fires.
    assert_eq!(calls.len(), 2, "{calls:?}");
}
