// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Reports for people.

use std::fmt::Write as _;

use crate::bench::{Figure, Report};

/// Formats a figure as one line.
#[must_use]
pub fn line(figure: &Figure) -> String {
    cells(figure).join("  ")
}

/// Formats all figures and what they are compared with.
#[must_use]
pub fn tables(report: &Report) -> String {
    let heading = [
        "fabric", "what", "message", "QPs", "p50", "p99", "p99.9", "best", "median", "limit",
        "ratio",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(report.figures.iter().map(cells));
    let mut text = align(&rows);
    let ping_pong: Vec<String> = report.ping_pong_ns.iter().map(|ns| time(*ns)).collect();
    let _ = writeln!(
        text,
        "\nround trip of a cache line between two threads: {}; CRC of packets: {}B/s; load at the start: {:.1}",
        ping_pong.join(", "),
        scaled(report.crc_bytes_per_s),
        report.load
    );
    for counted in &report.counters {
        let count = counted.count.map_or_else(
            || "perf cannot count on this machine".to_owned(),
            |count| format!("{count:.1} for each message"),
        );
        let _ = writeln!(text, "{}, {}: {count}", counted.load, counted.event);
    }
    text
}

fn cells(figure: &Figure) -> [String; 11] {
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map(show).unwrap_or_default();
    let is_bandwidth = figure.what == "bandwidth";
    let rate = |value: Option<f64>| match (value, figure.bytes) {
        (Some(value), Some(bytes)) if is_bandwidth => {
            format!("{}B/s", scaled(value * to_f64(bytes)))
        }
        (Some(value), _) => format!("{}/s", scaled(value)),
        (None, _) => String::new(),
    };
    let message = [
        figure.operation.clone(),
        figure.bytes.map(|bytes| format!("{bytes} B")),
    ];
    [
        figure.fabric.clone(),
        figure.what.clone(),
        message.into_iter().flatten().collect::<Vec<_>>().join(" "),
        figure.qps.map(|qps| qps.to_string()).unwrap_or_default(),
        shown(figure.p50_ns, time),
        shown(figure.p99_ns, time),
        shown(figure.p999_ns, time),
        rate(figure.per_s),
        rate(figure.median_per_s),
        match figure.p50_ns {
            Some(_) => shown(figure.limit, time),
            None => rate(figure.limit),
        },
        match figure.ratio() {
            Some(ratio) if figure.p50_ns.is_some() => format!("{ratio:.1}x"),
            Some(ratio) => format!("{:.1} %{}", ratio * 100.0, spread(&figure.turns)),
            None => String::new(),
        },
    ]
}

/// Formats the lowest and the highest of several ratios.
fn spread(turns: &[f64]) -> String {
    match turns {
        [low, .., high] => format!(" ({:.1} to {:.1})", low * 100.0, high * 100.0),
        _ => String::new(),
    }
}

/// Formats a time.
fn time(nanoseconds: f64) -> String {
    if nanoseconds < 10_000.0 {
        format!("{nanoseconds:.0} ns")
    } else {
        format!("{:.1} us", nanoseconds / 1000.0)
    }
}

/// Formats a number with a decimal prefix.
fn scaled(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} G", value / 1e9),
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e3 => format!("{:.1} k", value / 1e3),
        value => format!("{value:.1} "),
    }
}

#[allow(clippy::cast_precision_loss, reason = "messages are short")]
fn to_f64(bytes: usize) -> f64 {
    bytes as f64
}

/// Aligns rows in columns; the first row is the heading.
fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates() {
        let latency = Figure {
            what: "latency".into(),
            p50_ns: Some(1500.0),
            limit: Some(500.0),
            ..Figure::default()
        };
        assert!(line(&latency).contains("1500 ns") && line(&latency).ends_with("3.0x"));
        let bandwidth = Figure {
            what: "bandwidth".into(),
            bytes: Some(1000),
            per_s: Some(2e6),
            limit: Some(4e6),
            ..Figure::default()
        };
        let watched = Figure {
            turns: vec![0.5, 0.75, 0.875],
            ..bandwidth.clone()
        };
        assert!(line(&watched).ends_with("75.0 % (50.0 to 87.5)"));
        let text = line(&bandwidth);
        assert!(
            text.contains("2.00 GB/s") && text.contains("4.00 GB/s") && text.ends_with("50.0 %")
        );
    }
}
