// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Cost of a message in the engine, both devices and the fabric included, by size and by number of
//! queue pairs. Memory is that of the tests: copies and their checks are part of the figures.

use std::time::Instant;
use vrnic_engine::testing::{QpOptions, Send, World};
use vrnic_wire::work::SendOpcode;

/// Posts `batch` requests on each of `qps` queue pairs until `total` are done. Gives nanoseconds
/// per message.
fn measure(opcode: SendOpcode, length: usize, qps: usize, batch: u64, total: u64) -> f64 {
    let mut world = World::pair(1);
    let options = QpOptions {
        entries: 64,
        sge: 1,
        inline: 0,
        ..QpOptions::default()
    };
    let mut connections: Vec<_> = (0..qps)
        .map(|_| world.connect([0, 1], &options, length.max(4096), |_, _| {}))
        .collect();
    let mut spent = std::time::Duration::ZERO;
    let mut done = 0;
    while done < total {
        for c in &mut connections {
            for wr_id in 0..batch {
                let send = Send::new(wr_id, opcode)
                    .rdma(c.mrs[1].iova, c.mrs[1].key)
                    .element(c.mrs[0].sge(0, length));
                let send = if wr_id + 1 < batch {
                    send.unsignaled()
                } else {
                    send
                };
                if opcode == SendOpcode::Send {
                    let sge = c.mrs[1].sge(0, length);
                    c.receive(&mut world, 1, wr_id, &[sge]);
                }
                c.send(&mut world, 0, &send);
            }
        }
        let start = Instant::now();
        while world.step() {}
        spent += start.elapsed();
        for c in &mut connections {
            assert_eq!(c.send_cqs[0].drain().len(), 1);
            c.recv_cqs[1].drain();
            done += batch;
        }
    }
    spent.as_secs_f64() * 1e9 / f64::from(u32::try_from(done).expect("a short benchmark"))
}

fn main() {
    println!(
        "{:<8} {:>8} {:>6} {:>12}",
        "opcode", "bytes", "QPs", "ns/message"
    );
    let cases = [
        (SendOpcode::Write, 2, 1),
        (SendOpcode::Write, 2, 100),
        (SendOpcode::Send, 2, 1),
        (SendOpcode::Read, 2, 1),
        (SendOpcode::Write, 65536, 1),
        (SendOpcode::Read, 65536, 1),
        (SendOpcode::Write, 1 << 20, 1),
    ];
    for (opcode, length, qps) in cases {
        let total = if length > 4096 {
            20_000_000_000 / length as u64 / 20
        } else {
            1_000_000
        };
        let cost = measure(opcode, length, qps, 32, total);
        println!(
            "{:<8} {length:>8} {qps:>6} {cost:>12.0}",
            format!("{opcode:?}")
        );
    }
}
