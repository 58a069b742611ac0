// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The source of memory for rings: this provider maps it, or the application's allocator of a
//! parent domain provides it (`ibv_alloc_parent_domain(3)`).

use super::pd::Pd;
use crate::ffi::verbs::*;
use crate::memory::{Buffer, Lender, page_size, whole_pages};
use alloc::boxed::Box;
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use vrnic_wire::abi::DRIVER_ID;

/// What the application's allocator returns to let the provider map the memory.
const USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// The application's functions.
#[derive(Copy, Clone, Debug)]
pub struct Callbacks {
    alloc: AllocBuffer,
    free: FreeBuffer,
    context: *mut c_void,
}

impl Callbacks {
    /// Returns the functions for a new parent domain, or `None` if it is to have none. Fails if
    /// only one of the two is given.
    pub fn new(attr: &ibv_parent_domain_init_attr) -> Result<Option<Self>, ()> {
        if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
            return Ok(None);
        }
        let context = match attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT {
            0 => ptr::null_mut(),
            _ => attr.pd_context,
        };
        Ok(Some(Self {
            alloc: attr.alloc.ok_or(())?,
            free: attr.free.ok_or(())?,
            context,
        }))
    }
}

/// What a buffer is for. The application's allocator gets this in the lower half of
/// `resource_type`; the upper half is the driver's ID.
#[derive(Copy, Clone, Debug)]
pub enum Resource {
    /// Send and receive ring of a queue pair.
    QueuePair = 1,
    /// Ring of a completion queue.
    CompletionQueue = 2,
    /// Ring of a shared receive queue.
    SharedReceiveQueue = 3,
}

impl Resource {
    fn to_c(self) -> u64 {
        u64::from(DRIVER_ID) << 32 | self as u64
    }
}

/// The source of memory for an object's rings. A parent domain in it cannot be deallocated before
/// it is dropped.
#[derive(Debug)]
pub struct Allocator {
    domain: Option<NonNull<Pd>>,
    resource: Resource,
}

// SAFETY: The domain outlives its users, and any thread may call its functions: the application is
// responsible for that (`ibv_alloc_parent_domain(3)`).
unsafe impl Send for Allocator {}
// SAFETY: As above.
unsafe impl Sync for Allocator {}

impl Allocator {
    /// Returns the allocator of a domain.
    ///
    /// # Safety
    ///
    /// The verbs contract: null or a domain of this provider.
    pub unsafe fn of(pd: *mut ibv_pd, resource: Resource) -> Self {
        // Every domain of this provider is a `Pd`.
        let domain = NonNull::new(pd.cast::<Pd>())
            // SAFETY: By contract.
            .filter(|pd| unsafe { pd.as_ref() }.callbacks().is_some());
        if let Some(domain) = domain {
            // SAFETY: As above.
            unsafe { domain.as_ref() }.add_user();
        }
        Self { domain, resource }
    }

    fn domain(&self) -> Option<&Pd> {
        // SAFETY: The domain is not deallocated before its users are gone.
        self.domain
            .as_ref()
            .map(|domain| unsafe { domain.as_ref() })
    }

    /// Returns the domain and its allocator functions, if it has any.
    fn callbacks(&self) -> Option<(&Pd, Callbacks)> {
        let domain = self.domain()?;
        Some((domain, *domain.callbacks()?))
    }

    /// Allocates whole zeroed pages with at least `length` bytes.
    pub fn allocate(&self, length: usize) -> Result<Buffer, c_int> {
        let Some((domain, callbacks)) = self.callbacks() else {
            return Buffer::new(length).ok_or(libc::ENOMEM);
        };
        let length = whole_pages(length).ok_or(libc::ENOMEM)?;
        // SAFETY: The application's function, called with arguments as the manual describes them.
        let memory = unsafe {
            (callbacks.alloc)(
                domain.as_raw(),
                callbacks.context,
                length,
                page_size(),
                self.resource.to_c(),
            )
        };
        if memory == USE_DEFAULT {
            return Buffer::new(length).ok_or(libc::ENOMEM);
        }
        let memory = NonNull::new(memory.cast()).ok_or(libc::ENOMEM)?;
        if !memory.addr().get().is_multiple_of(page_size()) {
            self.take_back(memory);
            return Err(libc::EINVAL);
        }
        // SAFETY: The memory has the requested length, is page aligned, and is ours until the
        // application frees it.
        unsafe { Buffer::lent(memory, length, Box::new(self.clone())) }.ok_or(libc::ENOMEM)
    }
}

impl Clone for Allocator {
    fn clone(&self) -> Self {
        if let Some(domain) = self.domain() {
            domain.add_user();
        }
        Self { ..*self }
    }
}

impl Lender for Allocator {
    fn take_back(&self, memory: NonNull<u8>) {
        if let Some((domain, callbacks)) = self.callbacks() {
            // SAFETY: The application's function, for memory from its counterpart.
            unsafe {
                (callbacks.free)(
                    domain.as_raw(),
                    callbacks.context,
                    memory.as_ptr().cast(),
                    self.resource.to_c(),
                );
            }
        }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        if let Some(domain) = self.domain() {
            domain.remove_user();
        }
    }
}
