// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Faults that clients arm, list and clear.

use vrnic_engine::fault::{Firing, Listed, Progress, Spec};
use vrnic_engine::time::Instant;

use crate::control::protocol::{self, Reply};
use crate::device::Device;

/// Arms a fault.
pub fn add(device: &mut Device, text: &str, now: Instant) -> Reply {
    let armed = text
        .parse::<Spec>()
        .and_then(|spec| device.faults().arm(spec, now));
    match armed {
        Ok(id) => Reply::FaultAdded(id),
        Err(why) => Reply::Error(why.to_string()),
    }
}

/// Disarms a fault, or all.
pub fn clear(device: &mut Device, id: Option<u64>) -> Reply {
    match (device.faults().clear(id), id) {
        (0, Some(id)) => Reply::Error(format!("no fault has the number {id}")),
        (count, _) => Reply::FaultsCleared(count),
    }
}

/// Lists faults.
pub fn list(device: &mut Device) -> Reply {
    Reply::Faults(device.faults().list().into_iter().map(fault).collect())
}

/// Some firings.
pub fn log(device: &mut Device, from: u64, most: usize) -> Reply {
    let faults = device.faults();
    let log = faults.log();
    let wanted = log.filter(|firing| firing.number >= from).take(most);
    Reply::Firings(wanted.map(firing).collect())
}

fn fault(listed: Listed) -> protocol::Fault {
    protocol::Fault {
        id: listed.id,
        fault: listed.spec.to_string(),
        progress: match listed.progress {
            Progress::Waiting(id) => format!("waits for {id}"),
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
