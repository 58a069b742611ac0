// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! DMA handles: hints about the use of memory, which the driver checks.

use super::{allocate, fail, release};
use crate::ffi::Opaque;
use crate::ffi::driver::{ibv_dmah, verbs_dmah};
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::ffi::c_int;
use core::ptr;

/// Allocates a handle.
pub unsafe extern "C" fn alloc_dmah(
    context: *mut ibv_context,
    attr: *mut Opaque,
) -> *mut verbs_dmah {
    let handle = allocate(verbs_dmah {
        dmah: ibv_dmah { context },
        handle: 0,
    });
    if handle.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the handle is new and not used elsewhere yet.
    unsafe {
        let error = ibv_cmd_alloc_dmah(context, handle, attr);
        if error != 0 {
            release(handle);
            return fail(error);
        }
    }
    handle
}

/// Releases a handle.
pub unsafe extern "C" fn dealloc_dmah(handle: *mut verbs_dmah) -> c_int {
    // SAFETY: The verbs contract: a handle of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_free_dmah(handle);
        if error == 0 {
            release(handle);
        }
        error
    }
}
