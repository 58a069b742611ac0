// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Private ABI 65 at library level 1.18: rdma-core 65.0, Debian testing.

use super::driver::context_ops;
use super::verbs::*;
use core::ffi::c_void;

/// Number of the private ABI.
pub const PRIVATE_ABI: u32 = 65;

/// Minor number of the newest public symbol version: `IBVERBS_1.18`. The number of the private ABI
/// alone does not identify the layout, because it was not raised with every change.
pub const LIBRARY_LEVEL: u32 = 18;

/// Release whose headers the layouts are checked against.
pub const RELEASE: &str = "65.0";

/// An open device. New members are added at the front, so only the end has fixed offsets: `sz` and
/// `context`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct verbs_context {
    grown: [*mut c_void; 45],
    pub sz: usize,
    pub context: ibv_context,
}

impl verbs_context {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct verbs_context",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[
            ("sz", core::mem::offset_of!(Self, sz)),
            ("context", core::mem::offset_of!(Self, context)),
        ],
    };
}

c_struct!(
    /// A DMA handle.
    ibv_dmah {
        context: *mut ibv_context,
    }
);

c_struct!(
    /// A DMA handle as libibverbs keeps it.
    verbs_dmah {
        dmah: ibv_dmah,
        handle: u32,
    }
);

context_ops! {
    advise_mr: use,
    alloc_buf,
    alloc_dm: use,
    alloc_dmah: use,
    alloc_mw: use,
    alloc_null_mr: use,
    alloc_parent_domain: use,
    alloc_pd: use,
    alloc_td: use,
    async_event,
    attach_counters_point_flow,
    attach_mcast: use,
    bind_mw: use,
    close_xrcd: use,
    cq_event: use,
    create_ah: use,
    create_comp_cntr,
    create_counters,
    create_cq: use,
    create_cq_ex: use,
    create_flow: use,
    create_flow_action_esp,
    create_qp: use,
    create_qp_ex: use,
    create_rwq_ind_table: use,
    create_srq: use,
    create_srq_ex: use,
    create_wq: use,
    dealloc_dmah: use,
    dealloc_mw: use,
    dealloc_pd: use,
    dealloc_td: use,
    dereg_mr: use,
    destroy_ah: use,
    destroy_comp_cntr,
    destroy_counters,
    destroy_cq: use,
    destroy_flow: use,
    destroy_flow_action,
    destroy_qp: use,
    destroy_rwq_ind_table: use,
    destroy_srq: use,
    destroy_wq: use,
    detach_mcast: use,
    dm_export_dmabuf_fd,
    free_buf,
    free_context: use,
    free_dm: use,
    get_srq_num: use,
    import_dm: use,
    import_mr: use,
    import_pd: use,
    inc_comp_cntr,
    inc_err_comp_cntr,
    modify_cq: use,
    modify_flow_action_esp,
    modify_qp: use,
    modify_qp_rate_limit: use,
    modify_srq: use,
    modify_wq: use,
    open_qp: use,
    open_xrcd: use,
    poll_cq: use,
    post_recv: use,
    post_send: use,
    post_srq_ops,
    post_srq_recv: use,
    qp_attach_comp_cntr,
    query_comp_cntr_caps,
    query_device_ex: use,
    query_ece,
    query_port: use,
    query_port_speed: use,
    query_qp: use,
    query_qp_data_in_order,
    query_rt_values: use,
    query_srq: use,
    read_comp_cntr,
    read_counters,
    read_err_comp_cntr,
    reg_dm_mr: use,
    reg_dmabuf_mr: use,
    reg_mr: use,
    reg_mr_ex: use,
    req_notify_cq: use,
    rereg_mr: use,
    resize_cq: use,
    set_comp_cntr,
    set_ece,
    set_err_comp_cntr,
    unimport_dm: use,
    unimport_mr: use,
    unimport_pd: use,
}
