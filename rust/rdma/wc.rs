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
    /// How a work request ended (`enum ib_wc_status`).
    pub enum Status: bindings::ib_wc_status {
        /// Done.
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
        /// Retries used up.
        RetryExceeded = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR,
        /// RNR retries used up.
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
    /// What a completion tells of (`enum ib_wc_opcode`).
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
        /// An invalidation of a key of this side.
        LocalInvalidate = bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
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
    /// Whether it tells of a receive.
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWriteWithImmediate)
    }
}

/// What came with a received message besides the payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Immediate data, as a number.
    Immediate(u32),
    /// The key that was invalidated.
    Invalidated(u32),
}

/// Network header that a datagram came with (`enum rdma_network_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// RoCE version 2 over IPv4.
    Ipv4,
    /// RoCE version 2 over IPv6.
    Ipv6,
    /// RoCE version 1: a GRH.
    RoceV1,
    /// InfiniBand: a GRH.
    InfiniBand,
}

/// Where a received datagram came from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Queue pair that sent it.
    pub qpn: u32,
    /// P_Key index.
    pub pkey_index: u16,
    /// Service level.
    pub service_level: u8,
    /// Whether the network header stands in front of the payload, and which.
    pub header: Option<NetworkHeader>,
    /// MAC address.
    pub mac: Option<[u8; 6]>,
    /// VLAN.
    pub vlan: Option<u16>,
    /// LID, and the bits of the local one that it was sent to; 0 but for InfiniBand.
    pub lid: (u16, u8),
}

impl Source {
    /// Takes over what a completion of C says of a datagram, as far as it goes without Ethernet.
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

/// What a completion tells of a request (`struct ib_wc`), which its [`Continuation`] names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Queue pair that it was posted to.
    pub qpn: u32,
    /// How it ended. If it failed only this, `qpn`, `vendor_error`, and whether `opcode` is that of
    /// a receive, have a meaning.
    pub status: Status,
    /// What it did.
    pub opcode: Opcode,
    /// Reason for an error, for people.
    pub vendor_error: u32,
    /// Bytes transferred.
    pub byte_length: u32,
    /// What came with a received message.
    pub extra: Option<Extra>,
    /// Where a received datagram came from.
    pub source: Option<Source>,
}

impl Completion {
    /// Writes the completion of the request that its poster, `qp`, calls `wr_id` into a zeroed C
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
                // Immediate data stands in memory as it does on the network.
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
        // CAST: A set of bits that C keeps in an `int`.
        raw.wc_flags = flags as kernel::ffi::c_int;
    }
}

/// Room for completions that the poller of a queue gave.
///
/// # Invariants
///
/// `slots` has room for `room` completions during `'a`, of which `taken` are written.
pub struct Completions<'a> {
    dispatcher: &'a Dispatcher,
    /// The queue that is polled.
    cq: *const bindings::ib_cq,
    slots: *mut bindings::ib_wc,
    room: usize,
    taken: usize,
    /// Number of the queue pair of the last completion, and the queue pair: most come in runs.
    last: Option<(u32, Arc<Entry<bindings::ib_qp>>)>,
    _slots: PhantomData<&'a mut bindings::ib_wc>,
}

impl<'a> Completions<'a> {
    /// Wraps the poller's array.
    ///
    /// # Safety
    ///
    /// `slots` must have room for `room` completions, which nobody else accesses during `'a`.
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

    /// Completions handed over so far.
    pub fn len(&self) -> usize {
        self.taken
    }

    /// Whether none was handed over so far.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Whether the poller wants no more.
    pub fn is_full(&self) -> bool {
        self.taken == self.room
    }

    /// Hands a completion of a request to the poller. A receive that succeeded with more bytes than
    /// its elements have is told as a local length error.
    ///
    /// If that cannot be, the request comes back: when there is no room, when the queue pair is
    /// gone or was reset (then the verbs demand that the completion is dropped), when such a
    /// request was not posted to that queue pair, or does not complete in this queue, or when one
    /// that was posted after it to the same queue has completed. A shared receive queue has no
    /// order.
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
        // Users believe in the length of a message that was received.
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
