// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab chaos`: runs workloads once under each fault, and judges how they take it.

pub mod plan;
pub mod verdict;

mod case;
mod page;
mod window;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use self::case::{Bench, Case};
use self::plan::{Fault, Profile};
use self::verdict::Verdict;
use crate::lab::{Extra, Lab, Module, Options};
use crate::output::say;
use crate::progress::Step;
use crate::report::align;
use crate::settings::Settings;
use crate::vm::Device;

/// What to run.
pub struct Plan {
    /// Workloads.
    pub profiles: Vec<Profile>,
    /// Faults, one in each run.
    pub faults: Vec<Fault>,
    /// Verdicts that make the whole fail.
    pub fail_on: Vec<Verdict>,
    /// Directory of the page, the report and the logs.
    pub out: PathBuf,
    /// How the command line names the workload, for a command that repeats a run.
    pub repeat: String,
}

/// Lists what comes with the lab.
pub fn list(profiles: &[Profile], faults: &[Fault]) {
    say!("Workloads:");
    for profile in profiles {
        say!("  {:10} {}", profile.name, profile.about);
    }
    say!("\nFaults, and the end whose RNIC has each:");
    for fault in faults {
        let when = if fault.traffic {
            ", when there is traffic"
        } else {
            ""
        };
        say!("  {:7} {}{when}", fault.on.name(), fault.fault);
    }
}

/// One run that is to be made.
struct Run<'a> {
    profile: &'a Profile,
    fault: Option<&'a Fault>,
}

/// Makes all runs, prints a table, writes report.json and index.html.
///
/// # Errors
/// A workload fails without a fault, a run could not be made, or a verdict is one of `fail_on`; the page is written
/// all the same.
pub fn run(settings: &Settings, plan: &Plan) -> Result<()> {
    let start = Instant::now();
    fs::create_dir_all(&plan.out).with_context(|| format!("making {}", plan.out.display()))?;
    let mut runs = Vec::new();
    for profile in &plan.profiles {
        runs.push(Run {
            profile,
            fault: None,
        });
        runs.extend(plan.faults.iter().map(|fault| Run {
            profile,
            fault: Some(fault),
        }));
    }
    let step = Step::of("chaos", runs.len());
    let lanes = usize::try_from(settings.labs)?.min(runs.len());
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
                    step.note(&line(run, &result));
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
            Err(error) => broken.push(format!("{}: {error:#}", name(run))),
        }
    }
    let report = plan.out.join("report.json");
    fs::write(&report, serde_json::to_string_pretty(&cases)? + "\n")?;
    let page = plan.out.join("index.html");
    fs::write(&page, page::html(plan, settings.fabric, &cases, &broken))?;
    say!("\n{}", table(plan, &cases));
    say!(
        "page: {}   report: {}   {:.0} s",
        page.display(),
        report.display(),
        start.elapsed().as_secs_f64()
    );
    for broken in &broken {
        say!("no result: {broken}");
    }
    if !broken.is_empty() {
        bail!("{} of {} runs could not be made", broken.len(), runs.len());
    }
    let sound = |case: &&Case| matches!(case.verdict, Verdict::Unaffected | Verdict::Recovered);
    if let Some(bad) = cases
        .iter()
        .filter(|case| case.fault.is_none())
        .find(|case| !sound(case))
    {
        bail!("{} fails without a fault: {}", bad.profile, bad.summary());
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

/// Makes runs one after the other in a lab, and boots another one when a run has left something behind.
struct Lane<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    boots: &'a AtomicUsize,
    lab: Option<Lab>,
}

impl Lane<'_> {
    fn run(&mut self, run: &Run<'_>) -> Result<Case> {
        if self.lab.is_none() {
            let number = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
            let vrnicd = Extra {
                daemon: vec!["faults = true".to_owned()],
                ..Extra::default()
            };
            self.lab = Some(Lab::boot(
                self.settings,
                Options {
                    device: Device::Vrnic,
                    logs: self.plan.out.join(format!("logs/lab-{number}")),
                    vrnicd,
                    no_rnic: false,
                    module: Module::Plain,
                },
            )?);
        }
        let lab = self.lab.as_ref().context("it was booted")?;
        let case = Bench::new(lab).and_then(|mut bench| bench.run(run.profile, run.fault));
        if !case.as_ref().is_ok_and(Case::left_clean)
            && let Some(lab) = self.lab.take()
        {
            let _ = lab.shut_down();
        }
        case
    }
}

/// What a run is called.
fn name(run: &Run<'_>) -> String {
    match run.fault {
        Some(fault) => format!(
            "{}: {} on the {}",
            run.profile.name,
            fault.fault,
            fault.on.name()
        ),
        None => format!("{}: no fault", run.profile.name),
    }
}

/// A run and its result in a line.
fn line(run: &Run<'_>, result: &Result<Case>) -> String {
    match result {
        Ok(case) => format!(
            "{:13} {}   {}",
            case.verdict.name(),
            name(run),
            case.summary()
        ),
        Err(error) => format!("NO RESULT     {}   {error:#}", name(run)),
    }
}

/// All verdicts, and how often each was given to each workload.
fn table(plan: &Plan, cases: &[Case]) -> String {
    let mut rows = vec![["workload", "verdict", "runs", "meaning"].map(str::to_owned)];
    for profile in &plan.profiles {
        for verdict in Verdict::ALL {
            let these = |case: &&Case| {
                case.fault.is_some() && case.profile == profile.name && case.verdict == verdict
            };
            let count = cases.iter().filter(these).count();
            if count > 0 {
                rows.push([
                    profile.name.clone(),
                    verdict.name().to_owned(),
                    count.to_string(),
                    verdict.meaning().to_owned(),
                ]);
            }
        }
    }
    align(&rows)
}
