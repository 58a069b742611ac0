// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of a queue pair and how they are modified.

use super::{Congestion, PathMigration, Qp, Receiver, Requester, Responder, transition};
use crate::{
    cause::Cause,
    limits::Features,
    memory::Memory,
    psn::Psn,
    qp::receive::Receive,
    rate::{QpLimit, QpPacer, static_rate},
    resources::{Io, Resources},
    segment::{ECN_CAPABLE, ECN_MASK, Path},
    state::wire,
    time::Instant,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    memory::access,
    port::{GidType, Mtu},
    qp::{AlternatePath, MAX_PSN, MAX_QPN, QpAttributes, QpState, attribute},
    work::{AddressVector, LidAddress},
};

/// The attributes that have been set, all of which are valid.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Attributes {
    pub(super) sqd_notify: bool,
    #[serde(with = "wire")]
    pub(super) path_mtu: Option<Mtu>,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qpn: u32,
    pub(super) access: u32,
    pub(super) pkey_index: u16,
    pub(super) port: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) rate_limit: QpLimit,
    #[serde(with = "wire")]
    pub(super) address: AddressVector,
}

impl Attributes {
    /// Returns the attributes for a reply, without the state and the progress.
    pub(super) fn report(&self) -> QpAttributes {
        QpAttributes {
            path_mtu: self.path_mtu.map_or(0, Mtu::raw),
            sqd_async_notify: self.sqd_notify.into(),
            qkey: self.qkey.into(),
            rq_psn: self.rq_psn.into(),
            sq_psn: self.sq_psn.into(),
            dest_qpn: self.dest_qpn.into(),
            access: self.access.into(),
            pkey_index: self.pkey_index.into(),
            port: self.port,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            rate_limit: self.rate_limit.rate.into(),
            max_burst: self.rate_limit.max_burst.into(),
            typical_packet: self.rate_limit.typical_packet.into(),
            address: self.address,
            ..QpAttributes::default()
        }
    }

    /// Returns these attributes with those that `wanted` selects replaced, if all values are valid.
    fn updated(
        mut self,
        wanted: &QpAttributes,
        features: Features,
        resources: &Resources,
    ) -> Result<Self, Cause> {
        let mask = wanted.mask.get();
        let limits = &resources.limits;
        let valid = |ok: bool| ok.then_some(()).ok_or(Cause::AttributeValue);

        if mask & attribute::EN_SQD_ASYNC_NOTIFY != 0 {
            valid(wanted.sqd_async_notify <= 1)?;
            self.sqd_notify = wanted.sqd_async_notify == 1;
        }
        if mask & attribute::ACCESS_FLAGS != 0 {
            self.access = wanted.access.get();
            let known = access::queue_pair(features.memory_placement);
            valid(self.access & !known == 0)?;
        }
        if mask & attribute::PKEY_INDEX != 0 {
            self.pkey_index = wanted.pkey_index.get();
            valid(self.pkey_index < resources.pkey_table_length())?;
        }
        if mask & attribute::PORT != 0 {
            self.port = wanted.port;
            valid(self.port == 1)?;
        }
        if mask & attribute::QKEY != 0 {
            self.qkey = wanted.qkey.get();
        }
        if mask & attribute::ADDRESS_VECTOR != 0 {
            self.address = wanted.address;
            check_address(&self.address, resources)?;
        }
        if mask & attribute::PATH_MTU != 0 {
            let mtu = Mtu::try_from(wanted.path_mtu).map_err(|_| Cause::AttributeValue)?;
            valid(mtu.raw() <= resources.mtu.raw())?;
            self.path_mtu = Some(mtu);
        }
        if mask & attribute::TIMEOUT != 0 {
            self.timeout = wanted.timeout;
            valid(self.timeout < 32)?;
        }
        if mask & attribute::RETRY_COUNT != 0 {
            self.retry_count = wanted.retry_count;
            valid(self.retry_count < 8)?;
        }
        if mask & attribute::RNR_RETRY != 0 {
            self.rnr_retry = wanted.rnr_retry;
            valid(self.rnr_retry < 8)?;
        }
        if mask & attribute::RQ_PSN != 0 {
            self.rq_psn = wanted.rq_psn.get();
            valid(self.rq_psn <= MAX_PSN)?;
        }
        if mask & attribute::MAX_RD_ATOMIC != 0 {
            self.max_rd_atomic = wanted.max_rd_atomic;
            valid(u32::from(self.max_rd_atomic) <= limits.rd_atomic)?;
        }
        if mask & attribute::MIN_RNR_TIMER != 0 {
            self.min_rnr_timer = wanted.min_rnr_timer;
            valid(self.min_rnr_timer < 32)?;
        }
        if mask & attribute::SQ_PSN != 0 {
            self.sq_psn = wanted.sq_psn.get();
            valid(self.sq_psn <= MAX_PSN)?;
        }
        if mask & attribute::MAX_DEST_RD_ATOMIC != 0 {
            self.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
            valid(u32::from(self.max_dest_rd_atomic) <= limits.dest_rd_atomic)?;
        }
        if mask & attribute::DEST_QPN != 0 {
            self.dest_qpn = wanted.dest_qpn.get();
            valid(self.dest_qpn <= MAX_QPN)?;
        }
        if mask & attribute::RATE_LIMIT != 0 {
            self.rate_limit = QpLimit {
                rate: wanted.rate_limit.get(),
                max_burst: wanted.max_burst.get(),
                typical_packet: wanted.typical_packet.get(),
            };
            self.rate_limit.check(resources.mtu.bytes())?;
        }
        Ok(self)
    }
}

/// Returns an error if an address vector does not describe a path to the peer of a connection.
pub(super) fn check_address(address: &AddressVector, resources: &Resources) -> Result<(), Cause> {
    if let Some(subnet) = &resources.subnet {
        return subnet.path_of(address, false).map(|_| ());
    }
    let local = resources.gids.get(address.sgid_index);
    local.map(|_| ()).ok_or(Cause::GidIndex)
}

/// Returns the path from queue pair `local_qpn` to `remote_qpn` that an address vector describes. Only that of a
/// datagram may lead to a group. Returns `None` if the address vector does not name a local GID or a valid LID.
pub(super) fn path_of(
    address: &AddressVector,
    local_qpn: u32,
    remote_qpn: u32,
    datagram: bool,
    resources: &Resources,
) -> Option<Path> {
    if let Some(subnet) = &resources.subnet {
        return subnet.path_of(address, datagram).ok();
    }
    let local = resources.gids.get(address.sgid_index)?;
    let flow_label = address.flow_label.get() & 0xf_ffff;
    Some(Path {
        source: local.gid,
        destination: address.dgid,
        source_mac: local.mac,
        destination_mac: address.dmac,
        vlan: local.vlan.get(),
        hop_limit: address.hop_limit,
        traffic_class: address.traffic_class,
        service_level: address.service_level,
        flow_label,
        source_port: source_port(flow_label, local_qpn, remote_qpn),
        roce_v1: local.gid_type == GidType::RoceV1.raw(),
        lids: None,
    })
}

/// Returns the UDP source port of a flow, one of the 2^14 dynamic ports. It depends on the flow label, by which a user
/// can influence the flow's way through the network, or on the queue pairs if there is no flow label (annex A17, 3.1).
fn source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let flow = match flow_label {
        0 => {
            // Spread numbers that differ only in a few bits: the constant is 2^32 / golden ratio.
            let both = local_qpn ^ remote_qpn.rotate_left(12);
            both.wrapping_mul(0x9e37_79b9) >> 12
        }
        label => label,
    };
    0xc000 | ((flow ^ flow >> 14) & 0x3fff) as u16
}

impl Qp {
    /// Returns the path to the peer that an address vector describes, or `None` if it describes none.
    pub(super) fn connected_path(
        &self,
        address: &AddressVector,
        resources: &Resources,
    ) -> Option<Path> {
        let dest_qpn = self.attributes.dest_qpn;
        let mut path = path_of(address, self.number, dest_qpn, false, resources)?;
        if resources.fabric_mtu.is_none() && path.lids.is_none() {
            // Let switches mark packets rather than drop them, because this device reacts to marks.
            path.traffic_class = path.traffic_class & !ECN_MASK | ECN_CAPABLE;
        }
        Some(path)
    }

    /// Limits the rate as the attributes say.
    pub(super) fn renew_pacer(&mut self, now: Instant) {
        // Ethernet has no static rates.
        let path = self.path.lids.and_then(|_| {
            let address = LidAddress::from_bytes(self.attributes.address.dmac);
            static_rate(address.static_rate)
        });
        self.pacer.set(self.attributes.rate_limit, path, now);
    }

    /// Modifies attributes, including the state. Nothing changes if that fails. `alternate` is the alternate path, for
    /// commands that have one.
    pub(crate) fn modify<M: Memory>(
        &mut self,
        wanted: &QpAttributes,
        alternate: Option<&AlternatePath>,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<(), Cause> {
        let mask = wanted.mask.get();
        let features = self.created.capacities.features;
        // Without the features, their fields are reserved as well.
        let migrates = wanted.path_migration_state != 0;
        let limits = wanted.rate_limit.get() != 0
            || wanted.max_burst.get() != 0
            || wanted.typical_packet.get() != 0;
        let unknown = migrates && !resources.migrates_paths || limits && !features.rate_limits;
        if unknown || wanted.reserved_39 != 0 || wanted.reserved != [0; 14] {
            return Err(Cause::ReservedField);
        }
        let state_of = |raw| QpState::try_from(raw).map_err(|_| Cause::AttributeValue);
        let from = self.state;
        if mask & attribute::CURRENT_STATE != 0 && state_of(wanted.current_state)? != from {
            return Err(Cause::CurrentState);
        }
        let to = if mask & attribute::STATE != 0 {
            state_of(wanted.state)?
        } else {
            from
        };
        transition::check(self.created.qp_type, from, to, mask)?;
        if mask & attribute::RATE_LIMIT != 0 && !features.rate_limits {
            return Err(Cause::AttributeForbidden);
        }
        if mask & transition::MIGRATION != 0 {
            if !resources.migrates_paths {
                return Err(Cause::AttributeForbidden);
            }
            self.check_migration(mask, wanted.path_migration_state, alternate, resources)?;
        }
        self.attributes = self.attributes.updated(wanted, features, resources)?;

        if mask & attribute::ADDRESS_VECTOR != 0
            && let Some(path) = self.connected_path(&self.attributes.address, resources)
        {
            self.path = path;
        }
        if mask & (attribute::RATE_LIMIT | attribute::ADDRESS_VECTOR) != 0 {
            self.renew_pacer(io.now);
        }
        self.mtu = match resources.fabric_mtu {
            _ if !self.is_connection() => crate::segment::DATAGRAM_MTU,
            Some(mtu) => mtu,
            None => self.attributes.path_mtu.unwrap_or(Mtu::Mtu256).bytes(),
        };
        match (from, to) {
            (_, QpState::Reset) => {
                resources.faults.forget_qp(self.number);
                self.reset(io);
                resources.held.forget(self.number);
                resources.kept.forget(self.number);
            }
            (QpState::Reset, QpState::Init) => {
                self.created.sq.restart(io.memory);
                self.created.rq.restart(io.memory);
                self.state = to;
            }
            // Only a receive queue without queue pair leaves out INIT.
            (QpState::Reset, QpState::ReadyToReceive) => {
                self.created.rq.restart(io.memory);
                self.state = to;
            }
            (_, QpState::Error) => self.enter_error(io),
            (QpState::Init, QpState::ReadyToReceive) => {
                self.responder = Responder::new(Psn::new(self.attributes.rq_psn));
                self.state = to;
            }
            (QpState::ReadyToReceive, QpState::ReadyToSend) => {
                let first = Psn::new(self.attributes.sq_psn);
                let selective = resources.recovers_selectively && !self.is_unreliable();
                self.requester = Requester::new(first, selective, resources.fabric_mtu.is_none());
                self.refresh_retries();
                self.state = to;
            }
            (QpState::SendQueueError, QpState::ReadyToSend) => {
                // What was posted before this command has been flushed.
                if self.is_unreliable() {
                    self.requester.resume();
                }
                self.state = to;
            }
            (QpState::ReadyToSend, QpState::SendQueueDrain) => {
                self.state = to;
                self.requester.begin_draining();
                self.note_drained(resources);
            }
            _ => {
                if mask & (attribute::RETRY_COUNT | attribute::RNR_RETRY) != 0 {
                    self.refresh_retries();
                }
                self.state = to;
            }
        }
        if mask & transition::MIGRATION != 0 {
            self.set_migration(mask, wanted.path_migration_state, alternate, resources, io);
        }
        Ok(())
    }

    /// Forgets everything except what is fixed at creation.
    fn reset<M: Memory>(&mut self, io: &Io<'_, M>) {
        self.state = QpState::Reset;
        self.attributes = Attributes::default();
        self.path = Path::default();
        self.migration = PathMigration::default();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.receiver = Receiver::of(&self.created);
        self.receive = Receive::default();
        self.congestion = Congestion::default();
        self.pacer = QpPacer::default();
        self.awaited = None;
        self.stop_waiting();
        self.created.sq.restart(io.memory);
        self.created.rq.restart(io.memory);
    }
}
