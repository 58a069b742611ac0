// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The device without VMs: native guests in this process, compared with the best that the host can do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use vrnic_native::bench::{self, Options, Report};
use vrnic_native::daemon::Fabric;
use vrnic_native::table;

use crate::chart;
use crate::output::say;
use crate::progress::Step;
use crate::settings::Settings;

/// Time to measure each figure.
const TIME: Duration = Duration::from_millis(400);

/// Measures only this, prints the table, and writes `native.json` and the chart to `out`.
///
/// # Errors
/// The same as for [`measure`], or a file cannot be written.
pub fn run(settings: &Settings, out: &Path) -> Result<()> {
    let report = measure(settings)?;
    std::fs::create_dir_all(out)?;
    let text = serde_json::to_string_pretty(&report)? + "\n";
    std::fs::write(out.join("native.json"), text)?;
    say!("\n{}", table::tables(&report));
    chart::draw_native(out, &report)
}

/// Measures all fabrics.
///
/// # Errors
/// vrnicd is not built, or a request failed.
pub fn measure(settings: &Settings) -> Result<Report> {
    let program = settings.programs().join("vrnicd");
    if !program.is_file() {
        bail!("{} is missing: run `make build`", program.display());
    }
    let step = Step::start("native guests");
    let options = Options {
        program,
        fabrics: Fabric::ALL.to_vec(),
        time: TIME,
        only: String::new(),
    };
    let report = bench::run(&options, |figure| step.at(&table::line(figure)))?;
    step.done();
    Ok(report)
}
