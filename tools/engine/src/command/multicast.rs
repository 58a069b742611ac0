// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about multicast groups.

use super::{Execute, done, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::{
    command::{AttachMulticast, DetachMulticast, Empty},
    qp::QpType,
};

impl Execute for AttachMulticast {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.multicast {
            return Err(Cause::CommandCode);
        }
        reserved(self.reserved)?;
        let qpn = self.qpn.get();
        let qp = rnic.qps.get(qpn).ok_or(Cause::UnknownQp)?;
        if qp.created().qp_type != QpType::UnreliableDatagram {
            return Err(Cause::QpType);
        }
        rnic.resources.groups.attach(qpn, self.gid)?;
        done()
    }
}

impl Execute for DetachMulticast {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.multicast {
            return Err(Cause::CommandCode);
        }
        reserved(self.reserved)?;
        let qpn = self.qpn.get();
        if rnic.qps.get(qpn).is_none() {
            return Err(Cause::UnknownQp);
        }
        rnic.resources.groups.detach(qpn, self.gid)?;
        done()
    }
}
