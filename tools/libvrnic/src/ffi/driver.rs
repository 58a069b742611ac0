// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! `infiniband/driver.h`: the part of the private provider interface that is the same in all
//! supported releases. `abi` has the parts that differ.

use super::verbs::*;
use super::{CString, Opaque, Unused};
use core::ffi::{c_char, c_int, c_uint, c_void};

c_struct!(
    /// How libibverbs recognises a kernel driver.
    verbs_match_ent {
        driver_data: *mut c_void,
        u: u64,
        vendor: u16,
        device: u16,
        kind: u8,
    }
);

// SAFETY: We never set the only pointer, and the tables are read-only.
unsafe impl Sync for verbs_match_ent {}

/// Ends a table of [`verbs_match_ent`].
pub const VERBS_MATCH_SENTINEL: u8 = 0;
/// [`verbs_match_ent::u`] is an `enum rdma_driver_id`.
pub const VERBS_MATCH_DRIVER_ID: u8 = 3;

/// [`verbs_qp::comp_mask`]: the extended interface may be used.
pub const VERBS_QP_EX: u32 = 1 << 1;

/// Level of the verbs log for errors.
pub const VERBS_LOG_ERR: u32 = 1;
/// Level of the verbs log for debugging.
pub const VERBS_LOG_DEBUG: u32 = 4;

/// The operations that a provider registers.
#[repr(C)]
pub struct verbs_device_ops {
    pub name: CString,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const verbs_match_ent,
    pub static_providers: *const c_void,
    pub match_device: Unused,
    pub alloc_context: Option<
        unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut super::abi::verbs_context,
    >,
    pub import_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut super::abi::verbs_context>,
    pub alloc_device: Option<unsafe extern "C" fn(*mut Opaque) -> *mut verbs_device>,
    pub uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

// SAFETY: The pointers refer to tables that are never written and live forever.
unsafe impl Sync for verbs_device_ops {}

impl verbs_device_ops {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct verbs_device_ops",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[
            ("name", core::mem::offset_of!(Self, name)),
            (
                "match_min_abi_version",
                core::mem::offset_of!(Self, match_min_abi_version),
            ),
            (
                "match_max_abi_version",
                core::mem::offset_of!(Self, match_max_abi_version),
            ),
            ("match_table", core::mem::offset_of!(Self, match_table)),
            (
                "static_providers",
                core::mem::offset_of!(Self, static_providers),
            ),
            ("match_device", core::mem::offset_of!(Self, match_device)),
            ("alloc_context", core::mem::offset_of!(Self, alloc_context)),
            (
                "import_context",
                core::mem::offset_of!(Self, import_context),
            ),
            ("alloc_device", core::mem::offset_of!(Self, alloc_device)),
            ("uninit_device", core::mem::offset_of!(Self, uninit_device)),
        ],
    };
}

c_struct!(
    /// A device as libibverbs keeps it; allocated by the provider.
    verbs_device {
        device: ibv_device,
        ops: *const verbs_device_ops,
        refcount: c_int,
        entry: [*mut c_void; 2],
        sysfs: *mut Opaque,
        core_support: u64,
    }
);

/// `enum ibv_mr_type`: a region without an object in the kernel.
pub const IBV_MR_TYPE_NULL_MR: c_int = 1;

c_struct!(
    /// A memory region as libibverbs keeps it.
    verbs_mr {
        ibv_mr: ibv_mr,
        mr_type: c_int,
        access: c_int,
    }
);

c_struct!(
    /// A DMA handle, at level 15 and newer.
    ibv_dmah {
        context: *mut ibv_context,
    }
);

c_struct!(
    /// A DMA handle as libibverbs keeps it, at level 15 and newer.
    verbs_dmah {
        dmah: ibv_dmah,
        handle: u32,
    }
);

c_struct!(
    /// A completion counter, at level 18 and newer.
    ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }
);

/// Attributes of a new completion counter, at level 18 and newer.
#[repr(C)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub counter_type: c_int,
    pub flags: u32,
}

impl ibv_comp_cntr_init_attr {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct ibv_comp_cntr_init_attr",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[
            ("comp_mask", core::mem::offset_of!(Self, comp_mask)),
            ("type", core::mem::offset_of!(Self, counter_type)),
            ("flags", core::mem::offset_of!(Self, flags)),
        ],
    };
}

c_struct!(
    /// What a completion counter counts for a queue pair, at level 18 and newer.
    ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }
);

c_struct!(
    /// Counters of flows.
    verbs_counters {
        counters: ibv_counters,
        handle: u32,
    }
);

c_struct!(
    /// A buffer in device memory as libibverbs keeps it.
    verbs_dm {
        dm: ibv_dm,
        handle: u32,
    }
);

c_struct!(
    /// An XRC domain as libibverbs keeps it.
    verbs_xrcd {
        xrcd: ibv_xrcd,
        comp_mask: u32,
        handle: u32,
    }
);

c_struct!(
    /// A shared receive queue as libibverbs keeps it.
    verbs_srq {
        srq: ibv_srq,
        srq_type: c_int,
        xrcd: *mut verbs_xrcd,
        cq: *mut ibv_cq,
        srq_num: u32,
    }
);

/// `struct ibv_qp` or `struct ibv_qp_ex`, which begins with it.
#[repr(C)]
#[derive(Copy, Clone)]
pub union verbs_qp_union {
    pub qp: ibv_qp,
    pub qp_ex: ibv_qp_ex,
}

c_struct!(
    /// A queue pair as libibverbs keeps it.
    verbs_qp {
        qp: verbs_qp_union,
        comp_mask: u32,
        xrcd: *mut Opaque,
    }
);

/// A completion queue as libibverbs keeps it.
#[repr(C)]
#[derive(Copy, Clone)]
pub union verbs_cq {
    pub cq: ibv_cq,
    pub cq_ex: ibv_cq_ex,
}

impl verbs_cq {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct verbs_cq",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[("cq", 0), ("cq_ex", 0)],
    };
}

/// Signatures of the operations that we implement. The table of operations differs between
/// releases; the signatures do not.
pub mod op {
    use super::*;

    pub type alloc_dm =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
    pub type alloc_dmah =
        unsafe extern "C" fn(*mut ibv_context, *mut Opaque) -> *mut super::verbs_dmah;
    pub type alloc_mw = unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw;
    pub type alloc_null_mr = unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr;
    pub type alloc_parent_domain =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;
    pub type alloc_pd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    pub type alloc_td =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td;
    pub type attach_mcast = unsafe extern "C" fn(*mut ibv_qp, *const c_void, u16) -> c_int;
    pub type bind_mw = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;
    pub type close_xrcd = unsafe extern "C" fn(*mut ibv_xrcd) -> c_int;
    pub type cq_event = unsafe extern "C" fn(*mut ibv_cq);
    pub type advise_mr = unsafe extern "C" fn(*mut ibv_pd, c_int, u32, *mut ibv_sge, u32) -> c_int;
    pub type create_ah = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    pub type create_cq =
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    pub type create_cq_ex =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    pub type attach_counters_point_flow = unsafe extern "C" fn(
        *mut ibv_counters,
        *mut ibv_counter_attach_attr,
        *mut ibv_flow,
    ) -> c_int;
    pub type create_comp_cntr =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    pub type create_counters =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters;
    pub type create_flow = unsafe extern "C" fn(*mut ibv_qp, *mut Opaque) -> *mut ibv_flow;
    pub type create_qp = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub type create_qp_ex =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    pub type create_srq = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub type create_srq_ex =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
    pub type create_rwq_ind_table = unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table;
    pub type create_wq =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
    pub type dealloc_dmah = unsafe extern "C" fn(*mut super::verbs_dmah) -> c_int;
    pub type dealloc_mw = unsafe extern "C" fn(*mut ibv_mw) -> c_int;
    pub type dealloc_pd = unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    pub type dealloc_td = unsafe extern "C" fn(*mut ibv_td) -> c_int;
    pub type dereg_mr = unsafe extern "C" fn(*mut verbs_mr) -> c_int;
    pub type destroy_ah = unsafe extern "C" fn(*mut ibv_ah) -> c_int;
    pub type destroy_cq = unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    pub type destroy_comp_cntr = unsafe extern "C" fn(*mut ibv_comp_cntr) -> c_int;
    pub type destroy_counters = unsafe extern "C" fn(*mut ibv_counters) -> c_int;
    pub type destroy_flow = unsafe extern "C" fn(*mut ibv_flow) -> c_int;
    pub type destroy_qp = unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    pub type destroy_rwq_ind_table = unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int;
    pub type destroy_srq = unsafe extern "C" fn(*mut ibv_srq) -> c_int;
    pub type destroy_wq = unsafe extern "C" fn(*mut ibv_wq) -> c_int;
    pub type detach_mcast = attach_mcast;
    pub type free_context = unsafe extern "C" fn(*mut ibv_context);
    pub type free_dm = unsafe extern "C" fn(*mut ibv_dm) -> c_int;
    pub type get_srq_num = unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int;
    pub type read_counters = unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int;
    pub type import_dm = unsafe extern "C" fn(*mut ibv_context, u32) -> *mut ibv_dm;
    pub type import_mr = unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mr;
    pub type import_pd = unsafe extern "C" fn(*mut ibv_context, u32) -> *mut ibv_pd;
    pub type inc_comp_cntr = set_comp_cntr;
    pub type inc_err_comp_cntr = set_comp_cntr;
    pub type modify_cq = unsafe extern "C" fn(*mut ibv_cq, *mut Opaque) -> c_int;
    pub type modify_qp = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    pub type modify_qp_rate_limit =
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int;
    pub type modify_srq = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    pub type modify_wq = unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int;
    pub type open_qp = unsafe extern "C" fn(*mut ibv_context, *mut Opaque) -> *mut ibv_qp;
    pub type open_xrcd = unsafe extern "C" fn(*mut ibv_context, *mut Opaque) -> *mut ibv_xrcd;
    pub type poll_cq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
    pub type post_recv =
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
    pub type post_send =
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
    pub type post_srq_recv =
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
    pub type qp_attach_comp_cntr = unsafe extern "C" fn(
        *mut ibv_qp,
        *mut ibv_comp_cntr,
        *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
    pub type query_comp_cntr_caps =
        unsafe extern "C" fn(*mut ibv_context, *mut Opaque, usize) -> c_int;
    pub type query_device_ex = unsafe extern "C" fn(
        *mut ibv_context,
        *const c_void,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int;
    pub type query_port = unsafe extern "C" fn(*mut ibv_context, u8, *mut Opaque) -> c_int;
    pub type query_port_speed = unsafe extern "C" fn(*mut ibv_context, u32, *mut u64) -> c_int;
    pub type query_qp =
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    pub type query_rt_values = unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int;
    pub type query_srq = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    pub type read_comp_cntr = unsafe extern "C" fn(*mut ibv_comp_cntr, *mut u64) -> c_int;
    pub type read_err_comp_cntr = read_comp_cntr;
    pub type reg_dm_mr =
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr;
    pub type reg_dmabuf_mr =
        unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    pub type reg_mr =
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    pub type reg_mr_ex = unsafe extern "C" fn(*mut ibv_pd, *mut Opaque) -> *mut ibv_mr;
    pub type req_notify_cq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
    pub type rereg_mr =
        unsafe extern "C" fn(*mut verbs_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    pub type resize_cq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
    pub type set_comp_cntr = unsafe extern "C" fn(*mut ibv_comp_cntr, u64) -> c_int;
    pub type set_err_comp_cntr = set_comp_cntr;
    pub type unimport_dm = unsafe extern "C" fn(*mut ibv_dm);
    pub type unimport_mr = unsafe extern "C" fn(*mut ibv_mr);
    pub type unimport_pd = unsafe extern "C" fn(*mut ibv_pd);
}

/// The beginning of `struct ibv_device_attr_ex`, and what of it we use.
#[repr(C)]
pub struct ibv_device_attr_ex {
    pub fw_ver: [c_char; 64],
    _others: [u32; 56],
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    _max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
}

/// Declares the table of operations at the newest level. A member is `name`, or `name: use` if the
/// provider implements it. The level that added it is in front, unless all have it.
macro_rules! context_ops {
    ($($([$level:literal])? $name:ident $(: $used:tt)?,)*) => {
        /// Operations of a context, in the order of the newest level.
        #[repr(C)]
        pub struct verbs_context_ops {
            $(pub $name: context_ops!(@type $name $($used)?),)*
        }

        impl verbs_context_ops {
            /// A table without operations.
            pub const EMPTY: Self = Self { $($name: None,)* };

            /// Names of the operations, and the level that added each; 0 if all levels have it.
            pub const NAMES: &[(&str, u32)] = &[
                $((stringify!($name), 0 $(+ $level)?),)*
            ];

            /// Number of operations.
            pub const COUNT: usize = Self::NAMES.len();

            /// Returns the table in the layout of a level: without what newer levels have added.
            pub fn at(&self, level: u32) -> [crate::ffi::Unused; Self::COUNT] {
                const {
                    assert!(
                        size_of::<Self>() == size_of::<[crate::ffi::Unused; Self::COUNT]>()
                    );
                };
                // SAFETY: Each member is an optional pointer to a function, in the order of the
                // names. `Unused` has the same size, and is called only by libibverbs, which
                // knows the signatures.
                let all = unsafe {
                    &*core::ptr::from_ref(self).cast::<[crate::ffi::Unused; Self::COUNT]>()
                };
                let mut table = [None; Self::COUNT];
                let known = Self::NAMES.iter().zip(all).filter(|((_, added), _)| *added <= level);
                for (place, (_, operation)) in table.iter_mut().zip(known) {
                    *place = *operation;
                }
                table
            }
        }
    };
    (@type $name:ident use) => { Option<crate::ffi::driver::op::$name> };
    (@type $name:ident) => { crate::ffi::Unused };
}
pub(crate) use context_ops;

/// Every structure of this module.
pub const LAYOUTS: &[super::Layout] = &[
    verbs_match_ent::LAYOUT,
    verbs_device_ops::LAYOUT,
    verbs_device::LAYOUT,
    verbs_mr::LAYOUT,
    verbs_dm::LAYOUT,
    verbs_counters::LAYOUT,
    verbs_xrcd::LAYOUT,
    verbs_srq::LAYOUT,
    verbs_qp::LAYOUT,
    verbs_cq::LAYOUT,
];
