// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What differs between the releases of libibverbs.
//!
//! A library has a private ABI and a level. The private ABI is part of the version of the private
//! symbols and of the name of the file that libibverbs loads, so each one needs its own build. The
//! level is the newest version of the public symbols. The private ABI was not raised with every
//! change of a layout: the libraries with private ABI 59 have level 15 or 16. So the level chooses
//! the layout when libibverbs loads the provider.

use super::driver::context_ops;
use super::verbs::*;
use super::{Opaque, Unused};
use core::ffi::CStr;
use core::mem::offset_of;

/// A level of libibverbs.
#[derive(Debug)]
pub struct Level {
    /// Minor number of the newest version of the public symbols: 14 is `IBVERBS_1.14`.
    pub number: u32,
    /// Private ABIs that libraries of this level have.
    pub private_abis: &'static [u32],
    /// A symbol that this level added.
    pub symbol: &'static CStr,
    /// Version of that symbol.
    pub version: &'static CStr,
    /// Number of operations at the front of `struct verbs_context`.
    pub operations: usize,
}

/// The levels that we know, oldest first.
pub static LEVELS: [Level; 5] = [
    Level {
        number: 14,
        private_abis: &[34, 57],
        symbol: c"ibv_query_qp_data_in_order",
        version: c"IBVERBS_1.14",
        operations: 39,
    },
    Level {
        number: 15,
        private_abis: &[59],
        symbol: c"ibv_alloc_dmah",
        version: c"IBVERBS_1.15",
        operations: 42,
    },
    Level {
        number: 16,
        private_abis: &[59],
        symbol: c"ibv_query_port_speed",
        version: c"IBVERBS_1.16",
        operations: 43,
    },
    Level {
        number: 17,
        private_abis: &[64],
        symbol: c"ibv_alloc_buf",
        version: c"IBVERBS_1.17",
        operations: 45,
    },
    Level {
        number: 18,
        private_abis: &[65],
        symbol: c"_ibv_query_comp_cntr_caps",
        version: c"IBVERBS_1.18",
        operations: MOST_OPERATIONS,
    },
];

/// Operations at the front of `struct verbs_context` at the newest level.
const MOST_OPERATIONS: usize = 45;

/// An open device. New members are added at the front, so the beginning is different at each
/// level. [`ContextRoom`] has the rest.
pub type verbs_context = Opaque;

/// Room for a `struct verbs_context` of any level, which occupies the end of it: the members there
/// are the same at every level.
#[repr(C)]
pub struct ContextRoom {
    operations: [Unused; MOST_OPERATIONS],
    sz: usize,
    pub context: ibv_context,
}

impl ContextRoom {
    /// Returns where in the room the structure of a level begins.
    pub const fn start(level: &Level) -> usize {
        (MOST_OPERATIONS - level.operations) * size_of::<Unused>()
    }

    /// Returns the layout of the structure at a level: its size, and the offsets of `sz` and
    /// `context`.
    pub const fn layout(level: &Level) -> (usize, [usize; 2]) {
        let start = Self::start(level);
        let offsets = [
            offset_of!(Self, sz) - start,
            offset_of!(Self, context) - start,
        ];
        (size_of::<Self>() - start, offsets)
    }
}

const _: () = assert!(LEVELS[LEVELS.len() - 1].operations == MOST_OPERATIONS);

context_ops! {
    advise_mr: use,
    [17] alloc_buf,
    alloc_dm: use,
    [15] alloc_dmah: use,
    alloc_mw: use,
    alloc_null_mr: use,
    alloc_parent_domain: use,
    alloc_pd: use,
    alloc_td: use,
    async_event,
    attach_counters_point_flow: use,
    attach_mcast: use,
    bind_mw: use,
    close_xrcd: use,
    cq_event: use,
    create_ah: use,
    [18] create_comp_cntr: use,
    create_counters: use,
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
    [15] dealloc_dmah: use,
    dealloc_mw: use,
    dealloc_pd: use,
    dealloc_td: use,
    dereg_mr: use,
    destroy_ah: use,
    [18] destroy_comp_cntr: use,
    destroy_counters: use,
    destroy_cq: use,
    destroy_flow: use,
    destroy_flow_action,
    destroy_qp: use,
    destroy_rwq_ind_table: use,
    destroy_srq: use,
    destroy_wq: use,
    detach_mcast: use,
    [16] dm_export_dmabuf_fd,
    [17] free_buf,
    free_context: use,
    free_dm: use,
    get_srq_num: use,
    import_dm: use,
    import_mr: use,
    import_pd: use,
    [18] inc_comp_cntr: use,
    [18] inc_err_comp_cntr: use,
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
    [18] qp_attach_comp_cntr: use,
    [18] query_comp_cntr_caps: use,
    query_device_ex: use,
    query_ece,
    query_port: use,
    [16] query_port_speed: use,
    query_qp: use,
    query_qp_data_in_order,
    query_rt_values: use,
    query_srq: use,
    [18] read_comp_cntr: use,
    read_counters: use,
    [18] read_err_comp_cntr: use,
    reg_dm_mr: use,
    reg_dmabuf_mr: use,
    reg_mr: use,
    [15] reg_mr_ex: use,
    req_notify_cq: use,
    rereg_mr: use,
    resize_cq: use,
    [18] set_comp_cntr: use,
    set_ece,
    [18] set_err_comp_cntr: use,
    unimport_dm: use,
    unimport_mr: use,
    unimport_pd: use,
}
