// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flushing: requests posted to a queue pair in the error state complete without being executed.

use super::Qp;
use crate::{
    cause::Cause,
    completion_counter::Counted,
    memory::Memory,
    resources::{Io, Resources},
    turn::Turn,
    work,
};
use vrnic_wire::{
    completion::{Opcode, Status},
    event::EventType,
    qp::QpState,
};

/// Largest number of sends that a command flushes before others take their turns.
const FLUSHED_AT_ONCE: u32 = 256;

impl Qp {
    /// Does a part of what is left to do before the queue pair leaves the send queue error state: flushes sends before
    /// the index `end`, by default all that are posted now. Returns `end` if some remain.
    pub(crate) fn flush_before<M: Memory>(
        &mut self,
        end: Option<u32>,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Option<u32> {
        // The index is read only once: someone may post as fast as this flushes.
        let end = end.unwrap_or_else(|| self.created.sq.end(io.memory));
        let part = self.created.sq.left_before(end).min(FLUSHED_AT_ONCE);
        let mut turn = Turn::of_units(part);
        self.flush_sends(&mut turn, resources, io);
        // The turn is not over if the ring broke.
        let remains = turn.is_over() && self.created.sq.left_before(end) > 0;
        (remains && self.state == QpState::SendQueueError).then_some(end)
    }

    /// Flushes the send queue, oldest first.
    pub(super) fn flush_sends<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        while !turn.is_over() {
            if let Some((wr_id, opcode)) = self.requester.abandon() {
                self.flush_send(wr_id, opcode, resources, io);
            } else {
                let found = self.created.sq.peek(io.memory);
                let named = match found {
                    Ok(None) => return,
                    Ok(Some((_, entry))) => {
                        work::read_send_name(entry, io.memory).map_err(|_| Cause::RingUnmapped)
                    }
                    Err(_) => Err(Cause::SendProducer),
                };
                match named {
                    Ok((wr_id, opcode)) => {
                        self.created.sq.take();
                        self.flush_send(wr_id, opcode, resources, io);
                    }
                    Err(cause) => {
                        self.created.sq.give_up();
                        self.fail(cause, resources, io);
                        return;
                    }
                }
            }
            turn.spend(0);
        }
    }

    fn flush_send<M: Memory>(
        &mut self,
        wr_id: u64,
        opcode: Opcode,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        self.created.sq.release(1, io.memory);
        let cqe = self.cqe(wr_id, opcode, Status::Flushed, Some(Cause::QpInError));
        let what = (wr_id, opcode);
        self.explain_completion(what, Status::Flushed, Cause::QpInError, None, resources);
        self.complete_request(opcode, cqe, true, resources, io);
    }

    /// Flushes the receive queue, oldest first, after the receive of an incomplete message.
    pub(super) fn flush_receives<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        self.fail_receive(Status::Flushed, Cause::QpInError, resources, io);
        if self.created.srqn.is_some() {
            if !std::mem::replace(&mut self.receive.told_last, true) {
                self.raise(EventType::LastWqeReached, None, resources);
            }
            return;
        }
        while !turn.is_over() {
            let found = self.created.rq.peek(io.memory);
            let named = match found {
                Ok(None) => return,
                Ok(Some((_, entry))) => {
                    work::read_receive_name(entry, io.memory).map_err(|_| Cause::RingUnmapped)
                }
                Err(_) => Err(Cause::ReceiveProducer),
            };
            match named {
                Ok(wr_id) => {
                    self.created.rq.take();
                    self.created.rq.release(1, io.memory);
                    let cqe = self.cqe(
                        wr_id,
                        Opcode::Receive,
                        Status::Flushed,
                        Some(Cause::QpInError),
                    );
                    let what = (wr_id, Opcode::Receive);
                    self.explain_completion(
                        what,
                        Status::Flushed,
                        Cause::QpInError,
                        None,
                        resources,
                    );
                    let status = resources.complete(self.created.recv_cqn, cqe, true, io);
                    self.count(Counted::Receive, status, resources, io);
                }
                Err(cause) => {
                    self.created.rq.give_up();
                    self.fail(cause, resources, io);
                    return;
                }
            }
            turn.spend(0);
        }
    }
}
