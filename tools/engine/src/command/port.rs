// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about the device, its port and its GIDs.

use super::{Execute, done, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::{
    U32,
    command::{
        ClearGid, Clock, Counters, DeviceLimits, Empty, QueryClock, QueryCounters, QueryDevice,
        QueryPort, SetGid, SetMtu, SetPortState,
    },
    port::{Mtu, PortAttributes, PortState},
};

/// Checks the number of a port.
pub(super) fn check_port(port: U32) -> Result<(), Cause> {
    if port.get() == 1 {
        Ok(())
    } else {
        Err(Cause::UnknownPort)
    }
}

/// Checks that the port is an Ethernet port: on InfiniBand, the subnet manager controls what the command changes.
fn ethernet(rnic: &Engine) -> Result<(), Cause> {
    match rnic.resources.subnet {
        None => Ok(()),
        Some(_) => Err(Cause::CommandCode),
    }
}

impl Execute for QueryDevice {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<DeviceLimits, Cause> {
        Ok(rnic.config.limits.report(rnic.config.features))
    }
}

impl Execute for QueryClock {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Clock, Cause> {
        if !rnic.config.features.clock {
            return Err(Cause::CommandCode);
        }
        let time = rnic.resources.faults.clock(io.now).as_nanos().into();
        Ok(Clock { time })
    }
}

impl Execute for QueryPort {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<PortAttributes, Cause> {
        reserved(self.reserved)?;
        check_port(self.port)?;
        Ok(rnic.port_attributes())
    }
}

impl Execute for QueryCounters {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Counters, Cause> {
        reserved(self.reserved)?;
        check_port(self.port)?;
        Ok(rnic.resources.counters.report())
    }
}

impl Execute for SetMtu {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if self.reserved != [0; 3] {
            return Err(Cause::ReservedField);
        }
        ethernet(rnic)?;
        check_port(self.port)?;
        let mtu = Mtu::try_from(self.mtu).map_err(|_| Cause::Mtu)?;
        if mtu.raw() > rnic.config.max_mtu.raw() {
            return Err(Cause::Mtu);
        }
        rnic.resources.mtu = mtu;
        done()
    }
}

impl Execute for SetPortState {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.port_state {
            return Err(Cause::CommandCode);
        }
        ethernet(rnic)?;
        reserved(self.reserved)?;
        check_port(self.port)?;
        rnic.resources.port.enabled = match PortState::try_from(self.state) {
            Ok(PortState::Active) => true,
            Ok(PortState::Down) => false,
            _ => return Err(Cause::PortState),
        };
        done()
    }
}

impl Execute for SetGid {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        reserved(self.entry.reserved)?;
        ethernet(rnic)?;
        rnic.resources.gids.set(self.index.get(), self.entry)?;
        done()
    }
}

impl Execute for ClearGid {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        ethernet(rnic)?;
        rnic.resources.gids.clear(self.index.get())?;
        done()
    }
}
