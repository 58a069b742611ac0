// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about flows.

use super::{Execute, done, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::{
    command::{CreateFlow, DestroyFlow, Empty, FlowCounters, FlowCreated, QueryFlow},
    qp::QpType,
};

/// Returns the error of an unknown command unless there are raw packets.
fn check_feature(rnic: &Engine) -> Result<(), Cause> {
    let negotiated = rnic.has_raw_packets();
    negotiated.then_some(()).ok_or(Cause::CommandCode)
}

impl Execute for CreateFlow {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<FlowCreated, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        if self.port != 1 {
            return Err(Cause::UnknownPort);
        }
        let qp = rnic.qps.get(self.qpn.get()).ok_or(Cause::UnknownQp)?;
        let created = qp.created();
        if !matches!(created.qp_type, QpType::RawPacket | QpType::ReceiveScaling) {
            return Err(Cause::QpType);
        }
        let scaling = created.scaling.clone();
        let flow = rnic.flows.add(&self, scaling)?;
        Ok(FlowCreated {
            flow: flow.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DestroyFlow {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        if rnic.flows.remove(self.flow.get()) {
            done()
        } else {
            Err(Cause::UnknownFlow)
        }
    }
}

impl Execute for QueryFlow {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<FlowCounters, Cause> {
        check_feature(rnic)?;
        if !rnic.config.features.flow_counters {
            return Err(Cause::CommandCode);
        }
        reserved(self.reserved)?;
        rnic.flows
            .counters(self.flow.get())
            .ok_or(Cause::UnknownFlow)
    }
}
