// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a guest's kernel reports on its console.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use regex_lite::Regex;

/// Kernel messages that must not appear during a test.
const INCIDENTS: [&str; 16] = [
    "BUG:",
    "WARNING:",
    "Oops",
    "Call Trace:",
    "refcount_t:",
    "INFO: task",
    "UBSAN:",
    "Kernel panic",
    "kernel BUG at",
    "unable to handle",
    "possible circular locking",
    "ODEBUG:",
    "INFO: trying to register",
    "list_add corruption",
    "rust_kernel: panicked",
    // After this message, DMA is no longer checked.
    "DMA-API: debugging out of memory",
];

/// Returns the contents of a file after its first `read` bytes, and sets `read` to its length.
pub fn unread(path: &Path, read: &mut usize) -> String {
    let all = fs::read(path).unwrap_or_default();
    let new = all.get(*read..).unwrap_or_default();
    *read = all.len();
    String::from_utf8_lossy(new).into_owned()
}

/// Returns the reports of a kernel in a console's text. A report extends from its first line to the end of the stack
/// trace that follows, or for a data race to the line below that, but not beyond the beginning of the next report.
fn reports(console: &str) -> Vec<String> {
    let mut reports: Vec<Vec<&str>> = Vec::new();
    let mut open = false;
    for line in console.lines() {
        let complains = INCIDENTS.iter().any(|incident| line.contains(incident));
        if complains && !(open && line.contains("Call Trace:")) {
            reports.push(Vec::new());
            open = true;
        }
        if open {
            reports.last_mut().expect("one is open").push(line);
            open = !line.contains("</TASK>") && !line.starts_with("=====");
        }
    }
    reports.iter().map(|lines| lines.join("\n")).collect()
}

/// Kernel reports that are known to be caused by Linux itself.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    /// Matches known reports without a vrnic function.
    pub report: Option<&'a Regex>,
    /// Names of alternative Linux functions, one of which calls the reporting function, whatever its own caller is.
    /// There are several because compilers inline functions differently.
    pub caller: Option<&'a str>,
}

impl Known<'_> {
    /// Returns whether the caller is one of the functions in [`Known::caller`].
    fn is_called(&self, caller: Option<&str>) -> bool {
        let mut names = self.caller.unwrap_or_default().split_whitespace();
        caller.is_some_and(|caller| names.any(|name| name == caller))
    }
}

/// Returns the caller of the reporting function: the first in a report's stack trace.
fn caller(report: &str) -> Option<&str> {
    let mut stack = report.lines().skip_while(|line| !line.contains("<TASK>"));
    let first = stack.find(|line| !line.contains("<TASK>") && !line.contains(" ? "))?;
    // A timestamp may precede it.
    first.split('+').next()?.split_whitespace().last()
}

/// Checks a console's text. Returns whether there is a report that matches that of `known`.
///
/// # Errors
///
/// There is an unknown report.
pub fn judge(console: &str, known: Known<'_>) -> Result<bool> {
    let mut matches = false;
    for report in reports(console) {
        let ours = report.contains("[vrnic");
        if !ours && report.contains("BUG: KCSAN:") {
            // Linux has data races of its own, which are gradually fixed or annotated.
            continue;
        }
        if !ours && known.report.is_some_and(|known| known.is_match(&report)) {
            matches = true;
        } else if !known.is_called(caller(&report)) {
            let some: Vec<&str> = report.lines().take(26).collect();
            bail!("the guest's kernel complained:\n{}", some.join("\n"));
        }
    }
    Ok(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_are_found_and_can_be_expected() {
        let console = "vrnic0: up\nWARNING: CPU: 0 PID: 1 at foo\nCall Trace:\n";
        assert!(
            judge(console, Known::default())
                .unwrap_err()
                .to_string()
                .contains("at foo")
        );
        let foo = Regex::new("at fo+").unwrap();
        let foo = Known {
            report: Some(&foo),
            caller: None,
        };
        assert!(judge(console, foo).unwrap());
        assert!(!judge("all is well\n", Known::default()).unwrap());
        // A known report excuses neither the next one nor one with a vrnic function.
        let two = format!("{console} baz\n </TASK>\nBUG: bar\nCall Trace:\n </TASK>\n");
        assert_eq!(reports(&two).len(), 2);
        assert!(judge(&two, foo).unwrap_err().to_string().contains("bar"));
        let cut_off = format!("BUG: bar\n{console} </TASK>\n");
        assert!(judge(&cut_off, foo).is_err());
        assert!(judge(&format!("{console} work+0x3/0x9 [vrnic]\n"), foo).is_err());
        // This does not apply below a known function of Linux, which vrnic may well have called.
        let far = "WARNING: at foo\nCall Trace:\n <TASK>\n ? stale+0x1/0x2\n inner+0x1/0x2\n outer+0x1/0x2\n \
                   work+0x3/0x9 [vrnic]\n </TASK>\n";
        let by = |caller| Known {
            report: None,
            caller: Some(caller),
        };
        // Locks are still checked after a warning.
        assert!(!judge(far, by("inner")).unwrap());
        assert!(!judge(far, by("other inner")).unwrap());
        for other in ["foo", "stale", "inn", "outer", "work", ""] {
            assert!(judge(far, by(other)).is_err());
        }
        let timed = "[    1.5] WARNING: at foo\n[    1.5]  <TASK>\n[    1.6]  ? stale+0x1/0x2\n[    1.6]  inner+0x1/0x2\n";
        assert!(!judge(timed, by("inner")).unwrap());
        assert!(judge(timed, by("stale")).is_err());
        assert!(judge("WARNING: at foo\n", by("")).is_err());
    }

    #[test]
    fn a_process_that_crashes_is_no_report_of_the_kernel() {
        let traps = "traps: ib_atomic_bw[569] general protection fault ip:7f74 sp:7fff error:0 in librdmacm.so.1";
        assert!(judge(traps, Known::default()).is_ok());
        let oops = "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP";
        assert!(judge(oops, Known::default()).is_err());
    }

    #[test]
    fn data_races_count_if_we_are_in_them() {
        let race = |function| {
            format!(
                "=====\nBUG: KCSAN: data-race in foo / bar\n\nwrite to 0xff of 4 bytes by task 1 on cpu 0:\n \
                 foo+0x1/0x2\n\nread to 0xff of 4 bytes by task 2 on cpu 1:\n {function}\n\nReported by \
                 Kernel Concurrency Sanitizer on:\n=====\nvrnic0: [vrnic] is well\n"
            )
        };
        assert!(!judge(&race("bar+0x1/0x2"), Known::default()).unwrap());
        for function in ["bar+0x1/0x2 [vrnic]", "bar+0x1/0x2 [vrnic_fast]"] {
            assert!(judge(&race(function), Known::default()).is_err());
        }
        // Nor does it hide another report.
        let two = race("bar+0x1/0x2") + "WARNING: at foo\n";
        assert!(judge(&two, Known::default()).is_err());
    }

    #[test]
    fn a_console_is_judged_from_its_beginning_and_each_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut read) = (dir.path().join("console"), 0);
        fs::write(&path, "BUG: KASAN: at boot\n").unwrap();
        assert!(judge(&unread(&path, &mut read), Known::default()).is_err());
        assert_eq!(unread(&path, &mut read), "");
        fs::write(&path, "BUG: KASAN: at boot\nlater\n").unwrap();
        assert_eq!(unread(&path, &mut read), "later\n");
    }
}
