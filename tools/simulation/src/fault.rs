// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of devices, and what flows may notice of them.

use crate::{plan::FlowPlan, random::Random};
use std::{fmt, time::Duration};
use vrnic_engine::{Rnic, fault::Spec, time::Instant};
use vrnic_wire::completion::Status;

/// A fault to be armed on a device.
#[derive(Copy, Clone)]
pub struct FaultPlan {
    /// Index of the device.
    pub device: usize,
    /// When it is armed.
    pub at: Duration,
    /// Index in [`KNOWN`].
    pub index: usize,
    /// Value of `{n}` in its description.
    pub n: u64,
}

/// The possible effects of a fault.
#[derive(Debug)]
pub struct Known {
    /// Its description.
    text: &'static str,
    /// Statuses with which the first failing request of a queue pair, at either end, or the first failing receive may
    /// complete.
    pub statuses: &'static [Status],
    /// Whether requests may never complete.
    pub loses: bool,
    /// Whether completions may be false.
    pub lies: bool,
}

impl Known {
    /// Returns whether requests may fail or be late because of it.
    pub fn is_harmful(&self) -> bool {
        self.loses || self.lies || !self.statuses.is_empty()
    }
}

const fn known(text: &'static str, statuses: &'static [Status]) -> Known {
    Known {
        text,
        statuses,
        loses: false,
        lies: false,
    }
}

/// Returns a fault that may cause false completions.
const fn lie(text: &'static str, statuses: &'static [Status]) -> Known {
    Known {
        lies: true,
        ..known(text, statuses)
    }
}

/// Possible results of packets that do not arrive.
const RETRIES: &[Status] = &[Status::RetryExceeded];
/// Possible results of missing GIDs: nothing arrives at this port, and without any GID no datagram can be sent.
const NO_GID: &[Status] = &[Status::RetryExceeded, Status::LocalQueuePairOperation];
/// Possible results of receives that are missing or seem to be.
const NOT_READY: &[Status] = &[Status::RnrRetryExceeded, Status::RetryExceeded];
/// A queue pair that fails spontaneously flushes its requests, and its peer gets no response.
const FLUSHED: &[Status] = &[Status::Flushed, Status::RetryExceeded];

/// Possible results of a region that loses its rights.
const REVOKED: &[Status] = &[
    Status::RemoteAccess,
    Status::RemoteOperation,
    Status::LocalProtection,
    Status::LocalAccess,
    // No window can be bound to the region.
    Status::MemoryManagement,
    Status::RetryExceeded,
    Status::Flushed,
];

/// Faults that do not corrupt data.
pub const KNOWN: &[Known] = &[
    known("drop type=rc nth={n} count=3", RETRIES),
    known(
        "drop type=rc chance=10% seed={n} count=all for=3ms",
        RETRIES,
    ),
    known("lost-request type=rc nth={n}", RETRIES),
    known("lost-ack type=rc every={n} count=all", RETRIES),
    known("lost-nak type=rc nth=1 count=2", RETRIES),
    known("lost-rnr-nak type=rc nth=1 count=2", NOT_READY),
    known("lost-read-response type=rc nth={n}", RETRIES),
    known("lost-atomic-ack type=rc count=2", RETRIES),
    known(
        "burst-loss type=rc nth={n} chance=1 burst=4 count=4",
        RETRIES,
    ),
    known("delay type=rc every={n} count=all", RETRIES),
    known("reorder type=rc every={n} count=all", RETRIES),
    known("duplicate type=rc count=all", RETRIES),
    known("duplicate-atomic type=rc count=all", RETRIES),
    known("ghost type=rc delay=2ms count=50", RETRIES),
    known("corrupt-icrc type=rc chance=5% seed={n} count=all", RETRIES),
    known("truncated-frame type=rc nth={n}", RETRIES),
    known("wrong-psn type=rc nth={n}", RETRIES),
    known("wrong-qp type=rc nth={n} value=99999", RETRIES),
    known("answers-for-another type=rc nth={n} value=99999", RETRIES),
    known("wrong-pkey type=rc nth={n}", RETRIES),
    known("wrong-credits type=rc count=all", RETRIES),
    known("wrong-msn type=rc count=all", RETRIES),
    known("ecn-mark type=rc", RETRIES),
    known("cnp-storm type=rc", RETRIES),
    known("slow-link type=rc rate=20000000", RETRIES),
    known("partition type=rc for=3ms", RETRIES),
    known("partition type=rc nth={n}", RETRIES),
    known("mute type=rc for=3ms", RETRIES),
    known("deaf type=rc for=3ms", RETRIES),
    known("no-answer type=rc for=3ms", RETRIES),
    known("nak-sequence type=rc nth={n}", RETRIES),
    known(
        "nak-invalid-request type=rc nth={n}",
        &[
            Status::RemoteInvalidRequest,
            Status::RetryExceeded,
            Status::LocalQueuePairOperation,
            Status::Flushed,
        ],
    ),
    known(
        "nak-remote-access type=rc nth={n}",
        &[
            Status::RemoteAccess,
            Status::RetryExceeded,
            Status::LocalAccess,
            Status::Flushed,
        ],
    ),
    known(
        "nak-remote-operation type=rc nth={n}",
        &[
            Status::RemoteOperation,
            Status::RetryExceeded,
            Status::LocalQueuePairOperation,
            Status::Flushed,
        ],
    ),
    known("rnr-nak type=rc nth={n} count=3", NOT_READY),
    known("rnr-storm type=rc for=3ms", NOT_READY),
    known(
        "unknown-opcode type=rc nth={n}",
        &[
            Status::RemoteInvalidRequest,
            Status::RetryExceeded,
            Status::LocalQueuePairOperation,
            Status::Flushed,
        ],
    ),
    known(
        "wrong-rkey type=rc nth={n}",
        &[
            Status::RemoteAccess,
            Status::RetryExceeded,
            Status::LocalAccess,
            Status::Flushed,
        ],
    ),
    lie("cqe-general-err type=rc nth={n}", &[Status::General]),
    lie("cqe-wr-flush-err type=rc nth={n}", FLUSHED),
    known("cqe-late type=rc nth={n}", RETRIES),
    Known {
        text: "cqe-lost type=rc nth={n}",
        statuses: RETRIES,
        loses: true,
        lies: false,
    },
    Known {
        text: "doorbell-lost type=rc nth={n}",
        statuses: RETRIES,
        loses: true,
        lies: false,
    },
    known("doorbell-late type=rc delay=1ms", RETRIES),
    known("timer-late type=rc delay=1ms", RETRIES),
    known("stuck for=2ms", RETRIES),
    known("slow for=1ms delay=10us", RETRIES),
    known("link-flap for=1ms", RETRIES),
    known("link-flap for=50ms", RETRIES),
    known("qp-error type=rc after=200us", FLUSHED),
    known("qp-fatal type=rc after=200us", FLUSHED),
    known("drop nth={n} count=3", RETRIES),
    known("delay every={n} count=all for=20ms", RETRIES),
    known("reorder every={n} count=all for=20ms", RETRIES),
    known("duplicate every={n} count=all for=20ms", RETRIES),
    known(
        "corrupt-icrc chance=5% seed={n} count=all for=20ms",
        RETRIES,
    ),
    known("partition for=3ms", RETRIES),
    known("doorbell-late delay=1ms", RETRIES),
    known("cqe-late delay=1ms every={n} count=all for=20ms", RETRIES),
    known("key-revoked type=rc nth={n}", REVOKED),
    lie("cqe-loc-len-err type=rc nth={n}", &[Status::LocalLength]),
    lie(
        "cqe-loc-prot-err type=rc nth={n}",
        &[Status::LocalProtection],
    ),
    lie(
        "cqe-rem-access-err type=rc nth={n}",
        &[Status::RemoteAccess],
    ),
    lie("cqe-retry-exc-err type=rc nth={n}", RETRIES),
    lie("cqe-fatal-err type=rc nth={n}", &[Status::Fatal]),
    // Programs poll their queues at the end, regardless of events.
    known("cq-event-lost nth={n} count=3", &[]),
    known("cq-event-late delay=10ms count=5", &[]),
    known("cq-event-spurious every={n} count=all", &[]),
    // This includes the events of page faults.
    Known {
        text: "event-lost count=all",
        statuses: RETRIES,
        loses: true,
        lies: false,
    },
    Known {
        text: "page-fault-lost nth={n}",
        statuses: RETRIES,
        loses: true,
        lies: false,
    },
    known("page-fault-slow delay=900ms", RETRIES),
    known("stuck for=900ms", RETRIES),
    known("slow for=900ms delay=100us", RETRIES),
    known("clock-jump for=3ms", &[]),
    known("speed-change for=3ms", &[]),
    known("link-flap for=20ms interval=40ms count=5", RETRIES),
    known("key-revoked nth={n}", REVOKED),
    known("event-late delay=10ms", &[]),
    // Programs try again.
    known("command-fails code=create-qp", &[]),
    known("command-fails code=modify-qp nth={n}", &[]),
    known("command-fails code=register-mr nth=2", &[]),
    known("command-fails code=deregister-mr status=busy", &[]),
    known("command-fails code=allocate-mw", &[]),
    known("command-fails code=deallocate-mw status=busy", &[]),
    known("destroy-fails count=2", &[]),
    known("no-memory count=2", &[]),
    known("gid-vanishes for=3ms", NO_GID),
    known("gid-vanishes value=0 for=900ms", NO_GID),
    known("link-down for=30ms", RETRIES),
    known("mtu-black-hole type=rc size=200..65536 for=3ms", RETRIES),
    lie(
        "cqe-loc-qp-op-err type=rc nth={n}",
        &[Status::LocalQueuePairOperation],
    ),
    lie(
        "cqe-mw-bind-err type=rc nth={n}",
        &[Status::MemoryManagement],
    ),
    lie("cqe-bad-resp-err type=rc nth={n}", &[Status::BadResponse]),
    lie("cqe-loc-access-err type=rc nth={n}", &[Status::LocalAccess]),
    lie(
        "cqe-rem-inv-req-err type=rc nth={n}",
        &[Status::RemoteInvalidRequest],
    ),
    lie("cqe-rem-op-err type=rc nth={n}", &[Status::RemoteOperation]),
    lie(
        "cqe-rnr-retry-exc-err type=rc nth={n}",
        &[Status::RnrRetryExceeded],
    ),
    lie(
        "cqe-rem-abort-err type=rc nth={n}",
        &[Status::RemoteAborted],
    ),
    lie(
        "cqe-resp-timeout-err type=rc nth={n}",
        &[Status::ResponseTimeout],
    ),
    known(
        "persistence-fails nth={n}",
        &[
            Status::RemoteOperation,
            Status::RetryExceeded,
            Status::LocalQueuePairOperation,
            Status::Flushed,
        ],
    ),
    // An event alone changes nothing.
    known("event-cq-err", &[]),
    known("event-qp-fatal", &[]),
    known("event-qp-req-err", &[]),
    known("event-qp-access-err", &[]),
    known("event-comm-est", &[]),
    known("event-sq-drained", &[]),
    known("event-path-mig", &[]),
    known("event-path-mig-err", &[]),
    known("event-device-fatal", &[]),
    known("event-port-active", &[]),
    known("event-port-err", &[]),
    known("event-lid-change", &[]),
    known("event-pkey-change", &[]),
    known("event-sm-change", &[]),
    known("event-gid-change", &[]),
    known("event-srq-err", &[]),
    known("event-srq-limit", &[]),
    known("event-last-wqe", &[]),
    known("event-client-reregister", &[]),
];

/// Kinds of faults that are not simulated as faults, and why.
#[cfg(test)]
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "they change data, so memory cannot equal the model",
        &[
            "corrupt-payload",
            "truncate",
            "wrong-address",
            "wrong-field",
            "wrong-immediate",
            "wrong-length",
        ],
    ),
    (
        "the packet is lost, as with `drop`",
        &[
            "wrong-destination",
            "wrong-pad",
            "wrong-source",
            "wrong-version",
        ],
    ),
    (
        "the world loses devices in these ways",
        &["engine-panic", "needs-reset", "removed"],
    ),
    (
        "they concern a queue that several flows share",
        &["cq-fatal", "cq-overrun", "srq-fatal"],
    ),
    (
        "the simulated driver has no control queue, and executes commands directly",
        &[
            "command-answered-twice",
            "command-never",
            "command-slow",
            "command-too-late",
        ],
    ),
    ("it needs a process to kill", &["daemon-killed"]),
    ("no flow changes its MTU", &["mtu-change"]),
    ("only datagrams have Q_Keys", &["wrong-qkey"]),
    (
        "it fails until it is cleared, and programs try again for ever",
        &["limit-lowered"],
    ),
];

/// Plans a fault on one of a flow's devices, for about the time when the flow is active there.
pub fn plan(flow: &FlowPlan, random: &mut Random) -> FaultPlan {
    FaultPlan {
        device: flow.ends[random.below(2)],
        at: flow.start + random.time(Duration::from_millis(5)),
        index: random.below(KNOWN.len()),
        n: random.between(2, 40) as u64,
    }
}

impl FaultPlan {
    /// Returns the possible effects.
    pub fn known(&self) -> &'static Known {
        &KNOWN[self.index]
    }

    /// Returns the specification.
    ///
    /// # Panics
    ///
    /// The description is invalid.
    pub fn spec(&self) -> Spec {
        let text = self.text();
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn text(&self) -> String {
        self.known().text.replace("{n}", &self.n.to_string())
    }
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, at, .. } = self;
        write!(f, "device {device} at {at:?}: {}", self.text())
    }
}

/// Longest time for which any of [`KNOWN`] has an effect after firing, unless it keeps firing.
const LONGEST: Duration = Duration::from_secs(1);

/// Returns whether fault `id` of a device may have affected one of the queue pairs between two times.
pub fn concerns(rnic: &Rnic, id: u64, qpns: &[u32], from: Instant, to: Instant) -> bool {
    let faults = rnic.faults();
    let Some(listed) = faults.list().into_iter().find(|listed| listed.id == id) else {
        return false;
    };
    let from = Instant::from_nanos(from.as_nanos().saturating_sub(LONGEST.as_nanos() as u64));
    let firings = || faults.log().filter(move |firing| firing.id == id);
    // Some faults fire too often to be listed one by one, and old firings are forgotten.
    if (firings().count() as u64) < listed.fired {
        return true;
    }
    firings().any(|firing| {
        let concerned = firing.qpn == 0 || qpns.contains(&firing.qpn);
        concerned && firing.time >= from && firing.time <= to
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::fault::Kind;

    #[test]
    fn each_kind_is_simulated_or_left_out_for_a_reason() {
        let name = |text: &'static str| text.split(' ').next().unwrap_or_default();
        let mut left_out = LEFT_OUT.iter().flat_map(|(_, names)| names.iter());
        for kind in Kind::all() {
            let is_known = KNOWN.iter().any(|known| name(known.text) == kind.name);
            let is_left_out = left_out.clone().any(|left| *left == kind.name);
            assert!(is_known != is_left_out, "{}", kind.name);
        }
        assert!(left_out.all(|name| Kind::find(name).is_some()));
    }

    #[test]
    fn all_faults_are_well_formed() {
        for index in 0..KNOWN.len() {
            for n in [2, 40] {
                let plan = FaultPlan {
                    device: 0,
                    at: Duration::ZERO,
                    index,
                    n,
                };
                assert_eq!(plan.spec().to_string(), plan.text());
            }
        }
    }
}
