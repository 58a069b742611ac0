// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! How a workload handled a fault.

use clap::ValueEnum;
use serde::Serialize;

/// How one program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It did not end in time, and the lab killed it.
    Hung,
    /// It could not be run at all.
    Lost(String),
}

impl Ending {
    /// Converts an exit code as reported by a shell.
    #[must_use]
    pub fn of_code(code: i32) -> Self {
        match code {
            129..=192 => Self::Killed(code - 128),
            _ => Self::Exited(code),
        }
    }

    /// Describes it for display.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Exited(0) => "ok".into(),
            Self::Exited(code) => format!("exit code {code}"),
            Self::Killed(signal) => format!("killed by signal {signal}"),
            Self::Hung => "hangs".into(),
            Self::Lost(why) => why.clone(),
        }
    }
}

/// Observations in a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Seen {
    /// How the client ended.
    pub client: Option<Ending>,
    /// How the server ended.
    pub server: Option<Ending>,
    /// What the client reported, in its own words.
    pub client_says: Option<String>,
    /// What the server reported, in its own words.
    pub server_says: Option<String>,
    /// Number of firings of the fault; `None` in the run without one.
    pub fired: Option<u64>,
    /// Counters of retries and errors that increased.
    pub counters: Vec<(String, u64)>,
    /// How a program reported damaged data.
    pub wrong_data: Option<String>,
    /// What a guest's kernel reported.
    pub kernel: Option<String>,
    /// RDMA objects that still existed after the programs had ended.
    pub leak: Option<String>,
    /// Why the RNIC or its driver did not recover after the fault, if so.
    pub lost_device: Option<String>,
    /// Seconds from the start of the client to its end.
    pub seconds: f64,
    /// Seconds from the first firing of the fault to the end of the client, if it ended by itself and the capture shows
    /// the firing.
    pub after: Option<f64>,
}

/// How a workload handled a fault, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The fault did not fire, and both programs succeeded.
    NotReached,
    /// Both programs succeeded without retries or errors.
    Unaffected,
    /// Both programs succeeded, after retries or errors.
    Recovered,
    /// A program ended with an error, and none hung.
    Reported,
    /// A program did not end in time.
    Hang,
    /// A program crashed.
    Crash,
    /// RDMA objects were left behind.
    Leak,
    /// A VM is gone, or its RNIC or driver did not recover after the fault.
    LostDevice,
    /// A program found damaged data.
    WrongData,
    /// The kernel of a guest reported a problem.
    KernelReport,
}

impl Verdict {
    /// All verdicts, from good to bad.
    pub const ALL: [Self; 10] = [
        Self::NotReached,
        Self::Unaffected,
        Self::Recovered,
        Self::Reported,
        Self::Hang,
        Self::Crash,
        Self::Leak,
        Self::LostDevice,
        Self::WrongData,
        Self::KernelReport,
    ];

    /// Judges a run.
    #[must_use]
    pub fn of(seen: &Seen) -> Self {
        let ends = || [&seen.client, &seen.server].into_iter().flatten();
        let any = |is: fn(&Ending) -> bool| ends().any(is);
        if seen.kernel.is_some() {
            Self::KernelReport
        } else if seen.wrong_data.is_some() {
            Self::WrongData
        } else if seen.lost_device.is_some() {
            Self::LostDevice
        } else if seen.leak.is_some() {
            Self::Leak
        } else if any(|end| matches!(end, Ending::Killed(_))) {
            Self::Crash
        } else if any(|end| *end == Ending::Hung) {
            Self::Hang
        } else if any(|end| *end != Ending::Exited(0)) {
            Self::Reported
        } else if seen.fired == Some(0) {
            // Whatever the counters say, it was not the fault.
            Self::NotReached
        } else if !seen.counters.is_empty() {
            Self::Recovered
        } else {
            Self::Unaffected
        }
    }

    /// Returns its name for display, which is also the class of a table cell.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotReached => "not reached",
            Self::Unaffected => "unaffected",
            Self::Recovered => "recovered",
            Self::Reported => "reported",
            Self::Hang => "hang",
            Self::Crash => "crash",
            Self::Leak => "leak",
            Self::LostDevice => "lost device",
            Self::WrongData => "wrong data",
            Self::KernelReport => "kernel report",
        }
    }

    /// Returns its meaning.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::NotReached => "the fault never fired, and the programs succeeded",
            Self::Unaffected => {
                "the programs succeeded, and the RNICs counted no retry and no error"
            }
            Self::Recovered => {
                "the programs succeeded, after retries or errors that the RNICs counted"
            }
            Self::Reported => "a program ended with an error, and none hung",
            Self::Hang => "a program did not end in time, whatever happened to the other one",
            Self::Crash => "a program was killed by a signal",
            Self::Leak => "RDMA objects still existed after the programs had ended",
            Self::LostDevice => "a VM was gone, or its RNIC or driver did not come back by itself",
            Self::WrongData => "a program that checks its data found damaged data",
            Self::KernelReport => "a guest's kernel complained (BUG, WARNING, hung task, …)",
        }
    }
}

/// Counters that increase when an RNIC repairs or refuses something.
pub const TROUBLE: &[&str] = &[
    "completion_errors",
    "local_ack_timeout_err",
    "retransmitted_pkts",
    "retry_exceeded_err",
    "rnr_retry_exceeded_err",
    "rnr_nak_sent",
    "rnr_nak_retry_err",
    "out_of_sequence",
    "packet_seq_err",
    "duplicate_request",
    "resp_remote_access_errors",
    "resp_remote_invalid_requests",
    "local_protection_errors",
    "rx_dropped",
    "command_errors",
    "rx_icrc_encapsulated",
    "rx_malformed",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    // Names of such counters in Soft-RoCE.
    "out_of_seq_request",
    "rcvd_rnr_err",
    "send_rnr_err",
    "rcvd_seq_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
];

/// Returns the line in which a program reports a failure: the first that names a status, otherwise the first that names
/// an error, otherwise the last.
#[must_use]
pub fn complaint(output: &str) -> Option<String> {
    const WORDS: [&str; 12] = [
        "failed",
        "error",
        "couldn't",
        "cannot",
        "can't",
        "unable",
        "unexpected",
        "invalid",
        "mismatch",
        "timed out",
        "disconnected",
        "rejected",
    ];
    let lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let first = |words: &[&str]| {
        let names = |line: &&&str| words.iter().any(|word| line.to_lowercase().contains(word));
        lines.iter().find(names).copied()
    };
    let line = first(&["failed status"])
        .or_else(|| first(&WORDS))
        .or(lines.last().copied());
    line.map(|line| line.chars().take(160).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            client: Some(Ending::Exited(0)),
            server: Some(Ending::Exited(0)),
            fired: Some(1),
            ..Seen::default()
        }
    }

    #[test]
    fn the_worst_thing_counts() {
        let fired = |fired| Seen { fired, ..seen() };
        assert_eq!(Verdict::of(&fired(Some(0))), Verdict::NotReached);
        assert_eq!(Verdict::of(&fired(None)), Verdict::Unaffected);
        assert_eq!(Verdict::of(&seen()), Verdict::Unaffected);
        let mut run = seen();
        run.counters = vec![("a: retransmitted_pkts".into(), 1)];
        assert_eq!(Verdict::of(&run), Verdict::Recovered);
        run.client = Some(Ending::of_code(1));
        assert_eq!(Verdict::of(&run), Verdict::Reported);
        run.server = Some(Ending::Hung);
        assert_eq!(Verdict::of(&run), Verdict::Hang);
        run.client = Some(Ending::of_code(139));
        assert_eq!(Verdict::of(&run), Verdict::Crash);
        run.leak = Some("a QP".into());
        assert_eq!(Verdict::of(&run), Verdict::Leak);
        run.lost_device = Some("the RNIC of VM a does not come back".into());
        assert_eq!(Verdict::of(&run), Verdict::LostDevice);
        run.wrong_data = Some("page 0".into());
        assert_eq!(Verdict::of(&run), Verdict::WrongData);
        run.kernel = Some("BUG".into());
        assert_eq!(Verdict::of(&run), Verdict::KernelReport);
        assert!(Verdict::ALL.is_sorted());
    }

    #[test]
    fn a_fault_that_never_fired_is_not_what_the_programs_recovered_from() {
        let mut run = seen();
        run.counters = vec![("a: local_ack_timeout_err".into(), 1)];
        run.fired = Some(0);
        assert_eq!(Verdict::of(&run), Verdict::NotReached);
        run.fired = None;
        assert_eq!(Verdict::of(&run), Verdict::Recovered);
        run.lost_device = Some("VM a is gone".into());
        assert_eq!(Verdict::of(&run), Verdict::LostDevice);
    }

    #[test]
    fn complaints_of_programs() {
        let text = "  local address: LID 0\n\nFailed status transport retry counter exceeded (12) for wr_id 2\nbye\n";
        assert_eq!(
            complaint(text).unwrap(),
            "Failed status transport retry counter exceeded (12) for wr_id 2"
        );
        assert_eq!(
            complaint("Completion with error at client\n Failed status 12: wr_id 0\n").unwrap(),
            "Failed status 12: wr_id 0"
        );
        assert_eq!(complaint("one\ntwo\n").unwrap(), "two");
        assert_eq!(complaint("\n"), None);
    }
}
