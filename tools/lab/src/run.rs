// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab run`: runs unmodified distribution programs between two VMs and in loopback on one, and makes one table
//! and one report.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::host;
use crate::lab::{Extra, Lab, Module, Options, SHORT};
use crate::output::{self, note, say};
use crate::page;
use crate::perf::{self, End, Pair};
use crate::progress::Step;
use crate::report::{Entry, Report};
use crate::settings::Settings;
use crate::vm::{Device, NAMES};
use crate::web;

/// How long a pair of programs may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the programs of `make run`. They make few iterations, because the question is whether everything works;
/// `make bench` measures.
fn programs(device: Device) -> Vec<(&'static str, String)> {
    // rxe transfers only a few MB/s under TCG.
    let (large, small) = match device {
        Device::Vrnic => (1000, 300),
        Device::Rxe => (150, 300),
    };
    vec![
        ("ibv_rc_pingpong", format!("-n {small}")),
        ("ib_send_bw", format!("-s 65536 -n {large}")),
        ("ib_send_lat", format!("-s 8 -n {small}")),
        ("ib_write_bw", format!("-s 65536 -n {large}")),
        ("ib_write_lat", format!("-s 8 -n {small}")),
        ("ib_read_bw", format!("-s 65536 -n {large}")),
        ("ib_read_lat", format!("-s 8 -n {small}")),
        ("ib_atomic_bw", format!("-A CMP_AND_SWAP -n {small}")),
        ("ib_atomic_bw", format!("-A FETCH_AND_ADD -n {small}")),
    ]
}

/// Boots the lab, runs everything, prints the table or the report as JSON, and writes `out`/report.json and index.html.
///
/// # Errors
/// The lab did not come up, or a program failed (after the table was printed and the report written).
pub fn run(settings: &Settings, out: &std::path::Path, device: Device, json: bool) -> Result<()> {
    let start = Instant::now();
    let load = host::load();
    let lab = Lab::boot(
        settings,
        Options {
            device,
            logs: out.join("logs"),
            vrnicd: Extra::default(),
            no_rnic: device == Device::Rxe,
            module: Module::Plain,
        },
    )?;
    if device == Device::Vrnic {
        match web::address(&lab.control()) {
            Ok(address) => note!(json, "in a browser, while it runs: {address}"),
            Err(error) => note!(json, "the browser view is not available: {error:#}"),
        }
    }
    let mut ends = Vec::new();
    for name in NAMES {
        ends.push(End::new(name, device, lab.wait_rdma(name, device)?));
    }
    let mut results = Vec::new();
    for name in NAMES {
        let entry = devinfo(&lab, name, device);
        note!(json, "VM {name}: {}", entry.0);
        results.push(entry.1);
    }
    let programs = programs(device);
    let step = Step::of("programs", programs.len() * 2);
    for (client, server) in [(&ends[0], &ends[1]), (&ends[0], &ends[0])] {
        for (program, args) in &programs {
            step.at(&format!(
                "{program} {args} ({})",
                if client == server {
                    "loopback"
                } else {
                    "vm-vm"
                }
            ));
            let entry = perf::run(
                &lab,
                &Pair::new(program, args, client.clone(), server.clone()),
                PATIENCE,
            );
            if let Some(error) = &entry.error {
                step.note(&format!("{program} {args}: {error}"));
            }
            results.push(entry);
            step.advance();
        }
    }
    step.done();
    let report = Report {
        results,
        host: host::describe(lab.accelerator, &lab, load)?,
        scale: Vec::new(),
        wire_packet: BTreeMap::new(),
        native: None,
    };
    report.write(&out.join("report.json"))?;
    let title = "RDMA programs between two VMs, and on one";
    page::write(&out.join("index.html"), title, &report, &[])?;
    if json {
        output::print_json(&report)?;
    } else {
        say!("\n{}", report.table());
    }
    note!(
        json,
        "report: {}   page: {}   logs: {}",
        out.join("report.json").display(),
        out.join("index.html").display(),
        lab.logs().display()
    );
    let clean = lab.shut_down();
    note!(
        json,
        "{} programs, {} failed, {:.0} s in all",
        report.results.len(),
        report.failed(),
        start.elapsed().as_secs_f64()
    );
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

/// Runs `ibv_devinfo -v`. Returns one line for the terminal and the report's entry; the whole text goes to the logs.
fn devinfo(lab: &Lab, name: &str, device: Device) -> (String, Entry) {
    let start = Instant::now();
    let output = lab
        .agent(name)
        .and_then(|agent| agent.run(&["ibv_devinfo", "-v", "-d", device.ibdev()], SHORT))
        .unwrap_or_else(|error| crate::agent::Output {
            code: 124,
            stdout: String::new(),
            stderr: format!("{error:#}"),
        });
    let _ = std::fs::write(
        lab.logs().join(format!("ibv_devinfo-{name}.txt")),
        output.text(),
    );
    let field = |key: &str| {
        let line = output
            .stdout
            .lines()
            .find(|line| line.trim_start().starts_with(key))
            .unwrap_or_default();
        line.split_once(':')
            .map_or("?", |(_, value)| value.trim())
            .to_owned()
    };
    let summary = if output.code == 0 {
        format!(
            "{} port {}, MTU {}, max_qp {}, max_cq {}, max_mr {}, {} completion vectors",
            field("hca_id"),
            field("state"),
            field("active_mtu"),
            field("max_qp:"),
            field("max_cq:"),
            field("max_mr:"),
            field("num_comp_vectors"),
        )
    } else {
        format!("ibv_devinfo exited with {}: {}", output.code, output.text())
    };
    let active = field("state").contains("PORT_ACTIVE");
    let exit = if output.code == 0 && !active {
        1
    } else {
        output.code
    };
    let entry = Entry {
        program: "ibv_devinfo".into(),
        args: "-v".into(),
        device: device.name().into(),
        path: format!("vm {name}"),
        fabric: device.fabric(lab.settings.fabric).name().into(),
        exit,
        seconds: start.elapsed().as_secs_f64(),
        error: (exit != 0).then(|| summary.clone()),
        ..Entry::default()
    };
    (summary, entry)
}
