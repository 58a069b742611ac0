// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab bench`: compares vrnic, on each of its fabrics, with rxe between the same two VMs, and measures the cost
//! of many QPs.

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

/// Fabrics on which messages travel in packets. They are measured only between two VMs.
const NETWORKS: [Fabric; 2] = [Fabric::Roce, Fabric::Infiniband];

/// Factor by which vrnic with RoCE frames must beat rxe for writes of 64 KiB.
const ROCE_GOAL: f64 = 10.0;

/// Headings of the comparison.
const COLUMNS: [&str; 11] = [
    "program",
    "path",
    "local",
    "roce",
    "infiniband",
    "rxe",
    "local/rxe",
    "roce/rxe",
    "infiniband/rxe",
    "asked of local",
    "of roce",
];

/// Results of a contest.
struct Line {
    contest: &'static Contest,
    path: String,
    /// vrnic on the local fabric, which copies from guest to guest.
    local: Option<f64>,
    /// vrnic on each of [`NETWORKS`].
    networks: [Option<f64>; NETWORKS.len()],
    rxe: Option<f64>,
}

impl Line {
    fn row(&self) -> [String; COLUMNS.len()] {
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
        let [roce, infiniband] = self.networks;
        let network = |value: Option<f64>| if two { show(value) } else { String::new() };
        [
            format!("{} {}", self.contest.program, self.contest.args),
            self.path.clone(),
            show(self.local),
            network(roce),
            network(infiniband),
            show(self.rxe),
            times(ratio(self.local)),
            times(ratio(roce)),
            times(ratio(infiniband)),
            asked(self.contest.goal.filter(|_| two), ratio(self.local)),
            asked((two && large_write).then_some(ROCE_GOAL), ratio(roce)),
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

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    All,
    /// Only the programs that are compared with rxe.
    Programs,
}

/// Measures, prints the tables, and writes report, charts and logs to `out`.
///
/// # Errors
/// The lab did not come up, or a program failed. In the latter case, everything was written.
pub fn run(settings: &Settings, out: &Path, extent: Extent) -> Result<()> {
    let all = extent == Extent::All;
    let start = Instant::now();
    let load = host::load();
    let memory = Step::start("host memcpy");
    let repeated = host::memcpy_repeated(&[65_536, 1_048_576]);
    let streamed = host::memcpy_streamed(&[65_536, 1_048_576]);
    memory.done();
    let native = all.then(|| native::measure(settings)).transpose()?;
    let wire_packet = if all {
        wire_packet(settings)?
    } else {
        BTreeMap::new()
    };
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
    let mut programs = CONTESTS.len() * (4 + NETWORKS.len());
    if all {
        programs += QPS.len() + scale::RUNS + goodput::RUNS;
    }
    let step = Step::of("programs", programs);
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
                local: ours,
                networks: [None; NETWORKS.len()],
                rxe: theirs,
            });
        }
    }
    let mut costs = Vec::new();
    for qps in QPS.into_iter().filter(|_| all) {
        // Otherwise, perftest records two times for each message in an array for each QP, unless there are very many.
        let args = format!("-s 2 -q {qps} -t 16 -N -n {}", QP_MESSAGES / qps);
        let entry = measure("ib_write_bw", &args, "b", Device::Vrnic);
        if let Some(rate) = entry.messages_per_s {
            costs.push((qps, 1e6 / rate));
        }
    }
    let mut scales = Vec::new();
    let scaling = if all {
        scale::measure(&lab, &end("a", Device::Vrnic), &step, &mut scales)
    } else {
        Ok(())
    };
    let mut host = host::describe(lab.accelerator, &lab, load)?;
    host.memcpy_bytes_per_s = repeated;
    host.memcpy_streamed_bytes_per_s = streamed;
    let mut clean = lab.shut_down();
    for (index, fabric) in NETWORKS.into_iter().enumerate() {
        let entries = on_network(settings, fabric, out, &step, &mut clean)?;
        for (line, entry) in lines.iter_mut().zip(entries) {
            line.networks[index] = line.contest.figure.of(&entry);
            results.push(entry);
        }
    }
    let bad_wires = if all {
        goodput::measure(settings, out, &step, &mut clean)?
    } else {
        Vec::new()
    };
    results.extend(bad_wires.iter().cloned());
    step.done();
    let report = Report {
        results,
        host,
        scale: scales,
        wire_packet,
        native,
    };
    report.write(&out.join("report.json"))?;

    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(lines.iter().map(Line::row));
    say!("\n{}", align(&rows));
    say!("{}", against_memcpy(&report));
    if all {
        say!(
            "a RoCE frame, sender and receiver together: {}\n",
            parts(&report)
        );
        let mut table =
            vec![["QPs", "cost per message (2-byte writes, two VMs)"].map(str::to_owned)];
        table.extend(
            costs
                .iter()
                .map(|(qps, cost)| [qps.to_string(), format!("{cost:.2} us")]),
        );
        say!("{}", align(&table));
        say!("{}", scale::table(&report.scale));
        say!("{}", goodput::table(&bad_wires));
    }
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

/// Runs the contests between two VMs on one of [`NETWORKS`] in order. On InfiniBand, connections have LIDs; OpenSM in
/// VM a manages the subnet meanwhile.
fn on_network(
    settings: &Settings,
    fabric: Fabric,
    out: &Path,
    step: &Step,
    clean: &mut bool,
) -> Result<Vec<Entry>> {
    let lab = Lab::boot(
        &settings.with_fabric(fabric),
        Options {
            device: Device::Vrnic,
            logs: out.join(format!("logs-{}", fabric.name())),
            vrnicd: Extra::default(),
            no_rnic: false,
            module: Module::Plain,
        },
    )?;
    let ends = End::of_rnics(&lab)?;
    let mut results = Vec::new();
    for contest in &CONTESTS {
        let args = format!("{} -n {}", contest.args, contest.iterations.0);
        step.at(&format!("{} {args} ({})", contest.program, fabric.name()));
        let mut pair = Pair::new(contest.program, &args, ends[0].clone(), ends[1].clone());
        pair.by_lid = fabric == Fabric::Infiniband;
        let entry = perf::run(&lab, &pair, PATIENCE);
        if let Some(error) = &entry.error {
            step.note(&format!(
                "{} {args} ({}): {error}",
                contest.program,
                fabric.name()
            ));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fabric_has_its_column() {
        let line = |path: &str, infiniband| Line {
            contest: &CONTESTS[0],
            path: path.into(),
            local: Some(4e9),
            networks: [Some(1e9), infiniband],
            rxe: Some(1e7),
        };
        let cells = |line: &Line| {
            let [_, _, cells @ ..] = line.row();
            cells.join("|")
        };
        assert_eq!(
            cells(&line("vm-vm", Some(5e8))),
            "4.00 GB/s|1.00 GB/s|500.0 MB/s|10.0 MB/s|400.0x|100.0x|50.0x|30x (met)|10x (met)"
        );
        assert_eq!(
            cells(&line("vm-vm", None)),
            "4.00 GB/s|1.00 GB/s|failed|10.0 MB/s|400.0x|100.0x||30x (met)|10x (met)"
        );
        // One VM has no network to cross.
        let alone = Line {
            networks: [None; NETWORKS.len()],
            ..line("loopback", None)
        };
        assert_eq!(cells(&alone), "4.00 GB/s|||10.0 MB/s|400.0x||||");
    }
}
