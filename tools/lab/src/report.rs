// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! build/…/report.json and the table on the terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::accelerator::Accelerator;
use crate::scale::Scale;

/// Results of one program. Figures that the program does not report are left out.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Entry {
    /// Name, such as `ib_write_bw`.
    pub program: String,
    /// Its arguments, without those that only specify device, port and peer.
    pub args: String,
    /// `vrnic` or `rxe`.
    pub device: String,
    /// `vm-vm` or `loopback`.
    pub path: String,
    /// `local`, `roce` or `infiniband`.
    pub fabric: String,
    /// Fraction of frames that the wire lost on purpose, if it had such faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Exit code; of server and client, the first one that is not 0.
    pub exit: i32,
    /// Message size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of QPs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<u32>,
    /// Average bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Average message rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    /// Typical (median) one-way latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_typical_us: Option<f64>,
    /// Smallest latency seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_min_us: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99_us: Option<f64>,
    /// Number of bytes whose contents were checked, for programs that do so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_bytes: Option<u64>,
    /// Wall-clock time of the pair of programs in seconds.
    pub seconds: f64,
    /// The error, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The machine of the measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Host {
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// Number of processors of the host.
    pub cpus: usize,
    /// The VMs' kernel, as printed by `uname -r`.
    pub vm_kernel: String,
    /// Number of processors of each VM.
    pub vm_cpus: usize,
    /// The processor's name.
    pub cpu: String,
    /// Load average over the last minute before the start.
    pub load: f64,
    /// Single-threaded memcpy between the same two buffers again and again, by size, as in perftest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memcpy_bytes_per_s: BTreeMap<u64, f64>,
    /// The same with buffers larger than the caches.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memcpy_streamed_bytes_per_s: BTreeMap<u64, f64>,
}

/// A whole report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One entry per program run.
    pub results: Vec<Entry>,
    /// The machine.
    pub host: Host,
    /// Cost of one of many objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scale: Vec<Scale>,
    /// Cost of a full packet on a wire, by part, in nanoseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub wire_packet: BTreeMap<String, f64>,
    /// The device without VMs, with native guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<vrnic_native::bench::Report>,
}

impl Report {
    /// Writes the report as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Returns the number of programs that failed. Failures of rxe on a bad wire are results and do not count.
    #[must_use]
    pub fn failed(&self) -> usize {
        let counts = |entry: &&Entry| entry.loss.is_none() || entry.device != "rxe";
        self.results
            .iter()
            .filter(counts)
            .filter(|entry| entry.exit != 0)
            .count()
    }

    /// Returns the table of results.
    #[must_use]
    pub fn table(&self) -> String {
        let mut rows = vec![
            [
                "program",
                "args",
                "device",
                "path",
                "bandwidth",
                "messages",
                "typical latency",
                "result",
            ]
            .map(str::to_owned),
        ];
        for entry in &self.results {
            rows.push([
                entry.program.clone(),
                entry.args.clone(),
                entry.device.clone(),
                entry.path.clone(),
                entry
                    .bandwidth_bytes_per_s
                    .map(bandwidth)
                    .unwrap_or_default(),
                entry
                    .messages_per_s
                    .map(|rate| format!("{}/s", scaled(rate)))
                    .unwrap_or_default(),
                entry
                    .latency_typical_us
                    .map(|us| format!("{us:.1} us"))
                    .unwrap_or_default(),
                if entry.exit == 0 {
                    "ok".into()
                } else {
                    format!("FAILED ({})", entry.exit)
                },
            ]);
        }
        align(&rows)
    }
}

/// Formats a bandwidth.
#[must_use]
pub fn bandwidth(bytes_per_s: f64) -> String {
    format!("{}B/s", scaled(bytes_per_s))
}

/// Formats a number with a decimal prefix.
#[must_use]
pub fn scaled(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} G", value / 1e9),
        value if value >= 1e6 => format!("{:.1} M", value / 1e6),
        value if value >= 1e3 => format!("{:.1} k", value / 1e3),
        value => format!("{value:.1} "),
    }
}

/// Aligns rows in columns; the first row is the heading.
#[must_use]
pub fn align<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.as_ref().iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            let _ = writeln!(text, "{}", rules.join("  "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_figures_are_left_out() {
        let entry = Entry {
            program: "ibv_devinfo".into(),
            exit: 3,
            ..Entry::default()
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.contains(r#""exit":3"#), "{text}");
        assert!(
            !text.contains("latency") && !text.contains("bytes"),
            "{text}"
        );
    }

    #[test]
    fn columns_line_up() {
        let rows = [["a", "bb"], ["ccc", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows), "a    bb\n---  --\nccc  d\n");
    }

    #[test]
    fn prefixes() {
        assert_eq!(scaled(12.0), "12.0 ");
        assert_eq!(scaled(2_500.0), "2.5 k");
        assert_eq!(bandwidth(3.21e9), "3.21 GB/s");
    }
}
