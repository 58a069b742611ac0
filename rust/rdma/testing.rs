// SPDX-License-Identifier: GPL-2.0

//! What tests need of the rest of the kernel: a device, and memory of a process.

use core::{
    ops::Range,
    ptr::NonNull, //
};

use kernel::{
    bindings::{
        dma_set_mask,
        kunit_attach_mm,
        vm_mmap,
        vm_munmap, //
    },
    device,
    error::to_result,
    faux,
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::bindings;

/// An RDMA device that nobody registers. It does DMA to all addresses.
///
/// # Invariants
///
/// The pointer is valid and owned; its DMA device lives as long.
pub(crate) struct TestDevice {
    raw: NonNull<bindings::ib_device>,
    dma_device: faux::Registration,
}

impl TestDevice {
    /// Makes a device. There can be one at a time.
    pub(crate) fn new() -> Result<Self> {
        let faux = faux::Registration::new(c"rdma-test", None)?;
        let parent: &device::Device<device::Bound> = faux.as_ref().as_ref();
        let parent = crate::compat::device_as_raw(parent);
        // SAFETY: The DMA device is valid, and nobody else uses it. The size is that of a device
        // without a driver's part.
        unsafe {
            (*parent).dma_mask = &raw mut (*parent).coherent_dma_mask;
            to_result(dma_set_mask(parent, u64::MAX))?;
            let size = size_of::<bindings::ib_device>();
            let raw = bindings::_ib_alloc_device(size, &raw mut bindings::init_net);
            let raw = NonNull::new(raw).ok_or(ENOMEM)?;
            (*raw.as_ptr()).dma_device = parent;
            // INVARIANT: Just allocated; the fields are dropped after it is freed.
            Ok(Self {
                raw,
                dma_device: faux,
            })
        }
    }

    /// The C structure.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.as_ptr()
    }

    /// What does the DMA.
    pub(crate) fn dma_device(&self) -> &device::Device<device::Bound> {
        self.dma_device.as_ref().as_ref()
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and never registered.
        unsafe { bindings::ib_dealloc_device(self.raw.as_ptr()) };
    }
}

/// Private memory of the process that runs a test: each test has a thread of its own, and with this
/// an address space.
pub(crate) struct ProcessMemory(u64);

impl ProcessMemory {
    /// Maps so many pages, all zeros, that may be read and written.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        /// `PROT_READ | PROT_WRITE`
        const READ_AND_WRITE: c_ulong = 3;
        /// `MAP_PRIVATE | MAP_ANONYMOUS`
        const PRIVATE_AND_ANONYMOUS: c_ulong = 0x22;

        // SAFETY: Called by the thread of a test.
        to_result(unsafe { kunit_attach_mm() })?;
        let (length, protection, flags) =
            (pages * PAGE_SIZE, READ_AND_WRITE, PRIVATE_AND_ANONYMOUS);
        // SAFETY: The thread has an address space, and a mapping without a file needs no more.
        let address = unsafe { vm_mmap(core::ptr::null_mut(), 0, length, protection, flags, 0) };
        // Errors are no multiples of the page size.
        if address as usize % PAGE_SIZE != 0 {
            return Err(ENOMEM);
        }
        Ok(Self(address as u64))
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.0
    }

    /// Takes pages away.
    pub(crate) fn unmap(&self, pages: Range<usize>) -> Result {
        let start = self.0 as usize + pages.start * PAGE_SIZE;
        // SAFETY: The address space is that of this thread, and nothing of it runs.
        to_result(unsafe { vm_munmap(start as c_ulong, pages.len() * PAGE_SIZE) })
    }
}
