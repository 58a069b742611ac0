// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use kernel::prelude::*;

use super::{
    dialogue,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    pd::{
        Pd,
        ProtectionDomain, //
    },
    udata::{
        Caller,
        User, //
    }, //
};

impl ProtectionDomain for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn alloc(
        call: &Call<'_, TestDriver>,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result<(impl PinInit<Self>, u64)> {
        let (request, response) = dialogue(user);
        call.data().note(Asked::Domain(request));
        Ok((Object::new(call), response))
    }

    fn dealloc(pd: &Pd<Self>, _call: &Call<'_, TestDriver>) {
        pd.destroy();
    }
}
