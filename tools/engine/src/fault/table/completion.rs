// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of completions.

use super::{Act, Kind, Status, kind};

const STATUS: &[&str] = &["vendor"];

/// Defines a fault that turns a completion into one with this status, which is not success.
const fn status(
    name: &'static str,
    status: Status,
    preset: &'static str,
    [summary, hardware, program]: [&'static str; 3],
) -> Kind {
    kind(
        name,
        Act::Complete(status),
        preset,
        STATUS,
        [
            summary,
            hardware,
            "An error completion moves its queue pair to the error state, or to SQE for a UC or UD send (10.3.1). Posted requests are flushed (11.6.2).",
            program,
        ],
    )
}

pub(super) const KINDS: &[Kind] = &[
    status(
        "cqe-loc-len-err",
        Status::LocalLength,
        "side=recv",
        [
            "A completion says IBV_WC_LOC_LEN_ERR.",
            "A message longer than the receive; a send longer than the port's maximum.",
            "IBV_WC_LOC_LEN_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-loc-qp-op-err",
        Status::LocalQueuePairOperation,
        "side=send",
        [
            "A completion says IBV_WC_LOC_QP_OP_ERR.",
            "A work request that the device does not understand; more reads than max_rd_atomic allows.",
            "IBV_WC_LOC_QP_OP_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-loc-prot-err",
        Status::LocalProtection,
        "side=send",
        [
            "A completion says IBV_WC_LOC_PROT_ERR.",
            "A local key that is wrong or outdated.",
            "IBV_WC_LOC_PROT_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-wr-flush-err",
        Status::Flushed,
        "",
        [
            "A completion says IBV_WC_WR_FLUSH_ERR, although no error came before it.",
            "A queue pair that firmware or an administrator moved to the error state.",
            "IBV_WC_WR_FLUSH_ERR without any earlier error. A program that waits for the completion with the cause never gets it.",
        ],
    ),
    status(
        "cqe-mw-bind-err",
        Status::MemoryManagement,
        "side=send",
        [
            "A completion says IBV_WC_MW_BIND_ERR.",
            "A bind or a fast registration that is not allowed.",
            "IBV_WC_MW_BIND_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-bad-resp-err",
        Status::BadResponse,
        "side=send",
        [
            "A completion says IBV_WC_BAD_RESP_ERR.",
            "A defective responder: a read response with the wrong length or opcode.",
            "IBV_WC_BAD_RESP_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-loc-access-err",
        Status::LocalAccess,
        "side=recv",
        [
            "A completion says IBV_WC_LOC_ACCESS_ERR.",
            "A write with immediate that hit a protection error.",
            "IBV_WC_LOC_ACCESS_ERR on a receive, then flushes.",
        ],
    ),
    status(
        "cqe-rem-inv-req-err",
        Status::RemoteInvalidRequest,
        "side=send",
        [
            "A completion says IBV_WC_REM_INV_REQ_ERR.",
            "A message longer than the peer's receive; an operation that the peer does not support.",
            "IBV_WC_REM_INV_REQ_ERR, then flushes. The peer knows nothing of it.",
        ],
    ),
    status(
        "cqe-rem-access-err",
        Status::RemoteAccess,
        "side=send",
        [
            "A completion says IBV_WC_REM_ACCESS_ERR.",
            "A remote key that is wrong or outdated.",
            "IBV_WC_REM_ACCESS_ERR, then flushes. The peer knows nothing of it.",
        ],
    ),
    status(
        "cqe-rem-op-err",
        Status::RemoteOperation,
        "side=send",
        [
            "A completion says IBV_WC_REM_OP_ERR.",
            "A peer whose receive names memory that does not exist.",
            "IBV_WC_REM_OP_ERR, then flushes. The peer knows nothing of it.",
        ],
    ),
    status(
        "cqe-retry-exc-err",
        Status::RetryExceeded,
        "side=send",
        [
            "A completion says IBV_WC_RETRY_EXC_ERR at once, without retries.",
            "A peer or a path that is gone. This is the most frequent error in practice.",
            "IBV_WC_RETRY_EXC_ERR, then flushes, without the delay of the retries.",
        ],
    ),
    status(
        "cqe-rnr-retry-exc-err",
        Status::RnrRetryExceeded,
        "side=send",
        [
            "A completion says IBV_WC_RNR_RETRY_EXC_ERR.",
            "A peer that posts no receives.",
            "IBV_WC_RNR_RETRY_EXC_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-rem-abort-err",
        Status::RemoteAborted,
        "side=send",
        [
            "A completion says IBV_WC_REM_ABORT_ERR.",
            "Rare: drivers use it for errors that fit no other status.",
            "IBV_WC_REM_ABORT_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-fatal-err",
        Status::Fatal,
        "",
        [
            "A completion says IBV_WC_FATAL_ERR.",
            "A failed device.",
            "IBV_WC_FATAL_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-resp-timeout-err",
        Status::ResponseTimeout,
        "side=send",
        [
            "A completion says IBV_WC_RESP_TIMEOUT_ERR.",
            "MAD agents report it; devices hardly ever do.",
            "IBV_WC_RESP_TIMEOUT_ERR, then flushes.",
        ],
    ),
    status(
        "cqe-general-err",
        Status::General,
        "",
        [
            "A completion says IBV_WC_GENERAL_ERR.",
            "Drivers use it for firmware errors that have no status of their own.",
            "IBV_WC_GENERAL_ERR, then flushes.",
        ],
    ),
    kind(
        "cqe-late",
        Act::HoldCompletion,
        "delay=100ms",
        &["delay"],
        [
            "A completion is written late, and so are the later completions in its queue.",
            "Congestion on PCI Express; CQE compression; a host under memory pressure.",
            "Completions of a queue are in order. The standard does not specify timing.",
            "Latency.",
        ],
    ),
    kind(
        "cqe-lost",
        Act::LoseCompletion,
        "",
        &[],
        [
            "A completion is never written.",
            "Defective firmware; a driver that skips an entry.",
            "Every request that asks for a completion gets one (10.8).",
            "A program that counts completions waits forever.",
        ],
    ),
    kind(
        "cq-overrun",
        Act::Overrun,
        "",
        &[],
        [
            "A completion queue overruns, although it has room.",
            "A program that made its queue too small.",
            "An affiliated error of the queue (11.6.3). Its queue pairs go to the error state.",
            "IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL for each queue pair, and no more completions.",
        ],
    ),
    kind(
        "cq-event-lost",
        Act::LoseNotice,
        "",
        &[],
        [
            "The event of an armed completion queue is lost.",
            "A lost interrupt, a common bug in drivers and hypervisors.",
            "An armed queue raises an event with its next completion (11.4).",
            "A program that sleeps in ibv_get_cq_event stays asleep. A program that polls occasionally recovers.",
        ],
    ),
    kind(
        "cq-event-late",
        Act::HoldNotice,
        "delay=200ms",
        &["delay"],
        [
            "The event of a completion queue is late.",
            "Interrupt moderation; a virtual CPU that is not scheduled.",
            "The standard does not specify timing.",
            "Higher latency for programs that wait for events. Programs that poll are not affected.",
        ],
    ),
    kind(
        "cq-event-spurious",
        Act::SpuriousNotice,
        "",
        &[],
        [
            "A completion queue raises an event although it was not armed.",
            "Shared interrupts. A race between arming and polling has the same effect, and is legal.",
            "Programs must expect an event without a completion (11.4).",
            "ibv_get_cq_event returns, and there may be nothing to poll.",
        ],
    ),
];
