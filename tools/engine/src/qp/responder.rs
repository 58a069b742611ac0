// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The responder half of a connection (IBTA volume 1, 9.7 to 9.9). [`unreliable`] has what differs on connections
//! without acknowledgements.
//!
//! Requests are executed when they arrive. Those that arrive before their turn are [`kept`]. Data of reads and results
//! of atomics wait in [`Responder::responses`] for a turn of the queue pair. Acknowledgements are sent after them, and
//! the last one covers all before it. The refusal of a request also comes after them: the queue pair fails once all
//! requests before it have been answered, and in the error state it reads no memory for its peer.

mod kept;
mod provoked;
mod reply;
mod unreliable;

pub(crate) use kept::Kept;
pub(in crate::qp) use kept::MAX_AHEAD;

use super::{Qp, Receiver};
use crate::{
    cause::Cause,
    completion_counter::Counted,
    explain::Access,
    fault::{Direction, Occasion, Seam},
    limits::MAX_MESSAGE,
    memory::{HostRange, Memory},
    pages::Half,
    persistence::Flushing,
    psn::Psn,
    resources::{Io, Resources},
    segment::{
        AtomicKind, AtomicRequest, Body, Flush, NakCode, Payload, Position, Reth, Segment,
        SendTail, Service, Syndrome,
    },
    state::wire,
    trace::Concern,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vrnic_wire::{
    completion::{self, Opcode, Status},
    counter::Counter,
    event::EventType,
    memory::access,
    qp::{MAX_PSN, QpState},
};

/// A message of several packets that is being received.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    /// None.
    #[default]
    None,
    /// A send.
    Send {
        /// Bytes received so far.
        received: u64,
    },
    /// A write.
    Write {
        /// Destination of the write.
        reth: Reth,
        /// Bytes received so far.
        received: u32,
    },
}

/// Maximum number of flushes of the peer that wait to be answered. Peers need not negotiate how many they may have
/// outstanding, and Soft-RoCE does not count them.
const MAX_FLUSHES: usize = 256;

/// Response to a request that is not only acknowledged.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
enum Answer {
    /// Data from memory.
    Data {
        /// Memory that is left to send.
        left: Reth,
        /// Whether part of the data was sent.
        begun: bool,
    },
    /// The result of an atomic.
    Original(u64),
    /// The completion of an atomic write.
    Done,
    /// The completion of a flush.
    Flushed,
    /// The completion of a flush, sent once the data written to the region survive a loss of power.
    Persistent(Flush),
}

impl Answer {
    fn of_flush(flush: &Flush) -> Self {
        if flush.is_persistent() {
            Self::Persistent(*flush)
        } else {
            Self::Flushed
        }
    }

    /// Returns whether this answers a flush. The peer may have any number of those outstanding, up to [`MAX_FLUSHES`].
    fn is_of_flush(&self) -> bool {
        matches!(self, Self::Flushed | Self::Persistent(_))
    }
}

/// A response that waits to be sent.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Response {
    /// PSN of the next packet.
    psn: Psn,
    /// MSN when the request was executed, or when it was repeated.
    msn: u32,
    /// Whether the request is a repeated one.
    repeated: bool,
    /// Protection domain of the memory that the request accesses.
    pd: u32,
    answer: Answer,
}

/// Answer to an atomic or an atomic write. It is kept because a repeated request must not be executed again.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct AtomicResult {
    psn: Psn,
    answer: Answer,
}

/// An acknowledgement that waits to be sent.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
enum Reply {
    /// Positive, of everything so far.
    Ack,
    /// Negative, with this PSN.
    Nak(Psn, Syndrome),
    /// The last acknowledgement, with this PSN. The queue pair fails after it was sent.
    End(Psn, Fault),
}

/// Why a request cannot be executed.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Fault {
    /// NAK code for the peer, or `None` to acknowledge the message.
    code: Option<NakCode>,
    cause: Cause,
    /// Completion status of the receive in use. If the fault has nothing to do with that receive, this is `Flushed`,
    /// and an event reports the fault.
    #[serde(with = "wire")]
    status: Status,
}

impl Fault {
    fn invalid(cause: Cause) -> Self {
        Self {
            code: Some(NakCode::InvalidRequest),
            cause,
            status: Status::RemoteInvalidRequest,
        }
    }

    fn access(cause: Cause) -> Self {
        Self {
            code: Some(NakCode::RemoteAccess),
            cause: cause.as_remote(),
            status: Status::LocalAccess,
        }
    }

    fn local(status: Status, cause: Cause) -> Self {
        Self {
            code: Some(NakCode::RemoteOperation),
            cause,
            status,
        }
    }

    /// Creates the fault of a message that arrived and asked for an invalid change of the receiver's own keys (IBTA
    /// volume 1, 9.9.3, class J).
    fn received(cause: Cause) -> Self {
        Self {
            code: None,
            cause: cause.as_remote(),
            status: Status::RemoteInvalidRequest,
        }
    }
}

/// Result of a request.
enum Outcome {
    /// The request was executed. The next PSN is this many packets ahead.
    Done(u32),
    /// The request needs a receive, and none is posted.
    NotReady,
}

/// State of the responder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Responder {
    /// Next expected PSN.
    expected: Psn,
    /// Number of completed messages, 24 bits.
    msn: u32,
    message: Message,
    responses: VecDeque<Response>,
    reply: Option<Reply>,
    /// Whether the peer has been told the expected PSN and need not be told again.
    told: bool,
    /// Whether the peer has been told to send the expected packet later.
    refused: bool,
    atomics: VecDeque<AtomicResult>,
    /// Whether the first message has arrived.
    established: bool,
    /// The last flush to persistent memory that was begun, until it is answered.
    flushing: Option<Flushing>,
    /// PSN of the last such flush that was answered.
    flushed: Option<Psn>,
    /// Last PSNs of accepted reads whose data were not all sent before the peer repeated the read. They are to be
    /// counted then.
    uncounted: VecDeque<Psn>,
    /// Whether early packets are kept.
    keeping: bool,
    /// Objects that the pending negative acknowledgement concerns.
    pub(super) concern: Option<Concern>,
}

impl Responder {
    /// Creates a responder whose first packet has this PSN.
    pub(super) fn new(psn: Psn) -> Self {
        Self {
            expected: psn,
            ..Self::default()
        }
    }

    /// Returns the next expected PSN.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns the number of responses that wait.
    pub(super) fn waiting(&self) -> usize {
        self.responses.len()
    }

    /// Queues a reply, unless the peer is about to be told to wait and repeat an older request. The peer would conclude
    /// from a later PSN that it missed a response.
    fn reply(&mut self, reply: Reply) {
        let newest = match reply {
            Reply::Ack => self.expected,
            Reply::Nak(psn, _) | Reply::End(psn, _) => psn,
        };
        let put_off = match self.reply {
            Some(Reply::Nak(psn, Syndrome::RnrNak { .. })) => psn.distance_from(newest) < 0,
            _ => false,
        };
        if !put_off {
            self.reply = Some(reply);
        }
    }

    /// Returns whether the flush with this PSN or a later one was answered. The peer may have the answer and not ask
    /// again.
    fn has_flushed(&self, psn: Psn) -> bool {
        self.flushed
            .is_some_and(|last| psn.distance_from(last) <= 0)
    }

    /// Returns whether the queue pair is about to fail.
    fn is_ending(&self) -> bool {
        matches!(self.reply, Some(Reply::End(..)))
    }

    /// Drops all responses. Keeps a pending acknowledgement of what arrived, because the receives have completed.
    pub(super) fn stop(&mut self) {
        self.responses.clear();
        self.reply.take_if(|reply| !matches!(reply, Reply::Ack));
        self.flushing = None;
    }

    fn count_message(&mut self) {
        self.msn = self.msn.wrapping_add(1) & MAX_PSN;
    }

    /// Queues the answer to the expected packet, which was executed.
    fn answer(&mut self, pd: u32, answer: Answer) {
        self.count_message();
        self.responses.push_back(Response {
            psn: self.expected,
            msn: self.msn,
            repeated: false,
            pd,
            answer,
        });
    }
}

impl Qp {
    /// Returns the last flush to persistent memory that was begun.
    pub(crate) fn flushing(&mut self) -> Option<&mut Flushing> {
        self.responder.flushing.as_mut()
    }

    /// Processes a request.
    pub(super) fn take_request<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let ahead = segment.psn.distance_from(self.responder.expected);
        if ahead >= 0 && self.responder.is_ending() {
            return resources.counters.count(Counter::Dropped);
        }
        if ahead > 0 {
            return self.take_early(segment, ahead.cast_unsigned(), resources, io);
        }
        self.note_established(resources);
        if ahead < 0 {
            resources.counters.count(Counter::DuplicateRequests);
            self.repeat(segment, resources, io);
        } else if self.execute_expected(segment, resources, io) {
            self.follow_up(resources, io);
        }
    }

    /// Executes and answers the expected packet. Returns whether it was executed.
    fn execute_expected<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        let asked = || Occasion::packet(Seam::Decision, Direction::In, segment);
        if let Some(strike) = resources.strike(asked) {
            self.provoked(strike.kind, segment, resources);
            return false;
        }
        match self.execute(segment, resources, io) {
            Ok(Outcome::Done(packets)) => {
                self.note_access(Half::Responder);
                let responder = &mut self.responder;
                responder.expected = responder.expected.add(packets);
                responder.told = false;
                responder.refused = false;
                // Requests with a response are acknowledged by it.
                if segment.ack_request && !segment.body.has_response() {
                    responder.reply(Reply::Ack);
                }
                self.pass_kept(packets, resources);
                return true;
            }
            Ok(Outcome::NotReady) => self.nak_not_ready(Cause::NoReceive, segment, resources),
            Err(fault) => match self.or_wait(fault, Half::Responder, resources) {
                None => self.nak_not_ready(Cause::PageAbsent, segment, resources),
                Some(fault) => self.refuse(fault, segment, resources),
            },
        }
        false
    }

    /// Returns the fault of a request, or `None` if the request waits for pages.
    fn or_wait(&mut self, fault: Fault, half: Half, resources: &mut Resources) -> Option<Fault> {
        if fault.cause != Cause::PageAbsent {
            return Some(fault);
        }
        let cause = self.demand(half, resources).err()?;
        Some(Fault {
            cause: match fault.code {
                Some(NakCode::RemoteAccess) => cause.as_remote(),
                _ => cause,
            },
            ..fault
        })
    }

    /// Asks the peer to send the expected packet again after a delay.
    fn nak_not_ready(&mut self, cause: Cause, segment: &Segment, resources: &mut Resources) {
        let syndrome = self.rnr_nak(cause, segment, resources);
        self.nak(syndrome);
        self.responder.refused = true;
        self.forget_kept(resources);
    }

    /// Returns an RNR NAK with the delay that the owner chose.
    fn rnr_nak(&mut self, cause: Cause, segment: &Segment, resources: &mut Resources) -> Syndrome {
        resources.counters.count(Counter::RnrNaksSent);
        let syndrome = Syndrome::RnrNak {
            timer: self.attributes.min_rnr_timer,
        };
        self.explain_nak_sent(syndrome, cause, segment, resources);
        syndrome
    }

    /// Tells the owner about the first message, if this side does not send yet.
    fn note_established(&mut self, resources: &mut Resources) {
        if self.state == QpState::ReadyToReceive && !self.responder.established {
            self.responder.established = true;
            self.raise(EventType::CommunicationEstablished, None, resources);
        }
    }

    /// Queues a negative acknowledgement of the expected packet.
    fn nak(&mut self, syndrome: Syndrome) {
        let responder = &mut self.responder;
        responder.told = true;
        responder.reply(Reply::Nak(responder.expected, syndrome));
    }

    /// Refuses the expected packet, which ends the connection.
    fn refuse(&mut self, fault: Fault, segment: &Segment, resources: &mut Resources) {
        if let Some(code) = fault.code {
            self.explain_nak_sent(Syndrome::Nak(code), fault.cause, segment, resources);
        }
        let responder = &mut self.responder;
        responder.reply(Reply::End(responder.expected, fault));
    }

    /// Ends the connection after the peer has been told.
    fn end<M: Memory>(&mut self, fault: Fault, resources: &mut Resources, io: &Io<'_, M>) {
        let event = match fault.code {
            Some(NakCode::RemoteAccess) => {
                resources.counters.count(Counter::RemoteAccessErrors);
                EventType::QpAccessError
            }
            None | Some(NakCode::InvalidRequest) => {
                resources.counters.count(Counter::RemoteInvalidRequests);
                EventType::QpRequestError
            }
            Some(_) => EventType::QpFatal,
        };
        if self.receive.is_taken() && fault.status != Status::Flushed {
            self.fail_receive(fault.status, fault.cause, resources, io);
        } else if (event, fault.cause) != (EventType::QpFatal, Cause::Provoked) {
            // An event reports a failed ring or disk, but not an operation that only a fault made fail.
            self.raise(event, Some(fault.cause), resources);
        }
        self.enter_error(io);
    }

    /// Executes the expected packet.
    fn execute<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        if let Service::Xrc { srqn } = segment.service {
            self.receive_for(srqn, segment, resources)?;
        }
        match segment.body {
            Body::Send { position, tail } => {
                self.execute_send(position, tail, segment, resources, io)
            }
            Body::Write {
                position,
                reth,
                immediate,
            } => self.execute_write(position, reth, immediate, segment, resources, io),
            Body::ReadRequest(reth) => {
                self.check_no_message()?;
                self.check_reads()?;
                self.execute_read(reth, resources, io)
            }
            Body::AtomicRequest(request) => {
                self.check_no_message()?;
                self.check_reads()?;
                self.execute_atomic(&request, resources, io)
            }
            Body::AtomicWrite(_) | Body::FlushRequest(_)
                if !self.created.capacities.features.memory_placement =>
            {
                Err(Fault::invalid(Cause::PacketOpcode))
            }
            Body::AtomicWrite(reth) => {
                self.check_no_message()?;
                self.check_reads()?;
                self.execute_atomic_write(&reth, &segment.payload, resources, io)
            }
            Body::FlushRequest(flush) => {
                self.check_no_message()?;
                self.execute_flush(&flush, resources, io)
            }
            Body::Unknown(_) => Err(Fault::invalid(Cause::PacketOpcode)),
            _ => Err(Fault::invalid(Cause::PacketSequence)),
        }
    }

    /// Makes the shared receive queue that a packet of an XRC connection names the receiver of this and the following
    /// packets.
    fn receive_for(
        &mut self,
        srqn: u32,
        segment: &Segment,
        resources: &Resources,
    ) -> Result<(), Fault> {
        if let Body::Unknown(_) = segment.body {
            // It is not known whether the packet names a shared receive queue.
            return Ok(());
        }
        let receiver = self.xrc_receiver(srqn, resources);
        let receiver = receiver.ok_or(Fault::invalid(Cause::XrcSrq))?;
        let continues = self.responder.message != Message::None || self.receive.is_taken();
        if continues && self.receiver.srqn != receiver.srqn {
            return Err(Fault::invalid(Cause::XrcSrq));
        }
        self.receiver = receiver;
        Ok(())
    }

    /// Returns the receiver for the shared receive queue `srqn`, if that is in the XRC domain.
    fn xrc_receiver(&self, srqn: u32, resources: &Resources) -> Option<Receiver> {
        let srq = resources.srqs.get(srqn)?;
        let xrc = srq
            .xrc
            .filter(|xrc| self.created.xrcdn == Some(xrc.xrcdn))?;
        Some(Receiver {
            pd: srq.pd,
            cqn: xrc.cqn,
            srqn: Some(srqn),
        })
    }

    fn check_no_message(&self) -> Result<(), Fault> {
        if self.responder.message != Message::None {
            return Err(Fault::invalid(Cause::PacketSequence));
        }
        Ok(())
    }

    /// Checks that the peer may have another read or atomic outstanding.
    fn check_reads(&self) -> Result<(), Fault> {
        let responses = self.responder.responses.iter();
        let counts = |response: &&Response| !response.repeated && !response.answer.is_of_flush();
        let outstanding = responses.filter(counts).count();
        if outstanding >= usize::from(self.attributes.max_dest_rd_atomic) {
            return Err(Fault::invalid(Cause::TooManyReads));
        }
        Ok(())
    }

    /// Checks that a packet has as much payload as its position requires.
    fn check_length(&self, position: Position, payload: &Payload) -> Result<u64, Fault> {
        let length = payload.len();
        let mtu = u64::from(self.mtu);
        let valid = match position {
            Position::First | Position::Middle => length == mtu,
            Position::Last => (1..=mtu).contains(&length),
            Position::Only => length <= mtu,
        };
        if valid {
            Ok(length)
        } else {
            Err(Fault::invalid(Cause::PacketLength))
        }
    }

    /// Takes a receive, unless a dropped message left one. Returns whether there is one.
    fn has_receive<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<bool, Fault> {
        let local = |cause| Fault::local(Status::LocalQueuePairOperation, cause);
        if !self.receive.is_taken() && !self.take_receive(resources, io).map_err(local)? {
            return Ok(false);
        }
        self.receive.check().map_err(local)?;
        Ok(true)
    }

    fn execute_send<M: Memory>(
        &mut self,
        position: Position,
        tail: SendTail,
        segment: &Segment,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        let received = match (self.responder.message, position.begins()) {
            (Message::None, true) => 0,
            (Message::Send { received }, false) => received,
            _ => return Err(Fault::invalid(Cause::PacketSequence)),
        };
        let length = self.check_length(position, &segment.payload)?;
        if position.begins() && !self.has_receive(resources, io)? {
            return Ok(Outcome::NotReady);
        }
        let total = received + length;
        if total > self.receive.capacity() || total > MAX_MESSAGE.into() {
            return Err(Fault {
                status: Status::LocalLength,
                ..Fault::invalid(Cause::ReceiveTooShort)
            });
        }
        self.scatter(received, &segment.payload, resources, io)
            .map_err(|cause| Fault::local(Status::LocalProtection, cause))?;
        if !position.ends() {
            self.responder.message = Message::Send { received: total };
            return Ok(Outcome::Done(1));
        }
        if let SendTail::Invalidate(key) = tail
            && let Err(cause) = resources.keys.invalidate(key, self.accessor())
        {
            return Err(Fault::received(cause));
        }
        self.responder.message = Message::None;
        self.responder.count_message();
        self.complete_receive(
            Opcode::Receive,
            segment.solicited,
            |cqe| {
                cqe.byte_length = (total as u32).into();
                cqe.service_level = segment.path.service_level;
                if segment.solicited {
                    cqe.flags |= completion::flags::SOLICITED;
                }
                match tail {
                    SendTail::Plain => {}
                    SendTail::Immediate(immediate) => {
                        cqe.flags |= completion::flags::IMMEDIATE;
                        cqe.immediate = immediate.into();
                    }
                    SendTail::Invalidate(key) => {
                        cqe.flags |= completion::flags::INVALIDATED;
                        cqe.immediate = key.into();
                    }
                }
            },
            resources,
            io,
        );
        Ok(Outcome::Done(1))
    }

    fn execute_write<M: Memory>(
        &mut self,
        position: Position,
        reth: Option<Reth>,
        immediate: Option<u32>,
        segment: &Segment,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        let (reth, received) = match (self.responder.message, position.begins(), reth) {
            (Message::None, true, Some(reth)) => {
                self.check_asked(&reth, access::REMOTE_WRITE, resources)?;
                // The completion of the receive tells the owner if the peer may not write to the memory.
                let takes_receive = immediate.is_some() && position.ends();
                if takes_receive && !self.has_receive(resources, io)? {
                    return Ok(Outcome::NotReady);
                }
                self.check_key(&reth, access::REMOTE_WRITE, resources, io)?;
                (reth, 0)
            }
            (Message::Write { reth, received }, false, None) => (reth, received),
            _ => return Err(Fault::invalid(Cause::PacketSequence)),
        };
        let length = self.check_length(position, &segment.payload)?;
        let total = u64::from(received) + length;
        let expected = u64::from(reth.length);
        if total > expected || position.ends() != (total == expected) {
            return Err(Fault::invalid(Cause::PacketLength));
        }
        if immediate.is_some() {
            if !position.ends() {
                return Err(Fault::invalid(Cause::PacketSequence));
            }
            if !self.has_receive(resources, io)? {
                return Ok(Outcome::NotReady);
            }
        }
        let address = reth.address.wrapping_add(received.into());
        let written = resources.with_scratch(|resources, ranges| {
            resources
                .keys
                .resolve(
                    reth.rkey,
                    self.accessor(),
                    access::REMOTE_WRITE,
                    address,
                    length,
                    io.memory,
                    ranges,
                )
                .map_err(Fault::access)?;
            let payload = &segment.payload;
            payload
                .copy_to(0, ranges, io.memory)
                .and_then(|()| {
                    let keys = &resources.keys;
                    keys.pass_written(reth.rkey, address, length, (payload, 0), io.memory)
                })
                .map_err(|_| Fault::local(Status::LocalAccess, Cause::RemoteUnmapped))
        });
        if let Err(fault) = written {
            if fault.cause == Cause::PageAbsent {
                let rest = (reth.rkey, address, u64::from(reth.length - received));
                Self::look_ahead_remote(rest, access::REMOTE_WRITE, self.accessor(), resources, io);
            }
            return Err(fault);
        }
        if !position.ends() {
            self.responder.message = Message::Write {
                reth,
                received: total as u32,
            };
            return Ok(Outcome::Done(1));
        }
        self.responder.message = Message::None;
        self.responder.count_message();
        if let Some(immediate) = immediate {
            self.complete_receive(
                Opcode::ReceiveWriteWithImmediate,
                segment.solicited,
                |cqe| {
                    cqe.byte_length = reth.length.into();
                    cqe.immediate = immediate.into();
                    cqe.flags |= completion::flags::IMMEDIATE;
                    if segment.solicited {
                        cqe.flags |= completion::flags::SOLICITED;
                    }
                },
                resources,
                io,
            );
        }
        self.count(Counted::RemoteWrite, Status::Success.raw(), resources, io);
        Ok(Outcome::Done(1))
    }

    /// Checks that the peer may request such an access, regardless of the key.
    fn check_asked(&self, reth: &Reth, right: u32, resources: &Resources) -> Result<(), Fault> {
        if reth.length > MAX_MESSAGE {
            return Err(Fault::invalid(Cause::WqeLength));
        }
        self.check_granted(reth, right, resources)
    }

    /// Checks that the peer may access memory with `right`.
    fn check_remote<M: Memory>(
        &self,
        reth: &Reth,
        right: u32,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Fault> {
        self.check_asked(reth, right, resources)?;
        self.check_key(reth, right, resources, io)
    }

    /// Checks that the key grants the peer `right` to the memory.
    fn check_key<M: Memory>(
        &self,
        reth: &Reth,
        right: u32,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Fault> {
        resources
            .keys
            .check(
                reth.rkey,
                self.accessor(),
                right,
                reth.address,
                reth.length.into(),
                io.memory,
            )
            .map_err(Fault::access)
    }

    /// Checks that the queue pair grants its peer `rights`.
    fn check_granted(&self, reth: &Reth, rights: u32, resources: &Resources) -> Result<(), Fault> {
        if self.attributes.access & rights == rights {
            return Ok(());
        }
        let access = Access {
            key: reth.rkey,
            pd: self.receiver.pd,
            rights,
            address: reth.address,
            length: reth.length.into(),
        };
        let cause = resources.keys.refuse(Cause::RemoteRights, access);
        Err(Fault::invalid(cause))
    }

    fn execute_read<M: Memory>(
        &mut self,
        reth: Reth,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        self.check_remote(&reth, access::REMOTE_READ, resources, io)?;
        let answer = Answer::Data {
            left: reth,
            begun: false,
        };
        self.responder.answer(self.receiver.pd, answer);
        Ok(Outcome::Done(reth.length.div_ceil(self.mtu).max(1)))
    }

    fn execute_atomic<M: Memory>(
        &mut self,
        request: &AtomicRequest,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        let remote = Reth {
            address: request.address,
            rkey: request.rkey,
            length: 8,
        };
        let word = self.remote_word(&remote, access::REMOTE_ATOMIC, resources, io)?;
        let original = match request.kind {
            AtomicKind::CompareSwap => {
                io.memory
                    .compare_exchange_u64(word, 0, request.compare_add, request.swap)
            }
            AtomicKind::FetchAdd => io.memory.fetch_add_u64(word, 0, request.compare_add),
        }
        .map_err(|_| Fault::access(Cause::RemoteUnmapped))?;
        self.keep_answer(Answer::Original(original));
        Ok(Outcome::Done(1))
    }

    fn execute_atomic_write<M: Memory>(
        &mut self,
        reth: &Reth,
        payload: &Payload,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        let value = payload.word().filter(|_| reth.length == 8);
        let value = value.ok_or(Fault::invalid(Cause::PacketLength))?;
        let word = self.remote_word(reth, access::REMOTE_WRITE, resources, io)?;
        io.memory
            .swap_u64(word, 0, value)
            .map_err(|_| Fault::access(Cause::RemoteUnmapped))?;
        self.keep_answer(Answer::Done);
        Ok(Outcome::Done(1))
    }

    /// Returns the host range of the 8 bytes of `remote`, if the peer may access them with `right` atomically.
    fn remote_word<M: Memory>(
        &self,
        remote: &Reth,
        right: u32,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<HostRange, Fault> {
        self.check_granted(remote, right, resources)?;
        if !remote.address.is_multiple_of(8) {
            return Err(Fault::invalid(Cause::AtomicAlignment));
        }
        resources.with_scratch(|resources, ranges| {
            let (keys, by) = (&resources.keys, self.accessor());
            let Reth { address, rkey, .. } = *remote;
            if keys.is_integrity(rkey) {
                return Err(Fault::access(Cause::LocalKey));
            }
            keys.resolve(rkey, by, right, address, 8, io.memory, ranges)
                .map_err(Fault::access)?;
            // The region may begin in the middle of an aligned word.
            match ranges[..] {
                [word] if word.offset.is_multiple_of(8) => Ok(word),
                _ => Err(Fault::invalid(Cause::AtomicAlignment)),
            }
        })
    }

    /// Queues the answer to the expected packet, and keeps it in case the request is repeated.
    fn keep_answer(&mut self, answer: Answer) {
        let kept = usize::from(self.attributes.max_dest_rd_atomic);
        let responder = &mut self.responder;
        responder.answer(self.receiver.pd, answer);
        if responder.atomics.len() >= kept {
            responder.atomics.pop_front();
        }
        responder.atomics.push_back(AtomicResult {
            psn: responder.expected,
            answer,
        });
    }

    /// Executes a flush. What was written before has already been stored, because this device stores each packet before
    /// it takes the next one. Making the data survive a loss of power takes longer.
    fn execute_flush<M: Memory>(
        &mut self,
        flush: &Flush,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<Outcome, Fault> {
        if self.responder.responses.len() >= MAX_FLUSHES {
            return Err(Fault::invalid(Cause::TooManyReads));
        }
        self.check_flush(flush, resources, io)?;
        io.memory.fence();
        // PSNs wrap, so one that seems to be later is from long ago.
        let psn = self.responder.expected;
        let flushed = &mut self.responder.flushed;
        flushed.take_if(|old| psn.distance_from(*old) <= 0);
        self.responder.flushing.take_if(|old| old.is_of(psn));
        let answer = Answer::of_flush(flush);
        self.responder.answer(self.receiver.pd, answer);
        Ok(Outcome::Done(1))
    }

    fn check_flush<M: Memory>(
        &self,
        flush: &Flush,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Fault> {
        let Flush { remote, .. } = flush;
        if !flush.is_valid() {
            return Err(Fault::invalid(Cause::FlushKind));
        }
        self.check_granted(remote, flush.rights(), resources)?;
        let (keys, by, rights) = (&resources.keys, self.accessor(), flush.rights());
        if flush.is_whole() {
            keys.check_object(remote.rkey, by, rights)
        } else {
            let length = remote.length.into();
            keys.check(remote.rkey, by, rights, remote.address, length, io.memory)
        }
        .map_err(Fault::access)
    }
}
