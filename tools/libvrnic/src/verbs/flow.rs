// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows, which direct Ethernet frames to queue pairs for raw packets.

use super::counters::Counters;
use super::{allocate, fail, release};
use crate::ffi::Opaque;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use core::ffi::c_int;
use core::{mem, ptr};

/// `IBV_FLOW_SPEC_ACTION_COUNT`
const ACTION_COUNT: c_int = 0x1003;

/// A flow.
#[repr(C)]
struct Flow {
    verbs: ibv_flow,
    /// Its counters, or null.
    counters: *const Counters,
}

/// Returns the counters of a new flow, or null if it has none. `EINVAL` if it has several.
///
/// # Safety
///
/// The attributes are followed by as many specifications as they say.
unsafe fn counters_of(attr: *const ibv_flow_attr) -> Result<*const Counters, c_int> {
    let mut found: *const Counters = ptr::null();
    // SAFETY: Guaranteed by the caller. Each specification says how long it is; nothing aligns them.
    unsafe {
        let mut spec = attr.add(1).cast::<u8>();
        for _ in 0..(*attr).num_of_specs {
            // All specifications start with their type and size; others are shorter than this one.
            let at = mem::offset_of!(ibv_flow_spec_counter_action, size);
            let size = spec.add(at).cast::<u16>().read_unaligned();
            if spec.cast::<c_int>().read_unaligned() == ACTION_COUNT {
                if !found.is_null() {
                    return Err(libc::EINVAL);
                }
                let count = spec.cast::<ibv_flow_spec_counter_action>();
                found = count.read_unaligned().counters.cast();
            }
            spec = spec.add(size.into());
        }
    }
    Ok(found)
}

/// Creates a flow.
pub unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut Opaque) -> *mut ibv_flow {
    // SAFETY: The verbs contract: specifications follow the attributes.
    let counters = match unsafe { counters_of(attr.cast()) } {
        Ok(counters) => counters,
        Err(error) => return fail(error),
    };
    // SAFETY: The verbs contract: null, or counters of this provider.
    let bound = unsafe { counters.as_ref() };
    if let Some(Err(error)) = bound.map(Counters::bind) {
        return fail(error);
    }
    let flow = allocate(Flow {
        // SAFETY: Integers and pointers; libibverbs fills them in.
        verbs: unsafe { mem::zeroed() },
        counters,
    });
    let error = if flow.is_null() {
        libc::ENOMEM
    } else {
        // SAFETY: The verbs contract; the flow is new, and there is no request of our own.
        unsafe { ibv_cmd_create_flow(qp, flow.cast(), attr, ptr::null_mut(), 0) }
    };
    if error != 0 {
        if let Some(counters) = bound {
            counters.unbind();
        }
        if !flow.is_null() {
            // SAFETY: Nobody else knows the flow.
            unsafe { release(flow) };
        }
        return fail(error);
    }
    flow.cast()
}

/// Removes a flow.
pub unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: The verbs contract: a flow of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_destroy_flow(flow);
        if error == 0 {
            let flow = flow.cast::<Flow>();
            if let Some(counters) = (*flow).counters.as_ref() {
                counters.unbind();
            }
            release(flow);
        }
        error
    }
}
