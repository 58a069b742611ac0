// SPDX-License-Identifier: GPL-2.0

//! Flows.

use kernel::prelude::*;

use super::{
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    flow::{
        Counters,
        FlowAttr,
        FlowCounters,
        FlowRule, //
    },
    qp::Qp, //
};

impl FlowRule for Object {
    type Driver = TestDriver;

    fn create(
        call: &Call<'_, TestDriver>,
        qp: &Qp<Self>,
        attributes: &FlowAttr<'_, TestDriver>,
    ) -> Result<impl PinInit<Self>> {
        let mut specs = [None; 3];
        for (place, spec) in specs.iter_mut().zip(attributes.specs.clone()) {
            *place = Some(spec?);
        }
        let (ty, priority) = (attributes.ty, attributes.priority);
        let continues = attributes.continues;
        call.data()
            .note(Asked::Flow(qp.number(), ty, priority, continues, specs));
        if attributes.tag != 0 || attributes.drops {
            call.data()
                .note(Asked::FlowWithActions(attributes.tag, attributes.drops));
        }
        if let Some(counters) = attributes.counters {
            call.data().note(Asked::FlowWithCounters(counters.number));
        }
        Ok(Object::new(call))
    }

    fn destroy(flow: &Self, _call: &Call<'_, TestDriver>) {
        flow.destroy();
    }
}

impl FlowCounters for Object {
    type Driver = TestDriver;

    fn create(call: &Call<'_, TestDriver>) -> Result<impl PinInit<Self>> {
        Ok(Object::new(call))
    }

    fn read(counters: &Counters<Self>, _call: &Call<'_, TestDriver>, values: &mut [u64]) -> Result {
        for (index, value) in values.iter_mut().enumerate() {
            // CAST: The tests read a few values.
            *value += 100 * u64::from(counters.number) + index as u64;
        }
        Ok(())
    }

    fn destroy(counters: &Counters<Self>, _call: &Call<'_, TestDriver>) {
        counters.destroy();
    }
}
