// SPDX-License-Identifier: GPL-2.0

//! Tests of drivers that go away.

use core::{
    ptr::{
        null_mut,
        NonNull, //
    },
    sync::atomic::{
        AtomicBool,
        Ordering::SeqCst, //
    }, //
};

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue, //
};

use crate::{
    bindings,
    testing::driver::register, //
};

/// Any device of a vendor: `PCI_ANY_ID`.
const ANY: c_uint = !0;

/// The lock of the PCI device of a virtio device, as whoever resets its function has it.
struct Reset(NonNull<bindings::pci_dev>);

impl Reset {
    /// That of any virtio device of the machine.
    fn begin() -> Result<Self> {
        const VENDOR: c_uint = bindings::PCI_VENDOR_ID_REDHAT_QUMRANET;

        // SAFETY: The search begins anew; the result has a reference.
        let found = unsafe { bindings::pci_get_device(VENDOR, ANY, null_mut()) };
        let this = Self(NonNull::new(found).ok_or(ENODEV)?);
        // SAFETY: The device is valid.
        unsafe { bindings::device_lock(&raw mut (*found).dev) };
        Ok(this)
    }
}

impl Drop for Reset {
    fn drop(&mut self) {
        // SAFETY: Locked, and the reference taken, by this task.
        unsafe {
            bindings::device_unlock(&raw mut (*self.0.as_ptr()).dev);
            bindings::pci_dev_put(self.0.as_ptr());
        }
    }
}

#[kunit_tests(virtio_driver)]
mod cases {
    use super::*;

    #[test]
    fn a_driver_is_there_for_whoever_resets_a_function() -> Result {
        let driver = register()?;
        let gone = Arc::new(AtomicBool::new(false), GFP_KERNEL)?;
        let reset = Reset::begin()?;
        let also_gone = gone.clone();
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            drop(driver);
            also_gone.store(true, SeqCst);
        })?;
        fsleep(Delta::from_millis(300));
        let early = gone.load(SeqCst);
        drop(reset);
        for _ in 0..1000 {
            if gone.load(SeqCst) {
                break;
            }
            fsleep(Delta::from_millis(10));
        }
        assert!(!early && gone.load(SeqCst));
        Ok(())
    }
}
