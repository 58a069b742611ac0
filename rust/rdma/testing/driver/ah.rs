// SPDX-License-Identifier: GPL-2.0

//! Address handles.

use kernel::prelude::*;

use super::{
    dialogue,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    ah::{
        self,
        AddressHandle,
        Ah, //
    },
    device::Call,
    udata::{
        Caller,
        User, //
    }, //
};

#[vtable]
impl AddressHandle for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn create(
        call: &Call<'_, TestDriver>,
        path: &ah::Roce,
        context: ah::Context,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result<(impl PinInit<Self>, u64)> {
        let (request, response) = dialogue(user);
        call.data().note(Asked::Handle(*path, context, request));
        Ok((Object::new(call), response))
    }

    fn destroy(_ah: &Ah<Self>, context: ah::Context, call: &Call<'_, TestDriver>) {
        call.data().note(Asked::HandleEnd(context));
    }

    fn query(ah: &Ah<Self>) -> ah::Roce {
        ah::Roce {
            route: ah::GlobalRoute {
                flow_label: ah.number,
                ..Default::default()
            },
            ..Default::default()
        }
    }
}
