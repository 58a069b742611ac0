// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Functions of libibverbs that a provider calls.
//!
//! Their symbols have the version `IBVERBS_PRIVATE_<number>`, so the dynamic linker refuses a
//! library with another private ABI. `layout/prototypes.h` has the same prototypes in C; the layout
//! check compiles it against the headers of each release.

use super::abi::verbs_context;
use super::command::*;
use super::driver::*;
use super::ioctl::ibv_command_buffer;
use super::verbs::*;
use super::{Opaque, Unused};
use core::ffi::{c_char, c_int, c_uint, c_void};

unsafe extern "C" {
    #[link_name = concat!("verbs_register_driver_", env!("VRNIC_PRIVATE_ABI"))]
    pub fn verbs_register_driver(ops: *const verbs_device_ops);

    pub fn __verbs_log(context: *mut verbs_context, level: u32, format: *const c_char, ...);

    pub fn _verbs_init_and_alloc_context(
        device: *mut ibv_device,
        cmd_fd: c_int,
        alloc_size: usize,
        context_offset: *mut verbs_context,
        driver_id: u32,
    ) -> *mut c_void;
    pub fn verbs_uninit_context(context: *mut verbs_context);
    pub fn verbs_set_ops(context: *mut verbs_context, ops: *const Unused);

    pub fn ibv_cmd_get_context(
        context: *mut verbs_context,
        cmd: *mut ibv_get_context,
        cmd_size: usize,
        #[cfg(feature = "pabi57")] fd_arr: *mut Opaque,
        resp: *mut ib_uverbs_get_context_resp,
        resp_size: usize,
    ) -> c_int;

    pub fn ibv_cmd_query_context(
        context: *mut ibv_context,
        driver: *mut ibv_command_buffer,
    ) -> c_int;
    pub fn execute_ioctl(context: *mut ibv_context, cmd: *mut ibv_command_buffer) -> c_int;

    pub fn ibv_cmd_query_device_any(
        context: *mut ibv_context,
        input: *const c_void,
        attr: *mut ibv_device_attr_ex,
        attr_size: usize,
        resp: *mut ib_uverbs_ex_query_device_resp,
        resp_size: *mut usize,
    ) -> c_int;
    pub fn ibv_cmd_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut Opaque,
        cmd: *mut ibv_query_port,
        cmd_size: usize,
    ) -> c_int;

    pub fn ibv_cmd_alloc_pd(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cmd: *mut ibv_alloc_pd,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_pd_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_dealloc_pd(pd: *mut ibv_pd) -> c_int;

    pub fn ibv_cmd_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        vmr: *mut verbs_mr,
        cmd: *mut ibv_reg_mr,
        cmd_size: usize,
        resp: *mut ib_uverbs_reg_mr_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_query_mr(pd: *mut ibv_pd, vmr: *mut verbs_mr, mr_handle: u32) -> c_int;
    pub fn ibv_cmd_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        vmr: *mut verbs_mr,
        driver: *mut Opaque,
    ) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_create_comp_cntr(
        context: *mut ibv_context,
        comp_cntr: *mut ibv_comp_cntr,
        link: *mut ibv_command_buffer,
    ) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
    #[cfg(feature = "pabi65")]
    pub fn ibv_cmd_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut Opaque,
        caps_size: usize,
    ) -> c_int;
    #[cfg(feature = "pabi59")]
    pub fn ibv_cmd_reg_mr_ex(
        pd: *mut ibv_pd,
        vmr: *mut verbs_mr,
        mr_init_attr: *mut Opaque,
    ) -> c_int;
    #[cfg(feature = "pabi59")]
    pub fn ibv_cmd_alloc_dmah(
        ctx: *mut ibv_context,
        dmah: *mut verbs_dmah,
        attr: *mut Opaque,
    ) -> c_int;
    #[cfg(feature = "pabi59")]
    pub fn ibv_cmd_free_dmah(dmah: *mut verbs_dmah) -> c_int;
    pub fn ibv_cmd_alloc_dm(
        ctx: *mut ibv_context,
        dm_attr: *const ibv_alloc_dm_attr,
        dm: *mut verbs_dm,
        link: *mut ibv_command_buffer,
    ) -> c_int;
    pub fn ibv_cmd_free_dm(dm: *mut verbs_dm) -> c_int;
    pub fn ibv_cmd_reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut verbs_dm,
        offset: u64,
        length: usize,
        access: c_uint,
        vmr: *mut verbs_mr,
        link: *mut ibv_command_buffer,
    ) -> c_int;
    pub fn ibv_cmd_rereg_mr(
        vmr: *mut verbs_mr,
        flags: u32,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        pd: *mut ibv_pd,
        cmd: *mut ibv_rereg_mr,
        cmd_size: usize,
        resp: *mut ib_uverbs_rereg_mr_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_dereg_mr(vmr: *mut verbs_mr) -> c_int;

    pub fn ibv_cmd_advise_mr(
        pd: *mut ibv_pd,
        advice: c_int,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int;

    pub fn ibv_cmd_alloc_mw(
        pd: *mut ibv_pd,
        mw_type: c_int,
        mw: *mut ibv_mw,
        cmd: *mut ibv_alloc_mw,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_mw_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_dealloc_mw(mw: *mut ibv_mw) -> c_int;

    pub fn ibv_cmd_create_ah(
        pd: *mut ibv_pd,
        ah: *mut ibv_ah,
        attr: *mut ibv_ah_attr,
        resp: *mut ib_uverbs_create_ah_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_ah(ah: *mut ibv_ah) -> c_int;

    pub fn ibv_cmd_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
        cq: *mut ibv_cq,
        cmd: *mut ibv_create_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_cq_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_create_cq_ex(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        #[cfg(feature = "pabi59")] prov_attr: *mut Opaque,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
    ) -> c_int;
    pub fn ibv_cmd_resize_cq(
        cq: *mut ibv_cq,
        cqe: c_int,
        cmd: *mut ibv_resize_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_resize_cq_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_modify_cq(
        cq: *mut ibv_cq,
        attr: *mut Opaque,
        cmd: *mut ibv_modify_cq,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_cq(cq: *mut ibv_cq) -> c_int;

    pub fn ibv_cmd_create_srq(
        pd: *mut ibv_pd,
        srq: *mut ibv_srq,
        attr: *mut ibv_srq_init_attr,
        cmd: *mut ibv_create_srq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_create_srq_ex(
        context: *mut ibv_context,
        srq: *mut verbs_srq,
        attr_ex: *mut ibv_srq_init_attr_ex,
        cmd: *mut ibv_create_xsrq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_open_xrcd(
        context: *mut ibv_context,
        xrcd: *mut verbs_xrcd,
        vxrcd_size: c_int,
        attr: *mut Opaque,
        cmd: *mut ibv_open_xrcd,
        cmd_size: usize,
        resp: *mut ib_uverbs_open_xrcd_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_close_xrcd(xrcd: *mut verbs_xrcd) -> c_int;
    pub fn ibv_cmd_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: c_int,
        cmd: *mut ibv_modify_srq,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_query_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        cmd: *mut ibv_query_srq,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_srq(srq: *mut ibv_srq) -> c_int;

    pub fn ibv_cmd_create_qp_ex2(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        qp_attr: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_qp_resp,
        resp_size: usize,
        #[cfg(feature = "pabi64")] driver: *mut ibv_command_buffer,
    ) -> c_int;
    pub fn ibv_cmd_create_wq(
        context: *mut ibv_context,
        wq_init_attr: *mut ibv_wq_init_attr,
        wq: *mut ibv_wq,
        cmd: *mut ibv_create_wq,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_wq_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_modify_wq(
        wq: *mut ibv_wq,
        attr: *mut ibv_wq_attr,
        cmd: *mut ibv_modify_wq,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_wq(wq: *mut ibv_wq) -> c_int;
    pub fn ibv_cmd_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
        rwq_ind_table: *mut ibv_rwq_ind_table,
        resp: *mut ib_uverbs_ex_create_rwq_ind_table_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int;
    pub fn ibv_cmd_open_qp(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        vqp_sz: c_int,
        attr: *mut Opaque,
        cmd: *mut ibv_open_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_modify_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_modify_qp_ex(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_modify_qp_resp,
        resp_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
        cmd: *mut ibv_query_qp,
        cmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub fn ibv_cmd_post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int;

    pub fn ibv_cmd_create_flow(
        qp: *mut ibv_qp,
        flow_id: *mut ibv_flow,
        flow_attr: *mut Opaque,
        ucmd: *mut c_void,
        ucmd_size: usize,
    ) -> c_int;
    pub fn ibv_cmd_destroy_flow(flow_id: *mut ibv_flow) -> c_int;

    pub fn ibv_cmd_create_counters(
        context: *mut ibv_context,
        init_attr: *mut ibv_counters_init_attr,
        vcounters: *mut verbs_counters,
        link: *mut ibv_command_buffer,
    ) -> c_int;
    pub fn ibv_cmd_destroy_counters(vcounters: *mut verbs_counters) -> c_int;
    pub fn ibv_cmd_read_counters(
        vcounters: *mut verbs_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    pub fn ibv_cmd_attach_mcast(qp: *mut ibv_qp, gid: *const c_void, lid: u16) -> c_int;
    pub fn ibv_cmd_detach_mcast(qp: *mut ibv_qp, gid: *const c_void, lid: u16) -> c_int;

    pub fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int;
    pub fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int;
}
