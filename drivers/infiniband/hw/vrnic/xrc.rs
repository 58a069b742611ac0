// SPDX-License-Identifier: GPL-2.0

//! XRC domains.

use kernel::prelude::*;
use rdma::{
    qp::NewQp,
    XrcDomain, //
};
use vrnic_wire::command::{
    CreateXrcd,
    DestroyXrcd, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    object::{
        create,
        Object, //
    },
    qp::Qp, //
};

/// An XRC domain.
#[pin_data]
pub(crate) struct Xrcd {
    object: Object<DestroyXrcd>,
}

impl Xrcd {
    /// Returns the number of the domain.
    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }
}

impl XrcDomain for Xrcd {
    type Driver = Vrnic;

    fn alloc(call: &Call<'_>) -> Result<impl PinInit<Self>> {
        if call.data().limits.max_xrcd.get() == 0 {
            return Err(EOPNOTSUPP);
        }
        let (object, _) = create(&call.data().control, &CreateXrcd::default())?;
        Ok(pin_init!(Self { object }))
    }

    fn dealloc(xrcd: &rdma::Xrcd<Self>, _call: &Call<'_>) {
        xrcd.object.destroy();
    }

    fn create_target(
        call: &Call<'_>,
        xrcd: &rdma::Xrcd<Self>,
    ) -> Result<NewQp<impl PinInit<Qp>, ()>> {
        Qp::target(call, xrcd.number())
    }
}
