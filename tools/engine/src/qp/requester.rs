// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requester half of a reliable connection (IBTA volume 1, 9.7).
//!
//! Work requests are taken from the ring into [`Requester::queue`], where they stay until they
//! complete; a cursor says which packet of which request is sent next. Whatever goes wrong, the
//! cursor goes back to the oldest packet that was not acknowledged.

use super::{DEFAULT_PKEY, Qp, Turn, receive::pieces};
use crate::{
    cause::Cause,
    memory::{HostRange, Memory},
    psn::Psn,
    resources::{Io, Resources, payload_of},
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, NakCode, Payload, Position, Reth, Segment, SendTail,
        Syndrome,
    },
    time::Instant,
    timer,
    work::{self, SendRequest, Source, Target},
};
use std::collections::VecDeque;
use vrnic_wire::{
    completion::{Opcode, Status},
    counter::Counter,
    event::EventType,
    memory::access,
    qp::QpState,
    work::{SEND_DATA_OFFSET, SendOpcode, Sge, send_flags},
};

/// Most work requests that are taken from the ring before the first of them completes. Bounds the
/// memory that a queue pair takes, whose ring may be memory that a guest uses many times over.
const MAX_IN_FLIGHT: usize = 64;

/// No work request is taken while those in flight have so many elements.
const MAX_ELEMENTS: usize = 256;

/// Most packets that are on their way unacknowledged. Less than half of all PSNs, so that old and
/// new ones can be told apart.
const MAX_UNACKED: i32 = 1 << 22;

/// An acknowledgement is asked for at least every so many packets of a message.
const ACK_INTERVAL: u32 = 16;

/// A work request that was taken from the ring.
#[derive(Debug)]
struct Request {
    request: SendRequest,
    /// Index of the ring entry.
    index: u32,
    /// Number of the first element, counted over the lifetime of the queue.
    first_element: u64,
    /// PSN of the first packet.
    first_psn: Psn,
    /// Packets that it takes: of the message, or of the response if it fetches.
    packets: u32,
    /// Packets of the response that arrived.
    fetched: u32,
    /// Why it cannot be done.
    failure: Option<(Status, Cause)>,
}

impl Request {
    fn fetches(&self) -> bool {
        work::is_fetching(self.request.opcode)
    }

    fn last_psn(&self) -> Psn {
        self.first_psn.add(self.packets - 1)
    }

    fn elements(&self) -> usize {
        match self.request.source {
            Source::Elements(count) => usize::from(count),
            Source::Inline => 0,
        }
    }

    fn opcode(&self) -> Opcode {
        work::completion_opcode(self.request.opcode)
    }
}

/// What the requester waits for besides acknowledgements.
#[derive(Copy, Clone, Debug, Default)]
enum Timer {
    /// Nothing.
    #[default]
    Idle,
    /// The local ACK timeout.
    Ack(Instant),
    /// The end of the time that an RNR NAK asked for; nothing is sent before.
    Rnr(Instant),
}

/// State of the requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Requests that did not complete, oldest first.
    queue: VecDeque<Request>,
    /// Their elements.
    elements: VecDeque<Sge>,
    /// Number of the first of the elements.
    first_element: u64,
    /// Which request of the queue is sent next.
    sending: usize,
    /// Which packet of it.
    packet: u32,
    /// Oldest PSN that was not acknowledged.
    unacked: Psn,
    /// First PSN that was never sent.
    unsent: Psn,
    /// First PSN of the next request.
    next: Psn,
    /// Requests before `sending` that wait for data.
    fetching: u32,
    /// Timeouts and sequence errors left.
    retries: u8,
    /// RNR NAKs left.
    rnr_retries: u8,
    timer: Timer,
    /// Value of `unacked` for which a missing response was asked for again.
    gap: Option<Psn>,
    /// Whether a request that cannot be done is the last of the queue.
    stopped: bool,
    /// Whether the end of draining was noted.
    drained: bool,
    /// Elements of a datagram, kept for their capacity.
    spare: Vec<Sge>,
}

impl Requester {
    /// A requester whose first packet has that PSN.
    pub(super) fn new(psn: Psn) -> Self {
        Self {
            unacked: psn,
            unsent: psn,
            next: psn,
            ..Self::default()
        }
    }

    /// PSN of the next request.
    pub(super) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Takes the PSN of a packet that nobody acknowledges.
    pub(super) fn take_psn(&mut self) -> Psn {
        let psn = self.next;
        self.next = psn.add(1);
        psn
    }

    /// An empty vector for elements, to be given back.
    pub(super) fn take_spare(&mut self) -> Vec<Sge> {
        std::mem::take(&mut self.spare)
    }

    /// Takes a vector for elements back.
    pub(super) fn put_spare(&mut self, mut elements: Vec<Sge>) {
        elements.clear();
        self.spare = elements;
    }

    /// Oldest PSN that was not acknowledged.
    pub(super) fn unacknowledged(&self) -> Psn {
        self.unacked
    }

    /// Requests that were taken and did not complete.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// The end of draining is ahead.
    pub(super) fn begin_draining(&mut self) {
        self.drained = false;
    }

    /// Sends nothing any more.
    pub(super) fn stop(&mut self) {
        self.timer = Timer::Idle;
        self.stopped = true;
    }

    /// When the timer ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.timer {
            Timer::Idle => None,
            Timer::Ack(at) | Timer::Rnr(at) => Some(at),
        }
    }

    /// Gives up the oldest request: its `wr_id` and the opcode of its completion.
    pub(super) fn abandon(&mut self) -> Option<(u64, Opcode)> {
        let request = self.pop()?;
        Some((request.request.wr_id, request.opcode()))
    }

    /// Takes the oldest request out of the queue.
    fn pop(&mut self) -> Option<Request> {
        let request = self.queue.pop_front()?;
        let elements = request.elements();
        self.elements.drain(..elements);
        self.first_element += elements as u64;
        if self.sending == 0 {
            self.packet = 0;
        } else {
            self.sending -= 1;
            if request.fetches() {
                self.fetching -= 1;
            }
        }
        Some(request)
    }

    /// Elements of a request.
    fn elements_of(&self, request: &Request) -> impl Iterator<Item = &Sge> {
        let first = (request.first_element - self.first_element) as usize;
        self.elements.range(first..first + request.elements())
    }

    /// Puts the cursor to the oldest packet that was not acknowledged.
    fn go_back(&mut self) {
        self.sending = 0;
        self.fetching = 0;
        self.packet = 0;
        self.skip_acknowledged();
    }

    /// Moves the cursor over what has been acknowledged meanwhile.
    fn skip_acknowledged(&mut self) {
        if self.sending == 0
            && let Some(front) = self.queue.front()
            && !front.fetches()
        {
            let done = self.unacked.distance_from(front.first_psn);
            self.packet = self.packet.max(u32::try_from(done).unwrap_or(0));
        }
    }
}

/// What came of an attempt to send a packet.
enum Sent {
    /// One was sent, with that much payload.
    Packet(u64),
    /// The request has to wait for responses.
    Blocked,
    /// The request cannot be done.
    Failed(Status, Cause),
}

impl Qp {
    /// Sends until the turn is over or there is nothing to send.
    pub(super) fn request<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        while !turn.is_over() {
            if matches!(self.requester.timer, Timer::Rnr(_)) {
                return;
            }
            if self.requester.sending == self.requester.queue.len() && !self.fetch(resources, io) {
                return;
            }
            match self.send_next(resources, io) {
                Sent::Packet(bytes) => turn.spend(bytes),
                Sent::Blocked => return,
                Sent::Failed(status, cause) => {
                    self.requester.stopped = true;
                    let sending = self.requester.sending;
                    if sending == 0 {
                        self.fail_front(status, cause, resources, io);
                    } else if self.requester.queue[sending].failure.is_none() {
                        self.requester.fail_cursor(status, cause);
                    }
                    return;
                }
            }
        }
    }

    /// Takes the next work request from the ring. Whether there was one.
    fn fetch<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) -> bool {
        let requester = &mut self.requester;
        if self.state != QpState::ReadyToSend
            || requester.stopped
            || requester.queue.len() >= MAX_IN_FLIGHT
            || requester.elements.len() >= MAX_ELEMENTS
        {
            return false;
        }
        let (index, entry) = match self.created.sq.peek(io.memory) {
            Ok(Some(found)) => found,
            Ok(None) => return false,
            Err(broken) => {
                self.fail_ring(broken, Cause::SendProducer, resources, io);
                return false;
            }
        };
        let elements_before = requester.elements.len();
        let read = work::read_send(
            entry,
            self.created.qp_type,
            &self.created.capacities,
            io.memory,
            |sge| requester.elements.push_back(sge),
        );
        let Ok(read) = read else {
            self.created.sq.give_up();
            self.fail(Cause::RingUnmapped, resources, io);
            return false;
        };
        self.created.sq.take();
        let (request, failure) = match read {
            Ok(request) => (request, None),
            Err(bad) => {
                requester.elements.truncate(elements_before);
                let request = SendRequest {
                    wr_id: bad.wr_id,
                    opcode: bad.opcode,
                    flags: send_flags::SIGNALED,
                    immediate: 0,
                    source: Source::Inline,
                    length: 0,
                    target: Target::None,
                };
                (request, Some((bad.status, bad.cause)))
            }
        };
        let packets = match request.opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => 1,
            _ => request.length.div_ceil(self.mtu).max(1),
        };
        requester.queue.push_back(Request {
            request,
            index,
            first_element: requester.first_element + elements_before as u64,
            first_psn: requester.next,
            packets,
            fetched: 0,
            failure,
        });
        requester.packet = 0;
        if failure.is_none() {
            requester.next = requester.next.add(packets);
        }
        true
    }

    /// Sends the packet under the cursor.
    fn send_next<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) -> Sent {
        let requester = &self.requester;
        let request = &requester.queue[requester.sending];
        if let Some((status, cause)) = request.failure {
            return Sent::Failed(status, cause);
        }
        let begins = requester.packet == 0;
        let fenced = begins && request.request.flags & send_flags::FENCE != 0;
        if fenced && requester.fetching > 0 {
            return Sent::Blocked;
        }
        let in_flight = requester.unsent.distance_from(requester.unacked);
        if in_flight >= MAX_UNACKED {
            return Sent::Blocked;
        }
        let sent = if request.fetches() {
            let depth = u32::from(self.attributes.max_rd_atomic);
            if depth == 0 {
                return Sent::Failed(Status::LocalQueuePairOperation, Cause::WqeReadDepth);
            }
            if requester.fetching >= depth
                || (in_flight > 0 && in_flight.unsigned_abs() + request.packets > 1 << 22)
            {
                return Sent::Blocked;
            }
            self.send_fetch(resources, io)
        } else {
            self.send_packet(resources, io)
        };
        let bytes = match sent {
            Ok(bytes) => bytes,
            Err(cause) => return Sent::Failed(Status::LocalProtection, cause),
        };
        if matches!(self.requester.timer, Timer::Idle) {
            self.restart_ack_timer(io.now);
        }
        Sent::Packet(bytes)
    }

    /// Checks all elements of a request.
    fn check_elements<M: Memory>(
        &self,
        request: &Request,
        rights: u32,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Cause> {
        for sge in self.requester.elements_of(request) {
            resources.regions.check(
                sge.lkey.get(),
                self.created.pd,
                rights,
                sge.address.get(),
                sge.length.get().into(),
                io.memory,
            )?;
        }
        Ok(())
    }

    /// Appends the host ranges of `length` payload bytes from byte `offset` on.
    fn gather<M: Memory>(
        &self,
        request: &Request,
        offset: u64,
        length: u64,
        resources: &Resources,
        memory: &M,
        ranges: &mut Vec<HostRange>,
    ) -> Result<(), Cause> {
        match request.request.source {
            Source::Inline if length == 0 => Ok(()),
            Source::Inline => {
                let range = self
                    .created
                    .sq
                    .entry(request.index)
                    .ok()
                    .and_then(|entry| entry.slice(SEND_DATA_OFFSET as u64 + offset, length))
                    .ok_or(Cause::RingUnmapped)?;
                ranges.push(range);
                Ok(())
            }
            Source::Elements(_) => pieces(
                self.requester.elements_of(request),
                offset,
                length,
                |key, address, length| {
                    resources.regions.resolve(
                        key,
                        self.created.pd,
                        0,
                        address,
                        length,
                        memory,
                        ranges,
                    )
                },
            ),
        }
    }

    /// Sends a packet of a send or a write; gives its payload bytes.
    fn send_packet<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<u64, Cause> {
        let requester = &self.requester;
        let packet = requester.packet;
        let request = &requester.queue[requester.sending];
        let position = Position::of(packet, request.packets);
        let wanted = &request.request;
        let offset = u64::from(packet) * u64::from(self.mtu);
        let length = (u64::from(wanted.length) - offset).min(self.mtu.into());

        if position == Position::First {
            self.check_elements(request, 0, resources, io)?;
        }
        let mut ranges = io.outbox.ranges();
        self.gather(request, offset, length, resources, io.memory, &mut ranges)?;
        let body = match wanted.opcode {
            SendOpcode::Write | SendOpcode::WriteWithImmediate => {
                let (address, rkey) = match wanted.target {
                    Target::Rdma { address, rkey } => (address, rkey),
                    _ => (0, 0),
                };
                let immediate = wanted.opcode == SendOpcode::WriteWithImmediate;
                Body::Write {
                    position,
                    reth: position.begins().then_some(Reth {
                        address,
                        rkey,
                        length: wanted.length,
                    }),
                    immediate: (position.ends() && immediate).then_some(wanted.immediate),
                }
            }
            opcode => Body::Send {
                position,
                tail: match opcode {
                    _ if !position.ends() => SendTail::Plain,
                    SendOpcode::SendWithImmediate => SendTail::Immediate(wanted.immediate),
                    SendOpcode::SendWithInvalidate => SendTail::Invalidate(wanted.immediate),
                    _ => SendTail::Plain,
                },
            },
        };
        let segment = Segment {
            path: self.path,
            destination_qpn: self.attributes.dest_qpn,
            pkey: DEFAULT_PKEY,
            psn: request.first_psn.add(packet),
            solicited: position.ends() && wanted.flags & send_flags::SOLICITED != 0,
            ack_request: position.ends() || (packet + 1).is_multiple_of(ACK_INTERVAL),
            body,
            payload: payload_of(ranges, io),
        };
        let next = segment.psn.add(1);
        let requester = &mut self.requester;
        requester.packet += 1;
        if position.ends() {
            requester.sending += 1;
            requester.packet = 0;
        }
        self.send_request(segment, next, resources, io);
        Ok(length)
    }

    /// Sends the request for a read or an atomic.
    fn send_fetch<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<u64, Cause> {
        let requester = &self.requester;
        let request = &requester.queue[requester.sending];
        let wanted = &request.request;
        self.check_elements(request, access::LOCAL_WRITE, resources, io)?;
        let skipped = request.fetched * self.mtu;
        let body = match wanted.target {
            Target::Atomic {
                address,
                rkey,
                compare_add,
                swap,
            } => Body::AtomicRequest(AtomicRequest {
                kind: match wanted.opcode {
                    SendOpcode::CompareSwap => AtomicKind::CompareSwap,
                    _ => AtomicKind::FetchAdd,
                },
                address,
                rkey,
                compare_add,
                swap,
            }),
            Target::Rdma { address, rkey } => Body::ReadRequest(Reth {
                address: address.wrapping_add(skipped.into()),
                rkey,
                length: wanted.length - skipped,
            }),
            _ => return Err(Cause::WqeOpcode),
        };
        let segment = Segment {
            path: self.path,
            destination_qpn: self.attributes.dest_qpn,
            pkey: DEFAULT_PKEY,
            psn: request.first_psn.add(request.fetched),
            solicited: false,
            ack_request: true,
            body,
            payload: Payload::Empty,
        };
        let next = request.last_psn().add(1);
        let requester = &mut self.requester;
        requester.sending += 1;
        requester.packet = 0;
        requester.fetching += 1;
        self.send_request(segment, next, resources, io);
        Ok(0)
    }

    /// Sends a packet after which `next` is the next PSN.
    fn send_request<M: Memory>(
        &mut self,
        segment: Segment,
        next: Psn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let unsent = &mut self.requester.unsent;
        if segment.psn.distance_from(*unsent) < 0 {
            resources.counters.count(Counter::Retransmits);
        }
        if next.distance_from(*unsent) > 0 {
            *unsent = next;
        }
        resources.send(segment, io);
    }

    /// A response came.
    pub(super) fn take_response<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let psn = segment.psn;
        let requester = &self.requester;
        // What is not between the oldest and the newest packet on its way is old or made up.
        if psn.distance_from(requester.unacked) < 0 || psn.distance_from(requester.unsent) >= 0 {
            return;
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

    fn take_acknowledge<M: Memory>(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let failure = match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if !self.acknowledge(psn, resources, io) {
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
                if self.acknowledge_before(psn, resources, io) {
                    self.retry(resources, io);
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

    /// Acknowledges all packets before `psn`. If a response before it is missing, asks for that
    /// again and gives `false`.
    fn acknowledge_before<M: Memory>(
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

    /// Acknowledges all packets up to `psn`. Gives `false` if a response up to there is missing.
    fn acknowledge<M: Memory>(
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
            if psn.distance_from(request.last_psn()) < 0 {
                break;
            }
            count += 1;
        }
        if acknowledged.distance_from(self.requester.unacked) > 0 {
            self.requester.unacked = acknowledged;
            self.note_progress(io.now);
        }
        self.complete_sends(count, resources, io);
        self.requester.skip_acknowledged();
        complete
    }

    /// The peer made progress: all retries are available again.
    fn note_progress(&mut self, now: Instant) {
        self.refresh_retries();
        self.requester.gap = None;
        if !matches!(self.requester.timer, Timer::Rnr(_)) {
            self.restart_ack_timer(now);
        }
    }

    /// Makes all retries available.
    pub(super) fn refresh_retries(&mut self) {
        self.requester.retries = self.attributes.retry_count;
        self.requester.rnr_retries = self.attributes.rnr_retry;
    }

    /// Starts the local ACK timer anew, or stops it if nothing is on its way.
    fn restart_ack_timer(&mut self, now: Instant) {
        let waiting = self.requester.unsent != self.requester.unacked;
        let timeout = timer::ack_timeout(self.attributes.timeout).filter(|_| waiting);
        self.requester.timer = timeout.map_or(Timer::Idle, |timeout| Timer::Ack(now + timeout));
    }

    /// Completes the oldest `count` requests.
    fn complete_sends<M: Memory>(&mut self, count: u32, resources: &mut Resources, io: &Io<'_, M>) {
        if count == 0 {
            return;
        }
        self.created.sq.release(count, io.memory);
        for _ in 0..count {
            let Some(done) = self.requester.pop() else {
                return;
            };
            resources.counters.count(match done.opcode() {
                Opcode::Write => Counter::WriteRequests,
                Opcode::Read => Counter::ReadRequests,
                Opcode::CompareSwap | Opcode::FetchAdd => Counter::AtomicRequests,
                _ => Counter::SendRequests,
            });
            if self.created.signal_all || done.request.flags & send_flags::SIGNALED != 0 {
                let mut cqe = self.cqe(done.request.wr_id, done.opcode(), Status::Success, None);
                cqe.byte_length = done.request.length.into();
                resources.complete(self.created.send_cqn, cqe, false, io);
            }
        }
    }

    /// Completes the oldest request with an error, and goes to the error state.
    fn fail_front<M: Memory>(
        &mut self,
        status: Status,
        cause: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if let Some(failed) = self.requester.pop() {
            let local = matches!(
                cause,
                Cause::LocalKey | Cause::LocalKeyPd | Cause::LocalRights
            ) || matches!(cause, Cause::LocalBounds | Cause::LocalUnmapped);
            if local {
                resources.counters.count(Counter::LocalProtectionErrors);
            }
            self.created.sq.release(1, io.memory);
            let cqe = self.cqe(failed.request.wr_id, failed.opcode(), status, Some(cause));
            resources.complete(self.created.send_cqn, cqe, true, io);
        }
        self.enter_error(io);
    }

    /// If the oldest request cannot be done, fails it.
    fn fail_at_front<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        if let Some((status, cause)) = self.requester.queue.front().and_then(|front| front.failure)
        {
            self.fail_front(status, cause, resources, io);
        }
    }

    /// Part of the data of a read came.
    fn take_read_response<M: Memory>(
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
        if front.request.opcode != SendOpcode::Read
            || payload.len() != length
            || position.ends() != ends
        {
            return self.fail_response(resources, io);
        }
        self.store_response(offset, payload, resources, io);
    }

    /// The result of an atomic came.
    fn take_atomic_response<M: Memory>(
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

    /// The oldest request, if its next packet of data has that PSN.
    fn expecting(&self, psn: Psn) -> Option<&Request> {
        self.requester
            .queue
            .front()
            .filter(|front| front.fetches() && front.first_psn.add(front.fetched) == psn)
    }

    /// The peer answered with something that was not asked for.
    fn fail_response<M: Memory>(&mut self, resources: &mut Resources, io: &Io<'_, M>) {
        self.fail_front(Status::BadResponse, Cause::ResponseLength, resources, io);
    }

    /// Stores the next packet of data of the oldest request.
    fn store_response<M: Memory>(
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
                    resources.regions.resolve(
                        key,
                        self.created.pd,
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
                .map_err(|_| Cause::LocalUnmapped)
        });
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
        self.note_progress(io.now);
        if complete {
            self.complete_sends(1, resources, io);
            self.requester.skip_acknowledged();
        }
    }

    /// A response is missing: asks for it again, once until something else comes.
    fn ask_again<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        let unacked = self.requester.unacked;
        if self.requester.gap != Some(unacked) {
            self.retry(resources, io);
            self.requester.gap = Some(unacked);
        }
    }

    /// Sends everything again that was not acknowledged, or fails if that was done too often.
    fn retry<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        if self.requester.retries == 0 {
            resources.counters.count(Counter::RetryExceeded);
            self.fail_front(Status::RetryExceeded, Cause::Retries, resources, io);
            return;
        }
        self.requester.retries -= 1;
        self.requester.go_back();
        self.restart_ack_timer(io.now);
    }

    /// Waits until the peer posts a receive, or fails if it was waited for too often.
    fn wait_for_receiver<M: Memory>(
        &mut self,
        timer: u8,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if matches!(self.requester.timer, Timer::Rnr(_)) {
            return;
        }
        if self.attributes.rnr_retry != 7 {
            if self.requester.rnr_retries == 0 {
                resources.counters.count(Counter::RnrRetryExceeded);
                self.fail_front(Status::RnrRetryExceeded, Cause::RnrRetries, resources, io);
                return;
            }
            self.requester.rnr_retries -= 1;
        }
        self.requester.go_back();
        self.requester.timer = Timer::Rnr(io.now + timer::rnr_timeout(timer));
    }

    /// Acts if the timer ended.
    pub(super) fn requester_timer<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        match self.requester.timer {
            Timer::Ack(at) if at <= io.now => {
                resources.counters.count(Counter::Timeouts);
                self.requester.gap = None;
                self.retry(resources, io);
            }
            Timer::Rnr(at) if at <= io.now => self.requester.timer = Timer::Idle,
            _ => {}
        }
    }

    /// Whether the send queue drains.
    pub(super) fn is_draining(&self) -> bool {
        self.state == QpState::SendQueueDrain && !self.requester.queue.is_empty()
    }

    /// Raises the event of a drained send queue, once.
    pub(super) fn note_drained(&mut self, resources: &mut Resources) {
        let drained = self.state == QpState::SendQueueDrain && !self.is_draining();
        if drained && !std::mem::replace(&mut self.requester.drained, true) {
            if self.attributes.sqd_notify {
                self.raise(EventType::SendQueueDrained, None, resources);
            }
        }
    }
}

impl Requester {
    /// Notes that the request under the cursor cannot be done once those before it are.
    fn fail_cursor(&mut self, status: Status, cause: Cause) {
        let request = &mut self.queue[self.sending];
        request.failure = Some((status, cause));
    }
}
