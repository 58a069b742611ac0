// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! `infiniband/verbs.h`: structures and constants of the public interface, which are the same in
//! all supported releases.

use super::Opaque;
use core::ffi::{c_char, c_int, c_uint, c_void};

pub use libc::{pthread_cond_t, pthread_mutex_t};

c_struct!(
    /// A device as applications see it.
    ibv_device {
        _ops: [*mut c_void; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
);

c_struct!(
    /// An open device. Of `ops`, applications call only the data path; libibverbs fills it from the
    /// table given to `verbs_set_ops`.
    ibv_context {
        device: *mut ibv_device,
        ops: [*mut c_void; 32],
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
);

c_struct!(
    /// Protection domain.
    ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }
);

c_struct!(
    /// Memory region.
    ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
);

c_struct!(
    /// Buffer in device memory.
    ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm:
            Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }
);

/// [`ibv_dm::comp_mask`]: `handle` is valid.
pub const IBV_DM_MASK_HANDLE: u32 = 1 << 0;

c_struct!(
    /// Request for device memory.
    ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }
);

/// Memory window.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_int,
}

impl ibv_mw {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct ibv_mw",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[
            ("context", core::mem::offset_of!(Self, context)),
            ("pd", core::mem::offset_of!(Self, pd)),
            ("rkey", core::mem::offset_of!(Self, rkey)),
            ("handle", core::mem::offset_of!(Self, handle)),
            ("type", core::mem::offset_of!(Self, mw_type)),
        ],
    };
}

c_struct!(
    /// What to bind a memory window to.
    ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
);

c_struct!(
    /// Request to bind a memory window of type 1.
    ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
);

c_struct!(
    /// Address handle.
    ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }
);

c_struct!(
    /// Route of an address handle.
    ibv_global_route {
        dgid: [u64; 2],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
);

c_struct!(
    /// Attributes of an address handle.
    ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
);

c_struct!(
    /// Completion channel.
    ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
);

c_struct!(
    /// Completion queue.
    ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
);

/// A `read_…` operation of an extended completion queue.
pub type ReadCompletion<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

c_struct!(
    /// Completion queue with the extended polling interface.
    ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_int,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: ReadCompletion<c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        read_opcode: ReadCompletion<c_int>,
        read_vendor_err: ReadCompletion<u32>,
        read_byte_len: ReadCompletion<u32>,
        read_imm_data: ReadCompletion<u32>,
        read_qp_num: ReadCompletion<u32>,
        read_src_qp: ReadCompletion<u32>,
        read_wc_flags: ReadCompletion<c_uint>,
        read_slid: ReadCompletion<u32>,
        read_sl: ReadCompletion<u8>,
        read_dlid_path_bits: ReadCompletion<u8>,
        read_completion_ts: ReadCompletion<u64>,
        read_cvlan: ReadCompletion<u16>,
        read_flow_tag: ReadCompletion<u32>,
        read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut Opaque)>,
        read_completion_wallclock_ns: ReadCompletion<u64>,
    }
);

c_struct!(
    /// Argument of `ibv_start_poll`.
    ibv_poll_cq_attr {
        comp_mask: u32,
    }
);

c_struct!(
    /// Attributes of an extended completion queue.
    ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
);

c_struct!(
    /// Work completion.
    ibv_wc {
        wr_id: u64,
        status: c_int,
        opcode: c_int,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
);

c_struct!(
    /// Shared receive queue.
    ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
);

c_struct!(
    /// Attributes of a shared receive queue.
    ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
);

c_struct!(
    /// Attributes of a new shared receive queue.
    ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }
);

c_struct!(
    /// Tag matching of a shared receive queue; not supported.
    ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }
);

c_struct!(
    /// Attributes of a new shared receive queue, extended.
    ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_int,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }
);

c_struct!(
    /// XRC domain.
    ibv_xrcd {
        context: *mut ibv_context,
    }
);

c_struct!(
    /// Counters of flows.
    ibv_counters {
        context: *mut ibv_context,
    }
);

c_struct!(
    /// Attributes of new counters.
    ibv_counters_init_attr {
        comp_mask: u32,
    }
);

c_struct!(
    /// Which counter a program finds where.
    ibv_counter_attach_attr {
        counter_desc: c_int,
        index: u32,
        comp_mask: u32,
    }
);

c_struct!(
    /// Attributes of a new flow, which specifications follow.
    ibv_flow_attr {
        comp_mask: u32,
        r#type: c_int,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
);

c_struct!(
    /// The specification of a flow that gives it counters.
    ibv_flow_spec_counter_action {
        r#type: c_int,
        size: u16,
        counters: *mut ibv_counters,
    }
);

c_struct!(
    /// Flow.
    ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }
);

c_struct!(
    /// Queue pair.
    ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_int,
        qp_type: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
);

/// An operation of an extended queue pair that accesses remote memory.
pub type WriteRemote = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>;

c_struct!(
    /// Queue pair with the extended posting interface.
    ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        wr_bind_mw: Option<
            unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        >,
        wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_rdma_read: WriteRemote,
        wr_rdma_write: WriteRemote,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
        wr_set_inline_data_list:
            Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
        wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
    }
);

c_struct!(
    /// Inline data of the extended posting interface.
    ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }
);

/// Posts receives to a work queue.
pub type PostWqRecv =
    unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

c_struct!(
    /// Receive work queue.
    ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_int,
        wq_type: c_int,
        post_recv: Option<PostWqRecv>,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
);

c_struct!(
    /// Attributes of a new receive work queue.
    ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_int,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }
);

c_struct!(
    /// Changes of a receive work queue.
    ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_int,
        curr_wq_state: c_int,
        flags: u32,
        flags_mask: u32,
    }
);

c_struct!(
    /// Indirection table.
    ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
);

c_struct!(
    /// Attributes of a new indirection table.
    ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
);

c_struct!(
    /// Receive side scaling of a device.
    ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
);

c_struct!(
    /// Sizes of a queue pair.
    ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
);

c_struct!(
    /// Attributes of a new queue pair.
    ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_int,
        sq_sig_all: c_int,
    }
);

c_struct!(
    /// Receive side scaling of a new queue pair.
    ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
);

c_struct!(
    /// Attributes of a new queue pair, extended.
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_int,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
);

c_struct!(
    /// Attributes of a queue pair.
    ibv_qp_attr {
        qp_state: c_int,
        cur_qp_state: c_int,
        path_mtu: c_int,
        path_mig_state: c_int,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
);

c_struct!(
    /// Rate limit of a queue pair.
    ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
);

c_struct!(
    /// Rate limits that queue pairs can have.
    ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
);

c_struct!(
    /// Segmentation that queue pairs can have.
    ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }
);

c_struct!(
    /// Scatter/gather element.
    ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
);

/// `wr.rdma` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub struct wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `wr.atomic` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub struct wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `wr.ud` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub struct wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `bind_mw` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub struct wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// `tso` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub struct wr_tso {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}

/// `bind_mw` of [`ibv_send_wr`], and `tso` in the same place.
#[repr(C)]
#[derive(Copy, Clone)]
pub union bind_mw_union {
    pub bind_mw: wr_bind_mw,
    pub tso: wr_tso,
}

/// `wr` of [`ibv_send_wr`].
#[repr(C)]
#[derive(Copy, Clone)]
pub union wr_union {
    pub rdma: wr_rdma,
    pub atomic: wr_atomic,
    pub ud: wr_ud,
}

c_struct!(
    /// Send work request.
    ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_int,
        send_flags: c_uint,
        imm_data: u32,
        wr: wr_union,
        qp_type: u32,
        bind_mw: bind_mw_union,
    }
);

c_struct!(
    /// Receive work request.
    ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
);

c_struct!(
    /// Argument of `ibv_alloc_td`.
    ibv_td_init_attr {
        comp_mask: u32,
    }
);

c_struct!(
    /// Thread domain.
    ibv_td {
        context: *mut ibv_context,
    }
);

c_struct!(
    /// Argument of `ibv_alloc_parent_domain`.
    ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<AllocBuffer>,
        free: Option<FreeBuffer>,
        pd_context: *mut c_void,
    }
);

c_struct!(
    /// Argument of `ibv_query_rt_values_ex`.
    ibv_values_ex {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
);

/// The application's allocator for rings. Arguments: protection domain, its context, size,
/// alignment, resource type.
pub type AllocBuffer =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;

/// Counterpart of [`AllocBuffer`].
pub type FreeBuffer = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// Declares constants of a C header, and the table for checking them.
macro_rules! c_constants {
    ($($(#[$meta:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[$meta])* pub const $name: $ty = $value;)*

        /// The constants and their names, for comparison with the C header.
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

c_constants! {
    IBV_QPT_RC: c_int = 2;
    IBV_QPT_UC: c_int = 3;
    IBV_QPT_UD: c_int = 4;
    IBV_QPT_RAW_PACKET: c_int = 8;
    IBV_QPT_XRC_SEND: c_int = 9;
    IBV_QPT_XRC_RECV: c_int = 10;

    IBV_SRQT_BASIC: c_int = 0;
    IBV_SRQT_XRC: c_int = 1;
    IBV_SRQ_INIT_ATTR_TYPE: u32 = 1 << 0;
    IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
    IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
    IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;

    IBV_SRQ_MAX_WR: c_int = 1 << 0;
    IBV_SRQ_LIMIT: c_int = 1 << 1;

    IBV_QPS_RESET: c_int = 0;
    IBV_QPS_INIT: c_int = 1;
    IBV_QPS_RTR: c_int = 2;
    IBV_QPS_RTS: c_int = 3;
    IBV_QP_STATE: c_int = 1 << 0;
    IBV_QP_RATE_LIMIT: c_int = 1 << 25;

    IBV_WR_RDMA_WRITE: c_int = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
    IBV_WR_SEND: c_int = 2;
    IBV_WR_SEND_WITH_IMM: c_int = 3;
    IBV_WR_RDMA_READ: c_int = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
    IBV_WR_LOCAL_INV: c_int = 7;
    IBV_WR_BIND_MW: c_int = 8;
    IBV_WR_SEND_WITH_INV: c_int = 9;
    IBV_WR_TSO: c_int = 10;

    IBV_SEND_FENCE: c_uint = 1 << 0;
    IBV_SEND_SIGNALED: c_uint = 1 << 1;
    IBV_SEND_SOLICITED: c_uint = 1 << 2;
    IBV_SEND_INLINE: c_uint = 1 << 3;
    IBV_SEND_IP_CSUM: c_uint = 1 << 4;

    IBV_WC_SUCCESS: c_int = 0;
    IBV_WC_LOC_LEN_ERR: c_int = 1;
    IBV_WC_LOC_QP_OP_ERR: c_int = 2;
    IBV_WC_LOC_PROT_ERR: c_int = 4;
    IBV_WC_WR_FLUSH_ERR: c_int = 5;
    IBV_WC_MW_BIND_ERR: c_int = 6;
    IBV_WC_BAD_RESP_ERR: c_int = 7;
    IBV_WC_LOC_ACCESS_ERR: c_int = 8;
    IBV_WC_REM_INV_REQ_ERR: c_int = 9;
    IBV_WC_REM_ACCESS_ERR: c_int = 10;
    IBV_WC_REM_OP_ERR: c_int = 11;
    IBV_WC_RETRY_EXC_ERR: c_int = 12;
    IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
    IBV_WC_REM_ABORT_ERR: c_int = 16;
    IBV_WC_FATAL_ERR: c_int = 19;
    IBV_WC_RESP_TIMEOUT_ERR: c_int = 20;
    IBV_WC_GENERAL_ERR: c_int = 21;

    IBV_WC_SEND: c_int = 0;
    IBV_WC_RDMA_WRITE: c_int = 1;
    IBV_WC_RDMA_READ: c_int = 2;
    IBV_WC_COMP_SWAP: c_int = 3;
    IBV_WC_FETCH_ADD: c_int = 4;
    IBV_WC_BIND_MW: c_int = 5;
    IBV_WC_LOCAL_INV: c_int = 6;
    IBV_WC_TSO: c_int = 7;
    IBV_WC_RECV: c_int = 128;
    IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;

    IBV_WC_GRH: c_uint = 1 << 0;
    IBV_WC_WITH_IMM: c_uint = 1 << 1;
    IBV_WC_IP_CSUM_OK: c_uint = 1 << 2;
    IBV_WC_WITH_INV: c_uint = 1 << 3;

    IBV_WC_EX_WITH_BYTE_LEN: u64 = 1 << 0;
    IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
    IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;
    IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
    IBV_WC_EX_WITH_SLID: u64 = 1 << 4;
    IBV_WC_EX_WITH_SL: u64 = 1 << 5;
    IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
    IBV_WC_EX_WITH_CVLAN: u64 = 1 << 8;
    IBV_WC_EX_WITH_FLOW_TAG: u64 = 1 << 9;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
    IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

    IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
    IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1 << 0;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;

    IBV_VALUES_MASK_RAW_CLOCK: u32 = 1 << 0;

    IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;
    IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
    IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER: u32 = 1 << 3;
    IBV_QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
    IBV_QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

    IBV_WQT_RQ: c_int = 0;
    IBV_WQS_RESET: c_int = 0;
    IBV_WQS_ERR: c_int = 2;
    IBV_WQ_INIT_ATTR_FLAGS: u32 = 1 << 0;
    IBV_WQ_ATTR_STATE: u32 = 1 << 0;
    IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;
    IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1 << 0;

    IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1 << 0;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
    IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
    IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
    IBV_QP_EX_WITH_BIND_MW: u64 = 1 << 8;
    IBV_QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;
    IBV_QP_EX_WITH_TSO: u64 = 1 << 10;
    IBV_QP_EX_WITH_FLUSH: u64 = 1 << 11;
    IBV_QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
}

/// Every structure of this module.
pub const LAYOUTS: &[super::Layout] = &[
    ibv_device::LAYOUT,
    ibv_context::LAYOUT,
    ibv_pd::LAYOUT,
    ibv_mr::LAYOUT,
    ibv_dm::LAYOUT,
    ibv_alloc_dm_attr::LAYOUT,
    ibv_mw::LAYOUT,
    ibv_mw_bind_info::LAYOUT,
    ibv_mw_bind::LAYOUT,
    ibv_ah::LAYOUT,
    ibv_global_route::LAYOUT,
    ibv_ah_attr::LAYOUT,
    ibv_comp_channel::LAYOUT,
    ibv_cq::LAYOUT,
    ibv_cq_ex::LAYOUT,
    ibv_poll_cq_attr::LAYOUT,
    ibv_cq_init_attr_ex::LAYOUT,
    ibv_wc::LAYOUT,
    ibv_srq::LAYOUT,
    ibv_srq_attr::LAYOUT,
    ibv_srq_init_attr::LAYOUT,
    ibv_tm_cap::LAYOUT,
    ibv_srq_init_attr_ex::LAYOUT,
    ibv_xrcd::LAYOUT,
    ibv_counters::LAYOUT,
    ibv_counters_init_attr::LAYOUT,
    ibv_counter_attach_attr::LAYOUT,
    ibv_flow_attr::LAYOUT,
    ibv_flow_spec_counter_action::LAYOUT,
    ibv_flow::LAYOUT,
    ibv_qp::LAYOUT,
    ibv_qp_ex::LAYOUT,
    ibv_data_buf::LAYOUT,
    ibv_qp_cap::LAYOUT,
    ibv_qp_init_attr::LAYOUT,
    ibv_rx_hash_conf::LAYOUT,
    ibv_wq::LAYOUT,
    ibv_wq_init_attr::LAYOUT,
    ibv_wq_attr::LAYOUT,
    ibv_rwq_ind_table::LAYOUT,
    ibv_rwq_ind_table_init_attr::LAYOUT,
    ibv_rss_caps::LAYOUT,
    ibv_qp_init_attr_ex::LAYOUT,
    ibv_qp_attr::LAYOUT,
    ibv_qp_rate_limit_attr::LAYOUT,
    ibv_packet_pacing_caps::LAYOUT,
    ibv_tso_caps::LAYOUT,
    ibv_sge::LAYOUT,
    ibv_send_wr::LAYOUT,
    ibv_recv_wr::LAYOUT,
    ibv_td_init_attr::LAYOUT,
    ibv_td::LAYOUT,
    ibv_parent_domain_init_attr::LAYOUT,
    ibv_values_ex::LAYOUT,
];

/// Members of nested anonymous structures: structure, member, offset.
pub const NESTED: &[(&str, &str, usize)] = &[
    nested!(ibv_send_wr, wr, wr_rdma, "wr.rdma.", remote_addr),
    nested!(ibv_send_wr, wr, wr_rdma, "wr.rdma.", rkey),
    nested!(ibv_send_wr, wr, wr_atomic, "wr.atomic.", remote_addr),
    nested!(ibv_send_wr, wr, wr_atomic, "wr.atomic.", compare_add),
    nested!(ibv_send_wr, wr, wr_atomic, "wr.atomic.", swap),
    nested!(ibv_send_wr, wr, wr_atomic, "wr.atomic.", rkey),
    nested!(ibv_send_wr, wr, wr_ud, "wr.ud.", ah),
    nested!(ibv_send_wr, wr, wr_ud, "wr.ud.", remote_qpn),
    nested!(ibv_send_wr, wr, wr_ud, "wr.ud.", remote_qkey),
    nested!(ibv_send_wr, bind_mw, wr_bind_mw, "bind_mw.", mw),
    nested!(ibv_send_wr, bind_mw, wr_bind_mw, "bind_mw.", rkey),
    nested!(ibv_send_wr, bind_mw, wr_bind_mw, "bind_mw.", bind_info),
    nested!(ibv_send_wr, bind_mw, wr_tso, "tso.", hdr),
    nested!(ibv_send_wr, bind_mw, wr_tso, "tso.", hdr_sz),
    nested!(ibv_send_wr, bind_mw, wr_tso, "tso.", mss),
    (
        "struct ibv_device_attr_ex",
        "tso_caps",
        core::mem::offset_of!(super::driver::ibv_device_attr_ex, tso_caps),
    ),
    (
        "struct ibv_device_attr_ex",
        "rss_caps",
        core::mem::offset_of!(super::driver::ibv_device_attr_ex, rss_caps),
    ),
    (
        "struct ibv_device_attr_ex",
        "packet_pacing_caps",
        core::mem::offset_of!(super::driver::ibv_device_attr_ex, packet_pacing_caps),
    ),
];

#[cfg(test)]
mod tests {
    use super::CONSTANTS;
    use vrnic_wire::completion::Status;
    use vrnic_wire::qp::QpState;

    #[test]
    fn names_for_people_are_those_of_the_verbs() {
        let known = |name: &str, raw: u8| CONSTANTS.contains(&(name, raw.into()));
        for status in Status::ALL {
            assert!(known(status.name(), status.raw()), "{}", status.name());
        }
        for state in [
            QpState::Reset,
            QpState::Init,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
        ] {
            let name = format!("IBV_QPS_{}", state.name());
            assert!(known(&name, state.raw()), "{name}");
        }
    }
}
