// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The cost of creating objects: that of the commands alone, without a kernel that pins pages.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Figure;
use crate::pair::{self, End};
use crate::queues::Mr;

/// Number of queue pairs created in a row.
const QPS: u8 = 100;

/// Measures registration by size, and the creation of queue pairs.
pub fn all(ends: &mut [End; 2], time: Duration, note: &mut dyn FnMut(Figure)) -> Result<()> {
    for bytes in [4096, 1 << 20, 64 << 20] {
        let end = &mut ends[0];
        let area = end.vm.allocate(bytes)?;
        let rates = windows(time, || {
            Mr::register(&mut end.vm, area)?.deregister(&mut end.vm)
        })?;
        note(figure(
            "objects: register and deregister",
            Some(bytes),
            &rates,
        ));
    }
    // Each iteration creates, connects and destroys `QPS` queue pairs at each end.
    let rates = windows(time, || {
        pair::connect(ends, QPS.into(), 16)?;
        pair::disconnect(ends)
    })?;
    let rates: Vec<f64> = rates
        .iter()
        .map(|rate| rate * 2.0 * f64::from(QPS))
        .collect();
    note(figure(
        "objects: make, connect and destroy a QP",
        None,
        &rates,
    ));
    Ok(())
}

/// Returns how many times per second `work` can be done, timing each call separately.
fn windows(time: Duration, mut work: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let end = Instant::now() + time;
    let mut rates = Vec::new();
    while Instant::now() < end || rates.is_empty() {
        let start = Instant::now();
        work()?;
        rates.push(1.0 / start.elapsed().as_secs_f64());
    }
    Ok(rates)
}

fn figure(what: &str, bytes: Option<usize>, rates: &[f64]) -> Figure {
    Figure {
        what: what.into(),
        bytes,
        per_s: Some(super::best(rates)),
        median_per_s: Some(super::median(rates)),
        ..Figure::default()
    }
}
