// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tables of constants, which the kernel reads up to the end that it expects.

#![forbid(unsafe_code)]

use kernel::device_id::RawDeviceId;
use rdma::uapi::AttrDef;
use virtio::{
    virtio_device_table,
    DeviceId,
    IdTable, //
};

virtio_device_table!(TABLE, [DeviceId::new(42)]);

/// A table of devices.
pub const DEVICES: IdTable = IdTable::new(&TABLE);

/// A table of devices that is nowhere.
pub struct Nowhere;

impl kernel::device_id::IdTable<DeviceId, ()> for Nowhere {
    fn as_ptr(&self) -> *const <DeviceId as RawDeviceId>::RawType {
        core::ptr::dangling()
    }
}

#[cfg(refused)]
const NO_DEVICES: IdTable = &Nowhere; //~ E0308
#[cfg(refused)]
const NO_DEVICES_EITHER: IdTable = IdTable::new(&Nowhere); //~ E0308

/// An attribute.
pub const LAST: AttrDef = AttrDef::input::<()>(30);

/// An attribute beyond those for which the core has room.
#[cfg(refused)]
pub const ONE_MORE: AttrDef = AttrDef::input::<()>(31); //~ E0080
