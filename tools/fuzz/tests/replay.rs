// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs every input of every corpus again.

use std::{fs, path::Path};

fn replay(target: &str) {
    let (_, run) = vrnic_fuzz::TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .expect("target");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut inputs: Vec<_> = fs::read_dir(corpus)
        .expect("corpus")
        .map(|entry| entry.expect("entry").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty());
    for path in inputs {
        println!("{}", path.display());
        run(&fs::read(path).expect("input"));
    }
}

#[test]
fn responder() {
    replay("responder");
}

#[test]
fn commands() {
    replay("commands");
}

#[test]
fn rings() {
    replay("rings");
}

#[test]
fn vfio_user() {
    replay("vfio_user");
}

#[test]
fn control() {
    replay("control");
}

#[test]
fn switch() {
    replay("switch");
}

#[test]
fn recording() {
    replay("recording");
}

#[test]
fn datagram() {
    replay("datagram");
}

#[test]
fn infiniband() {
    replay("infiniband");
}
