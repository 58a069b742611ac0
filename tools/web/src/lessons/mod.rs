// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Lessons: six small experiments with real RNICs, for people who have read one article about RDMA.
//!
//! Each lesson is a text with some steps. Each step has a button that makes programs in a lab carry it out. Next to the
//! text, the page shows what the RNICs did.

mod faults;
mod lab;
mod messages;
mod receives;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use lab::{Lab, Said};

/// A step of a lesson.
#[derive(Debug, Serialize)]
pub struct Step {
    /// Label of the button.
    pub button: &'static str,
    /// Introduction.
    pub before: &'static str,
    /// The function that a program calls for it.
    pub calls: &'static str,
    /// What to look at.
    pub look: &'static str,
    /// What happened, and why.
    pub after: &'static str,
    /// Carries out the step.
    #[serde(skip)]
    run: fn(&mut Lab) -> Result<()>,
}

/// A lesson.
#[derive(Debug, Serialize)]
pub struct Lesson {
    /// Name in the address of the page.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// Introduction, in paragraphs.
    pub about: &'static [&'static str],
    /// The steps, in order.
    pub steps: &'static [Step],
    /// The conclusion.
    pub lesson: &'static str,
    /// Prepares the lab.
    #[serde(skip)]
    begin: fn(&mut Lab) -> Result<()>,
}

/// All lessons, in the recommended order.
pub const LESSONS: [&Lesson; 6] = [
    &receives::SEND,
    &messages::WRITE,
    &messages::RKEY,
    &faults::LOSS,
    &receives::SRQ,
    &faults::ODP,
];

/// A request of the page.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Name of the lesson.
    lesson: String,
    /// Index of the step; none to start the lesson.
    step: Option<usize>,
}

/// The results of a step.
#[derive(Debug, Serialize)]
pub struct Done {
    /// The connection to watch.
    connection: String,
    /// What the programs did and saw.
    said: Vec<Said>,
}

struct Class {
    lab: Lab,
    /// The current lesson, and its next step.
    held: Option<(&'static str, usize)>,
}

/// The lab and the progress of its current lesson. Pages take turns.
pub struct Classroom {
    control: PathBuf,
    /// None once it is closed.
    class: Mutex<Option<Class>>,
}

impl Classroom {
    /// Starts a lab with that vrnicd.
    ///
    /// # Errors
    /// The lab cannot be started.
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

    /// Returns the control socket of the lab's vrnicd.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Starts a lesson or carries out its next step.
    ///
    /// # Errors
    /// There is no such lesson or step, the step is out of order, or it fails.
    pub fn go_on(&self, wanted: &Wanted) -> Result<Done> {
        let mut class = self.class.lock().unwrap_or_else(PoisonError::into_inner);
        let Class { lab, held } = class.as_mut().context("the lab is closed")?;
        let lesson = LESSONS.iter().find(|lesson| lesson.name == wanted.lesson);
        let lesson = lesson.context("there is no such lesson")?;
        // After a failure, the lesson cannot continue.
        let before = held.take();
        let (run, next) = match wanted.step {
            None => (lesson.begin, 0),
            Some(number) => {
                let step = lesson.steps.get(number).context("there is no such step")?;
                ensure!(
                    before == Some((lesson.name, number)),
                    "The lab is not at this step: another page uses it, or a step failed. Begin the lesson again."
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
