// SPDX-License-Identifier: GPL-2.0

//! The GID table. On Ethernet the core fills it from the addresses of the network device; on
//! InfiniBand the subnet manager fills it.

use kernel::prelude::*;
use rdma::{
    gid::{
        Gid,
        GidAttr,
        Type, //
    },
    port::Port, //
};
use vrnic_wire::{
    command::{
        ClearGid,
        QueryGids,
        SetGid, //
    },
    port::{
        GidEntry,
        GidType,
        NO_VLAN, //
    }, //
};

use crate::device::Call;

/// Returns an entry of an InfiniBand port.
pub(crate) fn query(call: &Call<'_>, port: Port, index: u32) -> Result<Gid> {
    let reply = call.data().control.execute(&QueryGids {
        port: port.number().into(),
        first: index.into(),
    })?;
    let gid = reply.gids.first_chunk().ok_or(EIO)?;
    Ok(Gid(*gid))
}

/// Adds an entry to the device's table.
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

/// Removes an entry from the device's table. The core forgets the entry in any case.
pub(crate) fn remove(call: &Call<'_>, gid: &GidAttr<'_>) -> Result {
    let command = ClearGid {
        index: gid.index().into(),
        ..Default::default()
    };
    match call.data().control.execute_surely(&command) {
        Ok(_) => Ok(()),
        // A stopped device has no table any more.
        Err(_) if call.data().control.is_stopped() => Ok(()),
        Err(err) => Err(err),
    }
}
