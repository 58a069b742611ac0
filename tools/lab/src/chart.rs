// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The benchmark's charts, each as SVG and PNG.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use vrnic_native::bench::{Figure, Report as Native};

use crate::goodput;
use crate::report::{Entry, Report};

const SIZE: (u32, u32) = (960, 540);
/// Size of the chart of bandwidths, which has a bar for each device and fabric.
const TALL: (u32, u32) = (960, 720);
const FONT: &str = "sans-serif";
const VRNIC: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const ROCE: RGBColor = RGBColor(0x6b, 0xae, 0xd6);
const INFINIBAND: RGBColor = RGBColor(0x74, 0xc4, 0x76);
const RXE: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);

/// Debian's path of a sans-serif font (fonts-dejavu-core), and alternatives.
const FONT_FILES: [&str; 2] = [
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
];

/// Draws bandwidth.{svg,png} (vrnic next to rxe), qps.{svg,png} (cost per message by number of QPs) and
/// goodput.{svg,png} (by loss) to `out`.
///
/// # Errors
/// There is no font, or a file cannot be written.
pub fn draw(out: &Path, report: &Report, costs: &[(u32, f64)]) -> Result<()> {
    register()?;
    let (svg, png) = (
        |name: &str| out.join(name).with_extension("svg"),
        |name: &str| out.join(name).with_extension("png"),
    );
    bars(
        &SVGBackend::new(&svg("bandwidth"), TALL).into_drawing_area(),
        report,
    )?;
    bars(
        &BitMapBackend::new(&png("bandwidth"), TALL).into_drawing_area(),
        report,
    )?;
    if !costs.is_empty() {
        curve(
            &SVGBackend::new(&svg("qps"), SIZE).into_drawing_area(),
            costs,
        )?;
        curve(
            &BitMapBackend::new(&png("qps"), SIZE).into_drawing_area(),
            costs,
        )?;
    }
    if report.results.iter().any(|entry| entry.loss.is_some()) {
        losses(
            &SVGBackend::new(&svg("goodput"), SIZE).into_drawing_area(),
            report,
        )?;
        losses(
            &BitMapBackend::new(&png("goodput"), SIZE).into_drawing_area(),
            report,
        )?;
    }
    Ok(())
}

/// Draws native.{svg,png}, the bandwidth by message size with native guests, to `out`.
///
/// # Errors
/// The same as for [`draw`].
pub fn draw_native(out: &Path, report: &Native) -> Result<()> {
    register()?;
    sizes(
        &SVGBackend::new(&out.join("native.svg"), SIZE).into_drawing_area(),
        report,
    )?;
    sizes(
        &BitMapBackend::new(&out.join("native.png"), SIZE).into_drawing_area(),
        report,
    )
}

/// Registers the font.
fn register() -> Result<()> {
    let font = FONT_FILES.iter().find_map(|file| std::fs::read(file).ok());
    let Some(font) = font else {
        bail!("no font for the charts: install fonts-dejavu-core (`make setup` does)")
    };
    // The drawing library keeps the font until the program ends.
    register_font(FONT, FontStyle::Normal, Box::leak(font.into_boxed_slice()))
        .map_err(|_| anyhow!("{} is no font", FONT_FILES[0]))
}

/// Draws the bandwidth by message size on logarithmic axes, with that of memcpy above it.
fn sizes<B: DrawingBackend>(area: &DrawingArea<B, Shift>, report: &Native) -> Result<()>
where
    B::ErrorType: 'static,
{
    let points = |fabric: &str, value: fn(&Figure) -> Option<f64>| -> Vec<(f64, f64)> {
        let figures = report.figures.iter().filter(|figure| {
            figure.what == "bandwidth"
                && figure.operation.as_deref() == Some("write")
                && figure.fabric == fabric
        });
        figures
            .filter_map(|figure| {
                let bytes = to_f64(figure.bytes?);
                Some((bytes, value(figure)? * bytes))
            })
            .collect()
    };
    let lines = [
        ("memcpy", RXE, points("local", |figure| figure.limit)),
        ("local", VRNIC, points("local", |figure| figure.per_s)),
        ("roce", ROCE, points("roce", |figure| figure.per_s)),
        (
            "infiniband",
            INFINIBAND,
            points("infiniband", |figure| figure.per_s),
        ),
    ];
    let rates = || lines.iter().flat_map(|line| &line.2).map(|point| point.1);
    let (low, high) = (
        rates().fold(1e9, f64::min) / 2.0,
        rates().fold(1e9, f64::max) * 2.0,
    );
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Bandwidth of writes by size, native guests, one QP",
            (FONT, 22),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .build_cartesian_2d((1.0..4e7).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message, logarithmic")
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| crate::report::bandwidth(*value))
        .label_style((FONT, 15))
        .draw()?;
    for (name, color, points) in lines {
        chart.draw_series(LineSeries::new(
            points.iter().copied(),
            color.stroke_width(2),
        ))?;
        if let Some(&(x, y)) = points.last() {
            let label = format!("{name} {}", crate::report::bandwidth(y));
            chart.draw_series([Text::new(label, (x / 20.0, y * 1.3), (FONT, 14))])?;
        }
    }
    area.present()?;
    Ok(())
}

/// Draws the goodput by loss on a logarithmic axis. A run whose connection died is a cross at the bottom.
fn losses<B: DrawingBackend>(area: &DrawingArea<B, Shift>, report: &Report) -> Result<()>
where
    B::ErrorType: 'static,
{
    let bad_wires: Vec<&Entry> = report
        .results
        .iter()
        .filter(|entry| goodput::is_rate(entry))
        .collect();
    let mut rates: Vec<f64> = bad_wires.iter().filter_map(|entry| entry.loss).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let figures = || {
        bad_wires
            .iter()
            .filter_map(|entry| entry.bandwidth_bytes_per_s)
    };
    let (low, high) = (
        figures().fold(1e6, f64::min) / 4.0,
        figures().fold(1e6, f64::max) * 4.0,
    );
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("Goodput by loss ({})", goodput::PROGRAM),
            (FONT, 22),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .build_cartesian_2d(-0.5..to_f64(rates.len()) - 0.5, (low..high).log_scale())?;
    // Rates differ by orders of magnitude: each gets the same space.
    let name = |place: &f64| {
        let mut rates = rates.iter().enumerate();
        rates
            .find(|(number, _)| (to_f64(*number) - place).abs() < 0.01)
            .map(|(_, rate)| goodput::percent(*rate))
            .unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * rates.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| crate::report::bandwidth(*value))
        .x_desc("packets lost in each direction")
        .label_style((FONT, 15))
        .draw()?;
    let looks = [(VRNIC, 1.5), (INFINIBAND, 0.6), (RXE, 0.75)];
    for (line, (color, above)) in goodput::LINES.iter().zip(looks) {
        let name = line.0;
        let runs = bad_wires.iter().filter(|entry| goodput::is_of(entry, line));
        let mut points = Vec::new();
        for entry in runs {
            let place = rates.iter().position(|rate| Some(*rate) == entry.loss);
            let place = to_f64(place.unwrap_or_default());
            if let Some(figure) = entry.bandwidth_bytes_per_s.filter(|_| entry.exit == 0) {
                points.push((place, figure));
            } else {
                let at = (place, low * 1.3);
                chart.draw_series([Cross::new(at, 5, color.stroke_width(2))])?;
                let label = Text::new(
                    format!("{name}: connection died"),
                    (place - 0.4, low * 1.9),
                    (FONT, 14),
                );
                chart.draw_series([label])?;
            }
        }
        chart.draw_series(LineSeries::new(
            points.iter().copied(),
            color.stroke_width(2),
        ))?;
        chart.draw_series(
            points
                .iter()
                .map(|&point| Circle::new(point, 4, color.filled())),
        )?;
        chart.draw_series(points.iter().map(|&(x, y)| {
            let label = format!("{name} {}", crate::report::bandwidth(y));
            Text::new(label, (x - 0.25, y * above), (FONT, 14))
        }))?;
    }
    area.present()?;
    Ok(())
}

/// Draws the bandwidth of each bandwidth program between two VMs on a logarithmic axis: vrnic's fabrics above rxe.
fn bars<B: DrawingBackend>(area: &DrawingArea<B, Shift>, report: &Report) -> Result<()>
where
    B::ErrorType: 'static,
{
    // Names in the chart, and the device and the fabric of the entries.
    const BARS: [(&str, &str, &str, RGBColor); 4] = [
        ("local", "vrnic", "local", VRNIC),
        ("roce", "vrnic", "roce", ROCE),
        ("infiniband", "vrnic", "infiniband", INFINIBAND),
        ("rxe", "rxe", "roce", RXE),
    ];
    /// Height of a group of bars.
    const GROUP: f64 = 4.0;
    let mut groups: Vec<(String, [Option<f64>; BARS.len()])> = Vec::new();
    for entry in report.results.iter().filter(|entry| {
        entry.path == "vm-vm" && entry.loss.is_none() && !entry.args.contains("-q ")
    }) {
        let (Some(bandwidth), Some(bytes)) = (entry.bandwidth_bytes_per_s, entry.bytes) else {
            continue;
        };
        let bar = BARS.iter().position(|&(_, device, fabric, _)| {
            (device, fabric) == (entry.device.as_str(), entry.fabric.as_str())
        });
        let Some(bar) = bar else { continue };
        let name = format!("{} {bytes} B", entry.program);
        let number = groups.iter().position(|group| group.0 == name);
        let number = number.unwrap_or_else(|| {
            groups.push((name, [None; BARS.len()]));
            groups.len() - 1
        });
        let slot = &mut groups[number].1[bar];
        *slot = Some(slot.unwrap_or(0.0_f64).max(bandwidth));
    }
    groups.retain(|group| group.1[0].is_some() && group.1[BARS.len() - 1].is_some());
    area.fill(&WHITE)?;
    let top = groups
        .iter()
        .filter_map(|group| group.1[0])
        .fold(1e9, f64::max)
        * 20.0;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!(
                "Bandwidth between two VMs ({} guests)",
                report.host.accelerator
            ),
            (FONT, 22),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(8)
        .build_cartesian_2d((1e3..top).log_scale(), 0.0..GROUP * to_f64(groups.len()))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|value| crate::report::bandwidth(*value))
        .x_desc("bytes per second, logarithmic")
        .label_style((FONT, 15))
        .draw()?;
    for (number, (name, values)) in groups.iter().rev().enumerate() {
        let base = GROUP * to_f64(number);
        let mut top = base + GROUP;
        for ((who, _, _, color), value) in BARS.iter().zip(values) {
            top -= 0.9;
            let Some(value) = *value else {
                continue;
            };
            chart.draw_series([Rectangle::new(
                [(1e3, top), (value, top + 0.75)],
                color.filled(),
            )])?;
            let label = format!("{who} {}", crate::report::bandwidth(value));
            chart.draw_series([Text::new(label, (value * 1.1, top + 0.5), (FONT, 14))])?;
        }
        // The program's name is inside the bar of the local fabric, which is the longest.
        chart.draw_series([Text::new(
            name.clone(),
            (1.2e3, base + GROUP - 0.4),
            (FONT, 14).into_font().color(&WHITE),
        )])?;
    }
    area.present()?;
    Ok(())
}

/// Draws the cost per message by number of QPs.
fn curve<B: DrawingBackend>(area: &DrawingArea<B, Shift>, costs: &[(u32, f64)]) -> Result<()>
where
    B::ErrorType: 'static,
{
    let points: Vec<(f64, f64)> = costs
        .iter()
        .map(|&(qps, cost)| (f64::from(qps), cost))
        .collect();
    let top = points.iter().map(|point| point.1).fold(0.0, f64::max) * 1.5;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Cost per message by number of QPs (ib_write_bw, 2 bytes, two VMs)",
            (FONT, 22),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((1.0..1200.0).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("QPs, logarithmic")
        .y_desc("microseconds per message")
        .x_label_formatter(&|value| format!("{value:.0}"))
        .label_style((FONT, 15))
        .draw()?;
    chart.draw_series(LineSeries::new(
        points.iter().copied(),
        VRNIC.stroke_width(2),
    ))?;
    chart.draw_series(
        points
            .iter()
            .map(|&point| Circle::new(point, 4, VRNIC.filled())),
    )?;
    chart.draw_series(
        points
            .iter()
            .map(|&(x, y)| Text::new(format!("{y:.2}"), (x, y + top * 0.05), (FONT, 14))),
    )?;
    area.present()?;
    Ok(())
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::Accelerator;
    use crate::report::Host;

    #[test]
    fn every_chart_is_drawn() {
        if !FONT_FILES.iter().any(|file| Path::new(file).exists()) {
            // draw() has its own error for this: a machine without fonts cannot draw.
            assert!(draw(Path::new("/nonexistent"), &report(), &[]).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        draw(dir.path(), &report(), &[(1, 3.0), (1000, 3.2)]).unwrap();
        draw_native(dir.path(), &native()).unwrap();
        for file in [
            "bandwidth.svg",
            "bandwidth.png",
            "qps.svg",
            "qps.png",
            "goodput.svg",
            "goodput.png",
            "native.svg",
            "native.png",
        ] {
            assert!(
                std::fs::metadata(dir.path().join(file)).unwrap().len() > 500,
                "{file}"
            );
        }
        let bandwidth = std::fs::read_to_string(dir.path().join("bandwidth.svg")).unwrap();
        for text in [
            "local 2.50 GB/s",
            "roce 1.50 GB/s",
            "infiniband 1.20 GB/s",
            "rxe 17.0 MB/s",
        ] {
            assert!(bandwidth.contains(text), "{text}");
        }
        let native = std::fs::read_to_string(dir.path().join("native.svg")).unwrap();
        for text in [
            "local 4.00 GB/s",
            "infiniband 4.00 GB/s",
            "memcpy 8.00 GB/s",
        ] {
            assert!(native.contains(text), "{text}");
        }
        let goodput = std::fs::read_to_string(dir.path().join("goodput.svg")).unwrap();
        for text in [
            "vrnic 300.0 MB/s",
            "infiniband 100.0 MB/s",
            "rxe: connection died",
            "0.1 %",
        ] {
            assert!(goodput.contains(text), "{text}");
        }
    }

    fn native() -> Native {
        let figure = |fabric: &str, bytes| Figure {
            fabric: fabric.into(),
            what: "bandwidth".into(),
            operation: Some("write".into()),
            bytes: Some(bytes),
            per_s: Some(1e6),
            limit: Some(2e6),
            ..Figure::default()
        };
        Native {
            figures: ["local", "infiniband"]
                .into_iter()
                .flat_map(|fabric| [figure(fabric, 8), figure(fabric, 4000)])
                .collect(),
            ..Native::default()
        }
    }

    fn report() -> Report {
        let entry = |device: &str, fabric: &str, bandwidth| Entry {
            program: "ib_write_bw".into(),
            device: device.into(),
            fabric: fabric.into(),
            path: "vm-vm".into(),
            bytes: Some(65536),
            qps: Some(1),
            bandwidth_bytes_per_s: Some(bandwidth),
            ..Entry::default()
        };
        Report {
            results: vec![
                entry("vrnic", "local", 2.5e9),
                entry("vrnic", "roce", 1.5e9),
                entry("vrnic", "infiniband", 1.2e9),
                entry("rxe", "roce", 17e6),
                Entry {
                    loss: Some(0.001),
                    ..entry("vrnic", "roce", 300e6)
                },
                Entry {
                    loss: Some(0.001),
                    ..entry("vrnic", "infiniband", 100e6)
                },
                Entry {
                    loss: Some(0.001),
                    exit: 1,
                    ..entry("rxe", "roce", 1e6)
                },
            ],
            host: Host {
                accelerator: Accelerator::Tcg,
                cpus: 2,
                vm_kernel: "test".into(),
                vm_cpus: 1,
                cpu: "test".into(),
                load: 0.0,
                memcpy_bytes_per_s: std::collections::BTreeMap::new(),
                memcpy_streamed_bytes_per_s: std::collections::BTreeMap::new(),
            },
            scale: Vec::new(),
            wire_packet: std::collections::BTreeMap::new(),
            native: None,
        }
    }
}
