// SPDX-License-Identifier: GPL-2.0

//! Completions of work requests.

use core::marker::PhantomData;

use kernel::sync::Arc;

use crate::{
    bindings,
    event::{
        Dispatcher,
        Entry, //
    },
    object::blank,
    wr::Continuation, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

c_enum! {
    /// Result of a work request (`enum ib_wc_status`).
    pub enum Status: bindings::ib_wc_status {
        /// Success.
        Success = bindings::ib_wc_status_IB_WC_SUCCESS,
        /// Local length error.
        LocalLength = bindings::ib_wc_status_IB_WC_LOC_LEN_ERR,
        /// Local queue pair operation error.
        LocalQueuePairOperation = bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
        /// Local protection error.
        LocalProtection = bindings::ib_wc_status_IB_WC_LOC_PROT_ERR,
        /// Flushed.
        Flushed = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR,
        /// Memory management operation error.
        MemoryManagement = bindings::ib_wc_status_IB_WC_MW_BIND_ERR,
        /// Bad response.
        BadResponse = bindings::ib_wc_status_IB_WC_BAD_RESP_ERR,
        /// Local access error.
        LocalAccess = bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR,
        /// Remote invalid request error.
        RemoteInvalidRequest = bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
        /// Remote access error.
        RemoteAccess = bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR,
        /// Remote operation error.
        RemoteOperation = bindings::ib_wc_status_IB_WC_REM_OP_ERR,
        /// Transport retries exceeded.
        RetryExceeded = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR,
        /// RNR retries exceeded.
        RnrRetryExceeded = bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
        /// Aborted by the peer.
        RemoteAborted = bindings::ib_wc_status_IB_WC_REM_ABORT_ERR,
        /// Fatal error.
        Fatal = bindings::ib_wc_status_IB_WC_FATAL_ERR,
        /// Response timeout.
        ResponseTimeout = bindings::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
        /// General error.
        General = bindings::ib_wc_status_IB_WC_GENERAL_ERR,
    }
}

c_enum! {
    /// Operation that completed (`enum ib_wc_opcode`).
    pub enum Opcode: bindings::ib_wc_opcode {
        /// A send.
        Send = bindings::ib_wc_opcode_IB_WC_SEND,
        /// An RDMA write.
        Write = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
        /// An RDMA read.
        Read = bindings::ib_wc_opcode_IB_WC_RDMA_READ,
        /// A compare and swap.
        CompareSwap = bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
        /// A fetch and add.
        FetchAdd = bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
        /// A bind of a memory window.
        BindWindow = bindings::ib_wc_opcode_IB_WC_BIND_MW,
        /// An invalidation of a local key.
        LocalInvalidate = bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
        /// A send in segments.
        SendSegmented = bindings::ib_wc_opcode_IB_WC_LSO,
        /// A flush.
        Flush = bindings::ib_wc_opcode_IB_WC_FLUSH,
        /// An atomic write.
        AtomicWrite = bindings::ib_wc_opcode_IB_WC_ATOMIC_WRITE,
        /// A fast registration.
        Register = bindings::ib_wc_opcode_IB_WC_REG_MR,
        /// A receive.
        Receive = bindings::ib_wc_opcode_IB_WC_RECV,
        /// A receive that an RDMA write with immediate data consumed.
        ReceiveWriteWithImmediate = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
    }
}

impl Opcode {
    /// Returns whether this is the completion of a receive.
    #[inline]
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWriteWithImmediate)
    }
}

/// Additional data of a received message, besides the payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Immediate data, in host byte order.
    Immediate(u32),
    /// The key that was invalidated.
    Invalidated(u32),
}

/// Network header of a received datagram (`enum rdma_network_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// RoCE version 2 over IPv4.
    Ipv4,
    /// RoCE version 2 over IPv6.
    Ipv6,
    /// RoCE version 1, with a GRH.
    RoceV1,
    /// InfiniBand, with a GRH.
    InfiniBand,
}

/// Origin of a received datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Number of the sending queue pair.
    pub qpn: u32,
    /// P_Key index.
    pub pkey_index: u16,
    /// Service level.
    pub service_level: u8,
    /// The network header that precedes the payload, if there is one.
    pub header: Option<NetworkHeader>,
    /// Source MAC address.
    pub mac: Option<[u8; 6]>,
    /// VLAN ID.
    pub vlan: Option<u16>,
    /// Source LID, and the path bits of the destination LID; 0 except on InfiniBand.
    pub lid: (u16, u8),
}

impl Source {
    /// Converts a datagram's origin from a C completion, without the Ethernet members.
    pub(crate) fn from_raw(raw: &bindings::ib_wc) -> Self {
        // CAST: Sets of bits that C keeps in an `int`, and a LID in 32 bits.
        let has_header = raw.wc_flags as u32 & bindings::ib_wc_flags_IB_WC_GRH != 0;
        Self {
            qpn: raw.src_qp,
            pkey_index: raw.pkey_index,
            service_level: raw.sl,
            header: has_header.then_some(NetworkHeader::InfiniBand),
            mac: None,
            vlan: None,
            lid: (raw.slid as u16, raw.dlid_path_bits),
        }
    }
}

/// Completion of the request of a [`Continuation`] (`struct ib_wc`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Result of the request. On failure, only this, `qpn`, `vendor_error`, and whether `opcode` is
    /// that of a receive are meaningful.
    pub status: Status,
    /// Operation that completed.
    pub opcode: Opcode,
    /// Vendor-specific reason for an error, for diagnostics.
    pub vendor_error: u32,
    /// Number of bytes transferred.
    pub byte_length: u32,
    /// Additional data of a received message.
    pub extra: Option<Extra>,
    /// Origin of a received datagram.
    pub source: Option<Source>,
    /// Whether the received message is an IPv4 packet with TCP or UDP whose checksums are right.
    pub checksums_ok: bool,
}

impl Completion {
    /// Writes the completion of the request with ID `wr_id`, posted to `qp`, into a zeroed C
    /// structure.
    fn write(&self, wr_id: u64, qp: &Entry<bindings::ib_qp>, raw: &mut bindings::ib_wc) {
        let mut flags = 0;

        raw.status = self.status.raw();
        raw.opcode = self.opcode.raw();
        raw.vendor_err = self.vendor_error;
        raw.byte_len = self.byte_length;
        raw.qp = qp.object().as_ptr();
        raw.port_num = qp.port();
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut raw.__bindgen_anon_1.wr_id) } = wr_id;
        match self.extra {
            Some(Extra::Immediate(data)) => {
                // C keeps immediate data in network byte order.
                // SAFETY: All members of the union are plain words.
                *unsafe { crate::compat::member_mut(&mut raw.ex.imm_data) } = data.to_be();
                flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
            }
            Some(Extra::Invalidated(key)) => {
                // SAFETY: All members of the union are plain words.
                *unsafe { crate::compat::member_mut(&mut raw.ex.invalidate_rkey) } = key;
                flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE;
            }
            None => {}
        }
        if let Some(source) = &self.source {
            raw.src_qp = source.qpn;
            raw.pkey_index = source.pkey_index;
            raw.sl = source.service_level;
            (raw.slid, raw.dlid_path_bits) = (source.lid.0.into(), source.lid.1);
            if let Some(header) = source.header {
                // CAST: Constants that C keeps in a byte.
                raw.network_hdr_type = match header {
                    NetworkHeader::Ipv4 => bindings::rdma_network_type_RDMA_NETWORK_IPV4,
                    NetworkHeader::Ipv6 => bindings::rdma_network_type_RDMA_NETWORK_IPV6,
                    NetworkHeader::RoceV1 => bindings::rdma_network_type_RDMA_NETWORK_ROCE_V1,
                    NetworkHeader::InfiniBand => bindings::rdma_network_type_RDMA_NETWORK_IB,
                } as u8;
                flags |= bindings::ib_wc_flags_IB_WC_GRH
                    | bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
            }
            if let Some(mac) = source.mac {
                raw.smac = mac;
                flags |= bindings::ib_wc_flags_IB_WC_WITH_SMAC;
            }
            if let Some(vlan) = source.vlan {
                raw.vlan_id = vlan;
                flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN;
            }
        }
        if self.checksums_ok {
            flags |= bindings::ib_wc_flags_IB_WC_IP_CSUM_OK;
        }
        // CAST: A set of bits that C keeps in an `int`.
        raw.wc_flags = flags as kernel::ffi::c_int;
    }
}

/// Room for completions, which the poller of a queue provides.
///
/// # Invariants
///
/// `slots` has room for `room` completions during `'a`, of which `taken` are initialised.
pub struct Completions<'a> {
    dispatcher: &'a Dispatcher,
    /// The queue that is polled.
    cq: *const bindings::ib_cq,
    slots: *mut bindings::ib_wc,
    room: usize,
    taken: usize,
    /// The queue pair of the last completion, and its number: completions often come in runs.
    last: Option<(u32, Arc<Entry<bindings::ib_qp>>)>,
    _slots: PhantomData<&'a mut bindings::ib_wc>,
}

impl<'a> Completions<'a> {
    /// Wraps the poller's array.
    ///
    /// # Safety
    ///
    /// `slots` must have room for `room` completions, to which this has exclusive access during
    /// `'a`.
    pub(crate) unsafe fn new(
        dispatcher: &'a Dispatcher,
        cq: *const bindings::ib_cq,
        slots: *mut bindings::ib_wc,
        room: usize,
    ) -> Self {
        Self {
            dispatcher,
            cq,
            slots,
            room,
            taken: 0,
            last: None,
            _slots: PhantomData,
        }
    }

    /// Returns the number of completions passed to the poller so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.taken
    }

    /// Returns whether no completion was passed to the poller so far.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Returns whether the poller's array is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.taken == self.room
    }

    /// Passes the completion of a request to the poller. A successful receive of more bytes than
    /// its scatter/gather elements hold is reported as a local length error.
    ///
    /// If the completion cannot be delivered, the request is returned as the error. This happens if
    /// there is no room, if the queue pair is gone or was reset (the verbs then require that the
    /// completion is dropped), if the request was not posted to this queue pair or does not
    /// complete in this queue, or if a request posted later to the same queue has already
    /// completed. The last rule does not apply to shared receive queues.
    pub fn push(
        &mut self,
        request: Continuation,
        completion: &Completion,
    ) -> Result<(), Continuation> {
        let is_receive = completion.opcode.is_receive();
        if self.is_full() || request.is_receive != is_receive {
            return Err(request);
        }
        let found = match self.last.take() {
            Some((qpn, qp)) if qpn == completion.qpn => Some(qp),
            _ => self.dispatcher.find_qp(completion.qpn),
        };
        let Some(qp) = found else {
            return Err(request);
        };
        if !qp.complete(request.poster, is_receive, request.position, self.cq) {
            return Err(request);
        }
        // Users trust the length of a received message.
        let overrun = completion.status == Status::Success
            && completion.opcode == Opcode::Receive
            && u64::from(completion.byte_length) > request.length;
        let completion = match overrun {
            false => completion,
            true => &Completion {
                status: Status::LocalLength,
                byte_length: 0,
                extra: None,
                source: None,
                checksums_ok: false,
                ..*completion
            },
        };
        // SAFETY: There is room, by the check above and the type invariant.
        completion.write(request.wr_id, &qp, unsafe {
            blank(self.slots.add(self.taken))
        });
        self.last = Some((completion.qpn, qp));
        self.taken += 1;
        Ok(())
    }
}
