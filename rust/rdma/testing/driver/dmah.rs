// SPDX-License-Identifier: GPL-2.0

//! DMA handles.

use kernel::prelude::*;

use super::{
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    dmah::{
        DmaHandle,
        Dmah,
        Hints, //
    },
};

impl DmaHandle for Object {
    type Driver = TestDriver;

    fn alloc(call: &Call<'_, TestDriver>, hints: &Hints) -> Result<impl PinInit<Self>> {
        call.data().note(Asked::DmaHandle(*hints));
        Ok(Object::new(call))
    }

    fn dealloc(handle: &Dmah<Self>, _call: &Call<'_, TestDriver>) {
        handle.destroy();
    }
}
