// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receive that an incoming message goes to.

use super::Qp;
use crate::{
    cause::Cause,
    completion_counter::Counted,
    keys::{Accessor, Keys},
    memory::Memory,
    resources::{Io, Resources},
    segment::Payload,
    srq,
    state::wire,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    completion::{Cqe, Opcode, Status},
    counter::Counter,
    memory::access,
    work::Sge,
};

/// A receive that was taken from its queue, if any. The elements of the last one are kept for their capacity.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Receive {
    taken: Option<Taken>,
    #[serde(with = "wire")]
    elements: Vec<Sge>,
    /// Whether the owner knows that no more receives of the shared queue are taken.
    pub(super) told_last: bool,
}

/// A receive that was taken from its queue.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Taken {
    wr_id: u64,
    /// Bytes that the receive has room for, or the reason why it is not valid.
    capacity: Result<u64, Cause>,
    /// Protection domain of its elements.
    pd: u32,
}

impl Receive {
    /// Returns whether a receive was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Returns the elements of the receive.
    pub(super) fn elements(&self) -> impl Iterator<Item = &Sge> {
        self.elements.iter()
    }

    /// Returns the identity with which the elements are accessed, for a queue pair with the identity `own`.
    pub(super) fn accessor(&self, own: Accessor) -> Accessor {
        let pd = self.taken.map_or(own.pd, |taken| taken.pd);
        Accessor { pd, ..own }
    }

    /// Returns an error if the receive that was taken is not valid.
    pub(super) fn check(&self) -> Result<(), Cause> {
        self.taken
            .map_or(Ok(()), |taken| taken.capacity.map(|_| ()))
    }

    /// Returns the bytes that the receive has room for.
    pub(super) fn capacity(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.capacity.unwrap_or(0))
    }
}

/// Calls `piece` with the key, address and length of each part of `elements` that contains some of the `length` bytes
/// from byte `offset` on.
pub(super) fn pieces<'a>(
    elements: impl Iterator<Item = &'a Sge>,
    mut offset: u64,
    length: u64,
    mut piece: impl FnMut(u32, u64, u64) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let mut left = length;
    for element in elements {
        if left == 0 {
            break;
        }
        let available = u64::from(element.length.get());
        if offset >= available {
            offset -= available;
            continue;
        }
        let part = (available - offset).min(left);
        let address = element.address.get().wrapping_add(offset);
        piece(element.lkey.get(), address, part)?;
        left -= part;
        offset = 0;
    }
    if left == 0 {
        Ok(())
    } else {
        Err(Cause::ReceiveTooShort)
    }
}

/// Completes `bytes`, which were read from `elements` from byte `offset` on, where they are in integrity regions.
pub(super) fn pass_read<'a, M: Memory>(
    elements: impl Iterator<Item = &'a Sge>,
    offset: u64,
    bytes: &mut [u8],
    keys: &Keys,
    memory: &M,
) -> Result<(), Cause> {
    let length = bytes.len() as u64;
    let mut rest = bytes;
    pieces(elements, offset, length, |key, address, length| {
        let (piece, others) = std::mem::take(&mut rest).split_at_mut(length as usize);
        rest = others;
        keys.pass_read(key, address, piece, memory)
            .map_err(|_| Cause::LocalUnmapped)
    })
}

/// Does what remains after `payload` was written to `elements` from byte `offset` on, where they are in integrity
/// regions.
pub(super) fn pass_written<'a, M: Memory>(
    elements: impl Iterator<Item = &'a Sge>,
    offset: u64,
    payload: &Payload,
    keys: &Keys,
    memory: &M,
) -> Result<(), Cause> {
    if !keys.has_integrity() {
        return Ok(());
    }
    let mut skip = 0;
    pieces(elements, offset, payload.len(), |key, address, length| {
        let written = keys.pass_written(key, address, length, (payload, skip), memory);
        skip += length;
        written.map_err(|_| Cause::LocalUnmapped)
    })
}

impl Qp {
    /// Takes the next receive, which may be invalid. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// The queue cannot be read.
    pub(super) fn take_receive<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<bool, Cause> {
        let elements = &mut self.receive.elements;
        elements.clear();
        let (created, receiver) = (&mut self.created, self.receiver);
        let taken = if let Some(srqn) = receiver.srqn {
            resources.take_shared_receive(srqn, elements, io.memory)
        } else {
            let max_sge = created.capacities.recv_sge;
            srq::take_entry(&mut created.rq, max_sge, elements, io.memory)
        };
        let taken = taken.map_err(|cause| receiver.srqn.map_or(cause, |_| Cause::SrqFailed))?;
        let Some((wr_id, capacity)) = taken else {
            return Ok(false);
        };
        let shared = receiver.srqn.and_then(|srqn| resources.srqs.get(srqn));
        let pd = shared.map_or(receiver.pd, |srq| srq.pd);
        resources.counters.count(Counter::ReceiveRequests);
        let srqn = receiver.srqn;
        resources.note_receive(self.number, wr_id, srqn, io.memory);
        self.receive.taken = Some(Taken {
            wr_id,
            capacity,
            pd,
        });
        Ok(true)
    }

    /// Forgets the receive that was taken from the shared receive queue `srqn`, which is being destroyed.
    pub(crate) fn forget_receive_of(&mut self, srqn: u32) {
        if self.receiver.srqn == Some(srqn) {
            self.receive.taken = None;
        }
    }

    /// Fails because of the receive that was taken, or because none could be taken.
    pub(super) fn fail_by_receive<M: Memory>(
        &mut self,
        status: Status,
        cause: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if self.receive.is_taken() {
            self.fail_receive(status, cause, resources, io);
            self.enter_error(io);
        } else {
            self.fail(cause, resources, io);
        }
    }

    /// Copies payload to the receive that was taken, from byte `offset` on.
    pub(super) fn scatter<M: Memory>(
        &self,
        offset: u64,
        payload: &Payload,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Cause> {
        let accessor = self.receive.accessor(self.accessor());
        let elements = &self.receive.elements;
        let scattered = resources.with_scratch(|resources, ranges| {
            pieces(
                elements.iter(),
                offset,
                payload.len(),
                |key, address, length| {
                    resources.keys.resolve(
                        key,
                        accessor,
                        access::LOCAL_WRITE,
                        address,
                        length,
                        io.memory,
                        ranges,
                    )
                },
            )?;
            payload
                .copy_to(0, ranges, io.memory)
                .map_err(|_| Cause::LocalUnmapped)?;
            pass_written(elements.iter(), offset, payload, &resources.keys, io.memory)
        });
        if scattered == Err(Cause::PageAbsent) {
            self.look_ahead_in_receive(offset, resources, io);
        }
        scattered
    }

    /// Completes the receive that was taken. `fill` adds the properties of the message.
    pub(super) fn complete_receive<M: Memory>(
        &mut self,
        opcode: Opcode,
        solicited: bool,
        fill: impl FnOnce(&mut Cqe),
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if let Some(taken) = self.receive.taken.take() {
            let mut cqe = self.cqe(taken.wr_id, opcode, Status::Success, None);
            fill(&mut cqe);
            let status = resources.complete(self.receiver.cqn, cqe, solicited, io);
            self.count(Counted::Receive, status, resources, io);
        }
    }

    /// Completes the receive that was taken, if any, with an error.
    pub(super) fn fail_receive<M: Memory>(
        &mut self,
        status: Status,
        cause: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if let Some(taken) = self.receive.taken.take() {
            let cqe = self.cqe(taken.wr_id, Opcode::Receive, status, Some(cause));
            self.explain_completion(
                (taken.wr_id, Opcode::Receive),
                status,
                cause,
                None,
                resources,
            );
            let status = resources.complete(self.receiver.cqn, cqe, true, io);
            self.count(Counted::Receive, status, resources, io);
        }
    }
}
