// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Faults that clients arm, list and clear.

use vrnic_engine::fault::{Armory, Firing, Listed, Progress, Spec};
use vrnic_engine::time::Instant;

use crate::control::protocol::{self, Reply, Request};

/// Answers a request about the faults of a device or a port.
pub fn answer(request: &Request, faults: Armory<'_>, now: Instant, most: usize) -> Reply {
    match request {
        Request::FaultAdd { fault, .. } => add(faults, fault, now),
        Request::FaultClear { id, .. } => clear(faults, *id),
        Request::Faults { .. } => Reply::Faults(faults.list().into_iter().map(fault).collect()),
        Request::FaultLog { from, .. } => {
            let wanted = faults.log().filter(|firing| firing.number >= *from);
            Reply::Firings(wanted.take(most).map(firing).collect())
        }
        _ => Reply::Error("a port of the switch can be named only in requests about faults".into()),
    }
}

/// Arms a fault.
fn add(mut faults: Armory<'_>, text: &str, now: Instant) -> Reply {
    let armed = text.parse::<Spec>().and_then(|spec| faults.arm(spec, now));
    match armed {
        Ok(id) => Reply::FaultAdded(id),
        Err(why) => Reply::Error(why.to_string()),
    }
}

/// Disarms one fault or all faults.
fn clear(mut faults: Armory<'_>, id: Option<u64>) -> Reply {
    match (faults.clear(id), id) {
        (0, Some(id)) => Reply::Error(format!("no fault has the number {id}")),
        (count, _) => Reply::FaultsCleared(count),
    }
}

fn fault(listed: Listed) -> protocol::Fault {
    protocol::Fault {
        id: listed.id,
        fault: listed.spec.to_string(),
        progress: match listed.progress {
            Progress::Waiting => {
                format!("waits for {}", listed.spec.awaits().unwrap_or_default())
            }
            Progress::Armed => "armed".into(),
            Progress::Active => "active".into(),
            Progress::Done => "done".into(),
        },
        seen: listed.seen,
        fired: listed.fired,
    }
}

fn firing(firing: &Firing) -> protocol::Firing {
    protocol::Firing {
        number: firing.number,
        nanoseconds: firing.time.as_nanos(),
        id: firing.id,
        name: firing.name.to_owned(),
        position: firing.position,
        qpn: firing.qpn,
        peer_qpn: firing.peer_qpn,
        cqn: firing.cqn,
        psn: firing.psn,
        what: firing.what.clone(),
    }
}
