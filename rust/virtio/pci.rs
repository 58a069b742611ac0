// SPDX-License-Identifier: GPL-2.0

//! Resets of PCI functions that the driver did not initiate.

use core::ptr;

use kernel::prelude::*;

use crate::bindings;

/// Waits for function resets that may have looked up a driver before it was unregistered.
///
/// A reset holds the lock of the PCI device from before it looks up the driver of the virtio device
/// until after it has called that driver. `bus` must be the bus of virtio devices.
pub(crate) fn wait_for_resets(bus: *const bindings::bus_type) {
    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe extern "C" fn is_of(dev: *mut bindings::device, bus: *mut c_void) -> c_int {
        // SAFETY: Guaranteed by the caller; a device keeps its bus.
        c_int::from(ptr::eq(unsafe { (*dev).bus }, bus.cast()))
    }

    /// # Safety
    ///
    /// `dev` must be a valid device, and the caller must not hold the lock of a device.
    unsafe extern "C" fn wait(dev: *mut bindings::device, bus: *mut c_void) -> c_int {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            if bindings::device_for_each_child(dev, bus, Some(is_of)) != 0 {
                bindings::device_lock(dev);
                bindings::device_unlock(dev);
            }
        }
        0
    }

    // SAFETY: The PCI bus always exists. The pointer to the other bus is only compared.
    unsafe {
        bindings::bus_for_each_dev(
            &raw const bindings::pci_bus_type,
            ptr::null_mut(),
            bus.cast_mut().cast(),
            Some(wait),
        )
    };
}
