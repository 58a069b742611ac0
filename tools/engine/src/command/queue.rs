// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about queue pairs.

use super::{Execute, PAGES_AT_ONCE, done, reserved, xrc::create_target};
use crate::{
    buffer::Buffer,
    cause::Cause,
    context::Context,
    event::names_qp,
    limits::Features,
    memory::Memory,
    qp::{Creation, Qp},
    resources::{Io, Untold},
    ring::{Ring, WorkQueue},
    rnic::Engine,
    scaling::Scaling,
    work::Capacities,
};
use std::sync::Arc;
use vrnic_wire::{
    command::{
        ContextKind, CreateQp, CreateScalingQp, DestroyQp, Empty, ModifyQp, ModifyQpPaths,
        QpCreated, QpPaths, QueryQp, QueryQpPaths, qp_flags,
    },
    qp::{GSI_QPN, QpAttributes, QpState, QpType, SMI_QPN, attribute},
    ring::RingLayout,
    work,
};

/// Returns whether this is an end of an extended reliable connection.
fn is_xrc(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::XrcInitiator | QpType::XrcTarget)
}

/// Returns whether this is a management type, of which only one queue pair may exist.
fn is_management(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::Gsi | QpType::Smi)
}

/// Adds `change` to the number of objects that belong to a context.
pub(super) fn change_users(context: Option<&mut Context>, change: i32) {
    if let Some(context) = context {
        context.users = context.users.saturating_add_signed(change);
    }
}

/// Checks the layout of a ring of work requests with entries of `stride` bytes.
pub(super) fn check_ring(
    layout: &RingLayout,
    buffer: u64,
    stride: u32,
    max_entries: u32,
) -> Result<(), Cause> {
    if !layout.is_valid(buffer) {
        return Err(Cause::RingLayout);
    }
    if layout.is_present() && layout.stride.get() < stride {
        return Err(Cause::QueueStride);
    }
    if layout.entries.get() > max_entries {
        return Err(Cause::QueueCapacity);
    }
    Ok(())
}

/// Creates the work queue with this layout.
fn work_queue(buffer: &Arc<Buffer>, layout: &RingLayout) -> Result<WorkQueue, Cause> {
    let ring = layout
        .is_present()
        .then(|| Ring::new(Arc::clone(buffer), layout))
        .transpose()?;
    Ok(WorkQueue::new(ring))
}

/// Returns the flags that a queue pair of this type can have.
fn known_flags(qp_type: QpType, features: Features) -> u8 {
    let mut known = qp_flags::SIGNAL_ALL;
    if features.shared_receive_queues {
        known |= qp_flags::SHARED_RECEIVE_QUEUE;
    }
    if features.receive_options {
        known |= match qp_type {
            QpType::RawPacket | QpType::ReceiveQueue => qp_flags::STRIP_VLAN | qp_flags::APPEND_FCS,
            QpType::UnreliableDatagram => qp_flags::BLOCK_OWN_MULTICAST,
            _ => 0,
        };
    }
    known
}

/// Checks the request itself against the limits of the device.
fn check_request(request: &CreateQp, rnic: &Engine) -> Result<(QpType, Capacities), Cause> {
    let qp_type = QpType::try_from(request.qp_type).map_err(|_| Cause::QpType)?;
    if qp_type == QpType::UnreliableConnection && !rnic.config.features.unreliable_connections {
        return Err(Cause::QpTypeAbsent);
    }
    if qp_type == QpType::Smi && rnic.resources.subnet.is_none() {
        return Err(Cause::QpTypeAbsent);
    }
    if qp_type == QpType::RawPacket && !rnic.has_raw_packets() {
        return Err(Cause::QpTypeAbsent);
    }
    if qp_type == QpType::ReceiveQueue && !rnic.has_receive_scaling() {
        return Err(Cause::QpTypeAbsent);
    }
    if qp_type == QpType::ReceiveScaling {
        return Err(Cause::QpType);
    }
    if is_xrc(qp_type) && !rnic.config.features.has_xrc() {
        return Err(Cause::QpTypeAbsent);
    }
    if qp_type == QpType::XrcTarget {
        // It has nothing of what is checked below.
        return Ok((qp_type, Capacities::default()));
    }
    reserved(request.xrcdn)?;
    let receives = qp_type != QpType::XrcInitiator;
    if !receives {
        reserved(request.recv_cqn)?;
    }
    if qp_type == QpType::ReceiveQueue {
        reserved(request.send_cqn)?;
        reserved([request.max_send_sge, request.max_inline])?;
        reserved(request.flags & (qp_flags::SIGNAL_ALL | qp_flags::SHARED_RECEIVE_QUEUE))?;
        if request.send_ring.is_present() || !request.recv_ring.is_present() {
            return Err(Cause::RingLayout);
        }
    }
    let shares = request.flags & qp_flags::SHARED_RECEIVE_QUEUE != 0;
    if request.flags & !known_flags(qp_type, rnic.config.features) != 0 {
        return Err(Cause::Flags);
    }
    if !shares && request.srqn.get() != 0 {
        return Err(Cause::ReservedField);
    }
    let may_share = receives && !is_management(qp_type);
    if request.recv_ring.is_present() && !receives
        || shares && (request.recv_ring.is_present() || !may_share)
    {
        return Err(Cause::RingLayout);
    }
    let limits = &rnic.config.limits;
    let capacities = Capacities {
        send_sge: request.max_send_sge.get().into(),
        recv_sge: if shares {
            0
        } else {
            request.max_recv_sge.get().into()
        },
        inline: request.max_inline.get().into(),
        kernel: false,
        checksums: rnic.has_checksums(qp_type),
        features: rnic.config.features,
    };
    if capacities.send_sge > limits.send_sge
        || capacities.recv_sge > limits.recv_sge
        || capacities.inline > limits.inline
    {
        return Err(Cause::QueueCapacity);
    }
    let length = request.pages.length.get();
    let send_stride = work::send_stride(capacities.send_sge, capacities.inline);
    let recv_stride = work::receive_stride(capacities.recv_sge);
    check_ring(&request.send_ring, length, send_stride, limits.qp_entries)?;
    check_ring(&request.recv_ring, length, recv_stride, limits.qp_entries)?;
    Ok((qp_type, capacities))
}

/// Returns the shared receive queue that a queue pair is to use.
fn shared_receive_queue(request: &CreateQp) -> Option<u32> {
    (request.flags & qp_flags::SHARED_RECEIVE_QUEUE != 0).then(|| request.srqn.get())
}

/// Checks that the objects in the request fit together.
fn check_objects(request: &CreateQp, qp_type: QpType, rnic: &Engine) -> Result<(), Cause> {
    let number = request.context.get();
    let context = rnic.contexts.get(number).ok_or(Cause::UnknownContext)?;
    let pd = rnic.pds.get(request.pd.get()).ok_or(Cause::UnknownPd)?;
    let cq = |cqn: u32| rnic.resources.cqs.get(cqn).ok_or(Cause::UnknownCq);
    let recv_cq = match qp_type {
        QpType::XrcInitiator => None,
        _ => Some(cq(request.recv_cqn.get())?),
    };
    let send_cq = match qp_type {
        QpType::ReceiveQueue => None,
        _ => Some(cq(request.send_cqn.get())?),
    };
    let srq = |srqn| {
        let srq = rnic.resources.srqs.get(srqn);
        let srq = srq.filter(|srq| srq.xrc.is_none());
        srq.ok_or(Cause::UnknownSrq)
    };
    let srq = shared_receive_queue(request).map(srq).transpose()?;
    let owners = [
        Some(pd.context),
        send_cq.map(|cq| cq.context),
        recv_cq.map(|cq| cq.context),
        srq.map(|srq| srq.context),
    ];
    if owners.into_iter().flatten().any(|owner| owner != number) {
        return Err(Cause::ContextMismatch);
    }
    if is_management(qp_type) {
        if context.kind != ContextKind::Kernel {
            return Err(Cause::KernelOnly);
        }
        let exists = match qp_type {
            QpType::Smi => &rnic.qps.smi,
            _ => &rnic.qps.gsi,
        };
        if exists.is_some() {
            return Err(Cause::GsiExists);
        }
    }
    if rnic.qps.len() >= rnic.config.limits.qp {
        return Err(Cause::LimitReached);
    }
    Ok(())
}

impl Execute for CreateQp {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<QpCreated, Cause> {
        let (qp_type, mut capacities) = check_request(&self, rnic)?;
        if qp_type == QpType::XrcTarget {
            return create_target(&self, rnic);
        }
        check_objects(&self, qp_type, rnic)?;
        // A queue pair without rings has no buffer.
        let buffer = if self.send_ring.is_present() || self.recv_ring.is_present() {
            Some(Arc::new(rnic.resolve_ring_buffer(&self.pages, io)?))
        } else {
            None
        };
        let queue = |layout| match &buffer {
            Some(buffer) => work_queue(buffer, layout),
            None => Ok(WorkQueue::new(None)),
        };
        let sq = queue(&self.send_ring)?;
        let rq = queue(&self.recv_ring)?;
        let translations = buffer.as_ref().map_or(0, |buffer| buffer.translations());
        let number = self.context.get();
        let context = rnic.contexts.get_mut(number).ok_or(Cause::UnknownContext)?;
        capacities.kernel = context.kind == ContextKind::Kernel;
        // Nothing fails after a slot has been taken.
        let slot = context.take_slot().ok_or(Cause::SlotsExhausted)?;
        let created = Creation {
            qp_type,
            context: number,
            owner: context.owner,
            slot,
            pd: self.pd.get(),
            send_cqn: self.send_cqn.get(),
            recv_cqn: self.recv_cqn.get(),
            srqn: shared_receive_queue(&self),
            xrcdn: None,
            flags: self.flags,
            capacities,
            translations,
            sq,
            rq,
            scaling: None,
        };
        let qpn = match qp_type {
            QpType::Smi => {
                rnic.qps.smi = Some(Box::new(Qp::new(SMI_QPN, created)));
                SMI_QPN
            }
            QpType::Gsi => {
                rnic.qps.gsi = Some(Box::new(Qp::new(GSI_QPN, created)));
                GSI_QPN
            }
            _ => {
                let place = rnic
                    .qps
                    .table
                    .insert_with(|qpn| Box::new(Qp::new(qpn, created)));
                place.ok_or(Cause::LimitReached)?.0
            }
        };
        context.set_owner(slot, qpn);
        change_users(Some(context), 1);
        rnic.translations += translations;
        if let Some(pd) = rnic.pds.get_mut(self.pd.get()) {
            pd.users += 1;
        }
        if let Some(srqn) = shared_receive_queue(&self)
            && let Some(srq) = rnic.resources.srqs.get_mut(srqn)
        {
            srq.users += 1;
        }
        for cqn in [self.send_cqn.get(), self.recv_cqn.get()] {
            if let Some(cq) = rnic.resources.cqs.get_mut(cqn) {
                cq.users.insert(qpn);
            }
        }
        Ok(QpCreated {
            qpn: qpn.into(),
            slot: slot.into(),
        })
    }
}

impl Execute for CreateScalingQp {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<QpCreated, Cause> {
        if !rnic.has_receive_scaling() {
            return Err(Cause::CommandCode);
        }
        let scaling = Box::new(Scaling::of(&self)?);
        let (number, pdn) = (self.context.get(), self.pd.get());
        rnic.contexts.get(number).ok_or(Cause::UnknownContext)?;
        let pd = rnic.pds.get(pdn).ok_or(Cause::UnknownPd)?;
        if pd.context != number {
            return Err(Cause::ContextMismatch);
        }
        for &queue in scaling.queues() {
            let created = rnic.qps.get(queue).ok_or(Cause::UnknownQp)?.created();
            if created.qp_type != QpType::ReceiveQueue {
                return Err(Cause::QpType);
            }
            if created.context != number {
                return Err(Cause::ContextMismatch);
            }
        }
        if rnic.qps.len() >= rnic.config.limits.qp {
            return Err(Cause::LimitReached);
        }
        let context = rnic.contexts.get_mut(number).ok_or(Cause::UnknownContext)?;
        // Nothing fails after a slot has been taken.
        let slot = context.take_slot().ok_or(Cause::SlotsExhausted)?;
        let queues = scaling.queues().to_vec();
        let created = Creation {
            qp_type: QpType::ReceiveScaling,
            context: number,
            owner: context.owner,
            slot,
            pd: pdn,
            send_cqn: 0,
            recv_cqn: 0,
            srqn: None,
            xrcdn: None,
            flags: 0,
            capacities: Capacities {
                features: rnic.config.features,
                ..Capacities::default()
            },
            translations: 0,
            sq: WorkQueue::new(None),
            rq: WorkQueue::new(None),
            scaling: Some(scaling),
        };
        let qps = &mut rnic.qps.table;
        let (qpn, _) = qps
            .insert_with(|qpn| Box::new(Qp::new(qpn, created)))
            .ok_or(Cause::LimitReached)?;
        context.set_owner(slot, qpn);
        change_users(Some(context), 1);
        if let Some(pd) = rnic.pds.get_mut(pdn) {
            pd.users += 1;
        }
        for queue in queues {
            if let Some(queue) = rnic.qps.get_mut(queue) {
                queue.uses += 1;
            }
        }
        Ok(QpCreated {
            qpn: qpn.into(),
            slot: slot.into(),
        })
    }
}

impl Engine {
    /// Does a part of what is left to do before these attributes of a queue pair change: flushes sends if it leaves the
    /// send queue error state. Returns the position if some remain.
    pub(super) fn flush_part<M: Memory>(
        &mut self,
        qpn: u32,
        wanted: &QpAttributes,
        begun: Option<u32>,
        io: &mut Io<'_, M>,
    ) -> Option<u32> {
        let resumes = wanted.mask.get() & attribute::STATE != 0
            && wanted.state == QpState::ReadyToSend.raw()
            && self.qps.get(qpn)?.state() == QpState::SendQueueError;
        if !resumes {
            return None;
        }
        self.effort += PAGES_AT_ONCE;
        // Even if the command fails: these sends will be flushed anyway.
        self.act(qpn, |qp, resources| qp.flush_before(begun, resources, io))
            .flatten()
    }
}

impl Execute for ModifyQp {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        let qpn = self.qpn.get();
        let modified = rnic.act(qpn, |qp, resources| {
            qp.modify(&self.attributes, None, resources, io)
        });
        modified.ok_or(Cause::UnknownQp)??;
        rnic.qps.schedule(qpn);
        done()
    }
}

/// Returns the error of an unknown command unless path migration was negotiated.
fn check_paths(rnic: &Engine) -> Result<(), Cause> {
    let negotiated = rnic.config.features.path_migration;
    negotiated.then_some(()).ok_or(Cause::CommandCode)
}

impl Execute for ModifyQpPaths {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_paths(rnic)?;
        reserved(self.reserved)?;
        let loads = self.attributes.mask.get() & attribute::ALTERNATE_PATH != 0;
        if loads {
            reserved(self.alternate.reserved)?;
        }
        let qpn = self.qpn.get();
        let modified = rnic.act(qpn, |qp, resources| {
            qp.modify(&self.attributes, Some(&self.alternate), resources, io)
        });
        modified.ok_or(Cause::UnknownQp)??;
        rnic.qps.schedule(qpn);
        done()
    }
}

impl Execute for QueryQpPaths {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<QpPaths, Cause> {
        check_paths(rnic)?;
        reserved(self.reserved)?;
        let qp = rnic.qps.get(self.qpn.get()).ok_or(Cause::UnknownQp)?;
        Ok(qp.query_paths())
    }
}

impl Execute for QueryQp {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<QpAttributes, Cause> {
        reserved(self.reserved)?;
        let qp = rnic.qps.get(self.qpn.get()).ok_or(Cause::UnknownQp)?;
        Ok(qp.query())
    }
}

impl Execute for DestroyQp {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        let qpn = self.qpn.get();
        if rnic.qps.get(qpn).is_some_and(|qp| qp.uses > 0) {
            return Err(Cause::InUse);
        }
        let qp = match qpn {
            SMI_QPN => rnic.qps.smi.take(),
            GSI_QPN => rnic.qps.gsi.take(),
            _ => rnic.qps.table.remove(qpn),
        };
        let qp = qp.ok_or(Cause::UnknownQp)?;
        let created = qp.created();
        rnic.resources.async_events.forget(qpn, names_qp);
        rnic.resources.forget_untold(Untold::QueuePair(qpn));
        rnic.resources.timers.forget(qpn, qp.reminder);
        rnic.resources.keys.forget_queue_pair(qpn);
        rnic.resources.groups.forget(qpn);
        rnic.flows.forget(qpn);
        rnic.resources.held.forget(qpn);
        rnic.resources.kept.forget(qpn);
        rnic.resources.faults.forget_qp(qpn);
        rnic.resources.counters.rebind(qp.counter_set, None);
        qp.detach_counters(&mut rnic.resources.completion_counters);
        rnic.translations -= created.translations;
        if let Some(context) = rnic.contexts.get_mut(created.context) {
            context.free_slot(created.slot);
            change_users(Some(context), -1);
        }
        if let Some(pd) = rnic.pds.get_mut(created.pd) {
            pd.users -= 1;
        }
        if let Some(srqn) = created.srqn
            && let Some(srq) = rnic.resources.srqs.get_mut(srqn)
        {
            srq.users -= 1;
        }
        for &queue in created.scaling.iter().flat_map(|scaling| scaling.queues()) {
            if let Some(queue) = rnic.qps.get_mut(queue) {
                queue.uses -= 1;
            }
        }
        if let Some(xrcdn) = created.xrcdn
            && let Some(xrcd) = rnic.xrcds.get_mut(xrcdn)
        {
            xrcd.targets.remove(&qpn);
        }
        for cqn in [created.send_cqn, created.recv_cqn] {
            if let Some(cq) = rnic.resources.cqs.get_mut(cqn) {
                cq.users.remove(&qpn);
            }
        }
        done()
    }
}
