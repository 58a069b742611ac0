// SPDX-License-Identifier: GPL-2.0

//! Whether the device still works.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};

use kernel::{
    device::Device,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};
use rdma::event::Dispatcher;
use virtio::{
    Watch,
    Watchdog, //
};

use crate::control::Control;

/// Remembers that the device has failed, and tells the users of the RDMA device of it once.
///
/// A failed device is given no commands any more, and is stopped by whoever wants to next, or by
/// its [`Supervision`].
pub(crate) struct Health {
    dev: ARef<Device>,
    dispatcher: Arc<Dispatcher>,
    failed: AtomicBool,
}

impl Health {
    pub(crate) fn new(dev: &Device, dispatcher: Arc<Dispatcher>) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                dev: dev.into(),
                dispatcher,
                failed: AtomicBool::new(false),
            },
            GFP_KERNEL,
        )?)
    }

    /// The device, for messages about it.
    pub(crate) fn dev(&self) -> &Device {
        &self.dev
    }

    /// The device has failed. Only the first call does anything. May be called in any context.
    pub(crate) fn fail(&self, reason: &str) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            dev_err!(self.dev, "device failed: {}\n", reason);
            self.dispatcher.device_fatal();
        }
    }

    /// Whether the device has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Milliseconds after which the device's status is looked at again. A register read is cheap
/// enough, and it is how one learns that a device is gone while no command waits for it.
const INTERVAL_MS: u32 = 1000;

/// Notices that the device failed though nobody gives it commands.
pub(crate) struct Supervision(Arc<Control>);

impl Watch for Supervision {
    fn look(&self) -> bool {
        !self.0.check()
    }
}

/// Supervises the device as long as the result exists.
pub(crate) fn supervise(control: Arc<Control>) -> Result<Pin<KBox<Watchdog<Supervision>>>> {
    KBox::pin_init(Watchdog::new(INTERVAL_MS, Supervision(control)), GFP_KERNEL)
}
