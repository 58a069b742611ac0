// SPDX-License-Identifier: GPL-2.0

//! Receive work queues and indirection tables.

use kernel::prelude::*;

use super::{
    dialogue,
    Asked,
    Object,
    TestDriver,
    CAPABILITIES, //
};
use crate::{
    device::Call,
    pd::Pd,
    qp::NewQp,
    udata::User,
    wq::{
        CreationFlag,
        IndirectionTable,
        NewWq,
        Queues,
        ReceiveWorkQueue,
        RwqTable,
        State,
        WqInitAttr, //
    }, //
};

impl ReceiveWorkQueue for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    const CREATION_FLAGS: &'static [CreationFlag] = &[CreationFlag::StripVlan];

    fn create(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        attributes: &WqInitAttr<'_, TestDriver>,
        user: User<'_, TestDriver, u64>,
    ) -> Result<NewWq<impl PinInit<Self>, u64>> {
        let (request, response) = dialogue(Some(user));
        call.data().note(Asked::WorkQueue(
            attributes.max_wr,
            attributes.max_sge,
            attributes.cq.number(),
            attributes.flags,
            request,
        ));
        let object = Object::new(call);
        Ok(NewWq {
            number: object.number,
            init: object,
            response,
            max_wr: attributes.max_wr + 1,
            max_sge: attributes.max_sge + 2,
        })
    }

    fn modify(&self, call: &Call<'_, TestDriver>, from: State, to: State) -> Result {
        call.data().note(Asked::ModifyQueue(self.number, from, to));
        Ok(())
    }

    fn destroy(&self, _call: &Call<'_, TestDriver>) {
        Object::destroy(self);
    }
}

impl IndirectionTable for Object {
    type Driver = TestDriver;
    type Request = u64;

    fn create(
        call: &Call<'_, TestDriver>,
        queues: Queues<'_, TestDriver>,
    ) -> Result<impl PinInit<Self>> {
        let mut numbers = [0; 4];
        for (place, queue) in numbers.iter_mut().zip(queues.iter()) {
            *place = queue.number;
        }
        call.data().note(Asked::Table(queues.len(), numbers));
        Ok(Object::new(call))
    }

    fn destroy(table: &RwqTable<Self>, _call: &Call<'_, TestDriver>) {
        Object::destroy(table);
    }

    fn create_queue_pair(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        table: &RwqTable<Self>,
        user: User<'_, TestDriver, u64>,
    ) -> Result<NewQp<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Scaling(table.number, user.request));
        let object = Object::new(call);
        Ok(NewQp {
            number: object.number,
            init: object,
            response: (),
            capabilities: CAPABILITIES,
        })
    }
}
