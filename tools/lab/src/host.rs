// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Facts about the host that a report needs to be read rightly.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::accelerator::Accelerator;
use crate::lab::{Lab, SHORT};
use crate::report::Host;

/// Load average over the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Everything but memcpy, which only `bench` measures.
///
/// # Errors
/// The VM does not answer.
pub fn describe(accelerator: Accelerator, lab: &Lab, load: f64) -> Result<Host> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).and_then(|rest| rest.split_once(':'));
    Ok(Host {
        accelerator,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        vm_cpus: lab.agent("a")?.check(&["nproc"], SHORT)?.trim().parse()?,
        cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
        load,
        memcpy_bytes_per_s: BTreeMap::new(),
    })
}

/// Single-thread memcpy for each block size: the best of several rounds over buffers of 64 MiB in all, so that the
/// blocks come from memory rather than from a cache, as an RNIC's payload does.
#[must_use]
pub fn memcpy(sizes: &[usize]) -> BTreeMap<u64, f64> {
    const BUFFER: usize = 64 << 20;
    let from = vec![0x5a_u8; BUFFER];
    let mut to = vec![0_u8; BUFFER];
    let mut figures = BTreeMap::new();
    for &size in sizes {
        let mut best = f64::MAX;
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end {
            let start = Instant::now();
            for (target, source) in to.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
                black_box(&mut *target).copy_from_slice(black_box(source));
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        #[allow(clippy::cast_precision_loss)]
        figures.insert(size as u64, (BUFFER / size * size) as f64 / best);
    }
    figures
}
