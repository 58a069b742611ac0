// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Structured logs on standard error.

use anyhow::{Context, Result};
use tracing::error;
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. Panics are logged like everything else.
pub fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("log = \"{filter}\" is not a log filter"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        LogFormat::Json => builder.json().init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        error!(place, %backtrace, "panic: {message}");
    }));
    Ok(())
}
