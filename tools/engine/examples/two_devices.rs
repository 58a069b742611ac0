// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two devices in one process, in virtual time, on a wire that loses packets: one writes into the memory of the other.
//!
//! ```text
//! cargo run --features testing --example two_devices
//! ```

use vrnic_engine::{
    RnicConfig, Segmentation,
    testing::{Faults, QpOptions, Send, World},
};
use vrnic_wire::work::SendOpcode;

fn main() {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    // Guests with 2048 pages each; the seed decides which packets are lost.
    let mut world = World::new(2, 2048, &config, 42);
    world.faults = Faults {
        drop: 50,
        ..Faults::default()
    };
    let mut connection = world.connect([0, 1], &QpOptions::default(), 1 << 20, |_, _| {});

    let data: Vec<u8> = (0..100_000_u32).map(|index| index as u8).collect();
    connection.mrs[0].arena.put(0, &data);
    let write = Send::new(1, SendOpcode::Write)
        .element(connection.mrs[0].sge(0, data.len()))
        .rdma(connection.mrs[1].iova, connection.mrs[1].key);
    connection.send(&mut world, 0, &write);
    world.settle();

    let completions = connection.send_cqs[0].drain();
    println!("after {:?} of virtual time: {completions:?}", world.now);
    assert_eq!(connection.mrs[1].arena.get(0, data.len()), data);
}
