// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Asynchronous events: alone, with what they tell of, lost and late.

use super::{Act, EventType, Kind, kind};

const QP: &[&str] = &["qp", "peer", "type", "state", "context"];
const CQ: &[&str] = &["cq"];
const SRQ: &[&str] = &["srq"];
const ALONE: &str = "None: the event is raised although nothing happened.";

pub(super) const KINDS: &[Kind] = &[
    kind(
        "event-cq-err",
        Act::Raise(EventType::CqError),
        "",
        CQ,
        [
            "The device raises IBV_EVENT_CQ_ERR for completion queue cq=N (default: all completion queues of programs).",
            ALONE,
            "An affiliated error: the queue overran or cannot be written (11.6.3).",
            "IBV_EVENT_CQ_ERR; completions go on.",
        ],
    ),
    kind(
        "event-qp-fatal",
        Act::Raise(EventType::QpFatal),
        "",
        QP,
        [
            "The device raises IBV_EVENT_QP_FATAL for queue pair qp=N (default: all queue pairs of programs).",
            ALONE,
            "An affiliated error: no completion could tell of it (11.6.3).",
            "IBV_EVENT_QP_FATAL; the queue pair goes on.",
        ],
    ),
    kind(
        "event-qp-req-err",
        Act::Raise(EventType::QpRequestError),
        "",
        QP,
        [
            "The device raises IBV_EVENT_QP_REQ_ERR for a queue pair.",
            ALONE,
            "The responder got a request that is not valid (11.6.3).",
            "IBV_EVENT_QP_REQ_ERR; the queue pair goes on.",
        ],
    ),
    kind(
        "event-qp-access-err",
        Act::Raise(EventType::QpAccessError),
        "",
        QP,
        [
            "The device raises IBV_EVENT_QP_ACCESS_ERR for a queue pair.",
            ALONE,
            "The responder got a request that it does not allow (11.6.3).",
            "IBV_EVENT_QP_ACCESS_ERR; the queue pair goes on.",
        ],
    ),
    kind(
        "event-comm-est",
        Act::Raise(EventType::CommunicationEstablished),
        "",
        QP,
        [
            "The device raises IBV_EVENT_COMM_EST for a queue pair.",
            "The first message is faster than the RTU of the connection manager. This is common on busy fabrics.",
            "The first message came while the queue pair was in RTR (11.6.3).",
            "IBV_EVENT_COMM_EST, which rdma_cm turns into an established connection.",
        ],
    ),
    kind(
        "event-sq-drained",
        Act::Raise(EventType::SendQueueDrained),
        "",
        QP,
        [
            "The device raises IBV_EVENT_SQ_DRAINED for a queue pair.",
            ALONE,
            "A queue pair in SQD has no request on its way any more (11.6.3).",
            "IBV_EVENT_SQ_DRAINED.",
        ],
    ),
    kind(
        "event-device-fatal",
        Act::Raise(EventType::DeviceFatal),
        "",
        &[],
        [
            "The device raises IBV_EVENT_DEVICE_FATAL, although it still works.",
            "Firmware that reports a fault that it survives.",
            "A locally detected catastrophic error (11.6.3).",
            "IBV_EVENT_DEVICE_FATAL in each program, and then as needs-reset, because the driver believes the device.",
        ],
    ),
    kind(
        "event-port-active",
        Act::Raise(EventType::PortActive),
        "",
        &[],
        [
            "The device raises IBV_EVENT_PORT_ACTIVE while the port is active.",
            "A link that retrains.",
            "The port can be used again (11.6.3).",
            "IBV_EVENT_PORT_ACTIVE, for the second time.",
        ],
    ),
    kind(
        "event-port-err",
        Act::Raise(EventType::PortError),
        "",
        &[],
        [
            "The device raises IBV_EVENT_PORT_ERR while the port is active.",
            "A link that retrains faster than anybody looks.",
            "The port cannot be used (11.6.3).",
            "IBV_EVENT_PORT_ERR, and ibv_query_port says active.",
        ],
    ),
    kind(
        "event-pkey-change",
        Act::Raise(EventType::PkeyChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_PKEY_CHANGE, although the table did not change.",
            "A subnet manager that sets partitions; RoCE has none.",
            "The P_Key table changed (11.6.3).",
            "IBV_EVENT_PKEY_CHANGE; programs read the table again.",
        ],
    ),
    kind(
        "event-gid-change",
        Act::Raise(EventType::GidChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_GID_CHANGE, although the table did not change.",
            "An address of the network interface that comes or goes.",
            "The GID table changed (11.6.3).",
            "Nothing on Linux: its core raises this event itself, and does not pass on the device's.",
        ],
    ),
    kind(
        "event-srq-err",
        Act::Raise(EventType::SrqError),
        "",
        SRQ,
        [
            "The device raises IBV_EVENT_SRQ_ERR for shared receive queue srq=N (default: all shared receive queues of programs).",
            ALONE,
            "An affiliated error of the queue (11.6.3).",
            "IBV_EVENT_SRQ_ERR; receives go on.",
        ],
    ),
    kind(
        "event-srq-limit",
        Act::Raise(EventType::SrqLimitReached),
        "",
        SRQ,
        [
            "The device raises IBV_EVENT_SRQ_LIMIT_REACHED for a shared receive queue, although no limit was reached.",
            ALONE,
            "Fewer receives are posted than the limit (11.6.3).",
            "IBV_EVENT_SRQ_LIMIT_REACHED; programs post receives, for which there may be no room.",
        ],
    ),
    kind(
        "event-last-wqe",
        Act::Raise(EventType::LastWqeReached),
        "",
        QP,
        [
            "The device raises IBV_EVENT_QP_LAST_WQE_REACHED for a queue pair.",
            ALONE,
            "A queue pair in the error state takes no more receives of its shared queue (11.6.3).",
            "IBV_EVENT_QP_LAST_WQE_REACHED; programs destroy the queue pair.",
        ],
    ),
    kind(
        "qp-fatal",
        Act::Break(EventType::QpFatal),
        "",
        QP,
        [
            "A queue pair fails: it raises IBV_EVENT_QP_FATAL and goes to the error state.",
            "Firmware that gives up a queue pair, because it cannot read a work queue or has a parity error.",
            "An affiliated error; the queue pair goes to the error state (11.6.3).",
            "IBV_EVENT_QP_FATAL, all that was posted is flushed; the peer's requests end with IBV_WC_RETRY_EXC_ERR.",
        ],
    ),
    kind(
        "qp-error",
        Act::BreakQp,
        "",
        QP,
        [
            "A queue pair goes to the error state without an event.",
            "An administrator who resets a connection; firmware that has no other way out.",
            "What is posted is flushed (10.3.1).",
            "IBV_WC_WR_FLUSH_ERR without a cause; with a shared queue IBV_EVENT_QP_LAST_WQE_REACHED.",
        ],
    ),
    kind(
        "cq-fatal",
        Act::Break(EventType::CqError),
        "",
        CQ,
        [
            "A completion queue fails: it raises IBV_EVENT_CQ_ERR and gets no more completions.",
            "A queue in memory that the device can no longer reach.",
            "An affiliated error of the queue (11.6.3).",
            "IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL for each of its queue pairs.",
        ],
    ),
    kind(
        "srq-fatal",
        Act::Break(EventType::SrqError),
        "",
        SRQ,
        [
            "A shared receive queue fails: it raises IBV_EVENT_SRQ_ERR and provides no more receives.",
            "A queue in memory that the device can no longer reach.",
            "An affiliated error of the queue; queue pairs that need it go to the error state (11.6.3).",
            "IBV_EVENT_SRQ_ERR; the next message fails its queue pair.",
        ],
    ),
    kind(
        "event-lost",
        Act::LoseEvent,
        "",
        &[],
        [
            "An asynchronous event is lost.",
            "A full event queue; a lost interrupt.",
            "The standard has no lost events.",
            "A program that waits for an event, for example IBV_EVENT_QP_LAST_WQE_REACHED, waits for ever.",
        ],
    ),
    kind(
        "event-late",
        Act::HoldEvent,
        "delay=500ms",
        &["delay"],
        [
            "An asynchronous event is late.",
            "A host that is busy.",
            "Events and completions come in no fixed order.",
            "The event comes after the completions that it explains.",
        ],
    ),
    kind(
        "page-fault-slow",
        Act::HoldEvent,
        "event=page-fault count=all delay=2s",
        &["delay"],
        [
            "Pages of on-demand regions arrive late.",
            "Memory that was swapped out, a network file system, a NUMA balancer.",
            "The responder says RNR, the requester waits.",
            "Seconds of waiting, and no error as long as retries last.",
        ],
    ),
    kind(
        "page-fault-lost",
        Act::LoseEvent,
        "event=page-fault",
        &[],
        [
            "The device requests pages of an on-demand region, and its request is lost.",
            "A full event queue.",
            "As page-fault-slow, but for ever.",
            "The access waits until something else asks for the same pages.",
        ],
    ),
];
