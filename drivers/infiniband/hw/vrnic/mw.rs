// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

use kernel::prelude::*;
use rdma::{
    mw::{
        NewMw,
        Type, //
    },
    MemoryWindow,
    User, //
};
use vrnic_wire::command::{
    AllocateMw,
    DeallocateMw,
    MwType, //
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
    pd::Pd, //
};

/// A memory window. Processes bind and invalidate it by work requests, which the driver does not
/// see.
#[pin_data]
pub(crate) struct Mw {
    object: Object<DeallocateMw>,
}

impl MemoryWindow for Mw {
    type Driver = Vrnic;
    type Request = ();
    type Response = ();

    fn alloc(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        ty: Type,
        _user: User<'_, Vrnic, ()>,
    ) -> Result<NewMw<impl PinInit<Self>, ()>> {
        let ty = match ty {
            Type::Type1 => MwType::Type1,
            Type::Type2 => MwType::Type2,
        };
        let (object, _) = create(
            &call.data().control,
            &AllocateMw {
                pd: pd.number().into(),
                mw_type: ty.raw().into(),
            },
        )?;
        let rkey = object.number();

        Ok(NewMw {
            init: pin_init!(Self { object }),
            response: (),
            rkey,
        })
    }

    fn dealloc(mw: &rdma::Mw<Self>, _call: &Call<'_>) {
        mw.object.destroy();
    }
}
