// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Structured logs on standard error.
//!
//! A thread writes them. So nobody waits for whoever reads standard error, a worker least of all: if the reader is
//! slow, lines are dropped.

use std::sync::OnceLock;

use anyhow::{Context, Result};
use tracing::error;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use crate::config::LogFormat;

/// Reads and changes the filter while the daemon runs.
struct Control {
    get: Box<dyn Fn() -> String + Send + Sync>,
    set: Box<dyn Fn(EnvFilter) -> Result<()> + Send + Sync>,
}

static CONTROL: OnceLock<Control> = OnceLock::new();

impl Control {
    fn new<S: 'static>(handle: Handle<EnvFilter, S>) -> Self {
        let reader = handle.clone();
        Self {
            get: Box::new(move || reader.with_current(ToString::to_string).unwrap_or_default()),
            set: Box::new(move |filter| Ok(handle.reload(filter)?)),
        }
    }
}

fn parse(filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(filter).with_context(|| format!("{filter:?} is not a log filter"))
}

/// Returns the current filter; empty if logging was not started.
pub fn filter() -> String {
    CONTROL
        .get()
        .map(|control| (control.get)())
        .unwrap_or_default()
}

/// Changes the filter.
pub fn set_filter(filter: &str) -> Result<()> {
    let filter = parse(filter)?;
    let control = CONTROL.get().context("logging was not started")?;
    (control.set)(filter)
}

/// Largest number of lines that wait for being written.
const MAX_WAITING: usize = 10_000;

/// Starts logging. Panics are logged, too. When what this returns is dropped, all lines are written, unless that takes
/// long.
#[must_use = "the end of the log may be lost"]
pub fn start(filter: &str, format: LogFormat) -> Result<WorkerGuard> {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(MAX_WAITING)
        .thread_name("log")
        .finish(std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter).context("log")?)
        .with_writer(writer)
        // Internal errors would be printed to the same output that just failed, and failing to print panics.
        .log_internal_errors(false);
    let control = match format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            let builder = builder.with_ansi(ansi).with_filter_reloading();
            let control = Control::new(builder.reload_handle());
            builder.init();
            control
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let control = Control::new(builder.reload_handle());
            builder.init();
            control
        }
    };
    let _ = CONTROL.set(control);
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        error!(place, %backtrace, "panic: {message}");
    }));
    Ok(guard)
}
