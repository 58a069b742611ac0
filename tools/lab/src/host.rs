// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Facts about the host that are needed to interpret a report.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::accelerator::Accelerator;
use crate::lab::{Lab, SHORT};
use crate::report::Host;

/// Returns the load average over the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0)
}

/// Returns everything but memcpy, which only `bench` measures.
///
/// # Errors
/// The VM does not answer.
pub fn describe(accelerator: Accelerator, lab: &Lab, load: f64) -> Result<Host> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'));
    Ok(Host {
        accelerator,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        vm_kernel: lab
            .agent("a")?
            .check(&["uname", "-r"], SHORT)?
            .trim()
            .to_owned(),
        vm_cpus: lab.agent("a")?.check(&["nproc"], SHORT)?.trim().parse()?,
        cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
        load,
        memcpy_bytes_per_s: BTreeMap::new(),
        memcpy_streamed_bytes_per_s: BTreeMap::new(),
    })
}

/// Measures single-threaded memcpy of the same buffer again and again for each size, as perftest uses its buffers.
/// Returns the best of many rounds.
#[must_use]
pub fn memcpy_repeated(sizes: &[usize]) -> BTreeMap<u64, f64> {
    measure(sizes, |size| size, 64)
}

/// Measures single-threaded memcpy of blocks of each size that are spread over 64 MiB, so that they come from memory
/// rather than from a cache.
#[must_use]
pub fn memcpy_streamed(sizes: &[usize]) -> BTreeMap<u64, f64> {
    measure(sizes, |size| (64 << 20) / size * size, 1)
}

/// Copies a buffer of `total(size)` bytes in blocks of `size`, `rounds` times between readings of the clock.
fn measure(sizes: &[usize], total: impl Fn(usize) -> usize, rounds: u32) -> BTreeMap<u64, f64> {
    let mut figures = BTreeMap::new();
    for &size in sizes {
        let from = vec![0x5a_u8; total(size)];
        let mut to = vec![0_u8; total(size)];
        let mut best = f64::MAX;
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            let start = Instant::now();
            for _ in 0..rounds {
                for (target, source) in to.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
                    black_box(&mut *target).copy_from_slice(black_box(source));
                }
            }
            best = best.min(start.elapsed().as_secs_f64() / f64::from(rounds));
        }
        #[allow(clippy::cast_precision_loss)]
        figures.insert(size as u64, from.len() as f64 / best);
    }
    figures
}
