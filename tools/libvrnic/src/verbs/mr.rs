// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use super::context::Context;
use super::{allocate, fail, release};
#[cfg(feature = "pabi59")]
use crate::ffi::Opaque;
use crate::ffi::command::*;
use crate::ffi::driver::{IBV_MR_TYPE_NULL_MR, verbs_mr};
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// Creates a region that `fill` fills in. If `fill` returns an error or memory runs out, returns
/// null and sets `errno`.
pub(super) fn new_region(fill: impl FnOnce(*mut verbs_mr) -> c_int) -> *mut ibv_mr {
    let mr = allocate(MaybeUninit::<verbs_mr>::zeroed()).cast::<verbs_mr>();
    if mr.is_null() {
        return ptr::null_mut();
    }
    let error = fill(mr);
    // SAFETY: It came from `allocate`, is of a type for which all zeros is a valid value, and is
    // not used elsewhere yet.
    unsafe {
        if error != 0 {
            release(mr);
            return fail(error);
        }
        &raw mut (*mr).ibv_mr
    }
}

/// Registers memory; `hca_va` is the address of its first byte in work requests.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let mut cmd = ibv_reg_mr::default();
    let mut resp = ib_uverbs_reg_mr_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures.
    new_region(|mr| unsafe {
        ibv_cmd_reg_mr(
            pd,
            address,
            length,
            hca_va,
            access,
            mr,
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        )
    })
}

/// Registers memory of a dma-buf; `iova` is the address of its first byte in work requests.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: The verbs contract; the command has no driver part.
    new_region(|mr| unsafe {
        ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr, ptr::null_mut())
    })
}

/// Registers memory of the process or of a dma-buf, as `attr` describes.
#[cfg(feature = "pabi59")]
pub unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut Opaque) -> *mut ibv_mr {
    // SAFETY: The verbs contract.
    new_region(|mr| unsafe { ibv_cmd_reg_mr_ex(pd, mr, attr) })
}

/// Allocates a region that reads as zeros at every address and discards writes. The kernel has no
/// object for it: its key is the same in every process.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: The verbs contract: a protection domain of an open context of this provider.
    let (context, key) = unsafe {
        let context = (*pd).context;
        (context, Context::null_key(context))
    };
    let Some(key) = key else {
        return fail(libc::EOPNOTSUPP);
    };
    // SAFETY: A new region, which is not used elsewhere.
    new_region(|mr| unsafe {
        (*mr).mr_type = IBV_MR_TYPE_NULL_MR;
        (*mr).ibv_mr.context = context;
        (*mr).ibv_mr.pd = pd;
        (*mr).ibv_mr.lkey = key;
        0
    })
}

/// Changes a region as `flags` describe. This may change its keys.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: The verbs contract: a region of this provider.
    if unsafe { (*mr).mr_type } == IBV_MR_TYPE_NULL_MR {
        return libc::EINVAL;
    }
    let mut cmd = ibv_rereg_mr::default();
    let mut resp = ib_uverbs_rereg_mr_resp::default();
    // SAFETY: The verbs contract: a region of this provider; the sizes are those of the structures.
    unsafe {
        ibv_cmd_rereg_mr(
            mr,
            u32::from_ne_bytes(flags.to_ne_bytes()),
            address,
            length,
            address as u64,
            access,
            pd,
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        )
    }
}

/// Deregisters memory.
pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: The verbs contract: a region of this provider, and its last use.
    unsafe {
        let error = match (*mr).mr_type {
            IBV_MR_TYPE_NULL_MR => 0,
            _ => ibv_cmd_dereg_mr(mr),
        };
        if error == 0 {
            release(mr);
        }
        error
    }
}

/// Imports a region that another process registered; `handle` is its handle in the shared context.
pub unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: The verbs contract.
    new_region(|mr| unsafe { ibv_cmd_query_mr(pd, mr, handle) })
}

/// Releases an imported region. The region itself remains.
pub unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: The verbs contract: a region of this provider, which begins with the part known to
    // the application, and its last use here.
    unsafe { release(mr.cast::<verbs_mr>()) };
}
