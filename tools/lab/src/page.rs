// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A report as a self-contained HTML page: interactive charts, and all results in a sortable table.
//!
//! The page contains the figures as JSON. A script makes elements from them, and never interprets a string as markup.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use vrnic_native::bench::Figure;

use crate::goodput;
use crate::html::escape;
use crate::report::{Entry, Report};

const SCRIPT: &str = include_str!("page/report.js");
const STYLE: &str = include_str!("page/report.css");

/// Format of figures on an axis.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Bytes,
    BytesPerSecond,
    PerSecond,
    Microseconds,
    Percent,
    Count,
}

/// An axis.
#[derive(Debug, Serialize)]
struct Axis {
    title: &'static str,
    unit: Unit,
}

/// A line in a chart.
#[derive(Debug, Serialize)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A chart, whose axes are logarithmic.
#[derive(Debug, Serialize)]
pub struct Chart {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
}

/// Data for the script.
#[derive(Serialize)]
struct Data<'a> {
    report: &'a Report,
    charts: &'a [Chart],
}

/// Writes the page.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, title: &str, report: &Report, charts: &[Chart]) -> Result<()> {
    let html = html(title, &Data { report, charts })?;
    std::fs::write(path, html).with_context(|| format!("writing {}", path.display()))
}

fn html(title: &str, data: &Data<'_>) -> Result<String> {
    // No string may end the element.
    let data = serde_json::to_string(data)?.replace('<', "\\u003c");
    // Only the script with this nonce runs.
    let mut number = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut number)?;
    let number = number.map(|byte| format!("{byte:02x}")).concat();
    let title = escape(title);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'nonce-{number}'; \
         script-src 'nonce-{number}'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'\">\n\
         <title>vrnic: {title}</title>\n<style nonce=\"{number}\">{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n<main></main>\n<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script type=\"module\" nonce=\"{number}\">{SCRIPT}</script></body></html>\n"
    ))
}

/// Returns the charts of a benchmark. `costs` has the microseconds per message by number of QPs.
#[must_use]
pub fn charts(report: &Report, costs: &[(u32, f64)]) -> Vec<Chart> {
    let mut charts = Vec::new();
    if let Some(native) = &report.native {
        charts.push(native_bandwidth(&native.figures));
        charts.push(native_rates(&native.figures));
    }
    if !costs.is_empty() {
        let points = costs.iter().map(|&(qps, cost)| (f64::from(qps), cost));
        charts.push(Chart {
            title: "Cost of a message by number of QPs: writes of 2 bytes between two VMs".into(),
            x: Axis {
                title: "QPs",
                unit: Unit::Count,
            },
            y: Axis {
                title: "time of a message",
                unit: Unit::Microseconds,
            },
            series: vec![Series {
                name: "vrnic".into(),
                points: points.collect(),
            }],
        });
    }
    let lossy: Vec<&Entry> = report
        .results
        .iter()
        .filter(|entry| goodput::is_rate(entry))
        .collect();
    if !lossy.is_empty() {
        let series = goodput::LINES.map(|line| Series {
            name: line.0.into(),
            points: lossy
                .iter()
                .filter(|entry| goodput::is_of(entry, &line) && entry.exit == 0)
                // A logarithmic axis has no place for zero loss.
                .filter_map(|entry| {
                    Some((100.0 * entry.loss?.max(1e-5), entry.bandwidth_bytes_per_s?))
                })
                .collect(),
        });
        charts.push(Chart {
            title: format!(
                "Goodput by loss ({}); 0.001 % stands for no loss",
                goodput::PROGRAM
            ),
            x: Axis {
                title: "packets lost in each direction",
                unit: Unit::Percent,
            },
            y: Axis {
                title: "goodput",
                unit: Unit::BytesPerSecond,
            },
            series: series.into(),
        });
    }
    charts
}

/// Returns a line for each fabric and operation, from the figures for which `value` returns a point.
fn lines(
    figures: &[Figure],
    what: &str,
    value: impl Fn(&Figure) -> Option<(f64, f64)>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.what == what) {
        let Some(point) = value(figure) else { continue };
        let operation = figure.operation.as_deref().unwrap_or_default();
        let name = format!("{operation}, {}", figure.fabric);
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series {
                name,
                points: vec![point],
            }),
        }
    }
    all
}

fn native_bandwidth(figures: &[Figure]) -> Chart {
    let mut series = lines(figures, "bandwidth", |figure| {
        let bytes = to_f64(figure.bytes?);
        Some((bytes, figure.per_s? * bytes))
    });
    let copies = figures.iter().filter(|figure| {
        figure.what == "bandwidth"
            && figure.fabric == "local"
            && figure.operation.as_deref() == Some("write")
    });
    series.push(Series {
        name: "memcpy".into(),
        points: copies
            .filter_map(|figure| {
                Some((to_f64(figure.bytes?), figure.limit? * to_f64(figure.bytes?)))
            })
            .collect(),
    });
    Chart {
        title: "Bandwidth by size of message: native guests, one QP".into(),
        x: Axis {
            title: "size of a message",
            unit: Unit::Bytes,
        },
        y: Axis {
            title: "bandwidth",
            unit: Unit::BytesPerSecond,
        },
        series,
    }
}

fn native_rates(figures: &[Figure]) -> Chart {
    Chart {
        title: "Messages by number of QPs: native guests, 2 bytes (atomics: 8)".into(),
        x: Axis {
            title: "QPs",
            unit: Unit::Count,
        },
        y: Axis {
            title: "messages",
            unit: Unit::PerSecond,
        },
        series: lines(figures, "rate", |figure| {
            Some((to_f64(figure.qps?), figure.per_s?))
        }),
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn to_f64(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
#[allow(dead_code, reason = "the tests of the live view use the rest of it")]
#[path = "../../web/tests/common/browser.rs"]
mod browser;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::Accelerator;
    use crate::report::Host;
    use serde_json::json;
    use std::collections::BTreeMap;

    const HOSTILE: &str = "</script><img src=x onerror=document.title='owned'>&lt;";

    fn figure(what: &str, bytes: usize, qps: usize, per_s: f64) -> Figure {
        Figure {
            fabric: "local".into(),
            what: what.into(),
            operation: Some("write".into()),
            bytes: Some(bytes),
            qps: Some(qps),
            per_s: Some(per_s),
            limit: Some(2.0 * per_s),
            ..Figure::default()
        }
    }

    fn report() -> Report {
        let entry = |program: &str, device: &str, bandwidth| Entry {
            program: program.into(),
            device: device.into(),
            path: "vm-vm".into(),
            fabric: "local".into(),
            bytes: Some(65536),
            bandwidth_bytes_per_s: Some(bandwidth),
            latency_typical_us: Some(3.5),
            ..Entry::default()
        };
        Report {
            results: vec![
                entry("ib_write_bw", "vrnic", 2.5e9),
                entry("ib_read_bw", "rxe", 17e6),
                Entry {
                    loss: Some(0.001),
                    fabric: "roce".into(),
                    ..entry("ib_write_bw", "vrnic", 300e6)
                },
                Entry {
                    loss: Some(0.01),
                    fabric: "roce".into(),
                    ..entry("ib_write_bw", "vrnic", 30e6)
                },
                Entry {
                    exit: 1,
                    error: Some(HOSTILE.into()),
                    ..entry(HOSTILE, "vrnic", 1e6)
                },
            ],
            host: Host {
                accelerator: Accelerator::Tcg,
                cpus: 2,
                vm_kernel: "test".into(),
                vm_cpus: 1,
                cpu: HOSTILE.into(),
                load: 0.5,
                memcpy_bytes_per_s: BTreeMap::new(),
                memcpy_streamed_bytes_per_s: BTreeMap::new(),
            },
            scale: Vec::new(),
            wire_packet: BTreeMap::new(),
            native: Some(vrnic_native::bench::Report {
                figures: vec![
                    figure("bandwidth", 8, 1, 1e6),
                    figure("bandwidth", 4096, 1, 5e5),
                    figure("bandwidth", 1 << 20, 1, 1e4),
                    figure("rate", 2, 1, 1e6),
                    figure("rate", 2, 1000, 2e6),
                    figure("watched", 2, 1, 5e5),
                ],
                ..Default::default()
            }),
        }
    }

    /// Tests the page in a real browser.
    #[test]
    fn the_page_shows_charts_and_sorts_results() {
        let report = report();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("index.html");
        write(
            &path,
            HOSTILE,
            &report,
            &charts(&report, &[(1, 3.0), (1000, 3.2)]),
        )
        .expect("a page");
        let mut browser = browser::Browser::start();
        browser.open(&format!("file://{}", path.display()));
        browser.until("document.querySelectorAll('figure').length === 4");
        // Hostile strings are text.
        assert_eq!(
            browser.value("document.querySelectorAll('img').length"),
            json!(0)
        );
        browser.until(&format!(
            "document.querySelector('main').textContent.includes({})",
            json!(HOSTILE)
        ));
        assert!(
            browser
                .value("document.title")
                .as_str()
                .is_some_and(|title| title.contains(HOSTILE))
        );
        // A line can be hidden.
        let lines = "document.querySelectorAll('figure')[0].querySelectorAll('polyline').length";
        assert_eq!(browser.value(lines), json!(2), "write and memcpy");
        browser.value("document.querySelector('figure input').click()");
        assert_eq!(browser.value(lines), json!(1));
        browser.value("document.querySelector('figure input').click()");
        // A point shows its figure.
        browser.value(
            "document.querySelector('figure .point').dispatchEvent(new FocusEvent('focus'))",
        );
        browser.until("document.querySelector('figure output').textContent === 'write, local: 8 B, 8.00 MB/s'");
        // The table can be sorted, and filtered.
        let first = "document.querySelector('#results tbody tr').textContent";
        let head = "[...document.querySelectorAll('#results th button')].find((one) => one.textContent === 'bandwidth')";
        browser.value(&format!("{head}.click()"));
        browser.until(&format!("{first}.includes('onerror')"));
        browser.value(&format!("{head}.click()"));
        browser.until(&format!("{first}.includes('2.50 GB/s')"));
        browser.value("(() => { const box = document.querySelector('#results input'); box.value = 'rxe'; box.dispatchEvent(new Event('input')) })()");
        browser.until("document.querySelectorAll('#results tbody tr').length === 1");
        browser.value("(() => { const box = document.querySelector('#results input'); box.value = ''; box.dispatchEvent(new Event('input')) })()");
        // The cost of watching.
        browser.until("document.querySelector('#native').textContent.includes('50.0 %')");
        assert_eq!(browser.errors(), Vec::<String>::new());
        let pictures =
            std::env::var_os("VRNIC_PICTURES").map_or_else(std::env::temp_dir, Into::into);
        browser.size(1280, 1600);
        std::fs::write(pictures.join("vrnic-bench-page.png"), browser.screenshot())
            .expect("a picture");
    }

    /// The page of `make run` only has results.
    #[test]
    fn a_page_without_charts_has_the_results() {
        let report = Report {
            native: None,
            ..report()
        };
        let page = html(
            "run",
            &Data {
                report: &report,
                charts: &[],
            },
        )
        .expect("a page");
        assert!(!page.contains("</script><img") && page.contains("ib_write_bw"));
    }
}
