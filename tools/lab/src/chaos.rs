// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab chaos`: runs workloads once under each fault, and judges how they handle it.

pub mod plan;
pub mod verdict;

mod case;
mod page;
mod scene;
mod window;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::case::{Bench, Case};
use self::plan::{Fault, Profile};
use self::verdict::Verdict;
use crate::lab::{Extra, Lab, Module, Options};
use crate::output::{self, note, say};
use crate::progress::Step;
use crate::report::align;
use crate::settings::Settings;
use crate::vm::{Device, NAMES};

/// The runs to make.
pub struct Plan {
    /// RDMA devices of the runs.
    pub devices: Vec<Device>,
    /// Whether the faults are at the switch ports instead of in the RNICs.
    pub at_ports: bool,
    /// Workloads.
    pub profiles: Vec<Profile>,
    /// Faults, one in each run.
    pub faults: Vec<Fault>,
    /// Verdicts that make the command fail.
    pub fail_on: Vec<Verdict>,
    /// Directory for the page, the report and the logs.
    pub out: PathBuf,
    /// The workload's arguments on the command line, for a command that repeats a run.
    pub repeat: String,
    /// Whether to print the report instead of a table.
    pub json: bool,
}

/// Returns the workloads and faults that come with the lab, as JSON.
#[must_use]
pub fn list_json(profiles: &[Profile], faults: &[Fault]) -> Value {
    let profiles = profiles.iter().map(|profile| {
        json!({ "name": profile.name, "about": profile.about, "rails": profile.rails, "seconds": profile.seconds })
    });
    let faults = faults.iter().map(|fault| {
        json!({
            "fault": fault.fault,
            "scenario": fault.scenario,
            "on": fault.on,
            "traffic": fault.traffic,
            "at_ports": fault.check(true).is_ok(),
        })
    });
    json!({ "workloads": profiles.collect::<Vec<_>>(), "faults": faults.collect::<Vec<_>>() })
}

/// Lists the workloads and faults that come with the lab.
pub fn list(profiles: &[Profile], faults: &[Fault]) {
    say!("Workloads:");
    for profile in profiles {
        say!("  {:10} {}", profile.name, profile.about);
    }
    say!(
        "\nFaults, and the end whose RNIC gets each. Those with * can also be injected at its port of the switch:"
    );
    for fault in faults {
        let mark = if fault.check(true).is_ok() { '*' } else { ' ' };
        let when = if fault.traffic {
            ", when there is traffic"
        } else {
            ""
        };
        say!("  {:7} {mark} {}{when}", fault.on.name(), fault.words());
    }
}

impl Plan {
    /// Returns the combinations of devices and workloads, which are compared.
    fn columns(&self) -> impl Iterator<Item = (Device, &Profile)> {
        let of = |profile| self.devices.iter().map(move |&device| (device, profile));
        self.profiles.iter().flat_map(of)
    }

    /// Returns the title of a column.
    fn title(&self, device: Device, profile: &str) -> String {
        match self.devices[..] {
            [_] => profile.to_owned(),
            _ => format!("{profile} ({})", device.name()),
        }
    }
}

/// A run to make.
struct Run<'a> {
    device: Device,
    profile: &'a Profile,
    fault: Option<&'a Fault>,
}

/// Makes all runs, prints a table or the report as JSON, writes report.json and index.html.
///
/// # Errors
/// A workload fails without a fault, a run could not be made, or a verdict is one of `fail_on`. The page is written
/// nevertheless.
pub fn run(settings: &Settings, plan: &Plan) -> Result<()> {
    let start = Instant::now();
    fs::create_dir_all(&plan.out).with_context(|| format!("making {}", plan.out.display()))?;
    let mut runs = Vec::new();
    for &device in &plan.devices {
        for profile in &plan.profiles {
            let faults = plan.faults.iter().filter(|fault| fault.fits(profile));
            let faults = std::iter::once(None).chain(faults.map(Some));
            runs.extend(faults.map(|fault| Run {
                device,
                profile,
                fault,
            }));
        }
    }
    let step = Step::of("chaos", runs.len());
    let lanes = usize::try_from(settings.labs)?.min(runs.len());
    let settings = &Settings {
        labs: u32::try_from(lanes)?,
        ..settings.clone()
    };
    let (next, boots) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Mutex<Option<Result<Case>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                let mut lane = Lane {
                    settings,
                    plan,
                    boots: &boots,
                    lab: None,
                };
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(index) else { break };
                    let result = lane.run(run);
                    step.note(&line(plan, run, &result));
                    step.advance();
                    *results[index].lock().expect("a result") = Some(result);
                }
            });
        }
    });
    step.done();

    let mut cases = Vec::new();
    let mut broken = Vec::new();
    for (run, result) in runs.iter().zip(results) {
        match result
            .into_inner()
            .expect("a result")
            .context("each run was made")?
        {
            Ok(case) => cases.push(case),
            Err(error) => broken.push(format!("{}: {error:#}", name(plan, run))),
        }
    }
    let report = plan.out.join("report.json");
    fs::write(&report, serde_json::to_string_pretty(&cases)? + "\n")?;
    let page = plan.out.join("index.html");
    fs::write(&page, page::html(plan, settings.fabric, &cases, &broken))?;
    if plan.json {
        output::print_json(&cases)?;
    } else {
        if plan.devices.len() > 1 {
            say!("\n{}", beside(plan, &cases));
        }
        say!("\n{}", table(plan, &cases));
    }
    note!(
        plan.json,
        "page: {}   report: {}   {:.0} s",
        page.display(),
        report.display(),
        start.elapsed().as_secs_f64()
    );
    for broken in &broken {
        note!(plan.json, "no result: {broken}");
    }
    if !broken.is_empty() {
        bail!("{} of {} runs gave no result", broken.len(), runs.len());
    }
    let sound = |case: &&Case| matches!(case.verdict, Verdict::Unaffected | Verdict::Recovered);
    if let Some(bad) = cases
        .iter()
        .filter(|case| case.fault.is_none())
        .find(|case| !sound(case))
    {
        bail!(
            "{} fails without a fault: {}",
            plan.title(bad.device, &bad.profile),
            bad.summary()
        );
    }
    let bad = cases
        .iter()
        .filter(|case| plan.fail_on.contains(&case.verdict))
        .count();
    if bad > 0 {
        let verdicts: Vec<&str> = plan.fail_on.iter().map(|verdict| verdict.name()).collect();
        bail!("{bad} runs ended with one of: {}", verdicts.join(", "));
    }
    Ok(())
}

/// Makes runs one after the other in a lab, and boots another lab if a run has left something behind.
struct Lane<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    boots: &'a AtomicUsize,
    /// The lab, with its device and the number of RNICs of each VM.
    lab: Option<((Device, usize), Lab)>,
}

impl Lane<'_> {
    fn run(&mut self, run: &Run<'_>) -> Result<Case> {
        let kind = (run.device, run.profile.rails);
        self.lab = self.lab.take().filter(|(of, _)| *of == kind);
        if self.lab.is_none() {
            let soft = run.device == Device::Rxe;
            let number = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
            let vrnicd = Extra {
                daemon: vec!["faults = true".to_owned()],
                rxe: NAMES
                    .iter()
                    .filter(|_| soft)
                    .map(|&vm| vm.to_owned())
                    .collect(),
                rails: Some(run.profile.rails).filter(|rails| *rails > 1),
                ..Extra::default()
            };
            let options = Options {
                device: run.device,
                logs: self.plan.out.join(format!("logs/lab-{number}")),
                vrnicd,
                no_rnic: false,
                module: Module::Plain,
            };
            self.lab = Some((kind, Lab::boot(self.settings, options)?));
        }
        let (_, lab) = self.lab.as_ref().context("it was booted")?;
        let case = Bench::new(lab, run.device, self.plan.at_ports)
            .and_then(|mut bench| bench.run(run.profile, run.fault));
        if !case.as_ref().is_ok_and(Case::left_clean)
            && let Some((_, lab)) = self.lab.take()
        {
            let _ = lab.shut_down();
        }
        case
    }
}

/// Returns the name of a run.
fn name(plan: &Plan, run: &Run<'_>) -> String {
    let title = plan.title(run.device, &run.profile.name);
    match run.fault {
        Some(fault) => format!("{title}: {} on the {}", fault.words(), fault.on.name()),
        None => format!("{title}: no fault"),
    }
}

/// Describes a run and its result in one line.
fn line(plan: &Plan, run: &Run<'_>, result: &Result<Case>) -> String {
    match result {
        Ok(case) => format!(
            "{:13} {}   {}",
            case.verdict.name(),
            name(plan, run),
            case.summary()
        ),
        Err(error) => format!("NO RESULT     {}   {error:#}", name(plan, run)),
    }
}

/// Returns a table of the verdicts on each workload with each device, by fault.
fn beside(plan: &Plan, cases: &[Case]) -> String {
    let mut head = vec!["fault".to_owned(), "on the".to_owned()];
    head.extend(
        plan.columns()
            .map(|(device, it)| plan.title(device, &it.name)),
    );
    let mut rows = vec![head];
    for fault in std::iter::once(None).chain(plan.faults.iter().map(Some)) {
        let mut row = match fault {
            Some(it) => vec![it.words(), it.on.name().to_owned()],
            None => vec!["none".to_owned(), String::new()],
        };
        row.extend(plan.columns().map(|(device, profile)| {
            let found = cases.iter().find(|case| case.is_of(device, profile, fault));
            match found {
                Some(case) => case.verdict.name().to_owned(),
                None if fault.is_some_and(|fault| !fault.fits(profile)) => String::new(),
                None => "no result".to_owned(),
            }
        }));
        rows.push(row);
    }
    align(&rows)
}

/// Returns a table of all verdicts, with the number of times that each workload got them.
fn table(plan: &Plan, cases: &[Case]) -> String {
    let mut rows = vec![["workload", "verdict", "runs", "meaning"].map(str::to_owned)];
    for (device, profile) in plan.columns() {
        for verdict in Verdict::ALL {
            let these = |case: &&Case| {
                let fault = case.fault.as_ref();
                fault.is_some() && case.is_of(device, profile, fault) && case.verdict == verdict
            };
            let count = cases.iter().filter(these).count();
            if count > 0 {
                rows.push([
                    plan.title(device, &profile.name),
                    verdict.name().to_owned(),
                    count.to_string(),
                    verdict.meaning().to_owned(),
                ]);
            }
        }
    }
    align(&rows)
}
