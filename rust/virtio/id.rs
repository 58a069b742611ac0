// SPDX-License-Identifier: GPL-2.0

//! Device IDs, by which drivers select their devices.

use crate::bindings;

use kernel::device_id::{
    self,
    IdArray,
    RawDeviceId, //
};

/// Device and vendor ID of a virtio device (`struct virtio_device_id`).
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct DeviceId(bindings::virtio_device_id);

impl DeviceId {
    /// Matches devices of type `device` from any vendor.
    ///
    /// The virtio standard assigns types in section 5 ("Device Types").
    pub const fn new(device: u32) -> Self {
        Self(bindings::virtio_device_id {
            device,
            vendor: bindings::VIRTIO_DEV_ANY_ID,
        })
    }
}

// SAFETY: `DeviceId` is a transparent wrapper of `struct virtio_device_id`.
unsafe impl RawDeviceId for DeviceId {
    type RawType = bindings::virtio_device_id;
}

/// A table of the devices that a driver supports, as `virtio_device_table!` creates it.
///
/// The trait [`device_id::IdTable`] does not suffice: a driver could implement it for a type of its
/// own, with any pointer.
#[derive(Clone, Copy)]
pub struct IdTable(&'static dyn device_id::IdTable<DeviceId, ()>);

impl IdTable {
    /// Wraps a table.
    pub const fn new<const N: usize>(ids: &'static IdArray<DeviceId, (), N>) -> Self {
        Self(ids)
    }

    /// Returns the first entry of the table, which ends with an empty one.
    pub(crate) fn as_ptr(self) -> *const bindings::virtio_device_id {
        self.0.as_ptr()
    }
}

/// Creates the array for a virtio [`IdTable`], and the module alias by which user space loads the
/// module for a device.
#[macro_export]
macro_rules! virtio_device_table {
    ($name:ident, $($tt:tt)*) => {
        ::kernel::module_device_table!("virtio", $crate::DeviceId, $name, @none, $($tt)*);
    };
}
