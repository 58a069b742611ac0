// SPDX-License-Identifier: GPL-2.0

//! Device memory.

use kernel::prelude::*;

use super::{
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    device::Call,
    dm::DmBuffer,
    ucontext::Ucontext, //
};

impl DmBuffer for Object {
    type Driver = TestDriver;

    fn alloc(
        call: &Call<'_, TestDriver>,
        _context: &Ucontext<Self>,
        length: u64,
        alignment: u32,
    ) -> Result<impl PinInit<Self>> {
        if length == u64::MAX {
            return Err(ENOMEM);
        }
        call.data().note(Asked::Dm(length, alignment));
        Ok(Object::new(call))
    }
}
