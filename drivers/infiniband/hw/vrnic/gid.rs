// SPDX-License-Identifier: GPL-2.0

//! The GID table, which the core fills from the addresses of the network device.

use kernel::prelude::*;
use rdma::gid::{
    GidAttr,
    Type, //
};
use vrnic_wire::{
    command::{
        ClearGid,
        SetGid, //
    },
    port::{
        GidEntry,
        GidType,
        NO_VLAN, //
    }, //
};

use crate::device::Call;

/// Tells the device of an entry.
pub(crate) fn add(call: &Call<'_>, gid: &GidAttr<'_>) -> Result {
    let (vlan, mac) = gid.link_layer()?;
    let gid_type = match gid.kind()? {
        Type::RoceV1 => GidType::RoceV1,
        Type::RoceV2 => GidType::RoceV2,
        Type::InfiniBand => return Err(EINVAL),
    };

    call.data().control.execute(&SetGid {
        index: gid.index().into(),
        entry: GidEntry {
            gid: gid.gid().0,
            mac,
            vlan: vlan.unwrap_or(NO_VLAN).into(),
            gid_type: gid_type.raw(),
            ..Default::default()
        },
        ..Default::default()
    })?;
    Ok(())
}

/// Has the device forget an entry. The core forgets it whatever this returns.
pub(crate) fn remove(call: &Call<'_>, gid: &GidAttr<'_>) -> Result {
    let command = ClearGid {
        index: gid.index().into(),
        ..Default::default()
    };
    match call.data().control.execute_surely(&command) {
        Ok(_) => Ok(()),
        // A device that was stopped has no table any more.
        Err(_) if call.data().control.is_stopped() => Ok(()),
        Err(err) => Err(err),
    }
}
