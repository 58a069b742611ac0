// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Queue pair types, states and attributes (IBTA volume 1, 10.3 and 11.2.5).

use crate::{work::AddressVector, U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queue pair number of the subnet management interface.
pub const SMI_QPN: u32 = 0;

/// Queue pair number of the general service interface.
pub const GSI_QPN: u32 = 1;

/// Largest queue pair number, and mask of its 24 bits.
pub const MAX_QPN: u32 = 0xff_ffff;

/// Queue pair number in datagrams to a multicast GID, which are for all queue pairs attached to the
/// group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// Largest packet sequence number, and mask of its 24 bits.
pub const MAX_PSN: u32 = 0xff_ffff;

wire_enum! {
    /// Transport service of a queue pair.
    pub enum QpType: u8 {
        /// Subnet management interface: QP0 of an InfiniBand port.
        Smi = 0,
        /// General service interface: QP1, management datagrams.
        Gsi = 1,
        /// Reliable connection.
        ReliableConnection = 2,
        /// Unreliable connection.
        UnreliableConnection = 3,
        /// Unreliable datagram.
        UnreliableDatagram = 4,
        /// Raw packets: whole Ethernet frames.
        RawPacket = 8,
        /// Extended reliable connection, initiator side.
        XrcInitiator = 9,
        /// Extended reliable connection, target side, for the shared receive queues of an XRC
        /// domain.
        XrcTarget = 10,
        /// Only the receive queue of a queue pair, for whole Ethernet frames.
        ReceiveQueue = 16,
        /// No queue at all: frames go to several queues of the type `ReceiveQueue`.
        ReceiveScaling = 17,
    }
}

wire_enum! {
    /// State of a queue pair; numerically the verbs state.
    pub enum QpState: u8 {
        /// Just created; nothing may be posted.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Ready to receive.
        ReadyToReceive = 2,
        /// Ready to send.
        ReadyToSend = 3,
        /// Send queue draining or drained.
        SendQueueDrain = 4,
        /// Send queue in error; datagrams and unreliable connections only.
        SendQueueError = 5,
        /// In error: everything posted is flushed.
        Error = 6,
    }
}

wire_enum! {
    /// State of path migration of a connection (IBTA volume 1, 17.2.8); numerically the verbs
    /// state.
    pub enum Migration: u8 {
        /// There is no path to go over to.
        Migrated = 0,
        /// An alternate path is loaded; the peer is not known to have done the same.
        Rearm = 1,
        /// Both ends can go over to their alternate paths.
        Armed = 2,
    }
}

impl QpState {
    /// Returns the name of the state in the verbs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrain => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        }
    }
}

/// Bits of [`QpAttributes::mask`], one for each attribute; numerically the verbs mask.
pub mod attribute {
    /// [`state`](super::QpAttributes::state).
    pub const STATE: u32 = 1 << 0;
    /// [`current_state`](super::QpAttributes::current_state).
    pub const CURRENT_STATE: u32 = 1 << 1;
    /// [`sqd_async_notify`](super::QpAttributes::sqd_async_notify).
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    /// [`access`](super::QpAttributes::access).
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// [`pkey_index`](super::QpAttributes::pkey_index).
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// [`port`](super::QpAttributes::port).
    pub const PORT: u32 = 1 << 5;
    /// [`qkey`](super::QpAttributes::qkey).
    pub const QKEY: u32 = 1 << 6;
    /// [`address`](super::QpAttributes::address).
    pub const ADDRESS_VECTOR: u32 = 1 << 7;
    /// [`path_mtu`](super::QpAttributes::path_mtu).
    pub const PATH_MTU: u32 = 1 << 8;
    /// [`timeout`](super::QpAttributes::timeout).
    pub const TIMEOUT: u32 = 1 << 9;
    /// [`retry_count`](super::QpAttributes::retry_count).
    pub const RETRY_COUNT: u32 = 1 << 10;
    /// [`rnr_retry`](super::QpAttributes::rnr_retry).
    pub const RNR_RETRY: u32 = 1 << 11;
    /// [`rq_psn`](super::QpAttributes::rq_psn).
    pub const RQ_PSN: u32 = 1 << 12;
    /// [`max_rd_atomic`](super::QpAttributes::max_rd_atomic).
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    /// An [`AlternatePath`](super::AlternatePath), in
    /// [`ModifyQpPaths`](crate::command::ModifyQpPaths).
    pub const ALTERNATE_PATH: u32 = 1 << 14;
    /// [`min_rnr_timer`](super::QpAttributes::min_rnr_timer).
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// [`sq_psn`](super::QpAttributes::sq_psn).
    pub const SQ_PSN: u32 = 1 << 16;
    /// [`max_dest_rd_atomic`](super::QpAttributes::max_dest_rd_atomic).
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// [`path_migration_state`](super::QpAttributes::path_migration_state).
    pub const PATH_MIGRATION_STATE: u32 = 1 << 18;
    /// Capacities; not supported: queues do not change their size.
    pub const CAPACITIES: u32 = 1 << 19;
    /// [`dest_qpn`](super::QpAttributes::dest_qpn).
    pub const DEST_QPN: u32 = 1 << 20;
    /// [`rate_limit`](super::QpAttributes::rate_limit),
    /// [`max_burst`](super::QpAttributes::max_burst) and
    /// [`typical_packet`](super::QpAttributes::typical_packet).
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// Attributes of a queue pair, either to set or as queried.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpAttributes {
    /// [`attribute`] bits of the attributes to set; 0 in replies.
    pub mask: U32,
    /// A [`QpState`]: the current state, or the state to go to.
    pub state: u8,
    /// A [`QpState`]: the state in which the driver believes the queue pair to be.
    pub current_state: u8,
    /// A [`Mtu`](crate::port::Mtu).
    pub path_mtu: u8,
    /// 1 to raise an event when the send queue has drained.
    pub sqd_async_notify: u8,
    /// Q_Key of datagrams.
    pub qkey: U32,
    /// First PSN to receive, 24 bits.
    pub rq_psn: U32,
    /// First PSN to send, 24 bits.
    pub sq_psn: U32,
    /// Number of the peer's queue pair, 24 bits.
    pub dest_qpn: U32,
    /// Access rights of the peer, from [`access::QUEUE_PAIR`](crate::memory::access::QUEUE_PAIR)
    /// and [`access::PLACEMENT`](crate::memory::access::PLACEMENT).
    pub access: U32,
    /// P_Key index.
    pub pkey_index: U16,
    /// Port, 1.
    pub port: u8,
    /// Maximum outstanding RDMA reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Maximum outstanding RDMA reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer that this side requests from its peer, 5 bits (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs times 2 to this power, 5 bits; 0 means no timeout.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 3 bits.
    pub retry_count: u8,
    /// Retries after an RNR NAK, 3 bits; 7 means no limit.
    pub rnr_retry: u8,
    /// In replies: 1 while the send queue drains.
    pub sq_draining: u8,
    /// A [`Migration`]: the state of path migration to go to, which is not `Armed`.
    pub path_migration_state: u8,
    /// Reserved; 0.
    pub reserved_39: u8,
    /// Rate limit in kbit/s; 0 means no limit.
    pub rate_limit: U32,
    /// Bytes that may be sent without a pause; 0 means that the device chooses.
    pub max_burst: U32,
    /// Bytes of a typical packet; 0 means the MTU of the port.
    pub typical_packet: U16,
    /// Reserved; 0.
    pub reserved: [u8; 14],
    /// Path to the peer.
    pub address: AddressVector,
}
assert_layout!(QpAttributes, 96, mask @ 0, state @ 4, path_mtu @ 6, qkey @ 8, rq_psn @ 12,
    sq_psn @ 16, dest_qpn @ 20, access @ 24, pkey_index @ 28, port @ 30, max_rd_atomic @ 31,
    max_dest_rd_atomic @ 32, min_rnr_timer @ 33, timeout @ 34, retry_count @ 35, rnr_retry @ 36,
    sq_draining @ 37, path_migration_state @ 38, rate_limit @ 40, max_burst @ 44,
    typical_packet @ 48, address @ 64);

/// Another path to the peer of a connection, to go over to when the one in use fails.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AlternatePath {
    /// The path.
    pub address: AddressVector,
    /// P_Key index.
    pub pkey_index: U16,
    /// Port, 1.
    pub port: u8,
    /// Local ACK timeout, as [`QpAttributes::timeout`].
    pub timeout: u8,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(AlternatePath, 40, address @ 0, pkey_index @ 32, port @ 34, timeout @ 35);
