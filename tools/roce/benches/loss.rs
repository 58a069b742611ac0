// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Goodput of 64 KiB writes over frames that get lost: both devices, frames and memory included, without guests.
//!
//! The first table is in real time: one thread does everything, as vrnicd's worker does, so the CPU is what limits. The
//! others are in virtual time, where a line is: its bandwidth, and the time that it takes. The seed is always the same.
//! Each cell has the goodput, its share of that without loss, and the packets sent for each that was necessary.

#![allow(
    clippy::cast_precision_loss,
    reason = "figures of a table are rounded anyway"
)]

use std::time::{Duration, Instant};
use vrnic_engine::{
    Recovery, RnicConfig, Segment, Segmentation,
    testing::{Connection, Faults, GuestView, Line, QpOptions, Send, Wire, World},
};
use vrnic_roce::{MAX_FRAME, encode, parse};
use vrnic_wire::{counter::Counter, port::Mtu, work::SendOpcode};

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;

/// Messages that are posted at any time.
const DEPTH: u32 = 128;

/// Losses in parts of 1024.
const LOSSES: [u32; 5] = [0, 1, 10, 51, 102];

/// How both devices make up for loss, requester first.
const RECOVERIES: [(&str, [Recovery; 2]); 4] = [
    ("go-back-N", [Recovery::GoBackN; 2]),
    ("selective", [Recovery::Selective; 2]),
    ("requester only", [Recovery::Selective, Recovery::GoBackN]),
    ("responder only", [Recovery::GoBackN, Recovery::Selective]),
];

fn frame(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    frame
}

fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    parse(frame).ok()
}

struct Bench {
    world: World,
    c: Connection,
    posted: u32,
    done: u64,
}

impl Bench {
    fn new(recovery: [Recovery; 2], loss: u32, line: Option<Line>) -> Self {
        let configs = recovery.map(|recovery| RnicConfig {
            segmentation: Segmentation::PathMtu,
            recovery,
            ..RnicConfig::default()
        });
        let mut world = World::of(&configs, 2048, 7);
        let options = QpOptions {
            entries: DEPTH,
            ..QpOptions::default()
        };
        let c = world.connect([0, 1], &options, 16 * MESSAGE, |_, attributes| {
            attributes.path_mtu = Mtu::Mtu4096.raw();
            // 67 ms, as perftest, unless the line takes longer.
            let is_long = line.is_some_and(|line| line.delay > Duration::from_millis(10));
            attributes.timeout = if is_long { 18 } else { 14 };
        });
        if line.is_none() {
            world.wire = Some(Wire {
                encode: frame,
                parse: segment,
            });
        }
        world.line = line;
        // As `vrnic-lab bench --goodput`: some frames come twice, and some late.
        let others = if loss == 0 { 0 } else { 10 };
        world.faults = Faults {
            drop: loss,
            duplicate: others,
            delay: others,
            ..Faults::default()
        };
        world.lateness = Duration::from_micros(200);
        Self {
            world,
            c,
            posted: 0,
            done: 0,
        }
    }

    /// Keeps the queue full, and counts what is done.
    fn serve(&mut self) {
        let done = self.c.send_cqs[0].drain();
        self.posted -= done.len() as u32;
        for one in &done {
            assert_eq!(one.status, vrnic_wire::completion::Status::Success);
        }
        self.done += done.len() as u64;
        while self.posted < DEPTH {
            let place = self.posted as usize % 16 * MESSAGE;
            let write = Send::new(0, SendOpcode::Write)
                .rdma(self.c.mrs[1].iova + place as u64, self.c.mrs[1].key)
                .element(self.c.mrs[0].sge(place, MESSAGE));
            self.c.send(&mut self.world, 0, &write);
            self.posted += 1;
        }
    }

    /// Bytes per second since a time, and packets sent for each that was necessary.
    fn result(&self, since: vrnic_engine::time::Instant) -> (f64, f64) {
        let bytes = (self.done * MESSAGE as u64) as f64;
        let rate = bytes / (self.world.now - since).as_secs_f64();
        let sent = self.world.nodes[0].rnic.counters()[Counter::TransmitPackets as usize];
        (rate, sent as f64 * 4096.0 / bytes)
    }

    /// Bytes per second for so long, and packets sent for each that was necessary.
    fn real(mut self, length: Duration) -> (f64, f64) {
        /// A step takes less. What is more was spent by others, which do not let a worker's clock run either.
        const STEP: Duration = Duration::from_micros(100);
        let start = self.world.now;
        let mut last = Instant::now();
        while self.world.now - start < length {
            self.serve();
            for _ in 0..8 {
                let now = Instant::now();
                self.world.now = self.world.now + (now - last).min(STEP);
                last = now;
                self.world.step();
            }
        }
        self.result(start)
    }

    /// The same in virtual time.
    fn timed(mut self, length: Duration) -> (f64, f64) {
        let start = self.world.now;
        while self.world.now - start < length {
            self.serve();
            self.world.run(Duration::from_micros(20));
            // Nothing may have happened.
            self.world.now = self.world.now + Duration::from_nanos(100);
        }
        self.result(start)
    }
}

fn table(title: &str, measure: impl Fn([Recovery; 2], u32) -> (f64, f64)) {
    println!("\n{title}");
    print!("{:>8}", "lost");
    for (name, _) in RECOVERIES {
        print!("{name:>28}");
    }
    println!();
    let mut whole = [0.0; RECOVERIES.len()];
    for loss in LOSSES {
        print!("{:>6.1} %", f64::from(loss) * 100.0 / 1024.0);
        for (index, (_, recovery)) in RECOVERIES.into_iter().enumerate() {
            let (rate, sent) = measure(recovery, loss);
            if loss == 0 {
                whole[index] = rate;
            }
            let share = 100.0 * rate / whole[index];
            print!("{:>10.1} MB/s {share:>4.0} % {sent:>5.2}", rate / 1e6);
        }
        println!();
    }
}

fn main() {
    let short = std::env::args().any(|argument| argument == "--short");
    let seconds = if short { 0.3 } else { 2.0 };
    table("as fast as this CPU", |recovery, loss| {
        Bench::new(recovery, loss, None).real(Duration::from_secs_f64(seconds))
    });
    for (title, gigabits, delay, length) in [
        ("25 Gbit/s, 10 us each way", 25, 10, 0.1),
        ("10 Gbit/s, 500 us each way", 10, 500, 1.0),
        ("1 Gbit/s, 50 ms each way", 1, 50_000, 20.0),
    ] {
        table(title, |recovery, loss| {
            let line = Line {
                bytes_per_s: gigabits * 125_000_000,
                delay: Duration::from_micros(delay),
                queue: 8 << 20,
            };
            Bench::new(recovery, loss, Some(line))
                .timed(Duration::from_secs_f64(length * seconds / 2.0))
        });
    }
}
