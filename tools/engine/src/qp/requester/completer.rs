// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Responses: what they acknowledge, and the completions that result.

use super::Request;
use crate::{
    cause::Cause,
    memory::Memory,
    pages::Half,
    psn::Psn,
    qp::{
        Qp,
        receive::{pass_written, pieces},
    },
    resources::{Io, Resources},
    segment::{Aeth, Body, NakCode, Payload, Position, Segment, Syndrome},
};
use vrnic_wire::{
    command::qp_flags,
    completion::{Opcode, Status},
    counter::Counter,
    memory::access,
    qp::QpState,
    work::{SendOpcode, send_flags},
};

impl Qp {
    /// Processes a response.
    pub(in crate::qp) fn take_response<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let psn = segment.psn;
        let requester = &self.requester;
        // A PSN that is not in flight is old or made up.
        if psn.distance_from(requester.unacked) < 0 || psn.distance_from(requester.unsent) >= 0 {
            return;
        }
        if let Body::Acknowledge(aeth)
        | Body::AtomicAcknowledge { aeth, .. }
        | Body::ReadResponse {
            aeth: Some(aeth), ..
        } = segment.body
        {
            self.requester.credit.note(aeth);
        }
        match segment.body {
            Body::Acknowledge(aeth) => self.take_acknowledge(psn, aeth, resources, io),
            _ if !self.acknowledge_before(psn, resources, io) => {}
            Body::ReadResponse { position, .. } => {
                self.take_read_response(psn, position, &segment.payload, resources, io);
            }
            Body::AtomicAcknowledge { original, .. } => {
                self.take_atomic_response(psn, original, resources, io);
            }
            _ => {}
        }
        if self.state != QpState::Error {
            self.fail_at_front(resources, io);
            self.note_drained(resources);
        }
    }

    pub(super) fn take_acknowledge<M: Memory>(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
            self.explain_nak_received(psn, aeth.syndrome, resources);
        }
        let failure = match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let before = self.requester.unacked;
                let complete = self.acknowledge(psn, resources, io);
                self.requester.learn(before, false, io.now);
                if !complete {
                    self.ask_again(resources, io);
                }
                return;
            }
            Syndrome::RnrNak { timer } => {
                resources.counters.count(Counter::RnrNaksReceived);
                if self.acknowledge_before(psn, resources, io) {
                    self.wait_for_receiver(timer, resources, io);
                }
                return;
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                resources.counters.count(Counter::SequenceNaksReceived);
                let before = self.requester.unacked;
                let complete = self.acknowledge_before(psn, resources, io);
                self.requester.learn(before, true, io.now);
                if complete {
                    self.fill_gap(resources, io);
                }
                return;
            }
            Syndrome::Nak(NakCode::InvalidRequest) => {
                (Status::RemoteInvalidRequest, Cause::PeerInvalidRequest)
            }
            Syndrome::Nak(NakCode::RemoteAccess) => (Status::RemoteAccess, Cause::PeerAccess),
            Syndrome::Nak(NakCode::RemoteOperation) => {
                (Status::RemoteOperation, Cause::PeerOperation)
            }
        };
        if self.acknowledge_before(psn, resources, io) {
            self.fail_front(failure.0, failure.1, resources, io);
        }
    }

    /// Acknowledges all packets before `psn`. If a response before it is missing, requests that again and returns
    /// `false`.
    pub(super) fn acknowledge_before<M: Memory>(
        &mut self,
        psn: Psn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        if psn == self.requester.unacked {
            return true;
        }
        let complete = self.acknowledge(psn.previous(), resources, io);
        if !complete {
            self.ask_again(resources, io);
        }
        complete
    }

    /// Acknowledges all packets up to `psn`. Returns `false` if a response up to there is missing.
    pub(super) fn acknowledge<M: Memory>(
        &mut self,
        psn: Psn,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> bool {
        let mut acknowledged = psn.add(1);
        let mut complete = true;
        let mut count = 0;
        for request in &self.requester.queue {
            if request.failure.is_some() {
                break;
            }
            if request.fetches() {
                if psn.distance_from(request.first_psn.add(request.fetched)) >= 0 {
                    complete = false;
                    acknowledged = request.first_psn.add(request.fetched);
                }
                break;
            }
            let done = if request.is_local() {
                request.executed
            } else {
                acknowledged.distance_from(request.end_psn()) >= 0
            };
            if !done {
                break;
            }
            count += 1;
        }
        let progressed = acknowledged.distance_from(self.requester.unacked) > 0;
        if progressed {
            self.requester.unacked = acknowledged;
        }
        self.complete_sends(count, resources, io);
        self.requester.skip_acknowledged();
        if progressed {
            // How long to wait for the next response depends on which request is the oldest now.
            self.note_progress(io.now);
        }
        complete
    }

    /// Completes the oldest `count` requests.
    pub(super) fn complete_sends<M: Memory>(
        &mut self,
        count: u32,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if count == 0 {
            return;
        }
        self.created.sq.release(count, io.memory);
        for _ in 0..count {
            let Some(done) = self.requester.pop() else {
                return;
            };
            resources.counters.count(match done.opcode() {
                Opcode::Write | Opcode::AtomicWrite => Counter::WriteRequests,
                Opcode::Flush => Counter::FlushRequests,
                Opcode::Read => Counter::ReadRequests,
                Opcode::CompareSwap | Opcode::FetchAdd => Counter::AtomicRequests,
                Opcode::LocalInvalidate | Opcode::BindWindow | Opcode::RegisterRegion => {
                    Counter::LocalRequests
                }
                _ => Counter::SendRequests,
            });
            if self.created.has(qp_flags::SIGNAL_ALL)
                || done.request.flags & send_flags::SIGNALED != 0
                || resources.faults.flushes_sends(self.number)
            {
                let mut cqe = self.cqe(done.request.wr_id, done.opcode(), Status::Success, None);
                cqe.byte_length = done.request.length.into();
                self.complete_request(done.opcode(), cqe, false, resources, io);
            } else {
                self.count_unsignalled(done.opcode(), resources, io);
            }
        }
    }

    /// Completes the oldest request with an error, and enters the error state, or the send queue error state for an
    /// unreliable connection.
    pub(super) fn fail_front<M: Memory>(
        &mut self,
        status: Status,
        cause: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if let Some(failed) = self.requester.pop() {
            let local = matches!(
                cause,
                Cause::LocalKey | Cause::LocalKeyPd | Cause::LocalRights | Cause::LocalPage
            ) || matches!(cause, Cause::LocalBounds | Cause::LocalUnmapped);
            if local {
                resources.counters.count(Counter::LocalProtectionErrors);
            }
            self.created.sq.release(1, io.memory);
            let cqe = self.cqe(failed.request.wr_id, failed.opcode(), status, Some(cause));
            let (what, psn) = ((failed.request.wr_id, failed.opcode()), failed.first_psn);
            self.explain_completion(what, status, cause, Some(psn), resources);
            self.complete_request(failed.opcode(), cqe, true, resources, io);
        }
        if self.is_unreliable() {
            self.state = QpState::SendQueueError;
        } else {
            self.enter_error(io);
        }
    }

    /// Fails the oldest request if it cannot be executed.
    pub(super) fn fail_at_front<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        if let Some((status, cause)) = self.requester.queue.front().and_then(|front| front.failure)
        {
            self.fail_front(status, cause, resources, io);
        }
    }

    /// Processes data of a read, or the response to a flush or an atomic write.
    pub(super) fn take_read_response<M: Memory>(
        &mut self,
        psn: Psn,
        position: Position,
        payload: &Payload,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let Some(front) = self.expecting(psn) else {
            return self.fail_response(resources, io);
        };
        let offset = u64::from(front.fetched) * u64::from(self.mtu);
        let length = (u64::from(front.request.length) - offset).min(self.mtu.into());
        let ends = front.fetched + 1 == front.packets;
        let atomic = matches!(
            front.request.opcode,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd
        );
        if atomic || payload.len() != length || position.ends() != ends {
            return self.fail_response(resources, io);
        }
        self.store_response(offset, payload, resources, io);
    }

    /// Processes the result of an atomic.
    pub(super) fn take_atomic_response<M: Memory>(
        &mut self,
        psn: Psn,
        original: u64,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let opcode = self.expecting(psn).map(|front| front.request.opcode);
        if !matches!(opcode, Some(SendOpcode::CompareSwap | SendOpcode::FetchAdd)) {
            return self.fail_response(resources, io);
        }
        let mut bytes = io.outbox.bytes();
        bytes.extend_from_slice(&original.to_le_bytes());
        let payload = Payload::Bytes(bytes);
        self.store_response(0, &payload, resources, io);
        io.outbox.recycle(payload);
    }

    /// Returns the oldest request if its next response packet has this PSN.
    pub(super) fn expecting(&self, psn: Psn) -> Option<&Request> {
        self.requester
            .queue
            .front()
            .filter(|front| front.fetches() && front.first_psn.add(front.fetched) == psn)
    }

    /// Fails the oldest request because of a response that was not requested.
    pub(super) fn fail_response<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        self.fail_front(Status::BadResponse, Cause::ResponseLength, resources, io);
    }

    /// Stores the data of the next response packet of the oldest request.
    pub(super) fn store_response<M: Memory>(
        &mut self,
        offset: u64,
        payload: &Payload,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let Some(front) = self.requester.queue.front() else {
            return;
        };
        let stored = resources.with_scratch(|resources, ranges| {
            pieces(
                self.requester.elements_of(front),
                offset,
                payload.len(),
                |key, address, length| {
                    resources.keys.resolve(
                        key,
                        self.accessor(),
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
            let elements = self.requester.elements_of(front);
            pass_written(elements, offset, payload, &resources.keys, io.memory)
        });
        if stored == Err(Cause::PageAbsent) {
            // The response is requested again when its pages are present.
            resources.keys.take_faults();
            self.requester.starved = true;
            return;
        }
        self.note_access(Half::Requester);
        if let Err(cause) = stored {
            return self.fail_front(Status::LocalProtection, cause, resources, io);
        }
        let requester = &mut self.requester;
        let Some(front) = requester.queue.front_mut() else {
            return;
        };
        front.fetched += 1;
        let complete = front.fetched == front.packets;
        requester.unacked = requester.unacked.add(1);
        if complete {
            self.complete_sends(1, resources, io);
            self.complete_local(resources, io);
            self.requester.skip_acknowledged();
        }
        self.note_progress(io.now);
    }
}
