// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What completion counters count for a queue pair.

use super::Qp;
use crate::{
    cause::Cause,
    completion_counter::{CompletionCounters, Counted},
    memory::Memory,
    resources::{Io, Resources},
};
use vrnic_wire::{
    completion::{Cqe, Opcode, Status},
    qp::QpState,
};

impl Qp {
    /// Makes a completion counter count operations of the queue pair.
    pub(crate) fn attach_counter(
        &mut self,
        number: u32,
        operations: u32,
        counters: &mut CompletionCounters,
    ) -> Result<(), Cause> {
        if !matches!(self.state, QpState::Reset | QpState::Init) {
            return Err(Cause::CountedLate);
        }
        let context = self.created.context;
        counters.attach(number, context, operations, &mut self.counting)
    }

    /// Takes all completion counters from the queue pair, which is destroyed.
    pub(crate) fn detach_counters(&self, counters: &mut CompletionCounters) {
        if let Some(counting) = &self.counting {
            counters.detach(counting);
        }
    }

    /// Returns whether a completion counter counts an operation of the queue pair.
    pub(super) fn counts(&self, what: Counted) -> bool {
        (self.counting.as_ref()).is_some_and(|counting| counting.of(what).is_some())
    }

    /// Counts an operation that completed with this status.
    pub(super) fn count<M: Memory>(
        &self,
        what: Counted,
        status: u8,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if let Some(counting) = &self.counting {
            (resources.completion_counters).count(counting, what, status, io.memory);
        }
    }

    /// Writes the completion of a request, and counts the request.
    pub(super) fn complete_request<M: Memory>(
        &self,
        opcode: Opcode,
        cqe: Cqe,
        solicited: bool,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        let status = resources.complete(self.created.send_cqn, cqe, solicited, io);
        self.count_request(opcode, status, resources, io);
    }

    /// Counts a request that succeeded and needs no completion.
    pub(super) fn count_unsignalled<M: Memory>(
        &self,
        opcode: Opcode,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        self.count_request(opcode, Status::Success.raw(), resources, io);
    }

    fn count_request<M: Memory>(
        &self,
        opcode: Opcode,
        status: u8,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if self.counting.is_some()
            && let Some(what) = Counted::of_request(opcode)
        {
            self.count(what, status, resources, io);
        }
    }
}
