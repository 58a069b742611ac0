// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of simulations, and what connections of their devices may notice.

use proptest::prelude::*;
use std::fmt;
use vrnic_wire::completion::Status;

/// A fault of a device.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct Fault {
    pub device: usize,
    /// Which of [`KNOWN`].
    pub index: usize,
    /// What `{n}` in its description is.
    pub n: u64,
}

/// What is known of a fault.
pub struct Known {
    text: &'static str,
    /// Statuses with which the first request of a queue pair may fail, at either end, and the first receive.
    pub statuses: &'static [Status],
    /// Whether requests may never complete.
    pub loses: bool,
    /// Whether completions may say what did not happen.
    pub lies: bool,
}

const fn known(text: &'static str, statuses: &'static [Status]) -> Known {
    Known {
        text,
        statuses,
        loses: false,
        lies: false,
    }
}

/// What may come of packets that do not arrive.
const RETRIES: &[Status] = &[Status::RetryExceeded];
/// What may come of receives that are not there, or seem so.
const NOT_READY: &[Status] = &[Status::RnrRetryExceeded, Status::RetryExceeded];
/// A queue pair that fails by itself flushes, and its peer gets no answer.
const FLUSHED: &[Status] = &[Status::Flushed, Status::RetryExceeded];

/// Faults that harm no data.
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
    Known {
        text: "cqe-general-err type=rc nth={n}",
        statuses: &[Status::General, Status::RetryExceeded, Status::Flushed],
        loses: false,
        lies: true,
    },
    Known {
        text: "cqe-wr-flush-err type=rc nth={n}",
        statuses: FLUSHED,
        loses: false,
        lies: true,
    },
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
];

impl Fault {
    pub fn known(&self) -> &'static Known {
        &KNOWN[self.index]
    }

    /// Its description.
    pub fn text(&self) -> String {
        self.known().text.replace("{n}", &self.n.to_string())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: {}", self.device, self.text())
    }
}

/// A fault of one of so many devices.
pub fn fault(devices: usize) -> impl Strategy<Value = Fault> {
    (0..devices, 0..KNOWN.len(), 2u64..40).prop_map(|(device, index, n)| Fault { device, index, n })
}
