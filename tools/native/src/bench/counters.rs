// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! CPU events in vrnicd per message, as counted by `perf stat`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Load, Operation, SMALL};
use crate::daemon::Fabric;
use crate::pair::{self, End};

const EVENTS: &str = "instructions:u,cycles:u,cache-misses:u";
/// Number of queue pairs, all of which have messages.
const QPS: usize = 32;

/// The count of an event for one kind of load.
#[derive(Clone, Debug, Serialize)]
pub struct PerMessage {
    /// The load.
    pub load: String,
    /// Events per message; `None` if perf cannot count this event here.
    pub event: String,
    /// How many for each message; `None` if perf cannot count it here.
    pub count: Option<f64>,
}

/// Counts during one second of small writes, and during one second of 64 KiB writes.
#[allow(
    clippy::cast_precision_loss,
    reason = "a second has not so many messages"
)]
pub fn all(ends: &mut [End; 2], pid: u32, fabric: Fabric) -> Result<Vec<PerMessage>> {
    let mut counted = Vec::new();
    for bytes in [SMALL, 64 << 10] {
        pair::connect(ends, QPS, 64)?;
        let mut load = Load::new(ends, Operation::Write, bytes, 16)?;
        let perf = Command::new("perf")
            .args(["stat", "-x", ",", "-e", EVENTS, "-p", &pid.to_string()])
            .args(["--", "sleep", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let text = match perf {
            // Without perf, all events are reported as not counted.
            Err(_) => (String::new(), 0),
            Ok(mut perf) => {
                let messages = load.until(ends, || !matches!(perf.try_wait(), Ok(None)))?;
                let output = perf.wait_with_output().context("perf")?;
                (
                    String::from_utf8_lossy(&output.stderr).into_owned(),
                    messages,
                )
            }
        };
        load.finish(ends)?;
        pair::disconnect(ends)?;
        let (text, messages) = text;
        counted.extend(EVENTS.split(',').map(|event| PerMessage {
            load: format!("{} write of {bytes} bytes", fabric.name()),
            event: event.into(),
            count: count(&text, event).map(|count| count / messages as f64),
        }));
    }
    Ok(counted)
}

/// Returns the count of an event in the output of `perf stat -x ,`.
fn count(text: &str, event: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.split(',').any(|field| field == event))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn counts_are_found_or_not() {
        let text = "1234,,instructions:u,99,100.00,,\n<not supported>,,cache-misses:u,0,100.00,,\n";
        assert_eq!(count(text, "instructions:u"), Some(1234.0));
        assert_eq!(count(text, "cache-misses:u"), None);
        assert_eq!(count("", "cycles:u"), None);
    }
}
