// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The tests of the engine through its public interface. They are one program, because building one for each file takes
//! several times as long.

mod completion_counters;
mod completion_queues;
mod conduct;
mod counters;
mod datagram;
mod ending;
mod explain;
mod fair;
mod faults;
mod hostile;
mod integrity;
mod keys;
mod lids;
mod long_commands;
mod loss;
mod matrix;
mod migration;
mod multicast;
mod paging;
mod pause;
mod persistence;
mod placement;
mod port;
mod programs;
mod random;
mod rate;
mod raw;
mod raw_errors;
mod recording;
mod reliable;
mod scaling;
mod segments;
mod shared;
mod standard;
mod trace;
mod tunnels;
mod unreliable;
mod windows;
mod wire;
mod xrc;

#[test]
fn every_file_is_part_of_the_program() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let parts = include_str!("main.rs");
    for entry in std::fs::read_dir(directory).expect("the tests are there") {
        let path = entry.expect("a name").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let is_part = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        assert!(
            !is_part || name == "main" || parts.contains(&format!("\nmod {name};\n")),
            "{name} is not in main.rs"
        );
    }
}
