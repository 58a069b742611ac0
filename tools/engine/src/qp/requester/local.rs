// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Local operations: requests of the send queue that change keys of this side.

use super::{Request, Sent};
use crate::{
    cause::Cause,
    memory::Memory,
    qp::Qp,
    resources::{Io, Resources},
    work::Target,
};
use vrnic_wire::{completion::Status, work::SendOpcode};

impl Qp {
    /// Executes the local operation under the cursor, unless that was done before the cursor went
    /// back.
    pub(super) fn execute_local<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Sent {
        let sending = self.requester.sending;
        let request = &self.requester.queue[sending];
        if !request.executed {
            // Whatever is under way may need the key, or need it once more.
            if sending > 0 && request.request.opcode == SendOpcode::LocalInvalidate {
                return Sent::Blocked;
            }
            if let Err(cause) = self.change_key(request, resources, io) {
                return Sent::Failed(Status::MemoryManagement, cause);
            }
        }
        let requester = &mut self.requester;
        requester.queue[sending].executed = true;
        requester.sending += 1;
        requester.packet = 0;
        self.complete_local(resources, io);
        self.note_drained(resources);
        Sent::Packet(0)
    }

    /// Does what a local operation asks for.
    fn change_key<M: Memory>(
        &self,
        request: &Request,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Cause> {
        let keys = &mut resources.keys;
        let wanted = &request.request;
        match &wanted.target {
            Target::Register(target) => {
                let max_length = resources.limits.mr_size;
                keys.register(target, self.accessor(), max_length, io.memory)
            }
            Target::Bind(target) => keys.bind(target, self.accessor()),
            _ => keys.invalidate(wanted.immediate, self.accessor()),
        }
    }

    /// Completes the local operations that took effect and have nothing in front of them any more.
    pub(super) fn complete_local<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        let queue = self.requester.queue.iter();
        let done = queue.take_while(|request| request.executed).count();
        self.complete_sends(done as u32, resources, io);
    }
}
