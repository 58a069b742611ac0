// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Measures the goodput of 64 KiB writes when frames get lost, with both devices, frames and memory, but without
//! guests. Arguments select tables by parts of their titles, and ways of recovery by name.
//!
//! The first table is in real time: one thread does everything, as vrnicd's worker does, so the CPU is the limit. The
//! others are in virtual time, where the line is the limit, through its bandwidth and delay. The seed is always the
//! same. For lines with a long delay, messages of 1 MiB are measured too, because a queue pair takes only 64 messages
//! at a time from its ring. Each cell shows the goodput, its ratio to that without loss, and the ratio of packets sent
//! to packets necessary.

#![allow(
    clippy::cast_precision_loss,
    reason = "figures of a table are rounded anyway"
)]

use std::{
    io::Write,
    time::{Duration, Instant},
};
use vrnic_engine::{
    Recovery, RnicConfig, Segment, Segmentation,
    testing::{Connection, Faults, GuestView, Line, Node, QpOptions, Send, Wire, World},
};
use vrnic_roce::{MAX_FRAME, encode, parse};
use vrnic_wire::{counter::Counter, port::Mtu, work::SendOpcode};

/// Length of a message in bytes.
const MESSAGE: usize = 64 << 10;

/// Length of a region in bytes.
const REGION: usize = 1 << 20;

/// Number of messages posted at any time.
const DEPTH: u32 = 128;

/// Loss probabilities in units of 1/1024.
const LOSSES: [u32; 5] = [0, 1, 10, 51, 102];

/// How both devices recover from loss, the requester first.
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

/// One requester and its progress.
struct Flow {
    c: Connection,
    message: usize,
    posted: u32,
    done: u64,
}

impl Flow {
    /// Keeps the queue full and counts completed messages.
    fn serve(&mut self, world: &mut World) {
        let done = self.c.send_cqs[0].drain();
        self.posted -= done.len() as u32;
        for one in &done {
            assert_eq!(one.status, vrnic_wire::completion::Status::Success);
        }
        self.done += (done.len() * self.message) as u64;
        while self.posted < DEPTH {
            let place = self.posted as usize * self.message % REGION;
            let write = Send::new(0, SendOpcode::Write)
                .rdma(self.c.mrs[1].iova + place as u64, self.c.mrs[1].key)
                .element(self.c.mrs[0].sge(place, self.message));
            self.c.send(world, 0, &write);
            self.posted += 1;
        }
    }
}

/// Several requesters, and the node to which all of them write, which comes last.
struct Bench {
    world: World,
    flows: Vec<Flow>,
}

impl Bench {
    fn new(
        recovery: [Recovery; 2],
        senders: usize,
        message: usize,
        loss: u32,
        line: Option<Line>,
    ) -> Self {
        let config = |recovery| RnicConfig {
            segmentation: Segmentation::PathMtu,
            recovery,
            ..RnicConfig::default()
        };
        let mut configs = vec![config(recovery[0]); senders];
        configs.push(config(recovery[1]));
        let mut world = World::of(&configs, 512 * (senders + 1), 7);
        let options = QpOptions {
            entries: DEPTH,
            ..QpOptions::default()
        };
        let connect = |sender| {
            let c = world.connect([sender, senders], &options, REGION, |_, attributes| {
                attributes.path_mtu = Mtu::Mtu4096.raw();
                // 67 ms, as in perftest, unless the line's delay is longer.
                let is_long = line.is_some_and(|line| line.delay > Duration::from_millis(10));
                attributes.timeout = if is_long { 18 } else { 14 };
            });
            Flow {
                c,
                message,
                posted: 0,
                done: 0,
            }
        };
        let flows = (0..senders).map(connect).collect();
        if line.is_none() {
            world.wire = Some(Wire {
                encode: frame,
                parse: segment,
            });
        }
        world.line = line;
        // As in `vrnic-lab bench --goodput`: some frames are duplicated, and some are late.
        let others = if loss == 0 { 0 } else { 10 };
        world.faults = Faults {
            drop: loss,
            duplicate: others,
            delay: others,
            ..Faults::default()
        };
        world.lateness = Duration::from_micros(200);
        Self { world, flows }
    }

    fn serve(&mut self) {
        for flow in &mut self.flows {
            flow.serve(&mut self.world);
        }
    }

    /// Returns the bytes written by each requester.
    fn done(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.done).collect()
    }

    /// Returns the number of packets sent by requesters.
    fn sent(&self) -> u64 {
        let requesters = self
            .world
            .nodes
            .split_last()
            .map_or(&[][..], |(_, all)| all);
        let count = |node: &Node| node.rnic.counters()[Counter::TransmitPackets as usize];
        requesters.iter().map(count).sum()
    }

    /// Returns what has been achieved since `since`.
    fn result(&self, since: &(vrnic_engine::time::Instant, Vec<u64>, u64)) -> Measured {
        let (start, before, sent) = since;
        let time = (self.world.now - *start).as_secs_f64();
        let done = self.done();
        let bytes = done
            .iter()
            .zip(before)
            .map(|(now, before)| (now - before) as f64);
        let rates: Vec<f64> = bytes.map(|bytes| bytes / time).collect();
        let rate = rates.iter().sum::<f64>();
        let squares = rates.iter().map(|rate| rate * rate).sum::<f64>();
        Measured {
            rate,
            sent: (self.sent() - sent) as f64 * 4096.0 / (rate * time),
            fairness: rate * rate / (squares * rates.len() as f64),
        }
    }

    fn mark(&self) -> (vrnic_engine::time::Instant, Vec<u64>, u64) {
        (self.world.now, self.done(), self.sent())
    }

    /// Runs in real time for `length`.
    fn real(mut self, length: Duration) -> Measured {
        /// Longest time that a step counts for. Any excess was spent by other processes, and does not advance the clock
        /// of a worker either.
        const STEP: Duration = Duration::from_micros(100);
        let start = self.mark();
        let mut last = Instant::now();
        while self.world.now - start.0 < length {
            self.serve();
            for _ in 0..8 {
                let now = Instant::now();
                self.world.now = self.world.now + (now - last).min(STEP);
                last = now;
                self.world.step();
            }
        }
        self.result(&start)
    }

    fn pass(&mut self, length: Duration) {
        let start = self.world.now;
        while self.world.now - start < length {
            self.serve();
            self.world.run(Duration::from_micros(20));
            // Advances the time even if nothing happened.
            self.world.now = self.world.now + Duration::from_nanos(100);
        }
    }

    /// Runs in virtual time: first for half of `length`, unmeasured, then for `length`.
    fn timed(mut self, length: Duration) -> Measured {
        self.pass(length / 2);
        let start = self.mark();
        self.pass(length);
        self.result(&start)
    }
}

/// The result of a measurement.
struct Measured {
    /// Bytes per second of all requesters together.
    rate: f64,
    /// Ratio of packets sent to packets necessary.
    sent: f64,
    /// Jain's fairness index of the rates.
    fairness: f64,
}

fn table(title: &str, only: &[String], measure: impl Fn([Recovery; 2], u32) -> Measured) {
    let names = RECOVERIES.map(|(name, _)| name);
    if !is_wanted(title, only) {
        return;
    }
    let wanted = names.map(|name| {
        let named = only.iter().any(|word| names.contains(&word.as_str()));
        !named || only.iter().any(|word| word == name)
    });
    println!("\n{title}");
    print!("{:>8}", "lost");
    for (name, _) in names.iter().zip(wanted).filter(|(_, wanted)| *wanted) {
        print!("{name:>28}");
    }
    println!();
    let mut whole = [0.0; RECOVERIES.len()];
    for loss in LOSSES {
        print!("{:>6.1} %", f64::from(loss) * 100.0 / 1024.0);
        for (index, (_, recovery)) in RECOVERIES.into_iter().enumerate() {
            if !wanted[index] {
                continue;
            }
            let Measured { rate, sent, .. } = measure(recovery, loss);
            if loss == 0 {
                whole[index] = rate;
            }
            let share = 100.0 * rate / whole[index];
            print!("{:>10.1} MB/s {share:>4.0} % {sent:>5.2}", rate / 1e6);
            let _ = std::io::stdout().flush();
        }
        println!();
    }
}

/// Measures several senders to one receiver whose port has a small queue.
fn incast(only: &[String], seconds: f64) {
    const SENDERS: usize = 8;
    let title = "incast of 8, 25 Gbit/s, 10 us each way";
    if !is_wanted(title, only) {
        return;
    }
    println!("\n{title}");
    println!(
        "{:>10} {:>10} {:>8} {:>9} {:>6}",
        "queue", "goodput", "of port", "fairness", "sent"
    );
    for queue in [64 << 10, 256 << 10, 1 << 20] {
        let line = Line {
            bytes_per_s: 25 * 125_000_000,
            delay: Duration::from_micros(10),
            queue,
        };
        let bench = Bench::new([Recovery::Selective; 2], SENDERS, MESSAGE, 0, Some(line));
        let Measured {
            rate,
            sent,
            fairness,
        } = bench.timed(Duration::from_secs_f64(seconds / 20.0));
        let share = 100.0 * rate / line.bytes_per_s as f64;
        println!(
            "{:>6} KiB {:>5.0} MB/s {share:>6.0} % {fairness:>9.3} {sent:>6.2}",
            queue >> 10,
            rate / 1e6
        );
    }
}

/// Returns whether a table is selected: no titles are given, or one word is part of this title.
fn is_wanted(title: &str, only: &[String]) -> bool {
    let is_title = |word: &&String| RECOVERIES.iter().all(|(name, _)| word != name);
    let mut words = only.iter().filter(is_title).peekable();
    words.peek().is_none() || words.any(|word| title.contains(word.as_str()))
}

fn main() {
    let (options, only): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    let short = options.iter().any(|option| option == "--short");
    let seconds = if short { 0.3 } else { 2.0 };
    table("as fast as this CPU", &only, |recovery, loss| {
        Bench::new(recovery, 1, MESSAGE, loss, None).real(Duration::from_secs_f64(seconds))
    });
    for (title, gigabits, delay, message, length) in [
        ("25 Gbit/s, 10 us each way", 25, 10, MESSAGE, 0.1),
        ("10 Gbit/s, 500 us each way", 10, 500, MESSAGE, 1.0),
        ("1 Gbit/s, 50 ms each way", 1, 50_000, MESSAGE, 20.0),
        ("1 Gbit/s, 50 ms each way, 1 MiB", 1, 50_000, 1 << 20, 20.0),
    ] {
        table(title, &only, |recovery, loss| {
            let line = Line {
                bytes_per_s: gigabits * 125_000_000,
                delay: Duration::from_micros(delay),
                queue: 8 << 20,
            };
            Bench::new(recovery, 1, message, loss, Some(line))
                .timed(Duration::from_secs_f64(length * seconds / 2.0))
        });
    }
    incast(&only, seconds);
}
