// SPDX-License-Identifier: GPL-2.0

//! What is mapped for a device, and when that must end.
//!
//! Memory is mapped for a device while that is registered, and has to be unmapped before the device
//! is unbound. A driver keeps it inside RDMA objects, which are gone by then. Nothing keeps it from
//! leaving some elsewhere, though, so [`Mapper`] sees to the end of that: memory that is dropped
//! too late stays mapped for ever, and what would call the driver back is revoked.

use kernel::{
    device,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        srcu,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    bindings,
    compat,
    gate::Gate, //
};

/// Something that must not outlive the registration of a device, whoever keeps it.
pub(crate) trait Revoke: Send + Sync {
    /// Ends it, if it has not ended: on return it calls nobody any more. Sleeps.
    fn revoke(&self);
}

/// Maps memory for a device while that is registered.
#[pin_data]
pub(crate) struct Mapper {
    /// The RDMA device.
    _device: ARef<device::Device>,
    /// The one that does its DMA.
    dma_device: ARef<device::Device>,
    /// Open while the device is registered.
    #[pin]
    registered: Gate,
    /// What is revoked when that ends, by its address.
    #[pin]
    revocable: Mutex<RBTree<usize, Arc<dyn Revoke>>>,
}

/// The address that [`Mapper`] knows something by.
fn key(revocable: &Arc<dyn Revoke>) -> usize {
    // CAST: The number of a place, in which nothing else is meanwhile.
    core::ptr::from_ref(&**revocable).cast::<u8>() as usize
}

impl Mapper {
    /// Begins to map for a device that `dma_device` does DMA for.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(crate) unsafe fn new(
        device: *mut bindings::ib_device,
        dma_device: &device::Device<device::Bound>,
    ) -> Result<Arc<Self>> {
        // SAFETY: By contract.
        let device =
            unsafe { device::Device::get_device((&raw mut (*device).__bindgen_anon_1.dev).cast()) };
        Arc::pin_init(
            try_pin_init!(Self {
                _device: device,
                dma_device: (&**dma_device).into(),
                registered <- Gate::new(),
                revocable <- new_mutex!(RBTree::new()),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// The device that does the DMA, for messages.
    pub(crate) fn dma(&self) -> &device::Device {
        &self.dma_device
    }

    /// The device that does the DMA.
    pub(crate) fn dma_device(&self) -> *mut bindings::device {
        compat::device_as_raw(&self.dma_device)
    }

    /// Keeps the device registered until the result is dropped. [`None`] if it is not any more.
    pub(crate) fn enter(&self) -> Option<srcu::Guard<'_>> {
        self.registered.enter()
    }

    /// As [`enter`](Self::enter), for memory that is to be unmapped. With [`None`] it is too late
    /// for that: then the memory must stay as it is for ever.
    pub(crate) fn enter_to_unmap(&self) -> Option<srcu::Guard<'_>> {
        let registered = self.enter();
        if registered.is_none() {
            dev_err!(
                self.dma_device,
                "memory of an RDMA object is kept for longer than its device, and leaks\n"
            );
        }
        registered
    }

    /// Has something revoked at the end of the registration.
    pub(crate) fn add(&self, revocable: Arc<dyn Revoke>) -> Result {
        let node = RBTreeNode::new(key(&revocable), revocable, GFP_KERNEL)?;
        let others = self.revocable.lock().insert(node);
        // Nothing else is at that address.
        drop(others);
        Ok(())
    }

    /// Forgets what has been added.
    pub(crate) fn remove(&self, revocable: &Arc<dyn Revoke>) {
        let node = self.revocable.lock().remove_node(&key(revocable));
        // Freed without the lock.
        drop(node);
    }

    /// The device is not registered any more: revokes what is left. Sleeps.
    pub(crate) fn close(&self) {
        self.registered.close();
        loop {
            let mut revocable = self.revocable.lock();
            let first = revocable.iter().next().map(|(&key, _)| key);
            let first = first.and_then(|key| revocable.remove_node(&key));
            // It may be used by who wants the lock.
            drop(revocable);
            let Some(node) = first else {
                return;
            };
            let (_, revocable) = node.to_key_value();
            revocable.revoke();
        }
    }
}
