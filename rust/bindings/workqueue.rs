// SPDX-License-Identifier: GPL-2.0

//! Workqueues for the work of a device.

use core::ptr::NonNull;

use kernel::{
    device,
    prelude::*, //
};

use kernel::bindings;

/// A workqueue that is named after a device.
///
/// Must not be dropped by its own work, for which it waits.
///
/// # Invariants
///
/// The pointer is valid and owned.
pub struct Workqueue(NonNull<bindings::workqueue_struct>);

impl Workqueue {
    /// Creates a workqueue for the `purpose` of `dev`, for work that threads wait for while they
    /// free memory: storage stacks, for example, destroy queue pairs when they re-establish a
    /// connection.
    ///
    /// The kernel keeps a thread for such a workqueue (`WQ_MEM_RECLAIM`). Work that waits for other
    /// work must be in another workqueue, because that thread runs one work at a time.
    pub fn for_reclaim(dev: &device::Device, purpose: &CStr) -> Result<Self> {
        Self::with_flags(dev, purpose, bindings::wq_flags_WQ_MEM_RECLAIM)
    }

    /// Creates a workqueue for the `purpose` of `dev`, for work that may wait for memory.
    pub fn new(dev: &device::Device, purpose: &CStr) -> Result<Self> {
        Self::with_flags(dev, purpose, 0)
    }

    /// Creates a workqueue with additional flags.
    fn with_flags(dev: &device::Device, purpose: &CStr, flags: bindings::wq_flags) -> Result<Self> {
        // SAFETY: The format takes two strings, which are copied.
        let raw = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s-%s".as_char_ptr(),
                flags | bindings::wq_flags_WQ_UNBOUND,
                0,
                dev.name().as_char_ptr(),
                purpose.as_char_ptr(),
            )
        };
        // INVARIANT: Just allocated.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }

    /// Returns the C structure.
    pub fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.0.as_ptr()
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

// SAFETY: A workqueue may be used and destroyed by any thread.
unsafe impl Send for Workqueue {}

// SAFETY: Work may be queued by any thread.
unsafe impl Sync for Workqueue {}
