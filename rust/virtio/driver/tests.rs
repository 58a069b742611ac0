// SPDX-License-Identifier: GPL-2.0

//! Tests of unregistering a driver.

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
    driver::Registration,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        self,
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use crate::{
    bindings,
    driver::Adapter,
    testing::driver::{
        register,
        TestDriver, //
    }, //
};

/// Any device of a vendor: `PCI_ANY_ID`.
const ANY: c_uint = !0;

/// The held lock of the PCI device of a virtio device, as during a reset of the function.
struct Reset(NonNull<bindings::pci_dev>);

impl Reset {
    /// Takes the lock of any virtio device of the machine.
    fn begin() -> Result<Self> {
        const VENDOR: c_uint = bindings::PCI_VENDOR_ID_REDHAT_QUMRANET;

        // SAFETY: This starts a new search; the result has a reference.
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

/// Unregisters a driver on a workqueue. `Queue::try_spawn` with a closure would do, but there all
/// closures share a lock class, and each crate has its own copy of the class name: lockdep warns
/// about that.
#[pin_data]
struct Unregister {
    #[pin]
    work: Work<Self>,
    driver: Pin<KBox<Registration<Adapter<TestDriver>>>>,
    gone: Arc<AtomicBool>,
}

impl_has_work! {
    impl HasWork<Self> for Unregister { self.work }
}

impl WorkItem for Unregister {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        let gone = this.gone.clone();
        drop(this);
        gone.store(true, SeqCst);
    }
}

#[kunit_tests(virtio_driver)]
mod cases {
    use super::*;

    #[test]
    fn a_driver_is_there_for_whoever_resets_a_function() -> Result {
        let driver = register()?;
        let gone = Arc::new(AtomicBool::new(false), GFP_KERNEL)?;
        let also_gone = gone.clone();
        let reset = Reset::begin()?;
        let unregister = pin_init!(Unregister {
            work <- new_work!("Unregister::work"),
            driver,
            gone: also_gone,
        });
        workqueue::system_unbound().enqueue(KBox::pin_init(unregister, GFP_KERNEL)?);
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
