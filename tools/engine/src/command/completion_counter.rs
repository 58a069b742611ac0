// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about completion counters.

use super::{Execute, done, queue::change_users, reserved};
use crate::{
    cause::Cause, completion_counter::LENGTH, memory::Memory, resources::Io, rnic::Engine,
};
use vrnic_wire::command::{
    AttachCompletionCounter, CompletionCount, CompletionCounterCreated, CompletionCounts,
    CountChange, CreateCompletionCounter, DestroyCompletionCounter, Empty, ModifyCompletionCounter,
    QueryCompletionCounter, counted_operations,
};

/// Returns an error unless completion counters were negotiated.
fn check_feature(rnic: &Engine) -> Result<(), Cause> {
    if rnic.config.features.completion_counters {
        Ok(())
    } else {
        Err(Cause::CommandCode)
    }
}

impl Execute for CreateCompletionCounter {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<CompletionCounterCreated, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        let context = self.context.get();
        if rnic.contexts.get(context).is_none() {
            return Err(Cause::UnknownContext);
        }
        // The counts are aligned to their length, so that they are in one page.
        if self.pages.length.get() != LENGTH || !self.pages.offset.get().is_multiple_of(LENGTH) {
            return Err(Cause::PageListShape);
        }
        if rnic.resources.completion_counters.is_full() {
            return Err(Cause::LimitReached);
        }
        let buffer = rnic.resolve_buffer(&self.pages, io)?;
        let place = buffer.contiguous(0, LENGTH).ok_or(Cause::PageListShape)?;
        let counters = &mut rnic.resources.completion_counters;
        let number = counters.create(context, place, io.memory);
        let number = number.ok_or(Cause::LimitReached)?;
        rnic.translations += buffer.translations();
        change_users(rnic.contexts.get_mut(context), 1);
        Ok(CompletionCounterCreated {
            counter: number.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for AttachCompletionCounter {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        let operations = self.operations.get();
        if operations == 0 || operations & !counted_operations::ALL != 0 {
            return Err(Cause::CountedOperations);
        }
        let qp = rnic.qps.get_mut(self.qpn.get()).ok_or(Cause::UnknownQp)?;
        let counters = &mut rnic.resources.completion_counters;
        qp.attach_counter(self.counter.get(), operations, counters)?;
        done()
    }
}

impl Execute for ModifyCompletionCounter {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        let count = CompletionCount::try_from(self.count.get());
        let change = CountChange::try_from(self.change.get());
        let (Ok(count), Ok(change)) = (count, change) else {
            return Err(Cause::CountedOperations);
        };
        let counters = &mut rnic.resources.completion_counters;
        let (number, value) = (self.counter.get(), self.value.get());
        counters.modify(number, count, change, value, io.memory)?;
        done()
    }
}

impl Execute for QueryCompletionCounter {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<CompletionCounts, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        rnic.resources.completion_counters.query(self.counter.get())
    }
}

impl Execute for DestroyCompletionCounter {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        check_feature(rnic)?;
        reserved(self.reserved)?;
        let counters = &mut rnic.resources.completion_counters;
        let context = counters.destroy(self.counter.get())?;
        // Its memory is one host range.
        rnic.translations -= 1;
        change_users(rnic.contexts.get_mut(context), -1);
        done()
    }
}
