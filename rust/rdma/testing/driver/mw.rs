// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

use kernel::prelude::*;

use super::{
    keys,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    mw::{
        self,
        MemoryWindow,
        Mw,
        NewMw, //
    },
    pd::Pd,
    udata::User, //
};

impl MemoryWindow for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn alloc(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        ty: mw::Type,
        user: User<'_, TestDriver, u64>,
    ) -> Result<NewMw<impl PinInit<Self>, u64>> {
        call.data().note(Asked::Window(ty, user.request));
        let object = Object::new(call);
        Ok(NewMw {
            rkey: keys(object.number).1,
            init: object,
            response: !user.request,
        })
    }

    fn dealloc(mw: &Mw<Self>, _call: &Call<'_, TestDriver>) {
        mw.destroy();
    }
}
