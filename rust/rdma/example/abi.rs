// SPDX-License-Identifier: GPL-2.0

//! What processes and the driver say to each other: `include/uapi/rdma/efa-abi.h`, as far as this
//! driver goes.
//!
//! A request refuses what must be zero in it; the abstractions see to all else ([`Request`],
//! [`Response`]).

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

/// Fails if there is anything in bytes that are reserved.
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
        // Batches and minimal send queues are what old providers do not know. This driver has
        // neither, so any provider will do.
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
    /// What the queue is to have besides; this driver has none of it.
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
    /// Bytes.
    pub(crate) rq_ring_size: u32,
    /// Bytes.
    pub(crate) sq_ring_size: u32,
    pub(crate) driver_qp_type: u32,
    /// What the queue pair is to do besides; this driver does none of it.
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

/// An identifier of an interconnect, as the method of memory regions answers.
#[derive(Default, Immutable, IntoBytes)]
#[repr(transparent)]
pub(crate) struct InterconnectId(pub(crate) u16);

impl Response for InterconnectId {}

/// Which identifiers are valid.
#[derive(Default, Immutable, IntoBytes)]
#[repr(transparent)]
pub(crate) struct Validity(pub(crate) u16);

impl Response for Validity {}
