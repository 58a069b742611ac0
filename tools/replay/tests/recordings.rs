// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings of past failures, in `tests/recordings`: checks that they do not happen again.
//!
//! Each of these recordings ends with the call that failed, as `--minimise` and the simulation produce them. Before
//! that, the engine must do exactly what was recorded. The last call may have another result, because the error has
//! been fixed. No call may violate a rule.

use std::path::Path;

use vrnic_engine::recording::{Failed, Output, Player, Recording, VERSION};
use vrnic_engine::testing::{QpOptions, Send, World};
use vrnic_engine::{RnicConfig, Segmentation};
use vrnic_replay::check::Checker;
use vrnic_replay::story::Narrator;
use vrnic_wire::work::SendOpcode;

/// How to make a recording again.
const ANEW: &str = "make it anew (Documentation/testing.rst, Recordings as tests)";

/// Returns what is wrong with a recording.
fn check(bytes: &[u8]) -> Result<(), String> {
    let stale = |why: &dyn std::fmt::Display| format!("{why}; {ANEW}");
    let recording = Recording::new(bytes).map_err(|bad| stale(&bad))?;
    let calls: Vec<u64> = recording
        .map(|call| call.map(|call| call.index))
        .collect::<Result<_, _>>()
        .map_err(|bad| stale(&bad))?;
    let mut player = Player::new(bytes).map_err(|bad| stale(&bad))?;
    let (mut narrator, mut checker) = (Narrator::new(player.rnic()), Checker::new(player.rnic()));
    while let Some(step) = player.next() {
        match step {
            Ok((call, step)) => {
                let panicked = matches!(step.output, Output::Panicked(_));
                let events = narrator.tell(&call, &step, player.rnic());
                checker.look(&events, (!panicked).then_some(player.rnic()));
            }
            Err(Failed::Divergence(other)) if calls.last() == Some(&other.call) => break,
            Err(why) => return Err(stale(&why)),
        }
    }
    match checker.violations.first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(()),
    }
}

#[test]
fn nothing_goes_wrong_again() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let entries = std::fs::read_dir(&directory).expect("the directory of recordings");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let wrong: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let bytes = std::fs::read(file).expect("a recording");
            let why = check(&bytes).err()?;
            Some(format!("{}: {why}", file.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!files.is_empty());
}

/// Returns a short recording of a device with a fault.
fn recording(fault: &str) -> Vec<u8> {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    let mut world = World::recorded(&vec![config; 2], 512, 5);
    let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
    let now = world.now;
    let spec = fault.parse().expect("a fault");
    let armed = world.nodes[0].rnic.faults_mut().arm(spec, now);
    armed.expect("room");
    let send = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 100));
    c.send(&mut world, 0, &send);
    world.settle();
    world.recordings().swap_remove(0)
}

#[test]
fn what_goes_wrong_is_found() {
    let good = recording("drop type=rc nth=9");
    assert_eq!(check(&good), Ok(()));

    // Changes the recorded result of a call, which stands for an engine that behaves differently in this call.
    let calls = Recording::new(&good).expect("a recording").count();
    let digest = |call: usize| {
        let mut all = Recording::new(&good).expect("a recording");
        all.nth(call);
        all.position() - 1
    };
    let differs = |call: usize| {
        let mut bytes = good.clone();
        bytes[digest(call)] ^= 1;
        check(&bytes)
    };
    assert_eq!(differs(calls - 1), Ok(()), "the last call was mended");
    let stale = differs(calls - 2).expect_err("another call differs");
    assert!(
        stale.contains("differs from the recording") && stale.contains(ANEW),
        "{stale}"
    );

    // A recording in another version of the format.
    let mut other = good.clone();
    assert_eq!(other[8], VERSION);
    other[8] += 1;
    let stale = check(&other).expect_err("another version");
    assert!(stale.contains("version") && stale.contains(ANEW), "{stale}");
    assert!(check(&good[..good.len() / 2]).is_err(), "it is cut");
}
