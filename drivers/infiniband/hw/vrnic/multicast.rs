// SPDX-License-Identifier: GPL-2.0

//! Multicast groups.
//!
//! RDMA CM tells the network by IGMP which groups there are; the device is told of its queue pairs
//! only.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::qp::MulticastGroup;
use vrnic_wire::command::{
    AttachMulticast,
    DetachMulticast, //
};

use crate::{
    control::Prepared,
    device::Call,
    port::Link, //
};

/// What takes queue pairs out of groups, without taking memory: the core destroys no queue pair
/// that is in a group, so that of a process which died would stay.
#[pin_data]
pub(crate) struct Detacher {
    #[pin]
    command: Mutex<Prepared<DetachMulticast>>,
}

impl Detacher {
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        let command = Prepared::new()?;
        KBox::pin_init(
            pin_init!(Self {
                command <- new_mutex!(command),
            }),
            GFP_KERNEL,
        )
    }
}

/// LID of a group, 0 where there are none.
fn lid(call: &Call<'_>, group: &MulticastGroup) -> u16 {
    match call.data().link {
        Link::Ethernet => 0,
        Link::InfiniBand => group.lid,
    }
}

/// Attaches a queue pair to a group. `EBUSY` if it is attached.
pub(crate) fn attach(call: &Call<'_>, qpn: u32, group: &MulticastGroup) -> Result {
    if call.data().limits.max_multicast_groups.get() == 0 {
        return Err(EOPNOTSUPP);
    }
    call.data().control.execute(&AttachMulticast {
        qpn: qpn.into(),
        lid: lid(call, group).into(),
        gid: group.gid.0,
        ..Default::default()
    })?;
    Ok(())
}

/// Detaches a queue pair from a group. `ENOENT` if it is not attached.
pub(crate) fn detach(call: &Call<'_>, qpn: u32, group: &MulticastGroup) -> Result {
    let command = DetachMulticast {
        qpn: qpn.into(),
        lid: lid(call, group).into(),
        gid: group.gid.0,
        ..Default::default()
    };
    let control = &call.data().control;
    let result = call
        .data()
        .detacher
        .command
        .lock()
        .execute(control, &command);
    match result {
        Ok(_) => Ok(()),
        // A device that was stopped has no groups any more.
        Err(_) if control.is_stopped() => Ok(()),
        Err(err) => Err(err),
    }
}
