// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab bench`: compares vrnic with rxe in the same two VMs, and measures the cost of many QPs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::chart;
use crate::goodput;
use crate::host;
use crate::lab::{Extra, Lab, Module, Options, SHORT};
use crate::native;
use crate::output::say;
use crate::page;
use crate::perf::{self, End, Pair};
use crate::progress::Step;
use crate::report::{Entry, Report, align, bandwidth, scaled};
use crate::scale;
use crate::settings::Settings;
use crate::vm::{Device, Fabric, NAMES};

/// How long a pair of programs may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The figure of a program that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Bandwidth,
    Messages,
    Latency,
}

impl Figure {
    fn of(self, entry: &Entry) -> Option<f64> {
        match self {
            Self::Bandwidth => entry.bandwidth_bytes_per_s,
            Self::Messages => entry.messages_per_s,
            Self::Latency => entry.latency_typical_us,
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Bandwidth => bandwidth(value),
            Self::Messages => format!("{}/s", scaled(value)),
            Self::Latency => format!("{value:.1} us"),
        }
    }

    /// Returns how many times better vrnic is.
    fn ratio(self, vrnic: f64, rxe: f64) -> f64 {
        if self == Self::Latency {
            rxe / vrnic
        } else {
            vrnic / rxe
        }
    }
}

/// One line of the comparison.
struct Contest {
    program: &'static str,
    /// Arguments without the number of iterations.
    args: &'static str,
    figure: Figure,
    /// Numbers of iterations with vrnic and with rxe, for a few seconds each.
    iterations: (u32, u32),
    /// The required ratio, if any.
    goal: Option<f64>,
}

const fn contest(
    program: &'static str,
    args: &'static str,
    figure: Figure,
    iterations: (u32, u32),
    goal: Option<f64>,
) -> Contest {
    Contest {
        program,
        args,
        figure,
        iterations,
        goal,
    }
}

/// Factor by which vrnic on a wire must beat rxe for writes of 64 KiB.
const WIRE_GOAL: f64 = 10.0;

/// Results of a contest.
struct Line {
    contest: &'static Contest,
    path: String,
    /// vrnic on the local fabric, which copies from guest to guest.
    vrnic: Option<f64>,
    /// vrnic with RoCE frames, only between two VMs.
    wire: Option<f64>,
    rxe: Option<f64>,
}

impl Line {
    fn row(&self) -> [String; 9] {
        let figure = self.contest.figure;
        let show = |value: Option<f64>| {
            value.map_or_else(|| "failed".to_owned(), |value| figure.show(value))
        };
        let ratio = |value: Option<f64>| {
            value
                .zip(self.rxe)
                .map(|(value, rxe)| figure.ratio(value, rxe))
        };
        let times = |ratio: Option<f64>| {
            ratio
                .map(|ratio| format!("{ratio:.1}x"))
                .unwrap_or_default()
        };
        let asked = |goal: Option<f64>, ratio: Option<f64>| {
            goal.map(|goal| {
                let met = ratio.is_some_and(|ratio| ratio >= goal);
                format!("{goal:.0}x {}", if met { "(met)" } else { "(MISSED)" })
            })
            .unwrap_or_default()
        };
        // The goals are for two VMs.
        let two = self.path == "vm-vm";
        let large_write = (self.contest.program, self.contest.args) == ("ib_write_bw", "-s 65536");
        let (ours, wire) = (ratio(self.vrnic), ratio(self.wire));
        [
            format!("{} {}", self.contest.program, self.contest.args),
            self.path.clone(),
            show(self.vrnic),
            if two { show(self.wire) } else { String::new() },
            show(self.rxe),
            times(ours),
            times(wire),
            asked(self.contest.goal.filter(|_| two), ours),
            asked((two && large_write).then_some(WIRE_GOAL), wire),
        ]
    }
}

static CONTESTS: [Contest; 11] = [
    contest(
        "ib_write_bw",
        "-s 65536",
        Figure::Bandwidth,
        (40_000, 300),
        Some(30.0),
    ),
    contest(
        "ib_read_bw",
        "-s 65536",
        Figure::Bandwidth,
        (40_000, 300),
        Some(30.0),
    ),
    contest(
        "ib_send_bw",
        "-s 65536",
        Figure::Bandwidth,
        (40_000, 300),
        Some(20.0),
    ),
    contest(
        "ib_write_bw",
        "-s 1048576",
        Figure::Bandwidth,
        (5_000, 20),
        None,
    ),
    contest(
        "ib_write_bw",
        "-s 2",
        Figure::Messages,
        (400_000, 10_000),
        Some(10.0),
    ),
    contest(
        "ib_send_bw",
        "-s 2",
        Figure::Messages,
        (200_000, 10_000),
        None,
    ),
    contest(
        "ib_write_lat",
        "-s 8",
        Figure::Latency,
        (10_000, 1_000),
        Some(2.0),
    ),
    contest(
        "ib_send_lat",
        "-s 8",
        Figure::Latency,
        (10_000, 1_000),
        None,
    ),
    contest(
        "ib_read_lat",
        "-s 8",
        Figure::Latency,
        (10_000, 1_000),
        None,
    ),
    contest(
        "ib_atomic_bw",
        "-A FETCH_AND_ADD",
        Figure::Messages,
        (100_000, 10_000),
        None,
    ),
    contest(
        "ib_atomic_bw",
        "-A CMP_AND_SWAP",
        Figure::Messages,
        (100_000, 10_000),
        None,
    ),
];

/// Numbers of QPs for the cost per message, and the total number of messages.
const QPS: [u32; 7] = [1, 3, 10, 30, 100, 300, 1000];
const QP_MESSAGES: u32 = 4_000_000;

/// Measures everything, prints the tables, and writes report, charts and logs to `out`.
///
/// # Errors
/// The lab did not come up, or a program failed. In the latter case, everything was written.
pub fn run(settings: &Settings, out: &Path) -> Result<()> {
    let start = Instant::now();
    let load = host::load();
    let memory = Step::start("host memcpy");
    let repeated = host::memcpy_repeated(&[65_536, 1_048_576]);
    let streamed = host::memcpy_streamed(&[65_536, 1_048_576]);
    memory.done();
    let native = native::measure(settings)?;
    let wire_packet = wire_packet(settings)?;
    let lab = Lab::boot(
        settings,
        Options {
            device: Device::Vrnic,
            logs: out.join("logs"),
            vrnicd: Extra::default(),
            no_rnic: false,
            module: Module::Plain,
        },
    )?;
    let mut ends = Vec::new();
    for name in NAMES {
        let agent = lab.agent(name)?;
        agent.check(
            &[
                "sh",
                "-c",
                "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
            ],
            SHORT,
        )?;
        for device in [Device::Vrnic, Device::Rxe] {
            ends.push(End::new(name, device, lab.wait_rdma(name, device)?));
        }
    }
    let end = |vm: &str, device: Device| {
        let found = ends.iter().find(|end| end.vm == vm && end.device == device);
        found.expect("each VM has both devices").clone()
    };

    let mut results = Vec::new();
    let mut lines = Vec::new();
    let step = Step::of(
        "programs",
        CONTESTS.len() * 5 + QPS.len() + scale::RUNS + goodput::RUNS,
    );
    let mut measure = |program: &str, args: &str, server: &str, device: Device| {
        step.at(&format!(
            "{} {program} {args} ({})",
            device.name(),
            if server == "a" { "loopback" } else { "vm-vm" }
        ));
        let pair = Pair::new(program, args, end("a", device), end(server, device));
        let entry = perf::run(&lab, &pair, PATIENCE);
        if let Some(error) = &entry.error {
            step.note(&format!("{} {program} {args}: {error}", device.name()));
        }
        step.advance();
        results.push(entry.clone());
        entry
    };
    for server in ["b", "a"] {
        for contest in &CONTESTS {
            let args = |iterations: u32| format!("{} -n {iterations}", contest.args);
            let vrnic = measure(
                contest.program,
                &args(contest.iterations.0),
                server,
                Device::Vrnic,
            );
            let rxe = measure(
                contest.program,
                &args(contest.iterations.1),
                server,
                Device::Rxe,
            );
            let (ours, theirs) = (contest.figure.of(&vrnic), contest.figure.of(&rxe));
            lines.push(Line {
                contest,
                path: vrnic.path.clone(),
                vrnic: ours,
                wire: None,
                rxe: theirs,
            });
        }
    }
    let mut costs = Vec::new();
    for qps in QPS {
        // Otherwise, perftest records two times for each message in an array for each QP, unless there are very many.
        let args = format!("-s 2 -q {qps} -t 16 -N -n {}", QP_MESSAGES / qps);
        let entry = measure("ib_write_bw", &args, "b", Device::Vrnic);
        if let Some(rate) = entry.messages_per_s {
            costs.push((qps, 1e6 / rate));
        }
    }
    let mut scales = Vec::new();
    let scaling = scale::measure(&lab, &end("a", Device::Vrnic), &step, &mut scales);
    let mut host = host::describe(lab.accelerator, &lab, load)?;
    host.memcpy_bytes_per_s = repeated;
    host.memcpy_streamed_bytes_per_s = streamed;
    let mut clean = lab.shut_down();
    for (line, entry) in lines
        .iter_mut()
        .zip(on_the_wire(settings, out, &step, &mut clean)?)
    {
        line.wire = line.contest.figure.of(&entry);
        results.push(entry);
    }
    let bad_wires = goodput::measure(settings, out, &step, &mut clean)?;
    results.extend(bad_wires.iter().cloned());
    step.done();
    let report = Report {
        results,
        host,
        scale: scales,
        wire_packet,
        native: Some(native),
    };
    report.write(&out.join("report.json"))?;

    let mut rows = vec![
        [
            "program",
            "path",
            "vrnic",
            "wire",
            "rxe",
            "ratio",
            "wire's",
            "asked for",
            "of the wire",
        ]
        .map(str::to_owned),
    ];
    rows.extend(lines.iter().map(Line::row));
    say!("\n{}", align(&rows));
    say!("{}", against_memcpy(&report));
    say!(
        "a packet on the wire, sender and receiver together: {}\n",
        parts(&report)
    );
    let mut table = vec![["QPs", "cost per message (2-byte writes, two VMs)"].map(str::to_owned)];
    table.extend(
        costs
            .iter()
            .map(|(qps, cost)| [qps.to_string(), format!("{cost:.2} us")]),
    );
    say!("{}", align(&table));
    say!("{}", scale::table(&report.scale));
    say!("{}", goodput::table(&bad_wires));
    if let Some(native) = &report.native {
        say!(
            "the device alone, with native guests:\n{}",
            vrnic_native::table::tables(native)
        );
        chart::draw_native(out, native)?;
    }
    chart::draw(out, &report, &costs)?;
    page::write(
        &out.join("index.html"),
        "What vrnic does in a second, and what it costs",
        &report,
        &page::charts(&report, &costs),
    )?;
    say!(
        "host: {} ({} cpus, load {load:.1} at the start), guests on {}\nreport: {}   charts: {}, {}   {:.0} s in all",
        report.host.cpu,
        report.host.cpus,
        report.host.accelerator,
        out.join("report.json").display(),
        out.join("*.svg, *.png").display(),
        out.join("index.html").display(),
        start.elapsed().as_secs_f64()
    );
    scaling?;
    if report.failed() > 0 {
        bail!(
            "{} of {} programs failed",
            report.failed(),
            report.results.len()
        );
    }
    if !clean {
        bail!(
            "vrnicd did not end cleanly; see {}",
            out.join("logs/vrnicd.log").display()
        );
    }
    Ok(())
}

/// Measures the cost of a full packet on a wire, by part, with the benchmark of the crate that writes and parses
/// frames.
fn wire_packet(settings: &Settings) -> Result<BTreeMap<String, f64>> {
    let output = Command::new("cargo")
        .args(["bench", "-q", "-p", "vrnic-roce", "--bench", "frames"])
        .current_dir(settings.tree.join("tools"))
        .output()
        .context("running cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| {
        format!(
            "cargo bench ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok(serde_json::from_str(line)?)
}

/// Formats these costs in a line.
fn parts(report: &Report) -> String {
    let nanoseconds = report
        .wire_packet
        .iter()
        .filter_map(|(name, value)| Some((name.strip_suffix("_ns")?, value)));
    nanoseconds
        .map(|(name, value)| format!("{} {value:.0} ns", name.replace('_', " ")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Runs the contests between two VMs with RoCE frames, in order.
fn on_the_wire(
    settings: &Settings,
    out: &Path,
    step: &Step,
    clean: &mut bool,
) -> Result<Vec<Entry>> {
    let lab = Lab::boot(
        &settings.with_fabric(Fabric::Roce),
        Options {
            device: Device::Vrnic,
            logs: out.join("logs-roce"),
            vrnicd: Extra::default(),
            no_rnic: false,
            module: Module::Plain,
        },
    )?;
    let mut ends = Vec::new();
    for name in NAMES {
        let gid = lab.wait_rdma(name, Device::Vrnic)?;
        ends.push(End::new(name, Device::Vrnic, gid));
    }
    let mut results = Vec::new();
    for contest in &CONTESTS {
        let args = format!("{} -n {}", contest.args, contest.iterations.0);
        step.at(&format!("{} {args} (wire)", contest.program));
        let pair = Pair::new(contest.program, &args, ends[0].clone(), ends[1].clone());
        let entry = perf::run(&lab, &pair, PATIENCE);
        if let Some(error) = &entry.error {
            step.note(&format!("{} {args}: {error}", contest.program));
        }
        step.advance();
        results.push(entry);
    }
    *clean &= lab.shut_down();
    Ok(results)
}

/// Compares with the absolute goals: the minimum cost of the copy, from a cache and from memory.
fn against_memcpy(report: &Report) -> String {
    let find = |program: &str, bytes: u64| {
        report.results.iter().find(|entry| {
            entry.device == "vrnic"
                && entry.fabric == "local"
                && entry.path == "vm-vm"
                && entry.program == program
                && entry.bytes == Some(bytes)
        })
    };
    let heading = [
        "vrnic, two VMs",
        "bandwidth",
        "memcpy, same buffer",
        "share",
        "memcpy, 64 MiB",
        "share",
        "asked for",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    for (program, bytes) in [
        ("ib_write_bw", 65_536_u64),
        ("ib_read_bw", 65_536),
        ("ib_write_bw", 1_048_576),
    ] {
        let Some(ours) = find(program, bytes).and_then(|entry| entry.bandwidth_bytes_per_s) else {
            continue;
        };
        let host = &report.host;
        let copy = |figures: &BTreeMap<u64, f64>| figures.get(&bytes).copied().unwrap_or(f64::NAN);
        let (repeated, streamed) = (
            copy(&host.memcpy_bytes_per_s),
            copy(&host.memcpy_streamed_bytes_per_s),
        );
        let (asked, met) = if bytes == 65_536 {
            ("2 GB/s", ours >= 2e9)
        } else {
            ("half of memcpy", ours / repeated >= 0.5)
        };
        rows.push([
            format!("{program} {bytes} B"),
            bandwidth(ours),
            bandwidth(repeated),
            format!("{:.0}%", ours / repeated * 100.0),
            bandwidth(streamed),
            format!("{:.0}%", ours / streamed * 100.0),
            format!("{asked} {}", if met { "(met)" } else { "(MISSED)" }),
        ]);
    }
    align(&rows)
}
