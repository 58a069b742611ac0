// SPDX-License-Identifier: GPL-2.0

//! XRC domains.

use kernel::prelude::*;

use super::{
    Asked,
    Object,
    TestDriver,
    CAPABILITIES, //
};
use crate::{
    device::Call,
    qp::NewQp,
    xrc::{
        XrcDomain,
        Xrcd, //
    }, //
};

impl XrcDomain for Object {
    type Driver = TestDriver;

    fn alloc(call: &Call<'_, TestDriver>) -> Result<impl PinInit<Self>> {
        call.data().note(Asked::XrcDomain);
        Ok(Object::new(call))
    }

    fn dealloc(xrcd: &Xrcd<Self>, _call: &Call<'_, TestDriver>) {
        xrcd.destroy();
    }

    fn create_target(
        call: &Call<'_, TestDriver>,
        xrcd: &Xrcd<Self>,
    ) -> Result<NewQp<impl PinInit<Self>, ()>> {
        call.data().note(Asked::XrcTarget(xrcd.number));
        let object = Object::new(call);
        Ok(NewQp {
            number: object.number,
            init: object,
            response: (),
            capabilities: CAPABILITIES,
        })
    }
}
