// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs, and the rules for changing them.

use kernel::{
    bits::bit_u32,
    impl_flags,
    prelude::*, //
};

use super::Type;
use crate::{
    access::AccessFlags,
    ah::Path,
    bindings,
    port::{
        Mtu,
        Port, //
    }, //
};

c_enum! {
    /// State of a queue pair (`enum ib_qp_state`).
    pub enum State: bindings::ib_qp_state {
        /// Just created; nothing may be posted.
        Reset = bindings::ib_qp_state_IB_QPS_RESET,
        /// Receives may be posted.
        Init = bindings::ib_qp_state_IB_QPS_INIT,
        /// Ready to receive.
        ReadyToReceive = bindings::ib_qp_state_IB_QPS_RTR,
        /// Ready to send.
        ReadyToSend = bindings::ib_qp_state_IB_QPS_RTS,
        /// Send queue draining or drained.
        SendQueueDrain = bindings::ib_qp_state_IB_QPS_SQD,
        /// Send queue in error.
        SendQueueError = bindings::ib_qp_state_IB_QPS_SQE,
        /// In error: everything posted is flushed.
        Error = bindings::ib_qp_state_IB_QPS_ERR,
    }
}

c_enum! {
    /// State of path migration (`enum ib_mig_state`; IBTA volume 1, section 17.2.8).
    pub enum Migration: bindings::ib_mig_state {
        /// No alternate path is armed. Setting this state makes an armed queue pair migrate.
        Migrated = bindings::ib_mig_state_IB_MIG_MIGRATED,
        /// An alternate path is loaded, but the peer is not known to have loaded one.
        Rearm = bindings::ib_mig_state_IB_MIG_REARM,
        /// Both ends can migrate to their alternate paths.
        Armed = bindings::ib_mig_state_IB_MIG_ARMED,
    }
}

/// An alternate path to the peer of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AlternatePath<P> {
    /// The path.
    pub path: P,
    /// P_Key index.
    pub pkey_index: u16,
    /// Port.
    pub port: Port,
    /// Local ACK timeout: 4.096 µs times 2 to this.
    pub timeout: u8,
}

impl_flags!(
    /// A set of queue pair attributes (`enum ib_qp_attr_mask`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct AttributeMask(u32);

    /// An attribute of a queue pair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Attribute {
        /// [`QpAttr::state`].
        State = bit_u32(0),
        /// [`QpAttr::current_state`].
        CurrentState = bit_u32(1),
        /// [`QpAttr::drain_notify`].
        DrainNotify = bit_u32(2),
        /// [`QpAttr::access`].
        Access = bit_u32(3),
        /// [`QpAttr::pkey_index`].
        PkeyIndex = bit_u32(4),
        /// [`QpAttr::port`].
        Port = bit_u32(5),
        /// [`QpAttr::qkey`].
        Qkey = bit_u32(6),
        /// [`QpAttr::path`].
        Path = bit_u32(7),
        /// [`QpAttr::path_mtu`].
        PathMtu = bit_u32(8),
        /// [`QpAttr::timeout`].
        Timeout = bit_u32(9),
        /// [`QpAttr::retry_count`].
        RetryCount = bit_u32(10),
        /// [`QpAttr::rnr_retry`].
        RnrRetry = bit_u32(11),
        /// [`QpAttr::rq_psn`].
        RqPsn = bit_u32(12),
        /// [`QpAttr::max_rd_atomic`].
        MaxRdAtomic = bit_u32(13),
        /// [`QpAttr::alternate`].
        AlternatePath = bit_u32(14),
        /// [`QpAttr::min_rnr_timer`].
        MinRnrTimer = bit_u32(15),
        /// [`QpAttr::sq_psn`].
        SqPsn = bit_u32(16),
        /// [`QpAttr::max_dest_rd_atomic`].
        MaxDestRdAtomic = bit_u32(17),
        /// [`QpAttr::migration`].
        PathMigrationState = bit_u32(18),
        /// Capabilities.
        Capabilities = bit_u32(19),
        /// [`QpAttr::dest_qpn`].
        DestQpn = bit_u32(20),
        /// [`QpAttr::rate_limit`].
        RateLimit = bit_u32(25),
    }
);

impl AttributeMask {
    /// Converts a C mask; bits without a name here are rejected with `EOPNOTSUPP`.
    pub(crate) fn from_raw(raw: c_int) -> Result<Self> {
        const KNOWN: u32 = ((1 << 21) - 1) | Attribute::RateLimit as u32;

        // CAST: A set of bits that C keeps in an `int`.
        let raw = raw as u32;
        if raw & !KNOWN != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Self(raw))
    }

    /// Returns the mask in the encoding of the verbs.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Attributes of a queue pair (`struct ib_qp_attr`), either to set or as queried. `P` is the path
/// type of the driver's ports ([`Operations::Path`](crate::Operations::Path)).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct QpAttr<P> {
    /// State, or the state to go to.
    pub state: State,
    /// State in which the caller believes the queue pair to be.
    pub current_state: State,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Q_Key.
    pub qkey: u32,
    /// First PSN to receive, 24 bits.
    pub rq_psn: u32,
    /// First PSN to send, 24 bits.
    pub sq_psn: u32,
    /// Number of the peer's queue pair, 24 bits.
    pub dest_qpn: u32,
    /// Access rights of the peer.
    pub access: AccessFlags,
    /// P_Key index.
    pub pkey_index: u16,
    /// Port.
    pub port: Port,
    /// Maximum outstanding RDMA reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Maximum outstanding RDMA reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer that this side requests from its peer (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs times 2 to this power.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error.
    pub retry_count: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
    /// Whether to raise an event when the send queue drained.
    pub drain_notify: bool,
    /// Whether the send queue is draining.
    pub draining: bool,
    /// Path to the peer.
    pub path: P,
    /// Alternate path to the peer, if there is one.
    pub alternate: Option<AlternatePath<P>>,
    /// Path migration state.
    pub migration: Migration,
    /// Maximum rate of sends in kbit/s, or 0 without a limit.
    pub rate_limit: u32,
}

impl<P: Path> Default for QpAttr<P> {
    fn default() -> Self {
        Self {
            state: State::Reset,
            current_state: State::Reset,
            path_mtu: Mtu::Mtu256,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: AccessFlags::default(),
            pkey_index: 0,
            port: Port::FIRST,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            drain_notify: false,
            draining: false,
            path: P::default(),
            alternate: None,
            migration: Migration::Migrated,
            rate_limit: 0,
        }
    }
}

impl<P: Path> QpAttr<P> {
    /// Converts the attributes in `mask` from C; the others keep their defaults. A value without a
    /// name here is rejected with `EINVAL`.
    pub(crate) fn from_raw(raw: &bindings::ib_qp_attr, mask: AttributeMask) -> Result<Self> {
        let mut this = Self::default();

        if mask.contains(Attribute::State) {
            this.state = State::try_from(raw.qp_state)?;
        }
        if mask.contains(Attribute::CurrentState) {
            this.current_state = State::try_from(raw.cur_qp_state)?;
        }
        if mask.contains(Attribute::DrainNotify) {
            this.drain_notify = raw.en_sqd_async_notify != 0;
        }
        if mask.contains(Attribute::Access) {
            this.access = AccessFlags::from_raw(raw.qp_access_flags)?;
        }
        if mask.contains(Attribute::PkeyIndex) {
            this.pkey_index = raw.pkey_index;
        }
        if mask.contains(Attribute::Port) {
            this.port = Port::try_from(raw.port_num)?;
        }
        if mask.contains(Attribute::Qkey) {
            this.qkey = raw.qkey;
        }
        if mask.contains(Attribute::Path) {
            this.path = P::from_raw(&raw.ah_attr)?;
        }
        if mask.contains(Attribute::PathMtu) {
            this.path_mtu = Mtu::try_from(raw.path_mtu)?;
        }
        if mask.contains(Attribute::Timeout) {
            this.timeout = raw.timeout;
        }
        if mask.contains(Attribute::RetryCount) {
            this.retry_count = raw.retry_cnt;
        }
        if mask.contains(Attribute::RnrRetry) {
            this.rnr_retry = raw.rnr_retry;
        }
        if mask.contains(Attribute::RqPsn) {
            this.rq_psn = raw.rq_psn;
        }
        if mask.contains(Attribute::MaxRdAtomic) {
            this.max_rd_atomic = raw.max_rd_atomic;
        }
        if mask.contains(Attribute::MinRnrTimer) {
            this.min_rnr_timer = raw.min_rnr_timer;
        }
        if mask.contains(Attribute::SqPsn) {
            this.sq_psn = raw.sq_psn;
        }
        if mask.contains(Attribute::MaxDestRdAtomic) {
            this.max_dest_rd_atomic = raw.max_dest_rd_atomic;
        }
        if mask.contains(Attribute::DestQpn) {
            this.dest_qpn = raw.dest_qp_num;
        }
        if mask.contains(Attribute::AlternatePath) {
            this.alternate = Some(AlternatePath {
                path: P::from_raw(&raw.alt_ah_attr)?,
                pkey_index: raw.alt_pkey_index,
                port: Port::try_from(raw.alt_port_num)?,
                timeout: raw.alt_timeout,
            });
        }
        if mask.contains(Attribute::PathMigrationState) {
            this.migration = Migration::try_from(raw.path_mig_state)?;
        }
        if mask.contains(Attribute::RateLimit) {
            this.rate_limit = raw.rate_limit;
        }
        Ok(this)
    }

    /// Writes all attributes into a zeroed C structure.
    pub(crate) fn write(&self, raw: &mut bindings::ib_qp_attr) {
        raw.qp_state = self.state.raw();
        raw.cur_qp_state = self.current_state.raw();
        raw.path_mtu = self.path_mtu.raw();
        raw.path_mig_state = self.migration.raw();
        raw.qkey = self.qkey;
        raw.rq_psn = self.rq_psn;
        raw.sq_psn = self.sq_psn;
        raw.dest_qp_num = self.dest_qpn;
        // CAST: A set of bits that C keeps in an `int`.
        raw.qp_access_flags = self.access.bits() as c_int;
        raw.pkey_index = self.pkey_index;
        raw.port_num = self.port.number();
        raw.max_rd_atomic = self.max_rd_atomic;
        raw.max_dest_rd_atomic = self.max_dest_rd_atomic;
        raw.min_rnr_timer = self.min_rnr_timer;
        raw.timeout = self.timeout;
        raw.retry_cnt = self.retry_count;
        raw.rnr_retry = self.rnr_retry;
        raw.en_sqd_async_notify = self.drain_notify.into();
        raw.sq_draining = self.draining.into();
        raw.rate_limit = self.rate_limit;
        self.path.write(&mut raw.ah_attr);
        if let Some(alternate) = &self.alternate {
            alternate.path.write(&mut raw.alt_ah_attr);
            raw.alt_pkey_index = alternate.pkey_index;
            raw.alt_port_num = alternate.port.number();
            raw.alt_timeout = alternate.timeout;
        }
    }
}

/// Returns whether the verbs allow a queue pair of type `ty` to go from state `from` to state `to`
/// when the attributes in `mask` are given (`ib_modify_qp_is_ok`).
pub fn modify_is_ok(from: State, to: State, ty: Type, mask: AttributeMask) -> bool {
    // SAFETY: The function only looks up its arguments in a table.
    // CAST: A set of bits that C keeps in an enum.
    unsafe { bindings::ib_modify_qp_is_ok(from.raw(), to.raw(), ty.raw(), mask.bits()) }
}
