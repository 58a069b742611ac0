// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles. The kernel resolves the address once, at creation. Each request contains the
//! address for the device.

use super::{allocate, fail, release};
use crate::ffi::command::*;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use vrnic_wire::abi::CreateAhResponse;
use vrnic_wire::work::AddressVector;

/// An address handle.
#[repr(C)]
pub struct Ah {
    ah: UnsafeCell<ibv_ah>,
    address: AddressVector,
}

impl Ah {
    /// Returns the address that requests with this handle contain.
    ///
    /// # Safety
    ///
    /// The verbs contract: a handle of this provider, not destroyed as long as the result is used.
    #[inline]
    pub unsafe fn address<'a>(ah: *mut ibv_ah) -> &'a AddressVector {
        // SAFETY: Every handle of this provider is an `Ah`.
        unsafe { &(*ah.cast::<Self>()).address }
    }
}

/// Creates an address handle.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let ah = allocate(Ah {
        ah: UnsafeCell::new(ibv_ah {
            context: ptr::null_mut(),
            pd: ptr::null_mut(),
            handle: 0,
        }),
        address: AddressVector::default(),
    });
    if ah.is_null() {
        return ptr::null_mut();
    }
    let mut resp = WithDriver::<ib_uverbs_create_ah_resp, CreateAhResponse>::default();
    // SAFETY: The verbs contract; the response is followed by the driver's part.
    unsafe {
        let error = ibv_cmd_create_ah(pd, ah.cast(), attr, &raw mut resp.core, size_of_val(&resp));
        if error != 0 {
            release(ah);
            return fail(error);
        }
        (*ah).address = resp.driver.address;
    }
    ah.cast()
}

/// Destroys an address handle.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: The verbs contract: a handle of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_destroy_ah(ah);
        if error == 0 {
            release(ah.cast::<Ah>());
        }
        error
    }
}
