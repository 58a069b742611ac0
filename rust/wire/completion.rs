// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Completion queue entries.

use crate::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Result of a work request; numerically the verbs status (IBTA volume 1, 11.6.2).
    pub enum Status: u8 {
        /// The request succeeded.
        Success = 0,
        /// The message is longer than the receive buffer or than the maximum.
        LocalLength = 1,
        /// The work queue entry is not valid for this queue pair.
        LocalQueuePairOperation = 2,
        /// A scatter/gather element refers to memory that the request may not use.
        LocalProtection = 4,
        /// The queue pair went to the error state before the request completed.
        Flushed = 5,
        /// A memory management operation failed.
        MemoryManagement = 6,
        /// The peer sent an unexpected response.
        BadResponse = 7,
        /// The peer's write with immediate data hit a protection error in the receive.
        LocalAccess = 8,
        /// The peer found the request invalid.
        RemoteInvalidRequest = 9,
        /// The request may not access the peer's memory in this way.
        RemoteAccess = 10,
        /// The peer could not perform the operation.
        RemoteOperation = 11,
        /// The peer did not respond, and retries are exhausted.
        RetryExceeded = 12,
        /// The peer had no receive posted, and retries are exhausted.
        RnrRetryExceeded = 13,
        /// The peer aborted the operation.
        RemoteAborted = 16,
        /// The device failed.
        Fatal = 19,
        /// The response took too long.
        ResponseTimeout = 20,
        /// Any other error.
        General = 21,
    }
}

impl Status {
    /// Returns the name of the status in the verbs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "IBV_WC_SUCCESS",
            Self::LocalLength => "IBV_WC_LOC_LEN_ERR",
            Self::LocalQueuePairOperation => "IBV_WC_LOC_QP_OP_ERR",
            Self::LocalProtection => "IBV_WC_LOC_PROT_ERR",
            Self::Flushed => "IBV_WC_WR_FLUSH_ERR",
            Self::MemoryManagement => "IBV_WC_MW_BIND_ERR",
            Self::BadResponse => "IBV_WC_BAD_RESP_ERR",
            Self::LocalAccess => "IBV_WC_LOC_ACCESS_ERR",
            Self::RemoteInvalidRequest => "IBV_WC_REM_INV_REQ_ERR",
            Self::RemoteAccess => "IBV_WC_REM_ACCESS_ERR",
            Self::RemoteOperation => "IBV_WC_REM_OP_ERR",
            Self::RetryExceeded => "IBV_WC_RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "IBV_WC_RNR_RETRY_EXC_ERR",
            Self::RemoteAborted => "IBV_WC_REM_ABORT_ERR",
            Self::Fatal => "IBV_WC_FATAL_ERR",
            Self::ResponseTimeout => "IBV_WC_RESP_TIMEOUT_ERR",
            Self::General => "IBV_WC_GENERAL_ERR",
        }
    }
}

wire_enum! {
    /// Operation that completed; numerically the verbs work completion opcode.
    pub enum Opcode: u8 {
        /// A local send (with or without immediate data or invalidation).
        Send = 0,
        /// A local RDMA write.
        Write = 1,
        /// A local RDMA read.
        Read = 2,
        /// A local compare and swap.
        CompareSwap = 3,
        /// A local fetch and add.
        FetchAdd = 4,
        /// A local bind of a memory window.
        BindWindow = 5,
        /// A local invalidation.
        LocalInvalidate = 6,
        /// A local send in segments.
        SendSegmented = 7,
        /// A local flush.
        Flush = 8,
        /// A local atomic write.
        AtomicWrite = 9,
        /// A local fast registration, or the registration of an integrity region.
        RegisterRegion = 32,
        /// A receive.
        Receive = 128,
        /// A receive that the peer's RDMA write with immediate data consumed.
        ReceiveWriteWithImmediate = 129,
    }
}

impl Opcode {
    /// Returns the name of the opcode for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "RDMA WRITE",
            Self::Read => "RDMA READ",
            Self::CompareSwap => "CMP & SWAP",
            Self::FetchAdd => "FETCH & ADD",
            Self::BindWindow => "BIND MW",
            Self::LocalInvalidate => "LOCAL INV",
            Self::SendSegmented => "SEND segmented",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::RegisterRegion => "REG MR",
            Self::Receive => "RECV",
            Self::ReceiveWriteWithImmediate => "RECV RDMA WRITE with IMM",
        }
    }
}

/// Bits of [`Cqe::flags`].
pub mod flags {
    /// The 40 bytes that precede the payload contain a route header.
    pub const GRH: u8 = 1 << 0;
    /// [`Cqe::immediate`](super::Cqe::immediate) contains immediate data.
    pub const IMMEDIATE: u8 = 1 << 1;
    /// [`Cqe::immediate`](super::Cqe::immediate) contains the key that was invalidated.
    pub const INVALIDATED: u8 = 1 << 2;
    /// [`Cqe::source_mac`](super::Cqe::source_mac) is valid.
    pub const SOURCE_MAC: u8 = 1 << 3;
    /// [`Cqe::vlan`](super::Cqe::vlan) is valid.
    pub const VLAN: u8 = 1 << 4;
    /// The route header is an IPv4 header in the last 20 bytes.
    pub const IPV4: u8 = 1 << 5;
    /// The peer asked for a solicited event.
    pub const SOLICITED: u8 = 1 << 6;
    /// [`Cqe::source_mac`](super::Cqe::source_mac) contains a [`LidSource`](super::LidSource).
    pub const SOURCE_LID: u8 = 1 << 7;
}

/// Bits of [`Cqe::packet_flags`].
pub mod packet_flags {
    /// The message is an IPv4 packet with TCP or UDP, and both checksums are right.
    pub const CHECKSUMS_OK: u8 = 1 << 0;
}

/// A completion queue entry.
///
/// The device writes [`phase`](Cqe::phase) last, with release order. The entry is valid once the
/// phase is that of its index ([`ring::phase`](crate::ring::phase)). If `status` is not success,
/// only `wr_id`, `qpn`, `status`, `vendor_error` and `phase` are meaningful.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// ID of the work request.
    pub wr_id: U64,
    /// Number of the queue pair.
    pub qpn: U32,
    /// An [`Opcode`].
    pub opcode: u8,
    /// A [`Status`].
    pub status: u8,
    /// [`flags`].
    pub flags: u8,
    /// Service level of the message.
    pub service_level: u8,
    /// Number of bytes received, read or swapped, including the route header.
    pub byte_length: U32,
    /// Immediate data or invalidated key.
    pub immediate: U32,
    /// Datagrams: number of the sending queue pair.
    pub source_qpn: U32,
    /// GSI: P_Key index of the message.
    pub pkey_index: U16,
    /// VLAN of a datagram; the whole tag that was removed from a frame.
    pub vlan: U16,
    /// Vendor-specific reason for an error, for diagnostics; 0 if there is none.
    pub vendor_error: U32,
    /// Source MAC address of the message, or, with `SOURCE_LID`, a [`LidSource`].
    pub source_mac: [u8; 6],
    /// [`packet_flags`].
    pub packet_flags: u8,
    /// Reserved; 0.
    pub reserved: [u8; 5],
    /// Device time of the completion in nanoseconds.
    pub timestamp: U64,
    /// Tag of the flow that directed the frame here; 0 if it has none, and for all else.
    pub flow_tag: U32,
    /// Reserved; 0.
    pub reserved_tail: [u8; 3],
    /// Phase of the entry; see above.
    pub phase: u8,
}
assert_layout!(Cqe, 64, wr_id @ 0, qpn @ 8, opcode @ 12, status @ 13, flags @ 14,
    service_level @ 15, byte_length @ 16, immediate @ 20, source_qpn @ 24, pkey_index @ 28,
    vlan @ 30, vendor_error @ 32, source_mac @ 36, packet_flags @ 42, timestamp @ 48,
    flow_tag @ 56, phase @ 63);

/// Origin of a message on an InfiniBand subnet, the contents of [`Cqe::source_mac`] there.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LidSource {
    /// LID of the sender.
    pub slid: U16,
    /// Low bits of the destination LID, as many as the port's LMC; 0 if it was the LID of a
    /// multicast group.
    pub path_bits: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
assert_layout!(LidSource, 6, slid @ 0, path_bits @ 2);

impl LidSource {
    /// Returns the contents of [`Cqe::source_mac`].
    pub const fn to_bytes(self) -> [u8; 6] {
        let [low, high] = self.slid.to_bytes();
        [low, high, self.path_bits, 0, 0, 0]
    }

    /// Parses the contents of [`Cqe::source_mac`].
    pub const fn from_bytes(bytes: [u8; 6]) -> Self {
        let [low, high, path_bits, ..] = bytes;
        Self {
            slid: U16::from_bytes([low, high]),
            path_bits,
            reserved: [0; 3],
        }
    }
}

/// Byte offset of the phase in an entry.
pub const PHASE_OFFSET: usize = 63;

/// Distance of two completion queue entries in bytes.
pub const CQE_STRIDE: u32 = 64;
