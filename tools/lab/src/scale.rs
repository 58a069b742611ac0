// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The cost of one of many objects, in time, guest memory and vrnicd's memory. It is the same for the first thousand as
//! for the last if nothing grows faster than their number.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::agent::Event;
use crate::lab::{Lab, SHORT};
use crate::perf::End;
use crate::progress::Step;
use crate::report::align;
use crate::vm::Device;

/// Kinds of objects, and the numbers of objects at which each kind is measured.
const SCALES: [(&str, [u32; 3]); 3] = [
    ("qp", [100, 1000, 10_000]),
    ("mr", [1000, 10_000, 100_000]),
    ("process", [20, 100, 500]),
];
/// Number of programs to run.
pub const RUNS: usize = SCALES.len() * 3;
/// How long creating or destroying them may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Cost of one object of a kind when there are this many.
#[derive(Debug, Clone, Serialize)]
pub struct Scale {
    /// `qp`, `mr`, or `process` with a context, a queue pair and two regions.
    pub kind: String,
    /// Number of objects that existed at the same time.
    pub count: u32,
    /// Time to create one, as measured by the program.
    pub make_us: f64,
    /// Time to destroy one.
    pub end_us: f64,
    /// Memory of the guest's kernel and of the program.
    pub guest_bytes: f64,
    /// Memory of vrnicd.
    pub device_bytes: f64,
}

/// Creates and destroys objects of each kind in VM a, more each time, and adds their costs to `scales`.
///
/// # Errors
/// A program failed, or its output was not understood.
pub fn measure(lab: &Lab, end: &End, step: &Step, scales: &mut Vec<Scale>) -> Result<()> {
    for (kind, counts) in SCALES {
        for count in counts {
            step.at(&format!("{count} of {kind}"));
            scales.push(one(lab, end, kind, count).with_context(|| format!("{count} of {kind}"))?);
            step.advance();
        }
    }
    Ok(())
}

fn one(lab: &Lab, end: &End, kind: &str, count: u32) -> Result<Scale> {
    let agent = lab.agent(&end.vm)?;
    let hold = format!("/tmp/hold-{kind}-{count}");
    let before = device_memory(lab)?;
    let line = format!(
        "vrnic-scale --device {} --gid {} --hold {hold} {kind} {count}",
        Device::Vrnic.ibdev(),
        end.gid
    );
    let argv: Vec<&str> = line.split_whitespace().collect();
    let mut program = agent.start(&argv, &[])?;
    let mut text = String::new();
    while field(&text, "make_us").is_none() {
        match program.next(agent.patience(PATIENCE)) {
            Some(Event::Output(_, bytes)) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Event::Exit(code)) => bail!("vrnic-scale exited with {code}: {text}"),
            Some(Event::Lost(why)) => bail!("{why}"),
            None => bail!("no object was created within {} s", PATIENCE.as_secs()),
        }
    }
    let grown = device_memory(lab)? - before;
    agent.check(&["touch", &hold], SHORT)?;
    let output = program.wait(PATIENCE)?;
    text.push_str(&output.text());
    // The program has ended, so its last line is complete, even if the newline was not kept.
    text.push('\n');
    if output.code != 0 {
        bail!("vrnic-scale exited with {}: {text}", output.code);
    }
    let number = |name| field(&text, name).with_context(|| format!("no {name} in {text:?}"));
    Ok(Scale {
        kind: kind.to_owned(),
        count,
        make_us: number("make_us")?,
        end_us: number("end_us")?,
        guest_bytes: number("bytes")?,
        device_bytes: grown.max(0.0) / f64::from(count),
    })
}

/// Returns the number that follows a word in a complete line.
fn field(text: &str, name: &str) -> Option<f64> {
    let whole = &text[..=text.rfind('\n')?];
    let mut words = whole.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// Returns the size of vrnicd's own memory in bytes, without what it shares with guests.
fn device_memory(lab: &Lab) -> Result<f64> {
    let pid = lab.with_daemon(|daemon| Ok(daemon.pid()))?;
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find(|line| line.starts_with("RssAnon:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().nth(1))
        .with_context(|| format!("no RssAnon in {path}"))?
        .parse()?;
    Ok(kib * 1024.0)
}

/// Returns the table of results.
#[must_use]
pub fn table(scales: &[Scale]) -> String {
    let mut rows = vec![
        [
            "objects",
            "make one",
            "end one",
            "guest's memory",
            "vrnicd's memory",
        ]
        .map(str::to_owned),
    ];
    rows.extend(scales.iter().map(|scale| {
        [
            format!("{} {}", scale.count, scale.kind),
            format!("{:.0} us", scale.make_us),
            format!("{:.0} us", scale.end_us),
            format!("{:.1} KiB", scale.guest_bytes / 1024.0),
            format!("{:.1} KiB", scale.device_bytes / 1024.0),
        ]
    }));
    align(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_whole_lines() {
        let text = "qp 100: make_us 46.25 bytes 6083\n";
        assert_eq!(field(text, "make_us"), Some(46.25));
        assert_eq!(field(text, "bytes"), Some(6083.0));
        assert_eq!(field(text, "end_us"), None);
        assert_eq!(field("qp 100: make_us 4", "make_us"), None);
        let ended = "qp 100: make_us 357 bytes 0\nqp 100: end_us 432.12";
        assert_eq!(field(ended, "end_us"), None, "may go on");
        assert_eq!(field(&format!("{ended}\n"), "end_us"), Some(432.12));
    }

    #[test]
    fn one_line_for_each() {
        let scale = Scale {
            kind: "mr".into(),
            count: 1000,
            make_us: 99.6,
            end_us: 20.0,
            guest_bytes: 2048.0,
            device_bytes: 512.0,
        };
        let table = table(&[scale]);
        let words: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words.join(" "), "1000 mr 100 us 20 us 2.0 KiB 0.5 KiB");
    }
}
