// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains, thread domains, and parent domains that combine the two.

use super::allocator::Callbacks;
use super::{allocate, fail, release};
use crate::ffi::command::*;
use crate::ffi::functions::*;
use crate::ffi::ioctl::*;
use crate::ffi::verbs::*;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use vrnic_wire::abi::ioctl;

/// A protection domain or a parent domain.
#[repr(C)]
pub struct Pd {
    pd: UnsafeCell<ibv_pd>,
    /// For a parent domain: the domains that it combines. Never changes.
    parent_of: Option<Joined>,
    /// Number of users: parent domains, and objects whose rings come from this domain's allocator.
    users: AtomicU32,
}

struct Joined {
    pd: *const Pd,
    td: *const Td,
    /// The application's allocator.
    callbacks: Option<Callbacks>,
}

/// A thread domain: the application promises that its objects are used by one thread at a time.
#[repr(C)]
pub struct Td {
    td: UnsafeCell<ibv_td>,
    /// Number of parent domains that use this domain.
    users: AtomicU32,
}

impl Pd {
    fn new(parent_of: Option<Joined>) -> Self {
        Self {
            pd: UnsafeCell::new(ibv_pd {
                context: ptr::null_mut(),
                handle: 0,
            }),
            parent_of,
            users: AtomicU32::new(0),
        }
    }

    /// Returns whether objects of this domain are used by one thread at a time.
    ///
    /// # Safety
    ///
    /// The verbs contract: null or a domain of this provider.
    pub unsafe fn is_single_threaded(pd: *const ibv_pd) -> bool {
        // SAFETY: Every domain of this provider is a `Pd`.
        let pd = unsafe { pd.cast::<Self>().as_ref() };
        pd.and_then(|pd| pd.parent_of.as_ref())
            .is_some_and(|joined| !joined.td.is_null())
    }

    /// Returns whether this is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parent_of.is_some()
    }

    /// Returns the application's allocator, if the domain has one.
    pub fn callbacks(&self) -> Option<&Callbacks> {
        self.parent_of.as_ref()?.callbacks.as_ref()
    }

    /// Returns the domain for C.
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.pd.get()
    }

    /// Adds a user.
    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a user, which no longer uses the domain.
    pub fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// Allocates a protection domain.
pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd = allocate(Pd::new(None));
    if pd.is_null() {
        return ptr::null_mut();
    }
    let mut cmd = ibv_alloc_pd::default();
    let mut resp = ib_uverbs_alloc_pd_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures.
    unsafe {
        let error = ibv_cmd_alloc_pd(
            context,
            pd.cast(),
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        );
        if error != 0 {
            release(pd);
            return fail(error);
        }
    }
    pd.cast()
}

/// Imports a domain that another process allocated; `handle` is its handle in the shared context.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let mut find = Method::new(
        UVERBS_OBJECT_PD,
        DRIVER_NS + ioctl::METHOD_FIND_PD,
        [attribute(
            DRIVER_NS + ioctl::FIND_PD_ATTR_HANDLE,
            handle.into(),
            0,
        )],
    );
    // SAFETY: The verbs contract.
    let error = unsafe { execute_ioctl(context, find.as_raw()) };
    if error != 0 {
        return fail(error);
    }
    let pd = Pd::new(None);
    // SAFETY: It is not used elsewhere yet.
    unsafe { *pd.as_raw() = ibv_pd { context, handle } };
    allocate(pd).cast()
}

/// Releases an imported domain, unless parent domains still contain it. The domain remains in the
/// kernel.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    let pd = pd.cast::<Pd>();
    // SAFETY: The verbs contract: a domain of this provider, and its last use here.
    unsafe {
        if (*pd).users.load(Ordering::Acquire) == 0 {
            release(pd);
        }
    }
}

/// Deallocates a protection domain or a parent domain.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let pd = pd.cast::<Pd>();
    // SAFETY: The verbs contract: the last use of the domain, whose objects are gone. The domains
    // that it combines still exist, because their `users` keeps them.
    unsafe {
        if (*pd).users.load(Ordering::Acquire) != 0 {
            return libc::EBUSY;
        }
        if let Some(joined) = &(*pd).parent_of {
            (*joined.pd).remove_user();
            if let Some(td) = joined.td.as_ref() {
                td.users.fetch_sub(1, Ordering::Release);
            }
        } else {
            let error = ibv_cmd_dealloc_pd(pd.cast());
            if error != 0 {
                return error;
            }
        }
        release(pd);
    }
    0
}

/// Allocates a thread domain. It is only a promise by the application; the device is not involved.
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: The verbs contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    allocate(Td {
        td: UnsafeCell::new(ibv_td { context }),
        users: AtomicU32::new(0),
    })
    .cast()
}

/// Deallocates a thread domain.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let td = td.cast::<Td>();
    // SAFETY: The verbs contract: a thread domain of this provider, and its last use.
    unsafe {
        if (*td).users.load(Ordering::Acquire) != 0 {
            return libc::EBUSY;
        }
        release(td);
    }
    0
}

/// Combines a protection domain and a thread domain, or gives a domain an allocator of the
/// application.
pub unsafe extern "C" fn alloc_parent_domain(
    _context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: The verbs contract.
    let attr = unsafe { *attr };
    if attr.pd.is_null() {
        return fail(libc::EINVAL);
    }
    if attr.comp_mask
        & !(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
        != 0
    {
        return fail(libc::EOPNOTSUPP);
    }
    let Ok(callbacks) = Callbacks::new(&attr) else {
        return fail(libc::EINVAL);
    };
    let (contained, td) = (attr.pd.cast::<Pd>(), attr.td.cast::<Td>());
    // SAFETY: The verbs contract: domains of this provider, which outlive the new one.
    unsafe {
        if (*contained).parent_of.is_some() {
            return fail(libc::EINVAL);
        }
        let parent = allocate(Pd::new(Some(Joined {
            pd: contained,
            td,
            callbacks,
        })));
        if parent.is_null() {
            return ptr::null_mut();
        }
        // For the kernel, it is the protection domain that it contains.
        *(*parent).pd.get() = *attr.pd;
        (*contained).add_user();
        if let Some(td) = td.as_ref() {
            td.users.fetch_add(1, Ordering::Relaxed);
        }
        parent.cast()
    }
}
