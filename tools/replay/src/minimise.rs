// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Finds the fewest calls that still end in the same failure.
//!
//! Leaves out calls, at first many at a time and finally one by one (delta debugging), and repeats the rest. These
//! calls find in guest memory what they found originally or, where they now look elsewhere, what an [`Image`] knows.
//! The result is recorded as an ordinary recording, which can be replayed on its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use vrnic_engine::recording::{
    Access, Call, Header, Output, Player, Step, Touch, panic_message, perform, replay,
};
use vrnic_engine::{Io, Outbox, Rnic};

use crate::check::{Checker, Rule};
use crate::image::{Image, Places};
use crate::story::{Narrator, Told};

/// Largest number of calls that can be minimised, because everything that they found in memory is kept.
const MAX_CALLS: usize = 1 << 20;
/// Largest number of calls that a search may make in all attempts together.
const EFFORT: usize = 50_000_000;

/// What counts as the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine panics.
    Panic,
    /// The engine violates this rule.
    Breaks(Rule),
    /// A line of the timeline contains this text.
    Says(String),
}

impl Failure {
    /// Finds the failure in a recording: a panic, or the first violation of a rule.
    ///
    /// # Errors
    ///
    /// The recording cannot be replayed.
    pub fn find(bytes: &[u8]) -> Result<Option<Self>> {
        let mut player = Player::new(bytes)?;
        let mut run = Run::new(player.rnic());
        while let Some(step) = player.next() {
            let (call, step) = step?;
            run.look(&call, &step, player.rnic());
            if let Some(violation) = run.checker.violations.first() {
                return Ok(Some(match violation.rule {
                    Rule::Panic => Self::Panic,
                    rule => Self::Breaks(rule),
                }));
            }
        }
        Ok(None)
    }

    /// Returns whether the failure is among the events or violations.
    fn is_in(&self, events: &[Told], checker: &Checker) -> bool {
        match self {
            Self::Panic => checker
                .violations
                .iter()
                .any(|violation| violation.rule == Rule::Panic),
            Self::Breaks(rule) => checker
                .violations
                .iter()
                .any(|violation| violation.rule == *rule),
            Self::Says(text) => events.iter().any(|told| told.to_string().contains(text)),
        }
    }
}

/// A call and what it found in memory.
struct Made {
    call: Call,
    touches: Vec<(Touch, Access)>,
}

/// A smaller recording.
#[derive(Debug)]
pub struct Minimal {
    /// The recording in bytes.
    pub recording: Vec<u8>,
    /// Number of calls in it.
    pub calls: usize,
    /// Number of calls up to the failure in the original recording.
    pub before: usize,
    /// Number of attempts made.
    pub attempts: usize,
}

/// A run: derives the events of each step and checks them.
struct Run {
    narrator: Narrator,
    checker: Checker,
}

impl Run {
    /// Creates a run of a device in its current state.
    fn new(rnic: &Rnic) -> Self {
        Self {
            narrator: Narrator::new(rnic),
            checker: Checker::new(rnic),
        }
    }

    /// Returns what happened in a step, after checking it.
    fn look(&mut self, call: &Call, step: &Step, rnic: &Rnic) -> Vec<Told> {
        let panicked = matches!(step.output, Output::Panicked(_));
        let events = self.narrator.tell(call, step, rnic);
        self.checker.look(&events, (!panicked).then_some(rnic));
        events
    }

    /// Returns whether the failure is present after this step.
    fn fails(&mut self, call: &Call, step: &Step, rnic: &Rnic, failure: &Failure) -> bool {
        let events = self.look(call, step, rnic);
        failure.is_in(&events, &self.checker)
    }
}

/// Returns the smallest recording found in which `failure` happens.
///
/// # Errors
///
/// The failure does not happen in this recording, or the recording cannot be replayed.
pub fn minimise(bytes: &[u8], failure: &Failure) -> Result<Minimal> {
    let mut player = Player::new(bytes)?;
    let header = player.recording().header().clone();
    let mut run = Run::new(player.rnic());
    let mut all: Vec<Made> = Vec::new();
    let mut happened = false;
    while let Some(step) = player.next() {
        let (call, step) = step?;
        happened = run.fails(&call, &step, player.rnic(), failure);
        let touches = step.touches;
        all.push(Made { call, touches });
        ensure!(
            all.len() <= MAX_CALLS,
            "there are more than {MAX_CALLS} calls, which is too much to minimise"
        );
        if happened {
            break;
        }
    }
    if !happened {
        bail!("the failure does not happen in this recording");
    }
    let before = all.len();
    let places = Rc::new(Places::new(all.iter().flat_map(|made| &made.touches)));
    let mut kept: Vec<usize> = (0..before).collect();
    let mut attempts = 0;
    let mut left = EFFORT;
    let mut chunk = kept.len().div_ceil(2);
    // All calls together have to fail on an image, too.
    if attempt(&header, &places, &all, &kept, failure).is_none() {
        bail!("the failure depends on guest memory that the recording does not contain");
    }
    while chunk > 0 {
        let mut start = 0;
        let mut any = false;
        while start < kept.len() && left > kept.len() {
            let end = (start + chunk).min(kept.len());
            let fewer: Vec<usize> = [&kept[..start], &kept[end..]].concat();
            attempts += 1;
            left -= fewer.len();
            match attempt(&header, &places, &all, &fewer, failure) {
                Some((_, calls)) => {
                    kept = fewer;
                    kept.truncate(calls);
                    any = true;
                }
                None => start = end,
            }
        }
        if !any || chunk > 1 {
            chunk /= 2;
        }
    }
    let Some((recording, calls)) = attempt(&header, &places, &all, &kept, failure) else {
        bail!("the failure is not reproducible");
    };
    let replayed = replay(&recording)?;
    ensure!(
        replayed == calls as u64,
        "the smaller recording cannot be replayed"
    );
    Ok(Minimal {
        recording,
        calls,
        before,
        attempts,
    })
}

/// Repeats some of the calls. If the failure happens, returns the recording up to there and the number of calls in it.
fn attempt(
    header: &Header,
    places: &Rc<Places>,
    all: &[Made],
    kept: &[usize],
    failure: &Failure,
) -> Option<(Vec<u8>, usize)> {
    let mut image = Image::new(places.clone());
    let mut rnic = Rnic::resumed(header)?;
    let mut outbox = Outbox::new();
    let mut run = Run::new(&rnic);
    let mut next = 0;
    for (count, &index) in (1..).zip(kept) {
        for made in &all[next..=index] {
            image.reach(&made.touches);
        }
        next = index + 1;
        let call = &all[index].call;
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut io = Io {
                memory: &image,
                now: call.now,
                outbox: &mut outbox,
            };
            perform(&mut rnic, &call.input, &mut io)
        }));
        let output = made.unwrap_or_else(|payload| Output::Panicked(panic_message(&*payload)));
        let panicked = matches!(output, Output::Panicked(_));
        let step = Step {
            output,
            segments: std::mem::take(&mut outbox.segments),
            touches: image.take_touches(),
        };
        if run.fails(call, &step, &rnic, failure) {
            let recorder = rnic.recorder()?;
            recorder.end("minimised");
            return Some((recorder.take(), count));
        }
        if panicked {
            return None;
        }
    }
    None
}
