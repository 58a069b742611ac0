// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Cost of a message in the engine, both devices and the fabric included, by size and by number of
//! queue pairs, and what of it is more if the devices are traced, or keep their last calls. Memory is that of the
//! tests: copies and their checks are part of the figures.
//!
//! `messages OPCODE LENGTH BATCHES [kept]` only sends that many batches, for a program that counts instructions.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vrnic_engine::testing::{Connection, QpOptions, Send, World};
use vrnic_engine::trace::PATIENCE;
use vrnic_wire::work::SendOpcode;

/// Messages that are posted together when their trace is measured.
const BATCH: u32 = 32;
/// Batches of a turn: more steps than a trace keeps before those that are measured, and as many of these.
const BATCHES: usize = 100;
/// Turns without and with a trace.
const TURNS: usize = 100;

/// Two devices with so many connections for messages of that length.
fn pair(qps: usize, length: usize) -> (World, Vec<Connection>) {
    let mut world = World::pair(1);
    let options = QpOptions {
        entries: 64,
        sge: 1,
        inline: 0,
        ..QpOptions::default()
    };
    let connect = |_| world.connect([0, 1], &options, length.max(4096), |_, _| {});
    let connections = (0..qps).map(connect).collect();
    (world, connections)
}

/// Posts `batch` requests on each connection, of which the last is signaled, and gives the time until all are done.
fn run(
    world: &mut World,
    connections: &mut [Connection],
    opcode: SendOpcode,
    length: usize,
    batch: u64,
) -> Duration {
    for c in &mut *connections {
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
                c.receive(world, 1, wr_id, &[sge]);
            }
            c.send(world, 0, &send);
        }
    }
    let start = Instant::now();
    while world.step() {}
    let spent = start.elapsed();
    for c in connections {
        assert_eq!(c.send_cqs[0].drain().len(), 1);
        c.recv_cqs[1].drain();
    }
    spent
}

/// Posts `batch` requests on each of `qps` queue pairs until `total` are done. Gives nanoseconds
/// per message.
fn measure(opcode: SendOpcode, length: usize, qps: usize, batch: u64, total: u64) -> f64 {
    let (mut world, mut connections) = pair(qps, length);
    let mut spent = Duration::ZERO;
    let mut done = 0;
    while done < total {
        spent += run(&mut world, &mut connections, opcode, length, batch);
        done += batch * qps as u64;
    }
    spent.as_secs_f64() * 1e9 / f64::from(u32::try_from(done).expect("a short benchmark"))
}

/// Nanoseconds that a trace's clock is ahead of the real one.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// The clock of traces.
fn clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64 + AHEAD.load(Ordering::Relaxed)
}

/// What may cost something.
#[derive(Copy, Clone)]
enum Extra {
    /// Somebody looks at the trace.
    Trace,
    /// The last calls are kept for a replay.
    Flight,
}

impl Extra {
    /// Switches it on or off.
    fn switch(self, world: &mut World, on: bool) {
        match (self, on) {
            (Self::Trace, true) => {
                for node in &mut world.nodes {
                    node.rnic.trace(clock, u64::MAX, 0);
                }
            }
            (Self::Trace, false) => {
                // Devices stop to trace at the next step.
                AHEAD.fetch_add(2 * PATIENCE.as_nanos() as u64, Ordering::Relaxed);
            }
            (Self::Flight, true) => {
                for node in &mut world.nodes {
                    node.rnic.keep_flight("x");
                }
            }
            (Self::Flight, false) => {
                for node in &mut world.nodes {
                    node.rnic.take_flight("off");
                }
            }
        }
    }
}

/// Nanoseconds per message in the median batch of a turn.
fn turn(
    world: &mut World,
    connections: &mut [Connection],
    opcode: SendOpcode,
    length: usize,
    (extra, on): (Extra, bool),
) -> f64 {
    extra.switch(world, on);
    let mut batch = || {
        let spent = run(world, connections, opcode, length, BATCH.into());
        spent.as_secs_f64() * 1e9 / f64::from(BATCH)
    };
    for _ in 0..BATCHES {
        batch();
    }
    median((0..BATCHES).map(|_| batch()).collect())[1]
}

/// The first quartile, the median and the third one.
fn median(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| figures[figures.len() * quarter / 4])
}

/// What something costs, by turns, so that both suffer from the same neighbours.
fn compare(extra: Extra, opcode: SendOpcode, length: usize) {
    let (mut world, mut connections) = pair(1, length);
    let (mut without, mut with, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let mut turn = |on| turn(&mut world, &mut connections, opcode, length, (extra, on));
        let (off, on) = (turn(false), turn(true));
        without.push(off);
        with.push(on);
        more.push(on - off);
    }
    let [low, middle, high] = median(more);
    println!(
        "{:<8} {length:>8} {:>12.0} {:>12.0} {middle:>12.0}  ({low:.0} to {high:.0})",
        format!("{opcode:?}"),
        median(without)[1],
        median(with)[1]
    );
}

/// Sends batches and nothing else; `None` if the arguments do not say which.
fn count(arguments: &[String]) -> Option<()> {
    let [opcode, length, batches, rest @ ..] = arguments else {
        return None;
    };
    let opcode = match opcode.as_str() {
        "write" => SendOpcode::Write,
        "send" => SendOpcode::Send,
        "read" => SendOpcode::Read,
        _ => return None,
    };
    let (length, batches) = (length.parse().ok()?, batches.parse().ok()?);
    let (mut world, mut connections) = pair(1, length);
    if rest.iter().any(|word| word == "kept") {
        Extra::Flight.switch(&mut world, true);
    }
    for _ in 0..batches {
        run(&mut world, &mut connections, opcode, length, BATCH.into());
    }
    Some(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if count(&arguments).is_some() {
        return;
    }
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
    for (extra, what) in [(Extra::Trace, "traced"), (Extra::Flight, "kept")] {
        println!(
            "\n{:<8} {:>8} {:>12} {what:>12} {:>12}  (quartiles)",
            "opcode", "bytes", "ns/message", "more"
        );
        for (opcode, length) in [
            (SendOpcode::Write, 2),
            (SendOpcode::Write, 4096),
            (SendOpcode::Send, 2),
            (SendOpcode::Read, 2),
        ] {
            compare(extra, opcode, length);
        }
    }
}
