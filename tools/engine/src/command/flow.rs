// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about flows.

use super::{Execute, done, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::{
    command::{
        CreateFlow, CreateTunnelFlow, DestroyFlow, Empty, FlowCounters, FlowCreated, QueryFlow,
        flow_flags,
    },
    qp::QpType,
};

/// Returns the error of an unknown command unless there are raw packets.
fn check_feature(rnic: &Engine) -> Result<(), Cause> {
    let negotiated = rnic.has_raw_packets();
    negotiated.then_some(()).ok_or(Cause::CommandCode)
}

/// Creates a flow.
fn create(rnic: &mut Engine, request: &CreateTunnelFlow) -> Result<FlowCreated, Cause> {
    let flow = &request.flow;
    if !rnic.config.features.tunnel_flows {
        reserved(flow.tag)?;
        if flow.flags.get() & flow_flags::DROP != 0 {
            return Err(Cause::Flags);
        }
    }
    if flow.port != 1 {
        return Err(Cause::UnknownPort);
    }
    let qp = rnic.qps.get(flow.qpn.get()).ok_or(Cause::UnknownQp)?;
    let created = qp.created();
    if !matches!(created.qp_type, QpType::RawPacket | QpType::ReceiveScaling) {
        return Err(Cause::QpType);
    }
    let scaling = created.scaling.clone();
    let flow = rnic.flows.add(request, scaling)?;
    Ok(FlowCreated {
        flow: flow.into(),
        reserved: 0.into(),
    })
}

impl Execute for CreateFlow {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<FlowCreated, Cause> {
        check_feature(rnic)?;
        let request = CreateTunnelFlow {
            flow: self,
            ..CreateTunnelFlow::default()
        };
        create(rnic, &request)
    }
}

impl Execute for CreateTunnelFlow {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<FlowCreated, Cause> {
        check_feature(rnic)?;
        if !rnic.config.features.tunnel_flows {
            return Err(Cause::CommandCode);
        }
        create(rnic, &self)
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
