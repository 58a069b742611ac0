// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of a device, and their end.
//!
//! Memory is mapped for a device while the device is registered, and must be unmapped before the
//! device is unbound. Drivers keep such memory in RDMA objects, which are gone by then. Nothing
//! prevents a driver from keeping some of it elsewhere, though, so [`Mapper`] enforces the end:
//! memory that is dropped too late stays mapped forever, and everything that could call back into
//! the driver is revoked.

use core::mem::MaybeUninit;

use kernel::{
    device,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        srcu,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    bindings,
    compat,
    gate::Gate,
    workqueue::Workqueue, //
};

/// How much memory is watched for a device, and how much may be.
///
/// The kernel keeps lists of the pages of all watched ranges, whether the pages are present or not,
/// and charges these lists to nobody. So the lists for a device may take a sixteenth of the
/// machine's memory, however many regions and processes they are for.
pub(crate) struct Watched {
    /// Number of bytes that are watched.
    bytes: Atomic<usize>,
    pub(crate) limit: usize,
}

impl Watched {
    /// Creates the state of a device for which nothing is watched yet.
    pub(crate) fn new() -> Self {
        Self::with_limit(bytes_of_machine().saturating_mul(WATCHED_PER_BYTE))
    }

    /// Like [`new`](Self::new), with a limit in bytes.
    pub(crate) const fn with_limit(limit: usize) -> Self {
        Self {
            bytes: Atomic::new(0),
            limit,
        }
    }

    /// Counts bytes as watched; `ENOMEM` if this exceeds the limit. Refused bytes are not counted,
    /// so they take no room from others.
    pub(crate) fn add(&self, length: usize) -> Result {
        let mut before = self.bytes.load(Relaxed);
        loop {
            let after = before.checked_add(length).filter(|all| *all <= self.limit);
            match self.bytes.cmpxchg(before, after.ok_or(ENOMEM)?, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => before = now,
            }
        }
    }

    /// Undoes one [`add`](Self::add).
    pub(crate) fn remove(&self, length: usize) {
        self.bytes.fetch_sub(length, Relaxed);
    }
}

/// Number of bytes that may be watched for each byte of the machine's memory.
const WATCHED_PER_BYTE: usize = PAGE_SIZE / size_of::<c_ulong>() / 16;

/// Returns the size of the machine's memory in bytes.
pub(crate) fn bytes_of_machine() -> usize {
    let mut info = MaybeUninit::<bindings::sysinfo>::uninit();
    // SAFETY: `info` is writable, and the function sets this member.
    let pages = unsafe {
        bindings::si_meminfo(info.as_mut_ptr());
        (*info.as_ptr()).totalram
    };
    // CAST: The machine has that many pages.
    (pages as usize).saturating_mul(PAGE_SIZE)
}

/// Something that must not outlive the registration of a device, even if it is not dropped.
pub(crate) trait Revoke: Send + Sync {
    /// Ends its activity: once this returns, it makes no more calls. May be called twice. Sleeps.
    fn revoke(&self);
}

/// Maps memory for a device while the device is registered.
#[pin_data]
pub(crate) struct Mapper {
    /// The RDMA device.
    _device: ARef<device::Device>,
    /// The device that does DMA for the RDMA device.
    dma_device: ARef<device::Device>,
    /// Open while the device is registered.
    #[pin]
    registered: Gate,
    /// How much on-demand memory there is.
    watched: Watched,
    /// Where on-demand memory is served.
    paging: Workqueue,
    /// What to revoke at the end of the registration, by address.
    #[pin]
    revocable: Mutex<RBTree<usize, Arc<dyn Revoke>>>,
}

/// Returns the address that serves as key in [`Mapper`].
fn key(revocable: &Arc<dyn Revoke>) -> usize {
    // CAST: The address identifies an object, which keeps it for as long as the entry exists.
    core::ptr::from_ref(&**revocable).cast::<u8>() as usize
}

impl Mapper {
    /// Creates a mapper for an RDMA device for which `dma_device` does DMA, and of whose on-demand
    /// memory nothing is `watched` yet.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(crate) unsafe fn new(
        device: *mut bindings::ib_device,
        dma_device: &device::Device<device::Bound>,
        watched: Watched,
    ) -> Result<Arc<Self>> {
        // SAFETY: Guaranteed by the caller.
        let device =
            unsafe { device::Device::get_device((&raw mut (*device).__bindgen_anon_1.dev).cast()) };
        Arc::pin_init(
            try_pin_init!(Self {
                _device: device,
                dma_device: (&**dma_device).into(),
                registered <- Gate::new(),
                watched,
                paging: Workqueue::new(dma_device, c"paging")?,
                revocable <- new_mutex!(RBTree::new()),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the device that does the DMA, for log messages.
    pub(crate) fn dma(&self) -> &device::Device {
        &self.dma_device
    }

    /// Returns the device that does the DMA.
    pub(crate) fn dma_device(&self) -> *mut bindings::device {
        compat::device_as_raw(&self.dma_device)
    }

    /// Returns how much on-demand memory there is.
    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Returns the workqueue that serves on-demand memory.
    ///
    /// It is not one of the system's: the work waits for pages of a process, which decides how long
    /// that takes, for example by mapping a file of its own file system in user space. A workqueue
    /// runs a limited number of works at the same time, and regions of processes must not use up
    /// those of everybody else.
    pub(crate) fn paging(&self) -> &Workqueue {
        &self.paging
    }

    /// Keeps the device registered until the result is dropped. Returns [`None`] if the device is
    /// not registered any more.
    pub(crate) fn enter(&self) -> Option<srcu::Guard<'_>> {
        self.registered.enter()
    }

    /// Like [`enter`](Self::enter), for memory that is about to be unmapped. With [`None`] it is
    /// too late to unmap, and the memory must stay as it is forever.
    pub(crate) fn enter_to_unmap(&self) -> Option<srcu::Guard<'_>> {
        let registered = self.enter();
        if registered.is_none() {
            dev_err!(
                self.dma_device,
                "memory of an RDMA object outlives its device and is leaked\n"
            );
        }
        registered
    }

    /// Adds something to revoke at the end of the registration.
    pub(crate) fn add(&self, revocable: Arc<dyn Revoke>) -> Result {
        let node = RBTreeNode::new(key(&revocable), revocable, GFP_KERNEL)?;
        let others = self.revocable.lock().insert(node);
        // Nothing else has that address as its key.
        drop(others);
        Ok(())
    }

    /// Removes something that was added.
    pub(crate) fn remove(&self, revocable: &Arc<dyn Revoke>) {
        let node = self.revocable.lock().remove_node(&key(revocable));
        // Freed without holding the lock.
        drop(node);
    }

    /// Ends the registration: revokes everything that is left. Sleeps.
    pub(crate) fn close(&self) {
        self.registered.close();
        loop {
            let mut revocable = self.revocable.lock();
            let first = revocable.iter().next().map(|(&key, _)| key);
            let first = first.and_then(|key| revocable.remove_node(&key));
            // Revoking may wait for something that takes the lock.
            drop(revocable);
            let Some(node) = first else {
                return;
            };
            let (_, revocable) = node.to_key_value();
            revocable.revoke();
        }
    }
}
