// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of the responder's decisions and of timers.

use super::{Case, NONE, OK, OK4, Op, Stage, perform_all, statuses};
use std::{collections::HashSet, time::Duration};
use vrnic_engine::Segmentation;
use vrnic_wire::{completion::Status, event::EventType};

const FLUSHED: &[Status] = &[Status::Flushed];

pub(super) const CASES: &[Case] = &[
    Case {
        fault: "nak-sequence qp={qp} count=2",
        node: 1,
        op: Op::LongWrite,
        sends: OK,
        receives: NONE,
        events: [&[], &[]],
        intact: true,
    },
    Case {
        fault: "nak-invalid-request qp={qp}",
        node: 1,
        op: Op::Sends(1),
        sends: &[Status::RemoteInvalidRequest],
        receives: FLUSHED,
        events: [&[], &[EventType::QpRequestError]],
        intact: false,
    },
    Case {
        fault: "nak-remote-access qp={qp}",
        node: 1,
        op: Op::LongRead,
        sends: &[Status::RemoteAccess],
        receives: NONE,
        events: [&[], &[EventType::QpAccessError]],
        intact: false,
    },
    Case {
        fault: "nak-remote-operation qp={qp}",
        node: 1,
        op: Op::Sends(1),
        sends: &[Status::RemoteOperation],
        receives: FLUSHED,
        events: [&[], &[]],
        intact: false,
    },
    Case {
        fault: "rnr-nak qp={qp} count=3",
        node: 1,
        op: Op::Sends(4),
        sends: OK4,
        receives: OK4,
        events: [&[], &[]],
        intact: true,
    },
    Case {
        fault: "rnr-storm qp={qp}",
        node: 1,
        op: Op::Sends(1),
        sends: &[Status::RnrRetryExceeded],
        receives: NONE,
        events: [&[], &[]],
        intact: false,
    },
];

#[test]
fn what_the_responder_decides_is_seen_as_described() {
    perform_all(CASES);
}

#[test]
fn a_timer_that_is_late_is_so_late() {
    let time = |faults: &[&str]| {
        let mut stage = Stage::new(Segmentation::PathMtu);
        for fault in faults {
            stage.arm(0, fault);
        }
        stage.post(Op::Writes(1));
        let start = stage.world.now;
        stage.world.settle();
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
        let log = stage.log(0);
        let kinds: HashSet<_> = log.iter().map(|firing| firing.name).collect();
        assert_eq!(kinds.len(), faults.len(), "{log:?}");
        stage.world.now - start
    };
    let usual = time(&["lost-request qp={qp}"]);
    let late = time(&["lost-request qp={qp}", "timer-late qp={qp} delay=300ms"]);
    assert!(
        late.saturating_sub(usual) >= Duration::from_millis(299),
        "{usual:?} {late:?}"
    );
}
