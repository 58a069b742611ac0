// SPDX-License-Identifier: GPL-2.0

//! A transport without a bus. Its device has queues, never uses a buffer, and forgets everything
//! when it is reset.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU8,
    Ordering::SeqCst, //
};

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque, //
};

use crate::{
    bindings,
    Feature, //
};

/// Type of the device, which is higher than any in the standard.
pub(crate) const DEVICE_ID: u32 = 0x7e57;

/// Entries of a queue.
const ENTRIES: c_uint = 8;

/// Register value of a device that is gone.
const GONE: u8 = 0xff;

/// Decrements a counter. Returns whether it was not 0.
pub(crate) fn is_next(left: &AtomicU32) -> bool {
    left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

/// A device and its transport, with settings for the test and a record of calls.
///
/// # Invariants
///
/// `vdev` is at offset 0.
#[repr(C)]
pub(crate) struct Transport {
    vdev: Opaque<bindings::virtio_device>,
    status: AtomicU8,
    /// How often the device will reject the features that it offers.
    pub(crate) refuses: AtomicU32,
    /// How many of the next probes fail at their end.
    pub(crate) fails: AtomicU32,
    /// In how many of the next probes the driver requests a restart.
    pub(crate) asks: AtomicU32,
    /// Number of probes.
    pub(crate) probed: AtomicU32,
    /// Whether the last probe was by a work item.
    pub(crate) probed_by_work: AtomicBool,
    /// Whether the driver leaves it to the virtio core to make the device ready.
    pub(crate) leaves_ready: AtomicBool,
    /// In how many of the next probes the device changes its configuration.
    pub(crate) changes: AtomicU32,
    /// Whether the configuration changes when the device is taken from its driver, and the virtio
    /// core reports that.
    pub(crate) changes_at_end: AtomicBool,
    /// Number of configuration changes reported to the driver.
    pub(crate) told: AtomicU32,
    /// Whether the device disappears when its queues are deleted.
    pub(crate) goes: AtomicBool,
    /// Whether the device was reset although it was gone.
    pub(crate) was_reset_in_vain: AtomicBool,
    /// How often queues were deleted.
    pub(crate) deleted: AtomicU32,
    /// Whether the device lock was held at that time.
    pub(crate) was_locked: AtomicBool,
    /// Whether resets are slow.
    pub(crate) is_slow: AtomicBool,
    /// How often the driver waited for handlers after the device had been reset.
    pub(crate) synchronized: AtomicU32,
}

impl Transport {
    pub(crate) const OPS: &'static bindings::virtio_config_ops = &bindings::virtio_config_ops {
        get_status: Some(Self::get_status),
        set_status: Some(Self::set_status),
        reset: Some(Self::reset),
        synchronize_cbs: Some(Self::synchronize),
        find_vqs: Some(Self::find_vqs),
        del_vqs: Some(Self::del_vqs),
        get_features: Some(Self::get_features),
        finalize_features: Some(Self::finalize_features),
        ..pin_init::zeroed()
    };

    /// Creates a device that is not registered yet.
    pub(crate) fn new() -> Self {
        Self {
            vdev: Opaque::zeroed(),
            status: AtomicU8::new(0),
            refuses: AtomicU32::new(0),
            fails: AtomicU32::new(0),
            asks: AtomicU32::new(0),
            probed: AtomicU32::new(0),
            probed_by_work: AtomicBool::new(false),
            leaves_ready: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            changes_at_end: AtomicBool::new(false),
            told: AtomicU32::new(0),
            goes: AtomicBool::new(false),
            was_reset_in_vain: AtomicBool::new(false),
            deleted: AtomicU32::new(0),
            was_locked: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            synchronized: AtomicU32::new(0),
        }
    }

    /// # Safety
    ///
    /// `vdev` must be part of a transport that does not go away during `'a`.
    pub(crate) unsafe fn of<'a>(vdev: *mut bindings::virtio_device) -> &'a Self {
        // SAFETY: Guaranteed by the caller, and by the type invariant.
        unsafe { &*vdev.cast() }
    }

    /// Returns the status of the device.
    pub(crate) fn status(&self) -> u8 {
        self.status.load(SeqCst)
    }

    /// # Safety
    ///
    /// As for [`of`](Self::of), here and below.
    unsafe extern "C" fn get_status(vdev: *mut bindings::virtio_device) -> u8 {
        // SAFETY: Guaranteed by the caller.
        unsafe { Self::of(vdev) }.status()
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn set_status(vdev: *mut bindings::virtio_device, status: u8) {
        const FEATURES_OK: u8 = bindings::VIRTIO_CONFIG_S_FEATURES_OK as u8;

        // SAFETY: Guaranteed by the caller.
        let this = unsafe { Self::of(vdev) };
        if this.status() == GONE {
            return;
        }
        let accepts = status & FEATURES_OK == 0 || !is_next(&this.refuses);
        let refused = if accepts { 0 } else { FEATURES_OK };
        this.status.store(status & !refused, SeqCst);
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn reset(vdev: *mut bindings::virtio_device) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = Self::of(vdev);
            // The PCI transport would wait forever.
            this.was_reset_in_vain
                .fetch_or(this.status() == GONE, SeqCst);
            if this.is_slow.load(SeqCst) {
                fsleep(Delta::from_millis(50));
            }
            Self::set_status(vdev, 0);
        }
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn synchronize(vdev: *mut bindings::virtio_device) {
        // SAFETY: Guaranteed by the caller.
        let this = unsafe { Self::of(vdev) };
        if this.status() == 0 {
            this.synchronized.fetch_add(1, SeqCst);
        }
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn get_features(_vdev: *mut bindings::virtio_device) -> u64 {
        1 << Feature::VERSION_1.bit()
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn finalize_features(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::vring_transport_features(vdev) };
        0
    }

    /// # Safety
    ///
    /// As above, and both arrays must have `count` elements.
    unsafe extern "C" fn find_vqs(
        vdev: *mut bindings::virtio_device,
        count: c_uint,
        queues: *mut *mut bindings::virtqueue,
        infos: *mut bindings::virtqueue_info,
        _affinity: *mut bindings::irq_affinity,
    ) -> c_int {
        for index in 0..count {
            // SAFETY: Guaranteed by the caller.
            let queue = unsafe {
                let info = &*infos.add(index as usize);
                bindings::vring_create_virtqueue(
                    index,
                    ENTRIES,
                    4096,
                    vdev,
                    true,
                    true,
                    false,
                    Some(Self::notify),
                    info.callback,
                    info.name,
                )
            };
            if queue.is_null() {
                // SAFETY: As above.
                unsafe { Self::delete_all(vdev) };
                return ENOMEM.to_errno();
            }
            // SAFETY: As above.
            unsafe { *queues.add(index as usize) = queue };
        }
        0
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn notify(_queue: *mut bindings::virtqueue) -> bool {
        true
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn del_vqs(vdev: *mut bindings::virtio_device) {
        // SAFETY: Guaranteed by the caller; the device is valid.
        unsafe {
            let this = Self::of(vdev);
            this.deleted.fetch_add(1, SeqCst);
            let lock = &raw mut (*vdev).dev.mutex;
            this.was_locked
                .store(bindings::mutex_is_locked(lock), SeqCst);
            Self::delete_all(vdev);
            if this.goes.load(SeqCst) {
                this.status.store(GONE, SeqCst);
            }
        }
    }

    /// # Safety
    ///
    /// As above, and the queues must not be in use.
    unsafe fn delete_all(vdev: *mut bindings::virtio_device) {
        // SAFETY: The list consists of queues, each of which removes itself from the list.
        unsafe {
            let list = &raw mut (*vdev).vqs;
            loop {
                let next = (*list).next;
                if next == list {
                    break;
                }
                let queue = kernel::container_of!(next, bindings::virtqueue, list);
                bindings::vring_del_virtqueue(queue);
            }
        }
    }

    /// Makes the device fail.
    pub(crate) fn fail(&self) {
        const NEEDS_RESET: u8 = bindings::VIRTIO_CONFIG_S_NEEDS_RESET as u8;

        self.status.fetch_or(NEEDS_RESET, SeqCst);
    }

    /// Makes the device reappear in reset. The virtio core warns if a device is not reset when its
    /// driver has released it.
    pub(crate) fn come_back(&self) {
        self.status.store(0, SeqCst);
    }

    /// Raises an unexpected interrupt for the first queue.
    pub(crate) fn interrupt(&self) {
        // SAFETY: The list consists of queues, whose callback takes the queue. Only the caller
        // deletes queues, so none is deleted during this.
        unsafe {
            let list = &raw mut (*self.vdev.get()).vqs;
            let queue = kernel::container_of!((*list).next, bindings::virtqueue, list);
            if let Some(callback) = (*queue).callback {
                callback(queue);
            }
        }
    }

    /// # Safety
    ///
    /// `dev` must be in a transport to which there are no more references.
    pub(crate) unsafe extern "C" fn release(dev: *mut bindings::device) {
        // SAFETY: Guaranteed by the caller; `with_device` leaked the box.
        unsafe {
            let vdev = kernel::container_of!(dev, bindings::virtio_device, dev);
            drop(KBox::from_raw(vdev.cast::<Self>()));
        }
    }
}
