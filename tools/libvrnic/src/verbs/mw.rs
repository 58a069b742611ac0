// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory windows.

use super::post::post_send;
use super::{allocate, fail, release};
use crate::ffi::command::*;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::ring::send::Target;
use core::ffi::c_int;
use core::mem::{self, MaybeUninit};
use core::ptr;
use vrnic_wire::memory::KEY_INDEX_MASK;

/// Allocates a window, unbound.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    let mw = allocate(MaybeUninit::<ibv_mw>::zeroed()).cast::<ibv_mw>();
    if mw.is_null() {
        return ptr::null_mut();
    }
    let mut cmd = ibv_alloc_mw::default();
    let mut resp = ib_uverbs_alloc_mw_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures.
    unsafe {
        let error = ibv_cmd_alloc_mw(
            pd,
            mw_type,
            mw,
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        );
        if error != 0 {
            release(mw);
            return fail(error);
        }
    }
    mw
}

/// Deallocates a window, bound or not.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: The verbs contract: a window of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_dealloc_mw(mw);
        if error == 0 {
            release(mw);
        }
        error
    }
}

/// Returns the key that a window will have once it is bound: its lowest byte is that of `rkey`.
fn key_of(mw: &ibv_mw, rkey: u32) -> u32 {
    mw.rkey & KEY_INDEX_MASK | rkey & !KEY_INDEX_MASK
}

/// Returns the target of a request to bind a window, which gets the key of that `rkey`.
///
/// # Safety
///
/// The verbs contract: a region, or null to end the binding.
pub unsafe fn bind_target(mw: &ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Target<'static> {
    // SAFETY: By contract.
    let region = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    Target::Window {
        address: info.addr,
        length: info.length,
        window: key_of(mw, rkey),
        region,
        access: info.mw_access_flags,
    }
}

/// Binds a window of type 1, which gets its next key. The other requests to bind leave `rkey` of the
/// window as it is, as those of other providers do: there, the application chooses the key.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: Integers and pointers; zero means absent.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    let mut bad = ptr::null_mut();
    // SAFETY: The verbs contract.
    unsafe {
        wr.wr_id = (*bind).wr_id;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = (*bind).send_flags & !IBV_SEND_INLINE;
        let rkey = (*mw).rkey.wrapping_add(1);
        wr.bind_mw.bind_mw = wr_bind_mw {
            mw,
            rkey,
            bind_info: (*bind).bind_info,
        };
        let error = post_send(qp, &raw mut wr, &raw mut bad);
        if error == 0 {
            (*mw).rkey = key_of(&*mw, rkey);
        }
        error
    }
}
