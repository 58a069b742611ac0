// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The fewest calls that still end in the same failure.
//!
//! Calls are left out, first many at a time, then one by one (delta debugging), and the rest is made again. They find
//! in guest memory what they found, or, where they look elsewhere now, what an [`Image`] knows. What is left is
//! recorded, and is a recording like any other: it replays by itself.

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

/// Most calls that can be minimised: all that they found in memory is kept.
const MAX_CALLS: usize = 1 << 20;
/// Calls that a search may make, all attempts together.
const EFFORT: usize = 50_000_000;

/// What has to happen for a recording to have failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine panics.
    Panic,
    /// It breaks this rule.
    Breaks(Rule),
    /// A line of the timeline has this in it.
    Says(String),
}

impl Failure {
    /// What fails in a recording: a panic, or the first rule that is broken.
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

    /// Whether it is one of these.
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

/// A call, and what it found in memory.
struct Made {
    call: Call,
    touches: Vec<(Touch, Access)>,
}

/// A smaller recording.
#[derive(Debug)]
pub struct Minimal {
    /// The recording.
    pub recording: Vec<u8>,
    /// Calls in it.
    pub calls: usize,
    /// Calls up to the failure before.
    pub before: usize,
    /// Attempts that were made.
    pub attempts: usize,
}

/// One step of a run: what is told of it, and what the checker thinks so far.
struct Run {
    narrator: Narrator,
    checker: Checker,
}

impl Run {
    /// A run of a device that is like this before it.
    fn new(rnic: &Rnic) -> Self {
        Self {
            narrator: Narrator::new(rnic),
            checker: Checker::new(rnic),
        }
    }

    /// What happened in a step, which is checked.
    fn look(&mut self, call: &Call, step: &Step, rnic: &Rnic) -> Vec<Told> {
        let panicked = matches!(step.output, Output::Panicked(_));
        let events = self.narrator.tell(call, step, rnic);
        self.checker.look(&events, (!panicked).then_some(rnic));
        events
    }

    /// Whether the failure is there after this step.
    fn fails(&mut self, call: &Call, step: &Step, rnic: &Rnic, failure: &Failure) -> bool {
        let events = self.look(call, step, rnic);
        failure.is_in(&events, &self.checker)
    }
}

/// The smallest recording that is found in which `failure` happens.
///
/// # Errors
///
/// It does not happen in this recording, or that cannot be replayed.
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
    // The calls as they are have to fail on an image, too.
    if attempt(&header, &places, &all, &kept, failure).is_none() {
        bail!("the failure depends on guest memory that is not in the recording");
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
        "the smaller recording does not replay"
    );
    Ok(Minimal {
        recording,
        calls,
        before,
        attempts,
    })
}

/// Makes some of the calls. If the failure happens, the recording up to there, and the number of calls in it.
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
