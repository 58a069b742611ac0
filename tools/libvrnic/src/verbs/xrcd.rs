// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! XRC domains.

use super::{allocate, fail, release};
use crate::ffi::Opaque;
use crate::ffi::command::*;
use crate::ffi::driver::verbs_xrcd;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::ffi::c_int;
use core::{mem, ptr};

/// Opens an XRC domain. If it belongs to a file, several processes can share it.
pub unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut Opaque) -> *mut ibv_xrcd {
    // SAFETY: Integers and pointers; zero means absent.
    let xrcd = allocate::<verbs_xrcd>(unsafe { mem::zeroed() });
    if xrcd.is_null() {
        return ptr::null_mut();
    }
    let mut cmd = ibv_open_xrcd::default();
    let mut resp = ib_uverbs_open_xrcd_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures.
    unsafe {
        let error = ibv_cmd_open_xrcd(
            context,
            xrcd,
            size_of::<verbs_xrcd>() as c_int,
            attr,
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        );
        if error != 0 {
            release(xrcd);
            return fail(error);
        }
    }
    xrcd.cast()
}

/// Closes an XRC domain, which is destroyed when the last process has closed it.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let xrcd = xrcd.cast::<verbs_xrcd>();
    // SAFETY: The verbs contract: one of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_close_xrcd(xrcd);
        if error == 0 {
            release(xrcd);
        }
        error
    }
}
