// SPDX-License-Identifier: GPL-2.0

//! Multicast groups.
//!
//! RDMA CM tells the network by IGMP which groups there are; the device is told of its queue pairs
//! only.

use kernel::prelude::*;
use rdma::gid::Gid;
use vrnic_wire::command::{
    AttachMulticast,
    DetachMulticast, //
};

use crate::device::Call;

/// Attaches a queue pair to a group. `EBUSY` if it is attached.
pub(crate) fn attach(call: &Call<'_>, qpn: u32, gid: &Gid) -> Result {
    if call.data.limits.max_multicast_groups.get() == 0 {
        return Err(EOPNOTSUPP);
    }
    call.data.control.execute(&AttachMulticast {
        qpn: qpn.into(),
        gid: gid.0,
        ..Default::default()
    })?;
    Ok(())
}

/// Detaches a queue pair from a group. `ENOENT` if it is not attached.
pub(crate) fn detach(call: &Call<'_>, qpn: u32, gid: &Gid) -> Result {
    let command = DetachMulticast {
        qpn: qpn.into(),
        gid: gid.0,
        ..Default::default()
    };
    match call.data.control.execute(&command) {
        Ok(_) => Ok(()),
        // A device that was stopped has no groups any more.
        Err(_) if call.data.control.is_stopped() => Ok(()),
        Err(err) => Err(err),
    }
}
