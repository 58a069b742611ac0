// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Local operations: requests of the send queue that change keys of this device.

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
    /// Executes the local operation at the cursor, unless it was executed before the cursor went back.
    pub(super) fn execute_local<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Sent {
        let sending = self.requester.sending;
        let request = &self.requester.queue[sending];
        if !request.executed {
            // Requests in flight may use the key, or need it again if they are sent again.
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

    /// Changes the key as a local operation requests.
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
            Target::RegisterIntegrity(target) => {
                let max_length = resources.limits.mr_size;
                keys.register_integrity(target, self.accessor(), max_length, io.memory)
            }
            Target::Bind(target) => keys.bind(target, self.accessor()),
            _ => keys.invalidate(wanted.immediate, self.accessor()),
        }
    }

    /// Completes the local operations that took effect and are at the front of the queue.
    pub(super) fn complete_local<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        let queue = self.requester.queue.iter();
        let done = queue.take_while(|request| request.executed).count();
        self.complete_sends(done as u32, resources, io);
    }
}
