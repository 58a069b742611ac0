// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a second worker brings: the messages of two pairs of guests that have nothing to do with each other.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Figure, Load, Operation, best, median};
use crate::daemon::{Daemon, Fabric};
use crate::pair::{self, End};
use crate::queues::Patience;

/// Number of windows with each number of workers.
const TURNS: u32 = 9;
/// Message sizes, with the number of requests that are posted together.
const SIZES: [(usize, u32); 3] = [(64 << 10, 1), (4096, 16), (2, 16)];

/// A vrnicd with two pairs of guests.
struct Host {
    daemon: Daemon,
    pairs: [[End; 2]; 2],
}

impl Host {
    fn start(program: &Path, workers: usize) -> Result<Self> {
        let devices: Vec<_> = (0..4).map(|device| (device.to_string(), "")).collect();
        let settings = format!("workers = {workers}\n");
        let mut daemon = Daemon::configured(program, Fabric::Local, &devices, &settings)?;
        let bytes = SIZES[0].0;
        let mut start = |first| pair::start(&mut daemon, first, bytes, super::COMPLETIONS);
        Ok(Self {
            pairs: [start(0)?, start(2)?],
            daemon,
        })
    }

    /// Measures writes of all `busy` pairs together for `time`. Returns the messages per second.
    fn window(&mut self, busy: usize, bytes: usize, batch: u32, time: Duration) -> Result<f64> {
        let mut loads = Vec::new();
        for ends in &mut self.pairs[..busy] {
            loads.push(Load::new(ends, Operation::Write, bytes, batch)?);
        }
        let mut run = |time: Duration| -> Result<f64> {
            let (start, mut messages, mut patience) = (Instant::now(), 0, Patience::new());
            while start.elapsed() < time {
                let before = messages;
                // Reads the clock only once in a while.
                for _ in 0..16 {
                    for (load, ends) in loads.iter_mut().zip(&mut self.pairs) {
                        messages += load.turn(ends)?;
                    }
                }
                if messages == before {
                    patience.look()?;
                }
            }
            Ok(f64::from(messages) / start.elapsed().as_secs_f64())
        };
        run(time / 4)?;
        let rate = run(time)?;
        for (load, ends) in loads.into_iter().zip(&mut self.pairs) {
            load.finish(ends)?;
        }
        Ok(rate)
    }
}

/// Measures writes of one pair and of two pairs together, in turns with one worker and with two. The limit is the
/// median with one worker.
pub fn all(program: &Path, time: Duration, note: &mut dyn FnMut(Figure)) -> Result<()> {
    let mut hosts = [Host::start(program, 1)?, Host::start(program, 2)?];
    for ends in hosts.iter_mut().flat_map(|host| &mut host.pairs) {
        pair::connect(ends, 8, 64)?;
    }
    for (busy, what) in [(1, "one pair, two workers"), (2, "two pairs, two workers")] {
        for (bytes, batch) in SIZES {
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..TURNS {
                for (host, rates) in hosts.iter_mut().zip(&mut rates) {
                    let rate = host.window(busy, bytes, batch, time / TURNS);
                    let log = || format!("vrnicd logs: {}", host.daemon.log());
                    rates.push(rate.with_context(log)?);
                }
            }
            let pairs = rates[0].iter().zip(&rates[1]);
            let mut turns: Vec<f64> = pairs.map(|(one, two)| two / one).collect();
            turns.sort_by(f64::total_cmp);
            note(Figure {
                what: what.into(),
                operation: Some(Operation::Write.name().into()),
                bytes: Some(bytes),
                qps: Some(8),
                per_s: Some(best(&rates[1])),
                median_per_s: Some(median(&rates[1])),
                limit: Some(median(&rates[0])),
                turns,
                ..Figure::default()
            });
        }
    }
    Ok(())
}
