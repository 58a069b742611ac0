// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Measures a vrnicd with native guests, and measures at the same time the best that the machine can do.
//!
//! Other programs may use the CPUs as well, so each figure is measured in many short windows. The best window is one
//! that was not disturbed, and the median shows how representative it is.

mod counters;
mod faults;
mod latency;
mod limits;
mod neighbours;
mod objects;
mod pairs;
mod throughput;
mod watched;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use vrnic::ring::send::Target;
use vrnic_wire::work::SendOpcode;

use crate::daemon::{Daemon, Fabric};
use crate::pair::{self, End};

pub use counters::PerMessage;
pub use throughput::Load;

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Send into a receive.
    Send,
    /// Fetch and add.
    Atomic,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Send, Self::Atomic];

    /// Returns the name, for people and for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
        }
    }

    fn opcode(self) -> SendOpcode {
        match self {
            Self::Write => SendOpcode::Write,
            Self::Read => SendOpcode::Read,
            Self::Send => SendOpcode::Send,
            Self::Atomic => SendOpcode::FetchAdd,
        }
    }

    /// Returns the target of a request for this operation.
    fn target(self, peer: &End) -> Target<'static> {
        match self {
            Self::Write | Self::Read => peer.mr.target(0),
            Self::Send => Target::Peer,
            Self::Atomic => peer.mr.atomic(0, 1, 0),
        }
    }
}

/// A measured figure.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// `local`, `roce` or `infiniband`.
    pub fabric: String,
    /// What was measured.
    pub what: String,
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Size of a message or of an object in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// Number of queue pairs in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<usize>,
    /// Median time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// 99th percentile of the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// 99.9th percentile of the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
    /// Messages or objects per second in the best window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// Messages or objects per second in the median window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_per_s: Option<f64>,
    /// The best that the machine can do: nanoseconds for a time, otherwise operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// For several turns in which a figure and its reference were both measured, in ascending order: the fraction of
    /// the limit that was reached, or the ratio of the 99th percentile to the one measured alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<f64>,
}

impl Figure {
    /// Returns the ratio of a time to the limit, or the fraction of the limit that a rate reaches; of several turns,
    /// that of the median turn.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        if !self.turns.is_empty() {
            return Some(median(&self.turns));
        }
        Some(self.p50_ns.or(self.per_s)? / self.limit?)
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Median round trip of a cache line between two threads, in nanoseconds, at the start and at the end.
    pub ping_pong_ns: Vec<f64>,
    /// Bytes per second for the CRC of the wire over 4 KiB.
    pub crc_bytes_per_s: f64,
    /// Everything else.
    pub figures: Vec<Figure>,
    /// CPU events in vrnicd per message, or why they are unknown.
    pub counters: Vec<PerMessage>,
    /// Load average at the start.
    pub load: f64,
}

/// What and how much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The vrnicd to measure.
    pub program: PathBuf,
    /// Fabrics to measure.
    pub fabrics: Vec<Fabric>,
    /// Time per figure.
    pub time: Duration,
    /// Only measure parts whose names contain this.
    pub only: String,
}

/// The parts of a run.
const PARTS: [&str; 9] = [
    "latency",
    "rate",
    "bandwidth",
    "counters",
    "objects",
    "watched",
    "neighbours",
    "faults",
    "pairs",
];
/// Message sizes for bandwidth.
const SIZES: [usize; 12] = [
    2,
    8,
    64,
    512,
    4096,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
];
/// Numbers of queue pairs for rates.
const QPS: [usize; 7] = [1, 3, 10, 32, 100, 300, 1000];
/// Size of a small message in bytes.
const SMALL: usize = 2;
/// Size of a message for latency measurements in bytes.
const WORD: usize = 8;
/// Entries of the completion queues, enough for all requests of the largest number of queue pairs.
const COMPLETIONS: u32 = 1 << 16;

/// Measures everything; calls `told` with each figure.
///
/// # Errors
/// A request failed, or the device did not answer.
pub fn run(options: &Options, mut told: impl FnMut(&Figure)) -> Result<Report> {
    ensure!(
        PARTS.iter().any(|part| part.contains(&options.only)),
        "there is no part {:?}; the parts are {}",
        options.only,
        PARTS.join(", ")
    );
    let mut report = Report {
        ping_pong_ns: vec![limits::ping_pong(options.time)?],
        crc_bytes_per_s: limits::crc(options.time),
        load: load(),
        ..Report::default()
    };
    for &fabric in &options.fabrics {
        let mut note = |figure: Figure| {
            let figure = Figure {
                fabric: fabric.name().into(),
                ..figure
            };
            told(&figure);
            report.figures.push(figure);
        };
        let largest = SIZES[SIZES.len() - 1];
        let (daemon, mut ends) = pair::alone(&options.program, fabric, largest, COMPLETIONS)?;
        let ping_pong = report.ping_pong_ns[0];
        measure(&mut ends, options, ping_pong, &mut note)
            .and_then(|()| {
                if "watched".contains(&options.only) {
                    watched::all(&mut ends, &daemon.control(), options.time, &mut note)?;
                }
                Ok(())
            })
            .and_then(|()| {
                if "counters".contains(&options.only) {
                    let counted = counters::all(&mut ends, daemon.pid(), fabric)?;
                    report.counters.extend(counted);
                }
                Ok(())
            })
            .and_then(|()| {
                if "neighbours".contains(&options.only) {
                    neighbours::all(&options.program, fabric, options.time, &mut note)?;
                }
                Ok(())
            })
            .and_then(|()| {
                if "faults".contains(&options.only) {
                    faults::all(&options.program, fabric, options.time, &mut note)?;
                }
                Ok(())
            })
            .and_then(|()| {
                // Devices on a network are always driven by one worker.
                if "pairs".contains(&options.only) && fabric == Fabric::Local {
                    pairs::all(&options.program, options.time, &mut note)?;
                }
                Ok(())
            })
            .with_context(|| format!("on {}; vrnicd logs: {}", fabric.name(), daemon.log()))?;
    }
    report.ping_pong_ns.push(limits::ping_pong(options.time)?);
    Ok(report)
}

/// Measures all figures of two guests.
fn measure(
    ends: &mut [End; 2],
    options: &Options,
    ping_pong: f64,
    note: &mut dyn FnMut(Figure),
) -> Result<()> {
    let wanted = |part: &str| part.contains(&options.only);
    if wanted("latency") {
        pair::connect(ends, 1, 64)?;
        latency::all(ends, options.time, ping_pong, note)?;
        pair::disconnect(ends)?;
    }
    if wanted("rate") {
        for operation in Operation::ALL {
            let bytes = if operation == Operation::Atomic {
                WORD
            } else {
                SMALL
            };
            for qps in QPS {
                // The others would show the same.
                if operation != Operation::Write && ![1, 32].contains(&qps) {
                    continue;
                }
                note(rate(ends, operation, bytes, qps, options.time)?);
            }
        }
    }
    if wanted("bandwidth") {
        for operation in [Operation::Write, Operation::Read, Operation::Send] {
            for bytes in SIZES {
                let all = operation == Operation::Write;
                if all || [4096, 64 << 10, 1 << 20].contains(&bytes) {
                    note(bandwidth(ends, operation, bytes, options.time)?);
                }
            }
        }
    }
    if wanted("objects") {
        objects::all(ends, options.time, note)?;
    }
    Ok(())
}

/// Measures small messages over `qps` queue pairs.
fn rate(
    ends: &mut [End; 2],
    operation: Operation,
    bytes: usize,
    qps: usize,
    time: Duration,
) -> Result<Figure> {
    pair::connect(ends, qps, 64)?;
    let mut load = Load::new(ends, operation, bytes, 16)?;
    let windows = load.windows(ends, time)?;
    load.finish(ends)?;
    pair::disconnect(ends)?;
    Ok(Figure {
        what: "rate".into(),
        operation: Some(operation.name().into()),
        bytes: Some(bytes),
        qps: Some(qps),
        per_s: Some(best(&windows)),
        median_per_s: Some(median(&windows)),
        ..Figure::default()
    })
}

/// Measures messages of one size over one queue pair, and memcpy of the same size.
fn bandwidth(
    ends: &mut [End; 2],
    operation: Operation,
    bytes: usize,
    time: Duration,
) -> Result<Figure> {
    pair::connect(ends, 1, 64)?;
    let mut load = Load::new(ends, operation, bytes, 1)?;
    let (mut windows, mut copies) = (Vec::new(), Vec::new());
    // Alternates, so that both are disturbed equally by other programs.
    for _ in 0..4 {
        windows.extend(load.windows(ends, time / 8)?);
        copies.extend(limits::memcpy(bytes, time / 8));
    }
    load.finish(ends)?;
    pair::disconnect(ends)?;
    Ok(Figure {
        what: "bandwidth".into(),
        operation: Some(operation.name().into()),
        bytes: Some(bytes),
        qps: Some(1),
        per_s: Some(best(&windows)),
        median_per_s: Some(median(&windows)),
        limit: Some(best(&copies)),
        ..Figure::default()
    })
}

/// A load for profiling.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    /// Operation.
    pub operation: Operation,
    /// Size of a message in bytes.
    pub bytes: usize,
    /// Number of queue pairs.
    pub qps: usize,
    /// Number of requests posted together, of which only the last has a completion.
    pub batch: u32,
}

/// Keeps a device busy; calls `ready` with the daemon's PID at the start. Returns the messages per second in the best
/// and in the median window.
///
/// # Errors
/// As for [`run`].
pub fn keep_busy(
    program: &Path,
    fabric: Fabric,
    busy: Busy,
    time: Duration,
    ready: impl FnOnce(u32),
) -> Result<(f64, f64)> {
    let bytes = busy.bytes.max(4096);
    let (daemon, mut ends) = pair::alone(program, fabric, bytes, COMPLETIONS)?;
    pair::connect(&mut ends, busy.qps, 64)?;
    let mut load = Load::new(&mut ends, busy.operation, busy.bytes, busy.batch)?;
    ready(daemon.pid());
    let windows = load
        .windows(&mut ends, time)
        .with_context(|| format!("vrnicd logs: {}", daemon.log()))?;
    load.finish(&mut ends)?;
    Ok((best(&windows), median(&windows)))
}

/// Like [`keep_busy`], but with round trips of 8-byte writes. Returns the medians of the best and of the median window,
/// in nanoseconds.
///
/// # Errors
/// As for [`run`].
pub fn round_trips(
    program: &Path,
    fabric: Fabric,
    time: Duration,
    ready: impl FnOnce(u32),
) -> Result<(f64, f64)> {
    let (daemon, mut ends) = pair::alone(program, fabric, 4096, 256)?;
    pair::connect(&mut ends, 1, 64)?;
    ready(daemon.pid());
    let end = Instant::now() + time;
    let mut medians = Vec::new();
    while medians.is_empty() || Instant::now() < end {
        let mut samples = latency::round_trips(&mut ends, 2000)?;
        medians.push(percentile(&mut samples, 0.5));
    }
    medians.sort_by(f64::total_cmp);
    Ok((medians[0], medians[medians.len() / 2]))
}

/// Like [`keep_busy`], but with two vrnicd whose packets go over the network from the host with the first address to
/// the one with the second.
///
/// # Errors
/// As for [`run`].
pub fn over_udp(
    programs: [&Path; 2],
    hosts: [IpAddr; 2],
    busy: Busy,
    time: Duration,
) -> Result<(f64, f64)> {
    let bytes = busy.bytes.max(4096);
    let mut daemons = [
        Daemon::over_udp(programs[0], hosts[0], hosts[1], "")?,
        Daemon::over_udp(programs[1], hosts[1], hosts[0], "")?,
    ];
    let mut ends = [
        End::at(&mut daemons[0], hosts[0], bytes, COMPLETIONS)?,
        End::at(&mut daemons[1], hosts[1], bytes, COMPLETIONS)?,
    ];
    pair::connect(&mut ends, busy.qps, 64)?;
    let mut load = Load::new(&mut ends, busy.operation, busy.bytes, busy.batch)?;
    let windows = load.windows(&mut ends, time).with_context(|| {
        let logs = daemons.each_ref().map(Daemon::log);
        format!("the two vrnicd log: {}", logs.join("\n"))
    })?;
    load.finish(&mut ends)?;
    Ok((best(&windows), median(&windows)))
}

/// Returns the largest figure.
fn best(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

/// Returns the median.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the percentile of the samples at `share`, a fraction.
#[allow(
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "there are not that many samples"
)]
fn percentile(samples: &mut [u32], share: f64) -> f64 {
    samples.sort_unstable();
    let place = (samples.len() as f64 * share) as usize;
    samples
        .get(place.min(samples.len().saturating_sub(1)))
        .map_or(0.0, |sample| f64::from(*sample))
}

/// Returns the nanoseconds since `since` as a sample.
fn sample(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// Returns the load average over the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut samples: Vec<u32> = (1..=1000).rev().collect();
        assert!((percentile(&mut samples, 0.5) - 501.0).abs() < 0.1);
        assert!((percentile(&mut samples, 0.999) - 1000.0).abs() < 0.1);
        assert!((percentile(&mut [], 0.5)).abs() < 0.1);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 0.1);
        assert!((best(&[3.0, 1.0, 2.0]) - 3.0).abs() < 0.1);
    }

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        let run_with = |program: &str, only: &str| {
            let options = Options {
                program: program.into(),
                fabrics: Fabric::ALL.to_vec(),
                time: Duration::ZERO,
                only: only.into(),
            };
            let error = run(&options, |figure| panic!("{figure:?}")).unwrap_err();
            format!("{error:#}")
        };
        assert!(run_with("/bin/false", "nonsense").contains("there is no part"));
        assert!(run_with("/bin/false", "rate").contains("vrnicd ended"));
        assert!(run_with("/nonexistent", "rate").contains("cannot start"));
    }

    #[test]
    fn ratios() {
        let time = Figure {
            p50_ns: Some(300.0),
            limit: Some(100.0),
            ..Figure::default()
        };
        assert!((time.ratio().unwrap() - 3.0).abs() < 1e-9);
        assert!(Figure::default().ratio().is_none());
    }
}
