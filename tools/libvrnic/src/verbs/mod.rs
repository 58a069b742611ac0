// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions that libibverbs calls.
//!
//! Their arguments are pointers for which libibverbs or the application is responsible, as the
//! manual pages of the verbs describe: an object was made by this provider and has not been
//! destroyed, a structure is valid during the call, an array has as many elements as the argument
//! next to it says. This is the *verbs contract* that the `SAFETY` comments in these modules refer
//! to.

pub mod ah;
pub mod allocator;
#[cfg(feature = "pabi65")]
pub mod comp_cntr;
pub mod context;
pub mod counters;
pub mod cq;
pub mod dm;
#[cfg(feature = "pabi59")]
pub mod dmah;
pub mod flow;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod poll;
pub mod post;
pub mod provider;
pub mod qp;
pub mod srq;
pub mod wq;
pub mod wr;
pub mod xrcd;

use crate::ffi::abi::verbs_context_ops;
use crate::ring::Refused;
use core::ffi::c_int;
use core::ptr;

/// Operations of every context. [`verbs_context_ops::at`] omits those that libibverbs does not
/// know.
pub static OPERATIONS: verbs_context_ops = verbs_context_ops {
    advise_mr: Some(crate::ffi::functions::ibv_cmd_advise_mr),
    alloc_dm: Some(dm::alloc_dm),
    #[cfg(feature = "pabi59")]
    alloc_dmah: Some(dmah::alloc_dmah),
    alloc_mw: Some(mw::alloc_mw),
    alloc_null_mr: Some(mr::alloc_null_mr),
    alloc_parent_domain: Some(pd::alloc_parent_domain),
    alloc_pd: Some(pd::alloc_pd),
    alloc_td: Some(pd::alloc_td),
    attach_counters_point_flow: Some(counters::attach_counters_point_flow),
    attach_mcast: Some(crate::ffi::functions::ibv_cmd_attach_mcast),
    bind_mw: Some(mw::bind_mw),
    close_xrcd: Some(xrcd::close_xrcd),
    cq_event: Some(cq::cq_event),
    create_ah: Some(ah::create_ah),
    #[cfg(feature = "pabi65")]
    create_comp_cntr: Some(comp_cntr::create_comp_cntr),
    create_counters: Some(counters::create_counters),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    create_flow: Some(flow::create_flow),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    create_rwq_ind_table: Some(wq::create_rwq_ind_table),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    create_wq: Some(wq::create_wq),
    #[cfg(feature = "pabi59")]
    dealloc_dmah: Some(dmah::dealloc_dmah),
    dealloc_mw: Some(mw::dealloc_mw),
    dealloc_pd: Some(pd::dealloc_pd),
    dealloc_td: Some(pd::dealloc_td),
    dereg_mr: Some(mr::dereg_mr),
    destroy_ah: Some(ah::destroy_ah),
    #[cfg(feature = "pabi65")]
    destroy_comp_cntr: Some(comp_cntr::destroy_comp_cntr),
    destroy_counters: Some(counters::destroy_counters),
    destroy_cq: Some(cq::destroy_cq),
    destroy_flow: Some(flow::destroy_flow),
    destroy_qp: Some(qp::destroy_qp),
    destroy_rwq_ind_table: Some(wq::destroy_rwq_ind_table),
    destroy_srq: Some(srq::destroy_srq),
    destroy_wq: Some(wq::destroy_wq),
    detach_mcast: Some(crate::ffi::functions::ibv_cmd_detach_mcast),
    free_context: Some(context::free_context),
    free_dm: Some(dm::free_dm),
    get_srq_num: Some(srq::get_srq_num),
    import_dm: Some(dm::import_dm),
    import_mr: Some(mr::import_mr),
    import_pd: Some(pd::import_pd),
    #[cfg(feature = "pabi65")]
    inc_comp_cntr: Some(crate::ffi::functions::ibv_cmd_inc_comp_cntr),
    #[cfg(feature = "pabi65")]
    inc_err_comp_cntr: Some(crate::ffi::functions::ibv_cmd_inc_err_comp_cntr),
    modify_cq: Some(cq::modify_cq),
    modify_qp: Some(qp::modify_qp),
    modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
    modify_srq: Some(srq::modify_srq),
    modify_wq: Some(wq::modify_wq),
    open_qp: Some(qp::open_qp),
    open_xrcd: Some(xrcd::open_xrcd),
    poll_cq: Some(poll::poll_cq),
    post_recv: Some(post::post_recv),
    post_send: Some(post::post_send),
    post_srq_recv: Some(srq::post_srq_recv),
    #[cfg(feature = "pabi65")]
    qp_attach_comp_cntr: Some(comp_cntr::qp_attach_comp_cntr),
    #[cfg(feature = "pabi65")]
    query_comp_cntr_caps: Some(crate::ffi::functions::ibv_cmd_query_comp_cntr_caps),
    query_device_ex: Some(context::query_device_ex),
    query_port: Some(context::query_port),
    query_port_speed: Some(context::query_port_speed),
    query_qp: Some(qp::query_qp),
    query_rt_values: Some(context::query_rt_values),
    query_srq: Some(srq::query_srq),
    #[cfg(feature = "pabi65")]
    read_comp_cntr: Some(comp_cntr::read_comp_cntr),
    read_counters: Some(counters::read_counters),
    #[cfg(feature = "pabi65")]
    read_err_comp_cntr: Some(comp_cntr::read_err_comp_cntr),
    reg_dm_mr: Some(dm::reg_dm_mr),
    reg_dmabuf_mr: Some(mr::reg_dmabuf_mr),
    reg_mr: Some(mr::reg_mr),
    #[cfg(feature = "pabi59")]
    reg_mr_ex: Some(mr::reg_mr_ex),
    req_notify_cq: Some(cq::req_notify_cq),
    rereg_mr: Some(mr::rereg_mr),
    resize_cq: Some(cq::resize_cq),
    #[cfg(feature = "pabi65")]
    set_comp_cntr: Some(crate::ffi::functions::ibv_cmd_set_comp_cntr),
    #[cfg(feature = "pabi65")]
    set_err_comp_cntr: Some(crate::ffi::functions::ibv_cmd_set_err_comp_cntr),
    unimport_dm: Some(dm::unimport_dm),
    unimport_mr: Some(mr::unimport_mr),
    unimport_pd: Some(pd::unimport_pd),
    ..verbs_context_ops::EMPTY
};

/// Moves a value to its own allocation, whose address C may keep. If memory runs out, returns null
/// and sets `errno`.
fn allocate<T>(value: T) -> *mut T {
    const { assert!(align_of::<T>() <= 16) };
    // SAFETY: Any size is valid.
    let memory = unsafe { libc::malloc(size_of::<T>()) }.cast::<T>();
    if !memory.is_null() {
        // SAFETY: Room for a `T`, aligned as by malloc, and not used elsewhere.
        unsafe { memory.write(value) };
    }
    memory
}

/// Drops a value and frees its memory.
///
/// # Safety
///
/// `object` came from [`allocate`] and is no longer used.
unsafe fn release<T>(object: *mut T) {
    // SAFETY: By contract.
    unsafe {
        ptr::drop_in_place(object);
        libc::free(object.cast());
    }
}

fn set_errno(error: c_int) {
    // SAFETY: The address is that of this thread's `errno`.
    unsafe { *libc::__errno_location() = error };
}

/// Sets `errno` and returns null, as verbs that create an object report a failure.
fn fail<T>(error: c_int) -> *mut T {
    set_errno(error);
    ptr::null_mut()
}

/// Returns the error number of the verbs for a work request that was not accepted.
#[inline]
fn errno_of(refused: Refused) -> c_int {
    match refused {
        Refused::Full => libc::ENOMEM,
        Refused::Invalid => libc::EINVAL,
    }
}
