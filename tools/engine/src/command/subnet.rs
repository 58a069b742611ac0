// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about a port on an InfiniBand subnet.

use super::{Execute, done, port::check_port, reserved};
use crate::{
    cause::Cause,
    memory::Memory,
    resources::Io,
    rnic::Engine,
    subnet::{PortAnswer, PortRequest, Subnet, mad_request, modify_request},
};
use vrnic_wire::{
    U32,
    command::{
        CommandCode, CommandHeader, Empty, GID_BLOCK, Gids, MadProcessed, ModifyPort, PKEY_BLOCK,
        Pkeys, ProcessMad, QueryGids, QueryPkeys, QuerySubnetPort,
    },
    port::SubnetPort,
};
use zerocopy::FromBytes;

/// Returns the subnet state of a port, which must be on a subnet.
fn subnet(rnic: &mut Engine, port: U32) -> Result<&mut Subnet, Cause> {
    if !rnic.is_on_subnet() {
        return Err(Cause::CommandCode);
    }
    check_port(port)?;
    let subnet = rnic.resources.subnet.as_deref_mut();
    subnet.ok_or(Cause::CommandCode)
}

/// Returns what the command in `request` asks of an agent, if the command is valid and asks for something.
pub(super) fn port_request_of(request: &[u8], rnic: &mut Engine) -> Option<PortRequest> {
    let (header, body) = CommandHeader::read_from_prefix(request).ok()?;
    if header.reserved.get() != 0 || header.length.get() as usize != body.len() {
        return None;
    }
    let (port, wanted) = match CommandCode::try_from(header.code.get()).ok()? {
        CommandCode::ProcessMad => {
            let command = ProcessMad::read_from_bytes(body).ok()?;
            (command.port, mad_request(&command))
        }
        CommandCode::ModifyPort => {
            let command = ModifyPort::read_from_bytes(body).ok()?;
            (command.port, modify_request(&command))
        }
        _ => return None,
    };
    subnet(rnic, port).ok()?;
    wanted.ok()
}

impl Execute for QuerySubnetPort {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<SubnetPort, Cause> {
        reserved(self.reserved)?;
        Ok(subnet(rnic, self.port)?.port.subnet)
    }
}

impl Execute for QueryPkeys {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Pkeys, Cause> {
        let table = &subnet(rnic, self.port)?.port.pkeys;
        let rest = table.get(self.first.get() as usize..).unwrap_or_default();
        if rest.is_empty() {
            return Err(Cause::PkeyIndex);
        }
        let mut pkeys = Pkeys::default();
        for (to, pkey) in pkeys
            .pkeys
            .iter_mut()
            .zip(&rest[..rest.len().min(PKEY_BLOCK)])
        {
            *to = (*pkey).into();
        }
        Ok(pkeys)
    }
}

impl Execute for QueryGids {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Gids, Cause> {
        let port = &subnet(rnic, self.port)?.port;
        let first = self.first.get();
        if first >= crate::subnet::GIDS {
            return Err(Cause::GidIndex);
        }
        let mut gids = [0; 16 * GID_BLOCK];
        for (to, index) in gids.chunks_exact_mut(16).zip(first..) {
            to.copy_from_slice(&port.gid(index).unwrap_or_default());
        }
        Ok(Gids { gids })
    }
}

impl Execute for ModifyPort {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let subnet = subnet(rnic, self.port)?;
        modify_request(&self)?;
        match subnet.take_answer() {
            Some(PortAnswer::Done) => done(),
            // The agent does not do what the port does not support.
            _ => Err(Cause::Flags),
        }
    }
}

impl Execute for ProcessMad {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<MadProcessed, Cause> {
        let subnet = subnet(rnic, self.port)?;
        mad_request(&self)?;
        let answer = subnet.take_answer().unwrap_or(PortAnswer::Passed);
        let (result, mad) = answer.reply();
        Ok(MadProcessed {
            result: result.raw().into(),
            reserved: 0.into(),
            mad,
        })
    }
}
