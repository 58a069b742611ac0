// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows, which direct Ethernet frames to queue pairs for raw packets.

use super::{allocate, fail, release};
use crate::ffi::Opaque;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

/// Creates a flow.
pub unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut Opaque) -> *mut ibv_flow {
    let flow = allocate(MaybeUninit::<ibv_flow>::zeroed()).cast::<ibv_flow>();
    if flow.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the flow is new, and there is no request of our own.
    unsafe {
        let error = ibv_cmd_create_flow(qp, flow, attr, ptr::null_mut(), 0);
        if error != 0 {
            release(flow);
            return fail(error);
        }
    }
    flow
}

/// Removes a flow.
pub unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: The verbs contract: a flow of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_destroy_flow(flow);
        if error == 0 {
            release(flow);
        }
        error
    }
}
