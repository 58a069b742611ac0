// SPDX-License-Identifier: GPL-2.0

//! Which devices a driver is for.

use crate::bindings;

use kernel::device_id::RawDeviceId;

/// Device and vendor id of a virtio device (`struct virtio_device_id`).
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct DeviceId(bindings::virtio_device_id);

impl DeviceId {
    /// Matches devices of the type `device`, whoever makes them.
    ///
    /// Types are assigned by the virtio standard, section 5 ("Device Types").
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

/// A table of the devices a driver is for.
pub type IdTable = &'static dyn kernel::device_id::IdTable<DeviceId, ()>;

/// Creates a virtio [`IdTable`] and the alias that lets user space load the module for a device.
#[macro_export]
macro_rules! virtio_device_table {
    ($name:ident, $($tt:tt)*) => {
        ::kernel::module_device_table!("virtio", $crate::DeviceId, $name, @none, $($tt)*);
    };
}
