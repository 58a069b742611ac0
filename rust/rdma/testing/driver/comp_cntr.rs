// SPDX-License-Identifier: GPL-2.0

//! Completion counters.

use core::sync::atomic::Ordering::SeqCst;

use kernel::prelude::*;

use super::{
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    comp_cntr::{
        Capabilities,
        Change,
        CompCntr,
        CompletionCounter,
        CountedOperation,
        CountedOperations,
        Entry, //
    },
    device::Call,
    qp::Qp,
    ucontext::Ucontext, //
};

impl CompletionCounter for Object {
    type Driver = TestDriver;

    fn capabilities(_call: &Call<'_, TestDriver>) -> Result<Capabilities> {
        Ok(Capabilities {
            max_value: u64::MAX - 7,
            max_counters: 141,
            operations: CountedOperation::Send | CountedOperation::RemoteWrite,
        })
    }

    fn create(
        call: &Call<'_, TestDriver>,
        _context: &Ucontext<Object>,
    ) -> Result<impl PinInit<Self>> {
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        call.data().note(Asked::CompletionCounter);
        Ok(Object::new(call))
    }

    fn modify(
        counter: &CompCntr<Self>,
        call: &Call<'_, TestDriver>,
        entry: Entry,
        change: Change,
    ) -> Result {
        call.data()
            .note(Asked::Count(counter.number, entry, change));
        Ok(())
    }

    fn read(counter: &CompCntr<Self>, _call: &Call<'_, TestDriver>, entry: Entry) -> Result<u64> {
        Ok(10 * u64::from(counter.number) + u64::from(entry.raw()))
    }

    fn attach(
        counter: &CompCntr<Self>,
        call: &Call<'_, TestDriver>,
        qp: &Qp<Object>,
        operations: CountedOperations,
    ) -> Result {
        call.data().note(Asked::AttachCounter(
            qp.number(),
            counter.number,
            operations,
        ));
        Ok(())
    }

    fn destroy(counter: &CompCntr<Self>, _call: &Call<'_, TestDriver>) {
        counter.destroy();
    }
}
