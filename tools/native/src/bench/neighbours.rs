// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The influence of a guest that does its worst on another guest: latency of the other's small writes, with that
//! neighbour and alone.
//!
//! One thread plays all guests, so that they do not compete for CPUs and only the device is measured.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vrnic_wire::work::SendOpcode;

use super::{Figure, Load, Operation, WORD, median, percentile, sample};
use crate::daemon::{Daemon, Fabric};
use crate::pair::{self, End};
use crate::queues::request;

/// Number of writes in a window.
const WINDOW: usize = 200;
/// Number of windows with a busy neighbour, and also of those without.
const TURNS: usize = 5;
/// Length of a neighbour's longest message in bytes.
const LONGEST: usize = 1 << 20;

/// What a neighbour does all the time.
#[derive(Clone, Copy, Debug)]
enum Neighbour {
    /// Messages of this many bytes on this many queue pairs, as many as there is room for.
    Messages(Operation, usize, usize),
    /// Sends on this many queue pairs to peers that have posted no receive.
    Unreceived(usize),
    /// Doorbells for a queue pair that has no work.
    Doorbells,
}

impl Neighbour {
    const ALL: [Self; 9] = [
        Self::Messages(Operation::Write, LONGEST, 8),
        Self::Messages(Operation::Read, LONGEST, 8),
        Self::Messages(Operation::Send, 64 << 10, 8),
        Self::Messages(Operation::Write, 2, 32),
        Self::Messages(Operation::Write, 2, 1000),
        Self::Messages(Operation::Write, 64 << 10, 300),
        Self::Messages(Operation::Atomic, WORD, 32),
        Self::Unreceived(300),
        Self::Doorbells,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Messages(..) => "beside a neighbour's messages",
            Self::Unreceived(_) => "beside a neighbour's sends without receives",
            Self::Doorbells => "beside a neighbour's doorbells",
        }
    }

    fn qps(self) -> usize {
        match self {
            Self::Messages(_, _, qps) | Self::Unreceived(qps) => qps,
            Self::Doorbells => 1,
        }
    }
}

/// Measures 8-byte writes over the one queue pair of two guests, while two other guests are the neighbours.
pub fn all(
    program: &Path,
    fabric: Fabric,
    time: Duration,
    note: &mut dyn FnMut(Figure),
) -> Result<()> {
    let mut daemon = Daemon::start(program, fabric, 4)?;
    let mut victims = pair::start(&mut daemon, 0, 4096, 256)?;
    let mut others = pair::start(&mut daemon, 2, LONGEST, super::COMPLETIONS)?;
    pair::connect(&mut victims, 1, 64)?;
    for neighbour in Neighbour::ALL {
        let figure = beside(neighbour, &mut victims, &mut others, time);
        note(figure.with_context(|| format!("{neighbour:?}; vrnicd logs: {}", daemon.log()))?);
    }
    pair::disconnect(&mut victims)
}

fn beside(
    neighbour: Neighbour,
    victims: &mut [End; 2],
    others: &mut [End; 2],
    time: Duration,
) -> Result<Figure> {
    pair::connect(others, neighbour.qps(), 64)?;
    let mut quiet: Vec<f64> = Vec::new();
    let (mut samples, mut turns) = (Vec::new(), Vec::new());
    match neighbour {
        Neighbour::Messages(operation, bytes, _) => {
            let mut load = Load::new(others, operation, bytes, 1)?;
            for _ in 0..TURNS {
                let alone = p99(&mut window(victims, time, || Ok(()))?);
                let mut noisy = window(victims, time, || load.fill(others))?;
                turns.push(p99(&mut noisy) / alone);
                quiet.push(alone);
                samples.append(&mut noisy);
                load.settle(others)?;
            }
            load.finish(others)?;
        }
        Neighbour::Unreceived(_) => {
            for _ in 0..TURNS {
                let alone = p99(&mut window(victims, time, || Ok(()))?);
                let [a, b] = &mut *others;
                for qp in 0..a.qps.len() {
                    let send = request(SendOpcode::Send, 0, Operation::Send.target(b));
                    a.qps[qp].post(&mut a.vm, &send, a.mr.sge(0, WORD))?;
                }
                let mut noisy = window(victims, time, || Ok(()))?;
                for qp in &mut b.qps {
                    qp.push_receive(0, b.mr.sge(0, WORD))?;
                    qp.offer(&mut b.vm)?;
                }
                for _ in 0..a.qps.len() {
                    a.sends.wait()?;
                    b.receives.wait()?;
                }
                turns.push(p99(&mut noisy) / alone);
                quiet.push(alone);
                samples.append(&mut noisy);
            }
        }
        Neighbour::Doorbells => {
            let [a, _] = &mut *others;
            let slot = a.qps[0].slot();
            for _ in 0..TURNS {
                let alone = p99(&mut window(victims, time, || Ok(()))?);
                let mut noisy = window(victims, time, || a.vm.write_doorbell(slot))?;
                turns.push(p99(&mut noisy) / alone);
                quiet.push(alone);
                samples.append(&mut noisy);
            }
        }
    }
    pair::disconnect(others)?;
    turns.sort_by(f64::total_cmp);
    let (operation, bytes) = match neighbour {
        Neighbour::Messages(operation, bytes, _) => (Some(operation.name().into()), Some(bytes)),
        Neighbour::Unreceived(_) => (Some(Operation::Send.name().into()), Some(WORD)),
        Neighbour::Doorbells => (None, None),
    };
    Ok(Figure {
        what: neighbour.name().into(),
        operation,
        bytes,
        qps: Some(neighbour.qps()),
        p50_ns: Some(percentile(&mut samples, 0.5)),
        p99_ns: Some(percentile(&mut samples, 0.99)),
        p999_ns: Some(percentile(&mut samples, 0.999)),
        limit: Some(median(&quiet)),
        turns,
        ..Figure::default()
    })
}

fn p99(samples: &mut [u32]) -> f64 {
    percentile(samples, 0.99)
}

/// Measures writes for `time`, each from its post to its completion. Calls `worst`, the neighbour's action, before
/// each.
fn window(
    [a, b]: &mut [End; 2],
    time: Duration,
    mut worst: impl FnMut() -> Result<()>,
) -> Result<Vec<u32>> {
    let end = Instant::now() + time / TURNS as u32;
    let mut samples = Vec::with_capacity(WINDOW);
    while samples.len() < WINDOW || Instant::now() < end {
        worst()?;
        let start = Instant::now();
        let write = request(SendOpcode::Write, 0, b.mr.target(0));
        a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, WORD))?;
        a.sends.wait()?;
        samples.push(sample(start));
    }
    Ok(samples)
}
