// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of asynchronous events, which are raised alone, raised together with what they report, lost, or late.

use super::{Act, EventType, Kind, kind};

const QP: &[&str] = &["qp", "peer", "type", "state", "context", "process", "pid"];
const CQ: &[&str] = &["cq", "process", "pid"];
const SRQ: &[&str] = &["srq", "process", "pid"];
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
            "IBV_EVENT_CQ_ERR. Completions still arrive.",
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
            "An affiliated error that no completion could report (11.6.3).",
            "IBV_EVENT_QP_FATAL. The queue pair still works.",
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
            "The responder received an invalid request (11.6.3).",
            "IBV_EVENT_QP_REQ_ERR. The queue pair still works.",
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
            "The responder received a request that is not allowed (11.6.3).",
            "IBV_EVENT_QP_ACCESS_ERR. The queue pair still works.",
        ],
    ),
    kind(
        "event-comm-est",
        Act::Raise(EventType::CommunicationEstablished),
        "",
        QP,
        [
            "The device raises IBV_EVENT_COMM_EST for a queue pair.",
            "The first message arrives before the RTU of the connection manager. This is common on busy fabrics.",
            "The first message arrived while the queue pair was in RTR (11.6.3).",
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
            "A queue pair in SQD has no outstanding requests any more (11.6.3).",
            "IBV_EVENT_SQ_DRAINED.",
        ],
    ),
    kind(
        "event-path-mig",
        Act::Raise(EventType::PathMigrated),
        "",
        QP,
        [
            "The device raises IBV_EVENT_PATH_MIG for a queue pair.",
            "A switch or a cable that fails, on InfiniBand with an alternate path.",
            "The connection migrated to its alternate path (11.6.3).",
            "IBV_EVENT_PATH_MIG. Programs load another alternate path, which Linux refuses on RoCE: EINVAL.",
        ],
    ),
    kind(
        "event-path-mig-err",
        Act::Raise(EventType::PathMigrationError),
        "",
        QP,
        [
            "The device raises IBV_EVENT_PATH_MIG_ERR for a queue pair.",
            "Same as event-path-mig, with an alternate path that does not work either.",
            "A path migration request was not valid (11.6.3).",
            "IBV_EVENT_PATH_MIG_ERR. The queue pair still works.",
        ],
    ),
    kind(
        "event-device-fatal",
        Act::Raise(EventType::DeviceFatal),
        "",
        &[],
        [
            "The device raises IBV_EVENT_DEVICE_FATAL, although it still works.",
            "Firmware that reports a fault from which it recovers.",
            "A locally detected catastrophic error (11.6.3).",
            "IBV_EVENT_DEVICE_FATAL in each program. The rest is the same as needs-reset, because the driver believes the device.",
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
            "IBV_EVENT_PORT_ACTIVE a second time.",
        ],
    ),
    kind(
        "event-port-err",
        Act::Raise(EventType::PortError),
        "",
        &[],
        [
            "The device raises IBV_EVENT_PORT_ERR while the port is active.",
            "A link that retrains before anyone can query it.",
            "The port cannot be used (11.6.3).",
            "IBV_EVENT_PORT_ERR, although ibv_query_port says active.",
        ],
    ),
    kind(
        "event-lid-change",
        Act::Raise(EventType::LidChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_LID_CHANGE, although a RoCE port has no LID.",
            "A subnet manager that assigns LIDs anew. RoCE has no subnet manager.",
            "The LID of the port changed (11.6.3).",
            "IBV_EVENT_LID_CHANGE. The RDMA core reads the attributes of the port again, and so do programs.",
        ],
    ),
    kind(
        "event-pkey-change",
        Act::Raise(EventType::PkeyChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_PKEY_CHANGE, although the table did not change.",
            "A subnet manager that sets partitions. RoCE has no subnet manager.",
            "The P_Key table changed (11.6.3).",
            "IBV_EVENT_PKEY_CHANGE. Programs read the table again.",
        ],
    ),
    kind(
        "event-sm-change",
        Act::Raise(EventType::SmChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_SM_CHANGE, although a RoCE port has no subnet manager.",
            "A subnet manager that fails over. RoCE has no subnet manager.",
            "The master subnet manager changed (11.6.3).",
            "IBV_EVENT_SM_CHANGE. Programs resolve their paths again.",
        ],
    ),
    kind(
        "event-gid-change",
        Act::Raise(EventType::GidChange),
        "",
        &[],
        [
            "The device raises IBV_EVENT_GID_CHANGE, although the table did not change.",
            "An address that is added to or removed from the network interface.",
            "The GID table changed (11.6.3).",
            "Nothing on Linux: the RDMA core raises this event itself and does not pass on the device's event.",
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
            "IBV_EVENT_SRQ_ERR. Receives still work.",
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
            "IBV_EVENT_SRQ_LIMIT_REACHED. Programs post more receives, and the queue may have no room for them.",
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
            "A queue pair in the error state takes no more receives from its shared receive queue (11.6.3).",
            "IBV_EVENT_QP_LAST_WQE_REACHED. Programs destroy the queue pair.",
        ],
    ),
    kind(
        "event-client-reregister",
        Act::Raise(EventType::ClientReregister),
        "",
        &[],
        [
            "The device raises IBV_EVENT_CLIENT_REREGISTER.",
            "A subnet manager that restarts and has lost its state. RoCE has no subnet manager.",
            "Clients are to register again what the subnet administrator keeps of them (11.6.3).",
            "IBV_EVENT_CLIENT_REREGISTER. Programs join their multicast groups again.",
        ],
    ),
    kind(
        "qp-fatal",
        Act::Break(EventType::QpFatal),
        "",
        QP,
        [
            "A queue pair fails: it raises IBV_EVENT_QP_FATAL and goes to the error state.",
            "Firmware that gives up on a queue pair, because it cannot read a work queue or has a parity error.",
            "An affiliated error. The queue pair goes to the error state (11.6.3).",
            "IBV_EVENT_QP_FATAL. All posted requests are flushed. The peer's requests end with IBV_WC_RETRY_EXC_ERR.",
        ],
    ),
    kind(
        "qp-error",
        Act::BreakQp,
        "",
        QP,
        [
            "A queue pair goes to the error state without an event.",
            "An administrator who resets a connection; firmware that has no other way to recover.",
            "Posted requests are flushed (10.3.1).",
            "IBV_WC_WR_FLUSH_ERR without a cause. With a shared receive queue, also IBV_EVENT_QP_LAST_WQE_REACHED.",
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
            "IBV_EVENT_CQ_ERR, and IBV_EVENT_QP_FATAL for each of its queue pairs.",
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
            "An affiliated error of the queue. Queue pairs that need it go to the error state (11.6.3).",
            "IBV_EVENT_SRQ_ERR. The next message fails its queue pair.",
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
            "The standard does not provide for lost events.",
            "A program that waits for an event, for example IBV_EVENT_QP_LAST_WQE_REACHED, waits forever.",
        ],
    ),
    kind(
        "event-late",
        Act::HoldEvent,
        "delay=500ms",
        &["delay"],
        [
            "An asynchronous event is late.",
            "A busy host.",
            "There is no fixed order between events and completions.",
            "The event arrives after the completions that it explains.",
        ],
    ),
    kind(
        "page-fault-slow",
        Act::HoldEvent,
        "event=page-fault count=all delay=2s",
        &["delay"],
        [
            "Pages of on-demand regions arrive late.",
            "Memory that was swapped out; a network file system; NUMA balancing.",
            "The responder answers with RNR NAKs, and the requester waits.",
            "A delay of seconds, and no error unless the retries are exhausted.",
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
            "Same as page-fault-slow, but forever.",
            "The access waits until something else requests the same pages.",
        ],
    ),
];
