// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Lessons: six small experiments with real RNICs, for people who have read one article about RDMA.
//!
//! Each is a text and some steps. A step has a button; what it does is done by programs in a lab, and the page
//! shows beside the text what the RNICs did.

mod faults;
mod lab;
mod messages;
mod receives;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use lab::{Lab, Said};

/// Something to do in a lesson.
#[derive(Debug, Serialize)]
pub struct Step {
    /// What the button says.
    pub button: &'static str,
    /// What it is about.
    pub before: &'static str,
    /// What a program calls for that.
    pub calls: &'static str,
    /// What to look at.
    pub look: &'static str,
    /// What happened, and why.
    pub after: &'static str,
    /// Does it.
    #[serde(skip)]
    run: fn(&mut Lab) -> Result<()>,
}

/// A lesson.
#[derive(Debug, Serialize)]
pub struct Lesson {
    /// What the address of the page has.
    pub name: &'static str,
    /// What people see.
    pub title: &'static str,
    /// What it is about; paragraphs.
    pub about: &'static [&'static str],
    /// What to do, in that order.
    pub steps: &'static [Step],
    /// What to take home.
    pub lesson: &'static str,
    /// Prepares the lab.
    #[serde(skip)]
    begin: fn(&mut Lab) -> Result<()>,
}

/// All lessons, in the order to read them.
pub const LESSONS: [&Lesson; 6] = [
    &receives::SEND,
    &messages::WRITE,
    &messages::RKEY,
    &faults::LOSS,
    &receives::SRQ,
    &faults::ODP,
];

/// What a page wants.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Name of the lesson.
    lesson: String,
    /// The step; none to begin the lesson.
    step: Option<usize>,
}

/// What a step did.
#[derive(Debug, Serialize)]
pub struct Done {
    /// The connection to watch.
    connection: String,
    /// What the programs did and saw.
    said: Vec<Said>,
}

struct Class {
    lab: Lab,
    /// The lesson that is being held, and its next step.
    held: Option<(&'static str, usize)>,
}

/// The lab, and how far the lesson in it is. Pages take turns.
pub struct Classroom {
    control: PathBuf,
    /// None if it is closed.
    class: Mutex<Option<Class>>,
}

impl Classroom {
    /// Starts a lab with that vrnicd.
    ///
    /// # Errors
    /// It does not start.
    pub fn open(vrnicd: &Path) -> Result<Self> {
        let lab = Lab::start(vrnicd)?;
        Ok(Self {
            control: lab.control().to_owned(),
            class: Mutex::new(Some(Class { lab, held: None })),
        })
    }

    /// Ends the lab.
    pub fn close(&self) {
        *self.class.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Control socket of its vrnicd.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Begins a lesson, or does its next step.
    ///
    /// # Errors
    /// There is no such lesson or step, it is not its turn, or it fails.
    pub fn go_on(&self, wanted: &Wanted) -> Result<Done> {
        let mut class = self.class.lock().unwrap_or_else(PoisonError::into_inner);
        let Class { lab, held } = class.as_mut().context("the lab is closed")?;
        let lesson = LESSONS.iter().find(|lesson| lesson.name == wanted.lesson);
        let lesson = lesson.context("there is no such lesson")?;
        // What failed cannot go on.
        let before = held.take();
        let (run, next) = match wanted.step {
            None => (lesson.begin, 0),
            Some(number) => {
                let step = lesson.steps.get(number).context("there is no such step")?;
                ensure!(
                    before == Some((lesson.name, number)),
                    "The lab is not at this step: somebody else uses it, or a step failed. Begin the lesson again."
                );
                (step.run, number + 1)
            }
        };
        lab.take_said();
        lab.keep_traced()?;
        run(lab)?;
        *held = Some((lesson.name, next));
        Ok(Done {
            connection: lab.connection()?,
            said: lab.take_said(),
        })
    }
}

impl std::fmt::Debug for Classroom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Classroom")
    }
}
