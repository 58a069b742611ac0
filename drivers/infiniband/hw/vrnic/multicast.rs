// SPDX-License-Identifier: GPL-2.0

//! Multicast groups.
//!
//! RDMA CM announces groups to the network by IGMP; the device only learns which of its queue pairs
//! are members.

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

/// Detaches queue pairs from groups without allocating memory. The core does not destroy a queue
/// pair that is in a group, so after an allocation failure the queue pair of a dead process would
/// remain.
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

/// Returns the LID of a group; 0 on Ethernet.
fn lid(call: &Call<'_>, group: &MulticastGroup) -> u16 {
    match call.data().link() {
        Link::Ethernet => 0,
        Link::InfiniBand => group.lid,
    }
}

/// Attaches a queue pair to a group. `EBUSY` if it is already attached.
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
        // A stopped device has no groups any more.
        Err(_) if control.is_stopped() => Ok(()),
        Err(err) => Err(err),
    }
}
