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
        FlowAttr,
        FlowRule, //
    },
    qp::Qp, //
};

impl FlowRule for Object {
    type Driver = TestDriver;

    fn create(
        call: &Call<'_, TestDriver>,
        qp: &Qp<Self>,
        attributes: &FlowAttr<'_>,
    ) -> Result<impl PinInit<Self>> {
        let mut specs = [None; 3];
        for (place, spec) in specs.iter_mut().zip(attributes.specs.clone()) {
            *place = Some(spec?);
        }
        let (ty, priority) = (attributes.ty, attributes.priority);
        let continues = attributes.continues;
        call.data()
            .note(Asked::Flow(qp.number(), ty, priority, continues, specs));
        Ok(Object::new(call))
    }

    fn destroy(flow: &Self, _call: &Call<'_, TestDriver>) {
        flow.destroy();
    }
}
