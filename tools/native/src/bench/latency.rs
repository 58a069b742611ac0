// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Latency of single messages.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vrnic_wire::work::SendOpcode;

use super::{Figure, Operation, WORD, percentile, sample};
use crate::pair::End;
use crate::queues::{Patience, request};

/// Number of samples in a window.
const WINDOW: usize = 2000;
/// Offset at which the pong arrives, several cache lines after the ping.
const PONG: usize = 1024;
/// Longer than the worker's polling time.
const PAUSE: Duration = Duration::from_millis(2);

/// Measures everything with the one queue pair of the two guests. Round trips are compared with that of a cache line.
pub fn all(
    ends: &mut [End; 2],
    time: Duration,
    ping_pong: f64,
    note: &mut dyn FnMut(Figure),
) -> Result<()> {
    let figure = |what: &str, operation: Operation, mut samples: Vec<u32>| Figure {
        what: what.into(),
        operation: Some(operation.name().into()),
        bytes: Some(WORD),
        qps: Some(1),
        p50_ns: Some(percentile(&mut samples, 0.5)),
        p99_ns: Some(percentile(&mut samples, 0.99)),
        p999_ns: Some(percentile(&mut samples, 0.999)),
        ..Figure::default()
    };
    let mut noted = |what: &str, operation, samples| {
        note(Figure {
            limit: Some(ping_pong),
            ..figure(what, operation, samples)
        });
    };
    let samples = quietest(time, || round_trips(ends, WINDOW))?;
    noted("latency of a round trip", Operation::Write, samples);
    for operation in Operation::ALL {
        let samples = quietest(time, || completions(ends, operation, WINDOW))?;
        noted("latency to the completion", operation, samples);
    }
    let samples = quietest(time, || deliveries(ends, WINDOW))?;
    noted("latency to the receive", Operation::Send, samples);
    for operation in Operation::ALL {
        let samples = quietest(time, || events(ends, operation, WINDOW / 4))?;
        noted("latency to the completion, by event", operation, samples);
    }
    let samples = after_pauses(ends, 250)?;
    noted("latency when the device slept", Operation::Write, samples);
    let samples = doorbells(ends, WINDOW)?;
    noted("latency of posting a doorbell", Operation::Write, samples);
    Ok(())
}

/// Returns the window with the smallest median among the windows that fit into `time`.
fn quietest(time: Duration, mut window: impl FnMut() -> Result<Vec<u32>>) -> Result<Vec<u32>> {
    let end = Instant::now() + time;
    let mut best = (f64::MAX, Vec::new());
    // The first window warms up.
    window()?;
    loop {
        let mut samples = window()?;
        let median = percentile(&mut samples, 0.5);
        if median < best.0 {
            best = (median, samples);
        }
        if Instant::now() > end {
            return Ok(best.1);
        }
    }
}

/// Measures round trips: one guest writes 8 bytes to the other, which writes 8 bytes back as soon as it sees them in
/// its memory.
pub fn round_trips([a, b]: &mut [End; 2], count: usize) -> Result<Vec<u32>> {
    let mut samples = Vec::with_capacity(count);
    let first = b.mr.area.long(PONG);
    for round in 1..=count as u64 {
        let value = first + round;
        let start = Instant::now();
        for (from, to) in [(0, 1), (1, 0)] {
            let [from, to] = match (from, to) {
                (0, _) => [&mut *a, &mut *b],
                _ => [&mut *b, &mut *a],
            };
            from.mr.area.set_long(0, value);
            let write = request(SendOpcode::Write, round, to.mr.target(PONG));
            from.qps[0].post(&mut from.vm, &write, from.mr.sge(0, WORD))?;
            let mut patience = Patience::new();
            while to.mr.area.long(PONG) != value {
                patience.look()?;
            }
        }
        samples.push(sample(start));
        a.sends.wait()?;
        b.sends.wait()?;
    }
    Ok(samples)
}

/// Measures the time from posting a request to its completion on the same side.
fn completions([a, b]: &mut [End; 2], operation: Operation, count: usize) -> Result<Vec<u32>> {
    let mut samples = Vec::with_capacity(count);
    for round in 0..count as u64 {
        offer(b, operation)?;
        let start = Instant::now();
        let wanted = request(operation.opcode(), round, operation.target(b));
        a.qps[0].post(&mut a.vm, &wanted, a.mr.sge(0, WORD))?;
        a.sends.wait()?;
        samples.push(sample(start));
        clear(b, operation)?;
    }
    Ok(samples)
}

/// Measures the time from posting a send to the completion of the receive on the other side.
fn deliveries([a, b]: &mut [End; 2], count: usize) -> Result<Vec<u32>> {
    let mut samples = Vec::with_capacity(count);
    for round in 0..count as u64 {
        offer(b, Operation::Send)?;
        let start = Instant::now();
        let wanted = request(SendOpcode::Send, round, Operation::Send.target(b));
        a.qps[0].post(&mut a.vm, &wanted, a.mr.sge(0, WORD))?;
        b.receives.wait()?;
        samples.push(sample(start));
        a.sends.wait()?;
    }
    Ok(samples)
}

/// Like [`completions`], but the program sleeps until the event of the completion queue.
fn events([a, b]: &mut [End; 2], operation: Operation, count: usize) -> Result<Vec<u32>> {
    let mut samples = Vec::with_capacity(count);
    for round in 0..count as u64 {
        offer(b, operation)?;
        let start = Instant::now();
        a.sends.arm();
        let wanted = request(operation.opcode(), round, operation.target(b));
        a.qps[0].post(&mut a.vm, &wanted, a.mr.sge(0, WORD))?;
        a.sends.wait_event(&mut a.vm)?;
        a.sends.wait()?;
        samples.push(sample(start));
        clear(b, operation)?;
    }
    Ok(samples)
}

/// Like [`completions`] for a write, but after pauses in which the device fell asleep, so that it needs a doorbell.
fn after_pauses([a, b]: &mut [End; 2], count: usize) -> Result<Vec<u32>> {
    let mut samples = Vec::with_capacity(count);
    for round in 0..2 * count as u64 {
        std::thread::sleep(PAUSE);
        let (rung, start) = (a.vm.rung(), Instant::now());
        let write = request(SendOpcode::Write, round, b.mr.target(0));
        a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, WORD))?;
        a.sends.wait()?;
        if a.vm.rung() > rung {
            samples.push(sample(start));
        }
        if samples.len() == count {
            return Ok(samples);
        }
    }
    bail!("the device was awake after most pauses")
}

/// Measures the cost of a doorbell for its sender, here the VMM: a message to the socket.
fn doorbells([a, _]: &mut [End; 2], count: usize) -> Result<Vec<u32>> {
    let slot = a.qps[0].slot();
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        a.vm.write_doorbell(slot)?;
        samples.push(sample(start));
    }
    Ok(samples)
}

/// Posts a receive if the operation needs one.
fn offer(end: &mut End, operation: Operation) -> Result<()> {
    if operation == Operation::Send {
        end.qps[0].push_receive(0, end.mr.sge(0, WORD))?;
        end.qps[0].offer(&mut end.vm)?;
    }
    Ok(())
}

/// Polls the receive's completion.
fn clear(end: &mut End, operation: Operation) -> Result<()> {
    if operation == Operation::Send {
        end.receives.wait()?;
    }
    Ok(())
}
