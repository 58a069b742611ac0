// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The cost of being watched: small messages while a device traces its steps for a web page, compared with the same
//! messages while it does not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use vrnicd::control::client::Client;

use super::{Figure, Load, Operation, best, median};
use crate::pair::{self, End};

/// Interval between requests, as in `vrnicctl web`.
const INTERVAL: Duration = Duration::from_millis(250);
/// Number of pages of steps that a web page requests from a device at a time.
const PAGES: usize = 8;
/// Message sizes: one for which a step weighs most, and that of one packet on a wire.
const SIZES: [usize; 2] = [2, 4096];
/// Number of turns, each with a measurement without and one with a watcher, because the CPU usage of other programs may
/// change from one turn to the next.
const TURNS: usize = 5;

/// Measures writes over one queue pair.
pub fn all(
    ends: &mut [End; 2],
    control: &Path,
    time: Duration,
    note: &mut dyn FnMut(Figure),
) -> Result<()> {
    for bytes in SIZES {
        let (mut alone, mut seen, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            // Waits until the devices have stopped tracing.
            std::thread::sleep(vrnic_engine::trace::PATIENCE + INTERVAL);
            pair::connect(ends, 1, 64)?;
            let mut load = Load::new(ends, Operation::Write, bytes, 16)?;
            let unwatched = load.windows(ends, time)?;
            let watched = watched(ends, &mut load, control, time)?;
            load.finish(ends)?;
            pair::disconnect(ends)?;
            turns.push(median(&watched) / median(&unwatched));
            alone.extend(unwatched);
            seen.extend(watched);
        }
        turns.sort_by(f64::total_cmp);
        note(Figure {
            what: "watched".into(),
            operation: Some(Operation::Write.name().into()),
            bytes: Some(bytes),
            qps: Some(1),
            per_s: Some(best(&seen)),
            median_per_s: Some(median(&seen)),
            limit: Some(best(&alone)),
            turns,
            ..Figure::default()
        });
    }
    Ok(())
}

/// Runs the load while a client requests steps as often as a web page does.
fn watched(
    ends: &mut [End; 2],
    load: &mut Load,
    control: &Path,
    time: Duration,
) -> Result<Vec<f64>> {
    let mut client = Client::connect(control)?;
    let mut next = [0; 2];
    // The devices trace from now on.
    look(&mut client, &mut next)?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| -> Result<()> {
            while !ended.load(Ordering::Relaxed) {
                look(&mut client, &mut next)?;
                std::thread::sleep(INTERVAL);
            }
            Ok(())
        });
        let windows = load.windows(ends, time);
        ended.store(true, Ordering::Relaxed);
        let looked = looker.join();
        looked
            .map_err(|_| anyhow::anyhow!("the watching thread panicked"))?
            .context("reading the steps")?;
        windows
    })
}

/// Requests the steps of both devices.
fn look(client: &mut Client, next: &mut [u64; 2]) -> Result<()> {
    for (device, next) in next.iter_mut().enumerate() {
        for _ in 0..PAGES {
            let trace = client.trace(&device.to_string(), *next)?;
            *next = trace.first + trace.steps.len() as u64;
            if trace.waiting == 0 {
                break;
            }
        }
    }
    Ok(())
}
