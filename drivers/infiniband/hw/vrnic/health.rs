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

/// Remembers that the device has failed, and tells the users of the RDMA device of it once.
///
/// A failed device is given no commands any more, and is stopped by the next one that wants to.
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
