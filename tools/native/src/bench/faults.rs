// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The cost of faults that do not fire. Measures small messages while no fault is armed, while one is armed for another
//! queue pair, and while one is armed for this queue pair but waits for more packets than there will be.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use vrnicd::control::client::Client;

use super::{COMPLETIONS, Figure, Load, Operation, SMALL, WORD, best, latency, median, percentile};
use crate::daemon::{Daemon, Fabric};
use crate::pair::{self, End};

/// Names of the devices.
const DEVICES: [&str; 2] = ["0", "1"];
/// Number of a queue pair that does not exist.
const NOBODY: u32 = 0xff_ff00;
/// Number of round trips in a turn.
const ROUND_TRIPS: usize = 2000;
/// Number of turns. In each, everything is measured once without a fault and once with each fault, because the CPU
/// usage of other programs may change from one turn to the next.
const TURNS: usize = 5;

/// Measurements while faults were armed in one way: for each turn, the windows and the median of the round trips.
#[derive(Default)]
struct Way {
    /// Messages per second.
    rates: Vec<Vec<f64>>,
    /// Nanoseconds.
    times: Vec<f64>,
    /// All round trips.
    samples: Vec<u32>,
}

/// Measures writes over one queue pair of a separate vrnicd in which faults may be armed.
pub fn all(
    program: &Path,
    fabric: Fabric,
    time: Duration,
    note: &mut dyn FnMut(Figure),
) -> Result<()> {
    let devices = DEVICES.map(|name| (name.to_owned(), ""));
    let mut daemon = Daemon::configured(program, fabric, &devices, "faults = true")?;
    let mut ends = pair::start(&mut daemon, 0, 4096, COMPLETIONS)?;
    pair::connect(&mut ends, 1, 64)?;
    let mut control = Client::connect(&daemon.control())?;
    let own = ends.each_ref().map(|end| end.qps[0].qpn());
    let armed = [
        ("no fault", None),
        ("a fault of another QP", Some([NOBODY; 2])),
        ("a fault that never fires", Some(own)),
    ];
    let mut ways = armed.map(|_| Way::default());
    for _ in 0..TURNS {
        for (way, (_, qpns)) in ways.iter_mut().zip(armed) {
            for (device, qpn) in DEVICES.iter().zip(qpns.into_iter().flatten()) {
                let fault = format!("partition qp={qpn} nth={}", u64::MAX);
                control.add_fault(device, &fault)?;
            }
            way.measure(&mut ends, time)?;
            for device in DEVICES {
                control.clear_faults(device, None)?;
            }
        }
    }
    let [none, ..] = &ways;
    let (usual_rate, usual_time) = (best(&none.rates.concat()), lowest(&none.times));
    let (usual_rates, usual_times) = (medians(&none.rates), none.times.clone());
    for (way, (what, qpns)) in ways.into_iter().zip(armed) {
        let rates = way.rates.concat();
        let turns = |usual: &[f64], these: &[f64]| {
            let mut turns: Vec<f64> = these
                .iter()
                .zip(usual)
                .map(|(one, usual)| one / usual)
                .collect();
            turns.sort_by(f64::total_cmp);
            // The measurement without faults is what the others are compared with.
            if qpns.is_some() { turns } else { Vec::new() }
        };
        let figure = |bytes| Figure {
            what: what.into(),
            operation: Some(Operation::Write.name().into()),
            bytes: Some(bytes),
            qps: Some(1),
            ..Figure::default()
        };
        note(Figure {
            per_s: Some(best(&rates)),
            median_per_s: Some(median(&rates)),
            limit: qpns.map(|_| usual_rate),
            turns: turns(&usual_rates, &medians(&way.rates)),
            ..figure(SMALL)
        });
        let mut samples = way.samples;
        note(Figure {
            p50_ns: Some(percentile(&mut samples, 0.5)),
            p99_ns: Some(percentile(&mut samples, 0.99)),
            p999_ns: Some(percentile(&mut samples, 0.999)),
            limit: qpns.map(|_| usual_time),
            turns: turns(&usual_times, &way.times),
            ..figure(WORD)
        });
    }
    Ok(())
}

impl Way {
    fn measure(&mut self, ends: &mut [End; 2], time: Duration) -> Result<()> {
        let mut load = Load::new(ends, Operation::Write, SMALL, 16)?;
        self.rates.push(load.windows(ends, time)?);
        load.finish(ends)?;
        let mut samples = latency::round_trips(ends, ROUND_TRIPS)?;
        self.times.push(percentile(&mut samples, 0.5));
        self.samples.extend(samples);
        Ok(())
    }
}

/// Returns the median of each turn.
fn medians(turns: &[Vec<f64>]) -> Vec<f64> {
    turns.iter().map(|windows| median(windows)).collect()
}

/// Returns the smallest value.
fn lowest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::MAX, f64::min)
}
