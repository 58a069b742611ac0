// SPDX-License-Identifier: GPL-2.0

//! The user ABI of the driver: the parts of `include/uapi/rdma/efa-abi.h` that it needs.
//!
//! A request only has to reject non-zero reserved members; the abstractions check everything else
//! ([`Request`], [`Response`]).

use kernel::prelude::*;
use rdma::udata::{
    Request,
    Response, //
};
use zerocopy_derive::{
    Immutable,
    IntoBytes, //
};

/// `RDMA_DRIVER_EFA`.
pub(crate) const DRIVER_ID: u32 = 17;

/// `EFA_UVERBS_ABI_VERSION`.
pub(crate) const ABI_VERSION: u32 = 1;

/// `EFA_QUERY_DEVICE_CAPS_RDMA_READ`.
pub(crate) const QUERY_DEVICE_CAPS_RDMA_READ: u32 = 1 << 0;

/// `EFA_QP_DRIVER_TYPE_SRD`.
pub(crate) const QP_DRIVER_TYPE_SRD: u32 = 0;

/// Returns an error if reserved bytes are not zero.
fn all_zero(bytes: &[u8]) -> Result {
    match bytes.iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// `struct efa_ibv_alloc_ucontext_cmd`.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct AllocContextRequest {
    supported_caps: u32,
    reserved_20: [u8; 4],
}

impl Request for AllocContextRequest {
    fn check_reserved(&self) -> Result {
        // These are features that old providers do not know: batches and minimal send queues. This
        // driver has neither, so it accepts any provider.
        let _ = self.supported_caps;
        all_zero(&self.reserved_20)
    }
}

/// `struct efa_ibv_alloc_ucontext_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct AllocContextResponse {
    pub(crate) comp_mask: u32,
    pub(crate) cmds_supp_udata_mask: u32,
    pub(crate) sub_cqs_per_cq: u16,
    pub(crate) inline_buf_size: u16,
    pub(crate) max_llq_size: u32,
    pub(crate) max_tx_batch: u16,
    pub(crate) min_sq_wr: u16,
    pub(crate) inline_buf_size_ex: u16,
    pub(crate) reserved_b0: [u8; 2],
}

impl Response for AllocContextResponse {}

/// `struct efa_ibv_alloc_pd_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct AllocPdResponse {
    pub(crate) comp_mask: u32,
    pub(crate) pdn: u16,
    pub(crate) reserved_30: [u8; 2],
}

impl Response for AllocPdResponse {}

/// `struct efa_ibv_create_ah_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateAhResponse {
    pub(crate) comp_mask: u32,
    pub(crate) address_handle: u16,
    pub(crate) reserved_30: [u8; 2],
}

impl Response for CreateAhResponse {}

/// `struct efa_ibv_create_cq`.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct CreateCqRequest {
    comp_mask: u32,
    pub(crate) cq_entry_size: u32,
    pub(crate) num_sub_cqs: u16,
    /// Additional properties of the queue; this driver supports none.
    pub(crate) flags: u8,
    reserved_58: [u8; 5],
}

impl Request for CreateCqRequest {
    fn comp_mask(&self) -> u64 {
        self.comp_mask.into()
    }

    fn check_reserved(&self) -> Result {
        all_zero(&self.reserved_58)
    }
}

/// `struct efa_ibv_create_cq_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateCqResponse {
    pub(crate) comp_mask: u32,
    pub(crate) reserved_20: [u8; 4],
    pub(crate) q_mmap_key: u64,
    pub(crate) q_mmap_size: u64,
    pub(crate) cq_idx: u16,
    pub(crate) reserved_d0: [u8; 2],
    pub(crate) db_off: u32,
    pub(crate) db_mmap_key: u64,
}

impl Response for CreateCqResponse {}

/// `struct efa_ibv_create_qp`.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct CreateQpRequest {
    comp_mask: u32,
    /// Length in bytes.
    pub(crate) rq_ring_size: u32,
    /// Length in bytes.
    pub(crate) sq_ring_size: u32,
    pub(crate) driver_qp_type: u32,
    /// Additional properties of the queue pair; this driver supports none.
    pub(crate) flags: u16,
    /// Service level.
    pub(crate) sl: u8,
    reserved_98: [u8; 5],
}

impl Request for CreateQpRequest {
    fn comp_mask(&self) -> u64 {
        self.comp_mask.into()
    }

    fn check_reserved(&self) -> Result {
        all_zero(&self.reserved_98)
    }
}

/// `struct efa_ibv_create_qp_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateQpResponse {
    pub(crate) comp_mask: u32,
    pub(crate) rq_db_offset: u32,
    pub(crate) sq_db_offset: u32,
    pub(crate) llq_desc_offset: u32,
    pub(crate) rq_mmap_key: u64,
    pub(crate) rq_mmap_size: u64,
    pub(crate) rq_db_mmap_key: u64,
    pub(crate) sq_db_mmap_key: u64,
    pub(crate) llq_desc_mmap_key: u64,
    pub(crate) send_sub_cq_idx: u16,
    pub(crate) recv_sub_cq_idx: u16,
    pub(crate) reserved_1e0: [u8; 4],
}

impl Response for CreateQpResponse {}

/// `struct efa_ibv_ex_query_device_resp`.
#[derive(Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct QueryDeviceResponse {
    pub(crate) comp_mask: u32,
    pub(crate) max_sq_wr: u32,
    pub(crate) max_rq_wr: u32,
    pub(crate) max_sq_sge: u16,
    pub(crate) max_rq_sge: u16,
    pub(crate) max_rdma_size: u32,
    pub(crate) device_caps: u32,
}

impl Response for QueryDeviceResponse {}

/// Identifier of an interconnect, in the response of the method on memory regions.
#[derive(Default, Immutable, IntoBytes)]
#[repr(transparent)]
pub(crate) struct InterconnectId(pub(crate) u16);

impl Response for InterconnectId {}

/// Mask of the identifiers that are valid.
#[derive(Default, Immutable, IntoBytes)]
#[repr(transparent)]
pub(crate) struct Validity(pub(crate) u16);

impl Response for Validity {}
