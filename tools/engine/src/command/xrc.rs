// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about extended reliable connections.

use super::{Execute, done, reserved};
use crate::{
    cause::Cause,
    context::Owner,
    memory::Memory,
    qp::{Creation, Qp},
    resources::Io,
    ring::WorkQueue,
    rnic::{Engine, Xrcd},
    srq::Xrc,
    work::Capacities,
};
use vrnic_wire::{
    command::{
        CreateQp, CreateXrcSrq, CreateXrcd, DestroyXrcd, Empty, QpCreated, SrqCreated, XrcdCreated,
    },
    qp::QpType,
};

impl Engine {
    /// Returns the error of an unknown command unless extended reliable connections were negotiated.
    fn check_xrc(&self) -> Result<(), Cause> {
        if self.config.features.has_xrc() {
            Ok(())
        } else {
            Err(Cause::CommandCode)
        }
    }
}

impl Execute for CreateXrcd {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<XrcdCreated, Cause> {
        rnic.check_xrc()?;
        reserved(self.reserved)?;
        let created = rnic.xrcds.insert_with(|_| Xrcd::default());
        let (xrcdn, _) = created.ok_or(Cause::LimitReached)?;
        Ok(XrcdCreated {
            xrcdn: xrcdn.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DestroyXrcd {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_xrc()?;
        reserved(self.reserved)?;
        let xrcdn = self.xrcdn.get();
        let xrcd = rnic.xrcds.get(xrcdn).ok_or(Cause::UnknownXrcd)?;
        if !xrcd.targets.is_empty() || xrcd.srqs > 0 {
            return Err(Cause::InUse);
        }
        rnic.xrcds.remove(xrcdn);
        done()
    }
}

impl Execute for CreateXrcSrq {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<SrqCreated, Cause> {
        rnic.check_xrc()?;
        let xrc = Xrc {
            xrcdn: self.xrcdn.get(),
            cqn: self.cqn.get(),
        };
        rnic.xrcds.get(xrc.xrcdn).ok_or(Cause::UnknownXrcd)?;
        let cq = rnic.resources.cqs.get(xrc.cqn).ok_or(Cause::UnknownCq)?;
        if cq.context != self.srq.context.get() {
            return Err(Cause::ContextMismatch);
        }
        let created = self.srq.execute(rnic, io)?;
        let srqn = created.srqn.get();
        if let Some(srq) = rnic.resources.srqs.get_mut(srqn) {
            srq.xrc = Some(xrc);
        }
        if let Some(cq) = rnic.resources.cqs.get_mut(xrc.cqn) {
            cq.srqs.insert(srqn);
        }
        if let Some(xrcd) = rnic.xrcds.get_mut(xrc.xrcdn) {
            xrcd.srqs += 1;
        }
        Ok(created)
    }
}

/// Removes references to the shared receive queue `srqn` before it is destroyed: those of its XRC domain and its
/// completion queue, and what queue pairs have taken from it.
pub(super) fn forget_srq(srqn: u32, xrc: Xrc, rnic: &mut Engine) {
    if let Some(cq) = rnic.resources.cqs.get_mut(xrc.cqn) {
        cq.srqs.remove(&srqn);
    }
    if let Some(xrcd) = rnic.xrcds.get_mut(xrc.xrcdn) {
        xrcd.srqs -= 1;
        for &qpn in &xrcd.targets {
            if let Some(qp) = rnic.qps.get_mut(qpn) {
                qp.forget_receive_of(srqn);
            }
        }
    }
}

/// Creates the receiving end of an extended reliable connection, which belongs only to an XRC domain.
pub(super) fn create_target(request: &CreateQp, rnic: &mut Engine) -> Result<QpCreated, Cause> {
    if request.send_ring.is_present() || request.recv_ring.is_present() {
        return Err(Cause::RingLayout);
    }
    let numbers = [
        request.context,
        request.pd,
        request.send_cqn,
        request.recv_cqn,
        request.srqn,
    ];
    reserved(numbers)?;
    reserved(request.flags)?;
    let xrcdn = request.xrcdn.get();
    rnic.xrcds.get(xrcdn).ok_or(Cause::UnknownXrcd)?;
    if rnic.qps.len() >= rnic.config.limits.qp {
        return Err(Cause::LimitReached);
    }
    let created = Creation {
        qp_type: QpType::XrcTarget,
        context: 0,
        owner: Owner::default(),
        slot: 0,
        pd: 0,
        send_cqn: 0,
        recv_cqn: 0,
        srqn: None,
        xrcdn: Some(xrcdn),
        flags: 0,
        capacities: Capacities {
            features: rnic.config.features,
            ..Capacities::default()
        },
        translations: 0,
        sq: WorkQueue::new(None),
        rq: WorkQueue::new(None),
        scaling: None,
    };
    let qps = &mut rnic.qps.table;
    let (qpn, _) = qps
        .insert_with(|qpn| Box::new(Qp::new(qpn, created)))
        .ok_or(Cause::LimitReached)?;
    if let Some(xrcd) = rnic.xrcds.get_mut(xrcdn) {
        xrcd.targets.insert(qpn);
    }
    Ok(QpCreated {
        qpn: qpn.into(),
        slot: 0.into(),
    })
}
