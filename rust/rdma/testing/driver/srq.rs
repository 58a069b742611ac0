// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use kernel::prelude::*;

use super::{
    dialogue,
    note_buffer,
    receive,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    pd::Pd,
    restrack::Details,
    srq::{
        NewSrq,
        SharedReceiveQueue,
        Srq,
        SrqAttr,
        XrcSrq, //
    },
    udata::{
        Caller,
        User, //
    },
    umem::Buffer,
    wr::ReceiveRequests, //
};

#[vtable]
impl SharedReceiveQueue for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type ResizeRequest = u64;

    fn create(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        attributes: &SrqAttr,
        _xrc: Option<XrcSrq<'_, TestDriver>>,
        user: Caller<TestDriver, User<'_, TestDriver, u64, Buffer<'_>>>,
    ) -> Result<NewSrq<impl PinInit<Self>, u64>> {
        user.as_ref()
            .map_or(Ok(()), |user| note_buffer(call, user))?;
        let (request, response) = dialogue(user);
        call.data().note(Asked::SharedQueue(*attributes, request));
        let object = Object::new(call);
        Ok(NewSrq {
            number: object.number,
            init: object,
            response,
            attributes: SrqAttr {
                max_wr: attributes.max_wr + 1,
                max_sge: attributes.max_sge + 2,
                limit: 0,
            },
        })
    }

    fn resize(
        _srq: &Srq<Self>,
        call: &Call<'_, TestDriver>,
        max_wr: u32,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result {
        let (request, _) = dialogue(user);
        call.data().note(Asked::SharedResize(max_wr, request));
        Ok(())
    }

    fn set_limit(_srq: &Srq<Self>, call: &Call<'_, TestDriver>, limit: u32) -> Result {
        call.data().note(Asked::Limit(limit));
        Ok(())
    }

    fn query(srq: &Srq<Self>, _call: &Call<'_, TestDriver>) -> Result<SrqAttr> {
        Ok(SrqAttr {
            max_wr: srq.number(),
            max_sge: 21,
            limit: 22,
        })
    }

    fn destroy(srq: &Srq<Self>, _call: &Call<'_, TestDriver>) {
        Object::destroy(srq);
    }

    fn post_recv(
        _srq: &Srq<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        receive(call, requests)
    }

    fn fill_details(srq: &Srq<Self>, details: &mut Details<'_>) -> Result {
        srq.describe(details)
    }
}
