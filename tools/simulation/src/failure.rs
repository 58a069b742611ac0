// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Handles failed simulations: finds the smallest plan that still fails, and keeps recordings of the devices.

use crate::{
    plan::{LinePlan, Plan},
    world::{Tally, World},
};
use anyhow::ensure;
use std::{
    cell::RefCell,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Once,
};
use vrnic_engine::{
    fault::PROVOKED_PANIC,
    recording::{Outcome, Player, panic_message},
};
use vrnic_replay::{
    check::Checker,
    minimise::{Failure, minimise},
    story::{Event, Narrator, Told, timeline_head},
};

/// Number of simulations that the search for a smaller plan may run.
const EFFORT: usize = 400;
/// Number of timeline lines to show.
const LINES: usize = 40;

thread_local! {
    /// Location of this thread's latest panic, if its panics are to be reported by the caller.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a simulation. Unless it is large, one in eight is recorded and replayed, with recordings that start at random
/// moments.
///
/// # Errors
///
/// A description of what is wrong.
pub fn run(plan: &Plan) -> Result<Tally, String> {
    let recorded = plan.seed.is_multiple_of(8) && plan.flows.len() <= 30;
    let mut world = World::new(plan, recorded);
    world.cut_recordings();
    let tally = attempt(|| world.run())?;
    let mut ended = None;
    for (device, recording) in world.recordings() {
        if let Some(why) = attempt(|| check(&recording, &mut ended))? {
            return Err(format!("device {device}: {why}"));
        }
    }
    Ok(tally)
}

/// Returns what is wrong with a recording: the replay differs, the recording does not begin with the state in which the
/// replay of the previous one `ended`, or a rule of the standard is violated.
fn check(recording: &[u8], ended: &mut Option<Vec<u8>>) -> Option<String> {
    let mut replayed = || {
        let mut player = Player::new(recording)?;
        let begins = player.recording().header().state.clone();
        let before = ended.take().filter(|_| begins.is_some());
        ensure!(before.is_none() || before == begins, "another state");
        let mut narrator = Narrator::new(player.rnic());
        let mut checker = Checker::new(player.rnic());
        while let Some(step) = player.next() {
            let (call, step) = step?;
            let events = narrator.tell(&call, &step, player.rnic());
            checker.look(&events, Some(player.rnic()));
        }
        // After a reset, the state does not contain finished faults.
        *ended = begins.and(player.rnic().state(usize::MAX));
        anyhow::Ok(checker)
    };
    match replayed() {
        Err(why) => Some(format!("{why:#}")),
        Ok(checker) => {
            let provoked = format!("panic: {PROVOKED_PANIC}");
            let mut violations = checker.violations.iter();
            let bad = violations.find(|violation| violation.what != provoked);
            bad.map(ToString::to_string)
        }
    }
}

/// Runs `work`. If it panics, returns the message and location as the error.
fn attempt<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string);
            let told = PLACE.with_borrow_mut(|here| {
                here.as_mut()
                    .map(|here| *here = place.unwrap_or_default())
                    .is_some()
            });
            if !told {
                others(info);
            }
        }));
    });
    PLACE.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(work));
    let place = PLACE.take().unwrap_or_default();
    result.map_err(|payload| format!("{} ({place})", panic_message(&*payload)))
}

/// Returns the smallest plan found that still fails, and what is wrong then.
pub fn shrink(plan: &Plan) -> (Plan, String) {
    let mut search = Search {
        plan: plan.clone(),
        why: "it does not fail a second time".into(),
        left: EFFORT,
    };
    search.tries(plan.clone());
    loop {
        let before = search.left;
        let mut any = false;
        any |= search.list(|plan| &mut plan.flows);
        any |= search.list(|plan| &mut plan.faults);
        any |= search.list(|plan| &mut plan.resets);
        any |= search.list(|plan| &mut plan.outages);
        any |= search.list(|plan| &mut plan.circles);
        for circle in 0..search.plan.circles.len() {
            any |= search.list(|plan| &mut plan.circles[circle].sends);
        }
        for flow in 0..search.plan.flows.len() {
            any |= search.list(|plan| &mut plan.flows[flow].ops[0]);
            any |= search.list(|plan| &mut plan.flows[flow].ops[1]);
            any |= search.change(|plan| plan.flows[flow].deed.take().is_some());
            for side in 0..2 {
                any |= search.change(|plan| plan.flows[flow].paging[side].take().is_some());
            }
        }
        any |= search.change(|plan| {
            let devices = plan.devices.iter_mut().flat_map(|device| &mut device.lines);
            let lines = devices.chain([&mut plan.trunk]);
            lines
                .map(LinePlan::make_good)
                .fold(false, |any, one| any | one)
        });
        if !any || search.left == 0 || search.left == before {
            return (search.plan, search.why);
        }
    }
}

/// The search for a smaller plan.
struct Search {
    plan: Plan,
    why: String,
    left: usize,
}

impl Search {
    /// Adopts a plan if it fails. Returns whether it does.
    fn tries(&mut self, plan: Plan) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        match run(&plan) {
            Ok(_) => false,
            Err(why) => {
                (self.plan, self.why) = (plan, why);
                true
            }
        }
    }

    /// Tries a change, which may have no effect.
    fn change(&mut self, change: impl Fn(&mut Plan) -> bool) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan) && self.tries(plan)
    }

    /// Removes elements from a list, at first many at a time, then one by one.
    fn list<T>(&mut self, list: impl Fn(&mut Plan) -> &mut Vec<T>) -> bool {
        let mut any = false;
        let mut chunk = list(&mut self.plan.clone()).len();
        while chunk > 0 {
            let mut first = 0;
            while first < list(&mut self.plan.clone()).len() {
                let smaller = self.change(|plan| {
                    let list = list(plan);
                    let last = (first + chunk).min(list.len());
                    list.drain(first..last).count() > 0
                });
                any |= smaller;
                first += if smaller { 0 } else { chunk };
            }
            chunk /= 2;
        }
        any
    }
}

/// Finds the smallest plan that fails, writes the recordings of its devices to `directory`, and describes what
/// happened.
pub fn report(plan: &Plan, directory: &Path) -> String {
    let seed = plan.seed;
    let (small, why) = shrink(plan);
    let mut text = format!(
        "seed {seed}: {why}\nin the smallest simulation that fails:\n{small}to run it again: VRNIC_SEED={seed} \
         cargo test --release -p vrnic-simulation\n"
    );
    let mut world = World::new(&small, true);
    let recorded = attempt(|| world.run()).err();
    if recorded.as_ref() != Some(&why) {
        let _ = writeln!(text, "but with a recording: {recorded:?}");
    }
    let subjects = world.subjects().to_vec();
    let directory = directory.join(format!("seed-{seed}"));
    for (number, (device, recording)) in world.recordings().into_iter().enumerate() {
        let qpn = subjects
            .iter()
            .find(|(subject, _)| *subject == device)
            .map(|(_, qpn)| *qpn);
        let name = format!("device-{device}-{number}");
        match keep(&recording, &directory, &name, qpn) {
            Ok(told) => text.push_str(&told),
            Err(why) => {
                let _ = writeln!(text, "{name}: {why:#}");
            }
        }
    }
    // Where only the end of a long log is kept, this is what one needs most.
    let _ = writeln!(text, "seed {seed}: {why}");
    text
}

/// Keeps a recording and its minimized form, and describes what happened to a queue pair.
fn keep(
    recording: &[u8],
    directory: &Path,
    name: &str,
    qpn: Option<u32>,
) -> anyhow::Result<String> {
    let mut text = String::new();
    std::fs::create_dir_all(directory)?;
    let file = directory.join(format!("{name}.vrnic"));
    std::fs::write(&file, recording)?;
    writeln!(text, "{name}: vrnic-replay {}", file.display())?;
    let lines = qpn.map_or_else(|| Ok(Vec::new()), |qpn| timeline(recording, qpn))?;
    let failure = match Failure::find(recording)? {
        Some(failure) => Some(failure),
        None => lines.iter().rev().find_map(completion).map(Failure::Says),
    };
    if let Some(failure) = failure {
        let minimal = minimise(recording, &failure)?;
        let file = directory.join(format!("{name}-minimal.vrnic"));
        std::fs::write(&file, &minimal.recording)?;
        writeln!(
            text,
            "{} of {} calls up to {failure:?}: vrnic-replay --timeline {}",
            minimal.calls,
            minimal.before,
            file.display()
        )?;
    }
    if !lines.is_empty() {
        text.push_str(&timeline_head());
        for told in &lines[lines.len().saturating_sub(LINES)..] {
            writeln!(text, "{told}")?;
        }
    }
    Ok(text)
}

/// Returns what happened to a queue pair.
fn timeline(recording: &[u8], qpn: u32) -> anyhow::Result<Vec<Told>> {
    let mut player = Player::new(recording)?;
    let mut narrator = Narrator::new(player.rnic());
    let mut lines = Vec::new();
    while let Some(step) = player.next() {
        let (call, step) = step?;
        let events = narrator.tell(&call, &step, player.rnic());
        lines.extend(events.into_iter().filter(|told| told.qpn() == Some(qpn)));
        if call.outcome == Outcome::Panicked {
            break;
        }
    }
    Ok(lines)
}

/// Returns the part of a timeline entry that describes a completion.
fn completion(told: &Told) -> Option<String> {
    let line = matches!(told.event, Event::Completed { .. }).then(|| told.to_string())?;
    let start = line.find("<--")?;
    Some(line[start..].trim_end_matches(['|', ' ']).to_owned())
}
