// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! `infiniband/kern-abi.h`: the uverbs commands. libibverbs fills in requests and reads responses.
//! We provide the memory, in which the driver's part directly follows.

/// Declares commands or responses whose content only libibverbs uses, as arrays of words.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident = [$word:ty; $words:literal],)*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Copy, Clone)]
            pub struct $name([$word; $words]);

            impl Default for $name {
                fn default() -> Self {
                    Self([0; $words])
                }
            }

            impl $name {
                /// For comparison with the C header.
                pub const LAYOUT: super::Layout = super::Layout {
                    name: concat!("struct ", stringify!($name)),
                    size: size_of::<Self>(),
                    align: align_of::<Self>(),
                    members: &[],
                };
            }
        )*

        /// Every structure of this module.
        pub const LAYOUTS: &[super::Layout] = &[$($name::LAYOUT,)*];
    };
}

opaque! {
    /// Request of `GET_CONTEXT`.
    ibv_get_context = [u64; 2],
    /// Response of `GET_CONTEXT`.
    ib_uverbs_get_context_resp = [u64; 1],
    /// Response of `QUERY_DEVICE`, extended.
    ib_uverbs_ex_query_device_resp = [u64; 38],
    /// Request of `QUERY_PORT`.
    ibv_query_port = [u64; 3],
    /// Request of `ALLOC_PD`.
    ibv_alloc_pd = [u64; 2],
    /// Response of `ALLOC_PD`.
    ib_uverbs_alloc_pd_resp = [u32; 1],
    /// Request of `REG_MR`.
    ibv_reg_mr = [u64; 6],
    /// Response of `REG_MR`.
    ib_uverbs_reg_mr_resp = [u32; 3],
    /// Request of `REREG_MR`.
    ibv_rereg_mr = [u64; 7],
    /// Response of `REREG_MR`.
    ib_uverbs_rereg_mr_resp = [u64; 1],
    /// Request of `ALLOC_MW`.
    ibv_alloc_mw = [u64; 3],
    /// Response of `ALLOC_MW`.
    ib_uverbs_alloc_mw_resp = [u64; 1],
    /// Request of `CREATE_CQ`.
    ibv_create_cq = [u64; 5],
    /// Response of `CREATE_CQ`.
    ib_uverbs_create_cq_resp = [u64; 1],
    /// Request of `CREATE_CQ`, extended.
    ibv_create_cq_ex = [u64; 7],
    /// Response of `CREATE_CQ`, extended.
    ib_uverbs_ex_create_cq_resp = [u64; 2],
    /// Request of `RESIZE_CQ`.
    ibv_resize_cq = [u64; 3],
    /// Response of `RESIZE_CQ`.
    ib_uverbs_resize_cq_resp = [u64; 1],
    /// Request of `MODIFY_CQ`.
    ibv_modify_cq = [u64; 5],
    /// Request of `CREATE_SRQ`.
    ibv_create_srq = [u64; 5],
    /// Response of `CREATE_SRQ`.
    ib_uverbs_create_srq_resp = [u32; 4],
    /// Request of `CREATE_XSRQ`.
    ibv_create_xsrq = [u64; 7],
    /// Request of `MODIFY_SRQ`.
    ibv_modify_srq = [u64; 3],
    /// Request of `QUERY_SRQ`.
    ibv_query_srq = [u64; 3],
    /// Response of `OPEN_QP`.
    ib_uverbs_create_qp_resp = [u32; 8],
    /// Request of `OPEN_QP`.
    ibv_open_qp = [u64; 5],
    /// Request of `OPEN_XRCD`.
    ibv_open_xrcd = [u64; 3],
    /// Response of `OPEN_XRCD`.
    ib_uverbs_open_xrcd_resp = [u32; 1],
    /// Request of `MODIFY_QP`.
    ibv_modify_qp = [u64; 15],
    /// Request of `MODIFY_QP`, extended.
    ibv_modify_qp_ex = [u64; 18],
    /// Response of `MODIFY_QP`, extended.
    ib_uverbs_ex_modify_qp_resp = [u32; 2],
    /// Request of `CREATE_QP`, extended.
    ibv_create_qp_ex = [u64; 11],
    /// Response of `CREATE_QP`, extended.
    ib_uverbs_ex_create_qp_resp = [u32; 10],
    /// Request of `CREATE_WQ`.
    ibv_create_wq = [u64; 8],
    /// Response of `CREATE_WQ`.
    ib_uverbs_ex_create_wq_resp = [u32; 6],
    /// Request of `MODIFY_WQ`.
    ibv_modify_wq = [u64; 6],
    /// Response of `CREATE_RWQ_IND_TBL`.
    ib_uverbs_ex_create_rwq_ind_table_resp = [u32; 4],
    /// Request of `QUERY_QP`.
    ibv_query_qp = [u64; 3],
    /// Response of `CREATE_AH`.
    ib_uverbs_create_ah_resp = [u32; 1],
}

impl ib_uverbs_ex_query_device_resp {
    /// Returns the firmware version as the driver reports it: the first word.
    pub fn fw_ver(&self) -> u64 {
        self.0[0]
    }
}

/// A command or response followed by the driver's part, as the kernel copies them.
#[repr(C)]
#[derive(Default)]
pub struct WithDriver<C, D> {
    /// The part that belongs to libibverbs and `ib_uverbs`.
    pub core: C,
    /// The part that belongs to the driver, from `include/uapi/rdma/vrnic-abi.h`.
    pub driver: D,
}

impl<C, D> WithDriver<C, D> {
    /// Creates a command with this driver part; libibverbs fills in the other part.
    pub fn new(driver: D) -> Self
    where
        C: Default,
    {
        const {
            assert!(size_of::<Self>() == size_of::<C>() + size_of::<D>());
        }
        Self {
            core: C::default(),
            driver,
        }
    }
}
