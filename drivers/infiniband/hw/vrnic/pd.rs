// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use kernel::prelude::*;
use rdma::{
    udata::Caller,
    ProtectionDomain,
    User, //
};
use vrnic_wire::command::{
    CreatePd,
    DestroyPd, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    object::{
        create,
        Object, //
    }, //
};

/// A protection domain.
#[pin_data]
pub(crate) struct Pd {
    object: Object<DestroyPd>,
}

impl Pd {
    /// Returns the number of the domain.
    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }
}

impl ProtectionDomain for Pd {
    type Driver = Vrnic;
    type Request = ();
    type Response = ();

    fn alloc(
        call: &Call<'_>,
        user: Caller<Vrnic, User<'_, Vrnic, ()>>,
    ) -> Result<(impl PinInit<Self>, ())> {
        let context = match user {
            Some(user) => user.context.number(),
            None => call.data().context.number(),
        };
        let (object, _) = create(
            &call.data().control,
            &CreatePd {
                context: context.into(),
                ..Default::default()
            },
        )?;
        Ok((pin_init!(Self { object }), ()))
    }

    fn dealloc(pd: &rdma::Pd<Self>, _call: &Call<'_>) {
        pd.object.destroy();
    }
}
