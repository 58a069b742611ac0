// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the responder sends and repeats: data, results of atomics, and acknowledgements.

use super::{Answer, Fault, Reply, Response};
use crate::{
    cause::Cause,
    completion_counter::Counted,
    memory::Memory,
    pages::Half,
    persistence::Flushing,
    psn::Psn,
    qp::Qp,
    resources::{Io, Resources, copy_of, payload_of},
    segment::{Aeth, Body, Flush, Payload, Position, Reth, Segment, Service, Syndrome},
    turn::Turn,
};
use vrnic_wire::{completion::Status, memory::access};

/// Progress of a flush to persistent memory.
enum FlushProgress {
    /// The flush is under way.
    UnderWay,
    /// The result is known but was not sent.
    Over,
    /// The flush was answered.
    Answered,
}

impl Qp {
    /// Answers a repeated packet, which was executed before. The answer was lost, or the network duplicated the packet.
    pub(super) fn repeat<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        let receiver = self.receiver;
        if let Service::Xrc { srqn } = segment.service {
            // Memory can no longer be read for a shared receive queue that is gone.
            self.receiver = self.xrc_receiver(srqn, resources).unwrap_or_default();
        }
        self.repeat_for_receiver(segment, resources, io);
        self.receiver = receiver;
    }

    fn repeat_for_receiver<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        let pd = self.receiver.pd;
        let response = match segment.body {
            Body::ReadRequest(reth) => {
                let right = access::REMOTE_READ;
                if let Err(fault) = self.check_remote(&reth, right, resources, io) {
                    if fault.cause == Cause::PageAbsent {
                        self.put_off_read(segment, resources);
                    }
                    return;
                }
                self.note_access(Half::Reader);
                Response {
                    psn: segment.psn,
                    msn: self.responder.msn,
                    repeated: true,
                    pd,
                    answer: Answer::Data {
                        left: reth,
                        begun: false,
                    },
                }
            }
            Body::FlushRequest(flush) => {
                let answer = match self.flush_progress(segment.psn) {
                    // The region of the flush may be gone by now.
                    Some(FlushProgress::UnderWay) => {
                        return self.put_off(Cause::FlushUnderWay, segment, resources);
                    }
                    Some(FlushProgress::Over) => Answer::Persistent(flush),
                    Some(FlushProgress::Answered) => Answer::Flushed,
                    None if self.check_flush(&flush, resources, io).is_err() => return,
                    None => Answer::of_flush(&flush),
                };
                Response {
                    psn: segment.psn,
                    msn: self.responder.msn,
                    repeated: true,
                    pd,
                    answer,
                }
            }
            Body::AtomicRequest(_) | Body::AtomicWrite(_) => {
                // PSNs wrap, so an older result with the same one is of another request.
                let mut results = self.responder.atomics.iter();
                let Some(result) = results.rfind(|result| result.psn == segment.psn) else {
                    return;
                };
                Response {
                    psn: result.psn,
                    msn: self.responder.msn,
                    repeated: true,
                    pd,
                    answer: result.answer,
                }
            }
            // Unknown requests are never executed.
            Body::Unknown(_) => return,
            _ => {
                if self.responder.reply.is_none() {
                    self.responder.reply = Some(Reply::Ack);
                }
                return;
            }
        };
        self.forget_responses(segment.psn);
        let responses = &mut self.responder.responses;
        // Old packets that arrive late must not displace new ones, and get little room.
        if responses.len() < 2 * usize::from(self.attributes.max_dest_rd_atomic) {
            responses.push_back(response);
        }
    }

    /// Drops the responses from `psn` on, which are useless to a peer that starts again from there.
    fn forget_responses(&mut self, psn: Psn) {
        let counts = self.counts(Counted::RemoteRead);
        let responder = &mut self.responder;
        let stale = |last: &Response| last.psn.distance_from(psn) >= 0;
        while let Some(&last) = responder.responses.back().filter(|last| stale(last)) {
            responder.responses.pop_back();
            if counts
                && !last.repeated
                && let Answer::Data { left, .. } = last.answer
            {
                // A peer that does not come back for its reads gets no more room than it can have outstanding.
                if responder.uncounted.len() >= usize::from(self.attributes.max_dest_rd_atomic) {
                    responder.uncounted.pop_front();
                }
                let packets = left.length.div_ceil(self.mtu).max(1);
                responder.uncounted.push_back(last.psn.add(packets - 1));
            }
        }
    }

    /// Counts a read whose last data were sent for the first time.
    fn count_read<M: Memory>(
        &mut self,
        response: &Response,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if response.repeated {
            let uncounted = &mut self.responder.uncounted;
            let Some(place) = uncounted.iter().position(|&last| last == response.psn) else {
                return;
            };
            uncounted.remove(place);
        }
        self.count(Counted::RemoteRead, Status::Success.raw(), resources, io);
    }

    /// Asks the peer to repeat an accepted request after a delay, because it cannot be answered yet.
    fn put_off(&mut self, cause: Cause, segment: &Segment, resources: &mut Resources) {
        self.forget_responses(segment.psn);
        let syndrome = self.rnr_nak(cause, segment, resources);
        self.responder.reply(Reply::Nak(segment.psn, syndrome));
    }

    /// Puts off a repeated read whose pages are missing.
    fn put_off_read(&mut self, segment: &Segment, resources: &mut Resources) {
        match self.demand(Half::Reader, resources) {
            Ok(()) => self.put_off(Cause::PageAbsent, segment, resources),
            Err(cause) => self.refuse_response(segment.psn, Fault::access(cause), resources),
        }
    }

    /// Refuses a response that was promised to the peer but is not possible any more. The receive in use belongs to a
    /// later message.
    fn refuse_response(&mut self, psn: Psn, fault: Fault, resources: &mut Resources) {
        if let Some(code) = fault.code {
            self.explain_response_refused(psn, Syndrome::Nak(code), fault.cause, resources);
        }
        let fault = Fault {
            status: Status::Flushed,
            ..fault
        };
        self.forget_responses(psn);
        self.responder.reply = Some(Reply::End(psn, fault));
    }

    /// Returns the progress of the flush with this PSN, if it was begun.
    fn flush_progress(&self, psn: Psn) -> Option<FlushProgress> {
        if self.responder.has_flushed(psn) {
            return Some(FlushProgress::Answered);
        }
        let begun = self.responder.flushing.as_ref();
        begun.filter(|begun| begun.is_of(psn)).map(|begun| {
            begun
                .result()
                .map_or(FlushProgress::UnderWay, |_| FlushProgress::Over)
        })
    }

    /// Returns whether the data written to the region of a flush survive a loss of power, or `None` if that is not
    /// known yet.
    fn persists<M: Memory>(
        &mut self,
        &Response { psn, pd, .. }: &Response,
        flush: &Flush,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Option<Result<(), Fault>> {
        let begun = self.responder.flushing.take_if(|begun| begun.is_of(psn));
        if let Some(begun) = begun {
            let result = begun.result();
            if result.is_none() {
                self.responder.flushing = Some(begun);
            }
            let failure = Fault::local(Status::Flushed, Cause::FlushFailed);
            return result.map(|done| done.then_some(()).ok_or(failure));
        }
        let accessor = self.accessor_in(pd);
        let ranges = (resources.keys).to_sync(flush.remote.rkey, accessor, io.memory);
        match ranges {
            // The region is gone since the request was accepted.
            Err(cause) => Some(Err(Fault::access(cause))),
            Ok(ranges) if ranges.is_empty() => Some(Ok(())),
            Ok(ranges) => {
                self.responder.flushing = Some(Flushing::new(psn, ranges));
                resources.syncs.push(self.number);
                None
            }
        }
    }

    /// Sends responses and acknowledgements until the turn is over.
    pub(in crate::qp) fn respond<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        while let Some(&response) = self.responder.responses.front() {
            if turn.is_over() {
                return;
            }
            // A response acknowledges everything up to it.
            let responder = &mut self.responder;
            if response.psn == responder.expected.previous()
                && matches!(responder.reply, Some(Reply::Ack))
            {
                responder.reply = None;
            }
            match response.answer {
                Answer::Original(original) => {
                    self.responder.responses.pop_front();
                    let body = Body::AtomicAcknowledge {
                        aeth: self.ack(response.msn, io.memory),
                        original,
                    };
                    self.send_response(response.psn, body, Payload::Empty, resources, io);
                    turn.spend(0);
                }
                Answer::Done | Answer::Flushed => {
                    self.responder.responses.pop_front();
                    let body = Body::ReadResponse {
                        position: Position::Only,
                        aeth: Some(self.ack(response.msn, io.memory)),
                    };
                    self.send_response(response.psn, body, Payload::Empty, resources, io);
                    turn.spend(0);
                }
                Answer::Persistent(flush) => {
                    match self.persists(&response, &flush, resources, io) {
                        None => return,
                        Some(Ok(())) => {
                            self.responder.responses[0].answer = Answer::Flushed;
                            self.responder.flushed = Some(response.psn);
                        }
                        Some(Err(fault)) => {
                            self.refuse_response(response.psn, fault, resources);
                        }
                    }
                }
                Answer::Data { left, begun } => {
                    if !turn.may_send() || !self.congestion.may_send(io.now) {
                        return;
                    }
                    let Some(bytes) = self.send_data(&response, left, begun, resources, io) else {
                        return;
                    };
                    self.congestion.sent(bytes, io.now);
                    turn.send(bytes);
                }
            }
        }
        if let Some(reply) = self.responder.reply.take() {
            let (psn, syndrome) = match reply {
                Reply::Ack => (self.responder.expected.previous(), None),
                Reply::Nak(psn, syndrome) => (psn, Some(syndrome)),
                Reply::End(psn, fault) => (psn, fault.code.map(Syndrome::Nak)),
            };
            if let Reply::End(_, Fault { code: None, .. }) = reply {
                self.responder.expected = psn.add(1);
                self.responder.count_message();
            }
            let msn = self.responder.msn;
            let aeth = match syndrome {
                None => self.ack(msn, io.memory),
                Some(syndrome) => Aeth { syndrome, msn },
            };
            if let Some(concern) = self.responder.concern.take_if(|_| syndrome.is_some()) {
                resources.concern(concern);
            }
            self.send_response(psn, Body::Acknowledge(aeth), Payload::Empty, resources, io);
            turn.spend(0);
            if let Reply::End(_, fault) = reply {
                self.end(fault, resources, io);
            }
        }
    }

    /// Sends the next packet of data of the first response. Returns its bytes of payload, or `None` if it has to wait
    /// for pages.
    pub(super) fn send_data<M: Memory>(
        &mut self,
        response: &Response,
        left: Reth,
        begun: bool,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Option<u64> {
        let length = left.length.min(self.mtu);
        let ends = length == left.length;
        let position = match (begun, ends) {
            (false, true) => Position::Only,
            (false, false) => Position::First,
            (true, false) => Position::Middle,
            (true, true) => Position::Last,
        };
        let by = self.accessor_in(response.pd);
        let mut ranges = io.outbox.ranges();
        let resolved = resources.keys.resolve(
            left.rkey,
            by,
            access::REMOTE_READ,
            left.address,
            length.into(),
            io.memory,
            &mut ranges,
        );
        if let Err(cause) = resolved {
            let mut failure = Some(cause);
            if cause == Cause::PageAbsent {
                let rest = (left.rkey, left.address, u64::from(left.length));
                Self::look_ahead_remote(rest, access::REMOTE_READ, by, resources, io);
                failure = self.demand(Half::Reader, resources).err();
            }
            io.outbox.recycle(Payload::Ranges(ranges));
            // The region or the page is gone since the request was accepted.
            self.refuse_response(response.psn, Fault::access(failure?), resources);
            return Some(0);
        }
        self.note_access(Half::Reader);
        // Before the packet arrives, an invalidation may complete, and the guest may use the memory for something else.
        // The same holds for a guest that is told by a counter that its data were read.
        let copied = resources.keys.is_revocable(left.rkey) || self.counts(Counted::RemoteRead);
        let payload = if copied {
            copy_of(ranges, io)
        } else {
            Ok(payload_of(ranges, io))
        };
        let passed = payload.and_then(|mut payload| {
            if let Payload::Bytes(bytes) = &mut payload {
                let keys = &resources.keys;
                keys.pass_read(left.rkey, left.address, bytes, io.memory)?;
            }
            Ok(payload)
        });
        let Ok(payload) = passed else {
            self.refuse_response(response.psn, Fault::access(Cause::LocalUnmapped), resources);
            return Some(0);
        };
        let body = Body::ReadResponse {
            position,
            aeth: (position != Position::Middle).then(|| self.ack(response.msn, io.memory)),
        };
        let responses = &mut self.responder.responses;
        if ends {
            responses.pop_front();
        } else if let Some(front) = responses.front_mut() {
            front.psn = response.psn.add(1);
            front.answer = Answer::Data {
                left: Reth {
                    address: left.address.wrapping_add(length.into()),
                    rkey: left.rkey,
                    length: left.length - length,
                },
                begun: true,
            };
        }
        self.send_response(response.psn, body, payload, resources, io);
        if ends {
            self.count_read(response, resources, io);
        }
        Some(length.into())
    }

    pub(super) fn send_response<M: Memory>(
        &mut self,
        psn: Psn,
        body: Body,
        payload: Payload<'static>,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let segment = self.segment(psn, body, payload, resources);
        resources.send(segment, io);
    }
}
