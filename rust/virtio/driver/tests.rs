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

/// Gives a driver up on a workqueue. `Queue::try_spawn` would do with a closure, but all closures
/// have one lock class there, and each crate gives it a string of its own as its name: lockdep
/// warns.
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
