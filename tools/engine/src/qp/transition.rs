// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State transitions and the attributes that go with them (IBTA volume 1, 11.2.5.2).

use crate::cause::Cause;
use vrnic_wire::qp::{
    QpState::{self, *},
    QpType::{self, *},
    attribute::*,
};

/// Attributes that a transition requires, and others that it allows.
struct Rule {
    required: u32,
    optional: u32,
}

const fn rule(required: u32, optional: u32) -> Option<Rule> {
    Some(Rule { required, optional })
}

/// Attributes that need the path migration feature.
pub(super) const MIGRATION: u32 = ALTERNATE_PATH | PATH_MIGRATION_STATE;

/// Returns the rule of a transition, or `None` if there is no such transition.
fn find(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    let datagram = matches!(qp_type, UnreliableDatagram | Gsi | Smi);
    let raw = qp_type == RawPacket;
    // Each end of an XRC connection has one half of a reliable connection.
    let requester = matches!(qp_type, ReliableConnection | XrcInitiator);
    let responder = matches!(qp_type, ReliableConnection | XrcTarget);
    let reliable = requester || responder;
    let given = |half, attributes| if half { attributes } else { 0 };
    let rnr_timer = given(responder, MIN_RNR_TIMER);
    match (from, to) {
        (_, Reset | Error) => rule(0, 0),
        _ if qp_type == ReceiveQueue => match (from, to) {
            (Reset | ReadyToReceive, ReadyToReceive) => rule(0, 0),
            _ => None,
        },
        (Reset, Init) => match qp_type {
            Gsi | Smi => rule(PKEY_INDEX | QKEY, PORT),
            UnreliableDatagram => rule(PKEY_INDEX | PORT | QKEY, 0),
            RawPacket => rule(PORT, 0),
            _ => rule(PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        },
        (Init, Init) => match qp_type {
            Gsi | Smi => rule(0, PKEY_INDEX | QKEY),
            UnreliableDatagram => rule(0, PKEY_INDEX | PORT | QKEY),
            RawPacket => rule(0, PORT),
            _ => rule(0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        },
        (Init, ReadyToReceive) | (SendQueueDrain, SendQueueDrain) if raw => rule(0, 0),
        (Init, ReadyToReceive) => {
            let connected = ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN;
            if datagram {
                rule(0, PKEY_INDEX | QKEY)
            } else {
                rule(
                    connected | given(responder, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
                    ALTERNATE_PATH | ACCESS_FLAGS | PKEY_INDEX,
                )
            }
        }
        (ReadyToReceive | ReadyToSend | SendQueueDrain | SendQueueError, ReadyToSend) if raw => {
            rule(0, CURRENT_STATE)
        }
        (ReadyToReceive, ReadyToSend) => {
            if datagram {
                rule(SQ_PSN, CURRENT_STATE | QKEY)
            } else {
                rule(
                    SQ_PSN
                        | given(reliable, TIMEOUT)
                        | given(requester, RETRY_COUNT | RNR_RETRY | MAX_RD_ATOMIC),
                    CURRENT_STATE | ACCESS_FLAGS | MIGRATION | rnr_timer,
                )
            }
        }
        (ReadyToSend | SendQueueDrain, ReadyToSend) => {
            if datagram {
                rule(0, CURRENT_STATE | QKEY)
            } else {
                rule(0, CURRENT_STATE | ACCESS_FLAGS | MIGRATION | rnr_timer)
            }
        }
        (SendQueueError, ReadyToSend) if datagram => rule(0, CURRENT_STATE | QKEY),
        (SendQueueError, ReadyToSend) if !reliable => rule(0, CURRENT_STATE | ACCESS_FLAGS),
        (ReadyToSend, SendQueueDrain) => rule(0, EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrain, SendQueueDrain) => {
            let connected = ADDRESS_VECTOR | ACCESS_FLAGS | PKEY_INDEX | MIGRATION;
            if datagram {
                rule(0, PKEY_INDEX | QKEY)
            } else {
                rule(
                    0,
                    connected
                        | given(reliable, PORT | TIMEOUT)
                        | given(requester, RETRY_COUNT | RNR_RETRY | MAX_RD_ATOMIC)
                        | given(responder, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
                )
            }
        }
        _ => None,
    }
}

/// Checks that a queue pair may change its state with the attributes in `mask`.
pub(super) fn check(qp_type: QpType, from: QpState, to: QpState, mask: u32) -> Result<(), Cause> {
    if qp_type == ReceiveScaling {
        return Err(Cause::QpType);
    }
    if mask & RATE_LIMIT != 0 {
        let has_sends = !matches!(qp_type, XrcTarget | Smi | Gsi | ReceiveQueue);
        if !has_sends || matches!(to, Reset | Error) {
            return Err(Cause::AttributeForbidden);
        }
        // It goes with each of the other transitions, and with none at all.
        if mask == RATE_LIMIT {
            return Ok(());
        }
    }
    let rule = find(qp_type, from, to).ok_or(Cause::Transition)?;
    let mask = mask & !(STATE | RATE_LIMIT);
    if mask & rule.required != rule.required {
        return Err(Cause::AttributeMissing);
    }
    if mask & !(rule.required | rule.optional) != 0 {
        return Err(Cause::AttributeForbidden);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modifiable() -> impl Iterator<Item = QpType> {
        let all = QpType::ALL.iter().copied();
        all.filter(|qp_type| *qp_type != ReceiveScaling)
    }

    #[test]
    fn a_receive_queue_has_three_states_and_receive_scaling_has_one() {
        for &from in QpState::ALL {
            for &to in QpState::ALL {
                let own = matches!(to, Reset | Error)
                    || matches!((from, to), (Reset | ReadyToReceive, ReadyToReceive));
                assert_eq!(
                    check(ReceiveQueue, from, to, STATE).is_ok(),
                    own,
                    "{from:?} {to:?}"
                );
                let refused = check(ReceiveScaling, from, to, STATE);
                assert_eq!(refused, Err(Cause::QpType), "{from:?} {to:?}");
            }
        }
        let with_port = check(ReceiveQueue, Reset, ReadyToReceive, STATE | PORT);
        assert_eq!(with_port, Err(Cause::AttributeForbidden));
    }

    #[test]
    fn any_state_can_be_left_for_reset_and_error() {
        for qp_type in modifiable() {
            for &from in QpState::ALL {
                assert_eq!(check(qp_type, from, Reset, STATE), Ok(()));
                assert_eq!(check(qp_type, from, Error, STATE), Ok(()));
                assert_eq!(
                    check(qp_type, from, Error, STATE | QKEY),
                    Err(Cause::AttributeForbidden)
                );
            }
        }
    }

    #[test]
    fn nothing_leads_out_of_error_but_reset() {
        for &to in QpState::ALL {
            let allowed = matches!(to, Reset | Error);
            assert_eq!(check(ReliableConnection, Error, to, STATE).is_ok(), allowed);
        }
    }

    #[test]
    fn a_rate_limit_goes_with_all_transitions_but_those_that_end_everything() {
        for qp_type in modifiable() {
            let allowed = !matches!(qp_type, XrcTarget | Smi | Gsi | ReceiveQueue);
            for &from in QpState::ALL {
                let alone = check(qp_type, from, from, RATE_LIMIT);
                let alive = !matches!(from, Reset | Error);
                assert_eq!(alone.is_ok(), allowed && alive, "{qp_type:?} {from:?}");
                for &to in QpState::ALL {
                    let required = find(qp_type, from, to).map(|rule| rule.required);
                    let mask = STATE | RATE_LIMIT | required.unwrap_or(0);
                    let possible = required.is_some() && !matches!(to, Reset | Error);
                    let checked = check(qp_type, from, to, mask);
                    assert_eq!(checked.is_ok(), allowed && possible, "{from:?} {to:?}");
                }
            }
        }
    }

    #[test]
    fn connections_need_their_attributes() {
        let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        let ready = STATE
            | ADDRESS_VECTOR
            | PATH_MTU
            | DEST_QPN
            | RQ_PSN
            | MAX_DEST_RD_ATOMIC
            | MIN_RNR_TIMER;
        let send = STATE | SQ_PSN | TIMEOUT | RETRY_COUNT | RNR_RETRY | MAX_RD_ATOMIC;
        let steps = [
            (Reset, Init, init),
            (Init, ReadyToReceive, ready),
            (ReadyToReceive, ReadyToSend, send),
        ];
        for (from, to, mask) in steps {
            assert_eq!(check(ReliableConnection, from, to, mask), Ok(()));
            for bit in (1..32).map(|bit| 1 << bit) {
                if mask & bit != 0 {
                    assert_eq!(
                        check(ReliableConnection, from, to, mask & !bit),
                        Err(Cause::AttributeMissing)
                    );
                }
            }
        }
        assert_eq!(
            check(ReliableConnection, Init, ReadyToSend, send),
            Err(Cause::Transition)
        );
        assert_eq!(
            check(ReliableConnection, SendQueueError, ReadyToSend, STATE),
            Err(Cause::Transition)
        );
        assert_eq!(
            check(UnreliableDatagram, SendQueueError, ReadyToSend, STATE),
            Ok(())
        );
    }
}
