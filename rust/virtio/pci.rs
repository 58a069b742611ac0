// SPDX-License-Identifier: GPL-2.0

//! Resets of functions on PCI, which others than the driver may cause.

use core::ptr;

use kernel::prelude::*;

use crate::bindings;

/// Waits until nobody who resets a function has found a driver that cannot be found any more.
///
/// Whoever resets a function holds the lock of the PCI device from before he looks for the driver
/// of its virtio device until after he has told that. `bus` must be that of virtio devices.
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
    /// As above.
    unsafe extern "C" fn wait(dev: *mut bindings::device, bus: *mut c_void) -> c_int {
        // SAFETY: Guaranteed by the caller, who holds no lock of a device.
        unsafe {
            if bindings::device_for_each_child(dev, bus, Some(is_of)) != 0 {
                bindings::device_lock(dev);
                bindings::device_unlock(dev);
            }
        }
        0
    }

    // SAFETY: The bus of PCI devices is always there. The other is only compared.
    unsafe {
        bindings::bus_for_each_dev(
            &raw const bindings::pci_bus_type,
            ptr::null_mut(),
            bus.cast_mut().cast(),
            Some(wait),
        )
    };
}
