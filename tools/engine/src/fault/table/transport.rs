// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Decisions of the responder, and timers.

use super::{Act, Kind, NakCode, kind};

pub(super) const KINDS: &[Kind] = &[
    kind(
        "nak-sequence",
        Act::MissPacket,
        "",
        &[],
        [
            "The responder reports a missing packet, although it arrived.",
            "A receiver that drops packets because it has no buffers, and reports that.",
            "The requester retransmits from that PSN. This counts against retry_cnt (9.7.5.2).",
            "Only a delay, unless retry_cnt is exhausted (IBV_WC_RETRY_EXC_ERR).",
        ],
    ),
    kind(
        "nak-invalid-request",
        Act::Refuse(NakCode::InvalidRequest),
        "",
        &[],
        [
            "The responder answers that a request is invalid.",
            "Requests of a type or length that the responder does not support.",
            "NAK invalid request. Both queue pairs go to the error state (9.9).",
            "IBV_WC_REM_INV_REQ_ERR at the requester; IBV_EVENT_QP_REQ_ERR at the responder, or an error completion if the request had consumed a receive.",
        ],
    ),
    kind(
        "nak-remote-access",
        Act::Refuse(NakCode::RemoteAccess),
        "",
        &[],
        [
            "The responder answers that the access is not allowed.",
            "A key that is wrong or outdated, or that belongs to another protection domain.",
            "NAK remote access error. Both queue pairs go to the error state (9.7.5.2).",
            "IBV_WC_REM_ACCESS_ERR at the requester, IBV_EVENT_QP_ACCESS_ERR at the responder.",
        ],
    ),
    kind(
        "nak-remote-operation",
        Act::Refuse(NakCode::RemoteOperation),
        "",
        &[],
        [
            "The responder answers that it could not execute a request.",
            "A receive that names memory that does not exist; a device that runs out of resources.",
            "NAK remote operational error. Both queue pairs go to the error state (9.7.5.2).",
            "IBV_WC_REM_OP_ERR at the requester; flushed requests at the responder.",
        ],
    ),
    kind(
        "rnr-nak",
        Act::NotReady,
        "opcode=send|write",
        &[],
        [
            "The responder reports that no receive is posted, although one is.",
            "A receiver that is slow to post; a shared receive queue that is empty.",
            "The requester waits for the time given in the NAK and retransmits, up to rnr_retry times (9.7.5.2).",
            "Only a delay, unless rnr_retry is less than count.",
        ],
    ),
    kind(
        "rnr-storm",
        Act::NotReady,
        "opcode=send|write count=all",
        &[],
        [
            "The responder always reports that no receive is posted.",
            "A receiver whose thread is stuck.",
            "The request fails after rnr_retry retries; 7 means no limit (9.7.5.2).",
            "IBV_WC_RNR_RETRY_EXC_ERR. With rnr_retry 7, the program waits forever.",
        ],
    ),
    kind(
        "timer-late",
        Act::HoldTimer,
        "count=all delay=500ms",
        &["delay"],
        [
            "Timers of queue pairs expire late; delay=TIME sets by how much.",
            "Devices with coarse timers: many have a minimum of a few milliseconds, whatever timeout is set.",
            "The timeout is at least as long as requested, and may be four times as long (9.7.6.1.3).",
            "Each lost packet that is not followed by another packet takes that much longer to recover.",
        ],
    ),
];
