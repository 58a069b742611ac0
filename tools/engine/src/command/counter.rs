// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about counter sets.

use super::{Execute, done, port::check_port, reserved};
use crate::{cause::Cause, memory::Memory, resources::Io, rnic::Engine};
use vrnic_wire::command::{
    BindCounterSet, CounterSetCreated, Counters, CreateCounterSet, DestroyCounterSet, Empty,
    QueryCounterSet,
};

/// Returns an error unless counter sets were negotiated.
fn check_feature(rnic: &Engine) -> Result<(), Cause> {
    if rnic.config.features.counter_sets {
        Ok(())
    } else {
        Err(Cause::CommandCode)
    }
}

impl Execute for CreateCounterSet {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<CounterSetCreated, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        check_port(self.port)?;
        let number = rnic.resources.counters.create_set();
        Ok(CounterSetCreated {
            counter_set: number.ok_or(Cause::LimitReached)?.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for BindCounterSet {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        let counters = &mut rnic.resources.counters;
        let set = match self.counter_set.get() {
            0 => None,
            number if counters.users(number).is_some() => Some(number),
            _ => return Err(Cause::UnknownCounterSet),
        };
        let qp = rnic.qps.get_mut(self.qpn.get()).ok_or(Cause::UnknownQp)?;
        counters.rebind(std::mem::replace(&mut qp.counter_set, set), set);
        done()
    }
}

impl Execute for QueryCounterSet {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Counters, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        let values = rnic.resources.counters.report_set(self.counter_set.get());
        values.ok_or(Cause::UnknownCounterSet)
    }
}

impl Execute for DestroyCounterSet {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        let counters = &mut rnic.resources.counters;
        let number = self.counter_set.get();
        match counters.users(number) {
            None => Err(Cause::UnknownCounterSet),
            Some(0) => {
                counters.destroy_set(number);
                done()
            }
            Some(_) => Err(Cause::InUse),
        }
    }
}
