// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about multicast groups.

use super::{Execute, done, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::{
    command::{AttachMulticast, DetachMulticast, Empty},
    port::is_multicast_lid,
    qp::QpType,
};

/// Checks and returns the LID of a group: it must be a multicast LID on InfiniBand, and 0 otherwise.
fn group_lid(lid: u16, rnic: &Engine) -> Result<u16, Cause> {
    if rnic.resources.subnet.is_some() == is_multicast_lid(lid)
        && (is_multicast_lid(lid) || lid == 0)
    {
        Ok(lid)
    } else {
        Err(Cause::MulticastLid)
    }
}

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
        let group = (self.gid, group_lid(self.lid.get(), rnic)?);
        rnic.resources.groups.attach(qpn, group)?;
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
        let group = (self.gid, self.lid.get());
        rnic.resources.groups.detach(qpn, group)?;
        done()
    }
}
