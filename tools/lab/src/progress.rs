// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Progress of long steps: a live line on a terminal, plain lines in a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::tell;

/// A step in progress. If it is dropped without [`Step::done`], it prints that it did not finish.
pub struct Step {
    bar: ProgressBar,
    what: String,
    start: Instant,
    live: bool,
    open: bool,
}

impl Step {
    /// Starts a step of unknown length.
    #[must_use]
    pub fn start(what: &str) -> Self {
        Self::new(
            what,
            ProgressBar::new_spinner(),
            "{spinner} {prefix} {msg} {elapsed}",
        )
    }

    /// Starts a step with `length` parts.
    #[must_use]
    pub fn of(what: &str, length: usize) -> Self {
        Self::new(
            what,
            ProgressBar::new(length as u64),
            "{bar:25} {pos}/{len} {prefix} {msg} {elapsed}",
        )
    }

    fn new(what: &str, bar: ProgressBar, template: &str) -> Self {
        let live = std::io::stderr().is_terminal();
        if live {
            bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
            bar.set_prefix(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
        } else {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            tell!("{what} ...");
        }
        Self {
            bar,
            what: what.to_owned(),
            start: Instant::now(),
            live,
            open: true,
        }
    }

    /// Sets the name of the current part.
    pub fn at(&self, part: &str) {
        self.bar.set_message(part.to_owned());
        if !self.live {
            tell!("  {part}");
        }
    }

    /// Reports that another part is finished.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Prints a line without disturbing the bar.
    pub fn note(&self, line: &str) {
        if self.live {
            self.bar.println(line);
        } else {
            tell!("{line}");
        }
    }

    /// Reports that the step is finished.
    pub fn done(mut self) {
        self.open = false;
        self.bar.finish_and_clear();
        tell!("{}: {:.1} s", self.what, self.start.elapsed().as_secs_f64());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.open {
            self.bar.finish_and_clear();
            tell!(
                "{}: stopped after {:.1} s",
                self.what,
                self.start.elapsed().as_secs_f64()
            );
        }
    }
}
