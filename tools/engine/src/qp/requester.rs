// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requester half of a connection (IBTA volume 1, 9.7 and 9.8.2).
//!
//! Work requests are taken from the ring into [`Requester::queue`], where they stay until they complete. A cursor
//! points to the packet of a request that is sent next. After an error, the oldest unacknowledged packet is sent again,
//! or the cursor goes back to it. Packets of an unreliable connection count as acknowledged once they are sent. This
//! file sends, [`completer`] processes responses, [`retry`] decides when and how often to try again, [`recovery`] which
//! packets to send again, and [`local`] executes local operations.

mod completer;
mod local;
mod recovery;
mod retry;
mod rtt;
mod window;

use super::{
    Qp,
    credit::Credit,
    receive::{pass_read, pieces},
};
use crate::{
    cause::Cause,
    keys::AHEAD,
    memory::{HostRange, Memory},
    pages::Half,
    psn::Psn,
    resources::{Io, Resources, copy_of, payload_of},
    segment::{AtomicKind, AtomicRequest, Body, Payload, Position, Reth, Segment, SendTail},
    state::wire,
    tcp_segments::TcpSegments,
    time::Instant,
    trace::Act,
    turn::Turn,
    work::{self, SendRequest, Source, Target},
};
use recovery::Recovery;
use rtt::Rtt;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vrnic_wire::{
    completion::{Opcode, Status},
    counter::Counter,
    event::EventType,
    memory::access,
    qp::{MAX_PSN, QpState},
    work::{SEND_DATA_OFFSET, SendOpcode, Sge, send_flags},
};
use window::Window;

/// Maximum number of work requests taken from the ring before the first of them completes. Limits the memory of a queue
/// pair, because a guest may use the same memory for many rings.
const MAX_IN_FLIGHT: usize = 64;

/// Once this many elements are in flight, no more work requests are taken.
const MAX_ELEMENTS: usize = 256;

/// Maximum number of unacknowledged packets. It is less than half of all PSNs, so that old and new PSNs can be told
/// apart.
const MAX_UNACKED: u32 = 1 << 22;

/// Number of packets of a message after which an acknowledgement is requested at the latest.
const ACK_INTERVAL: u32 = 16;

/// A work request that was taken from the ring.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    request: SendRequest,
    /// Index of the ring entry.
    index: u32,
    /// Number of the message as the peer counts them, 24 bits.
    message: u32,
    /// Number of the first element, counted over the lifetime of the queue.
    first_element: u64,
    /// PSN of the first packet.
    first_psn: Psn,
    /// Number of packets of the message, or of the response if the request has one. 0 for local operations.
    packets: u32,
    /// Number of packets of the response that have arrived.
    fetched: u32,
    /// Whether a local operation has taken effect.
    executed: bool,
    /// Why the request cannot be executed.
    #[serde(with = "wire")]
    failure: Option<(Status, Cause)>,
}

impl Request {
    fn fetches(&self) -> bool {
        work::is_fetching(self.request.opcode)
    }

    /// Returns whether the request is executed without the peer.
    fn is_local(&self) -> bool {
        work::is_local(self.request.opcode)
    }

    /// Returns the first PSN of the next request.
    fn end_psn(&self) -> Psn {
        self.first_psn.add(self.packets)
    }

    fn elements(&self) -> usize {
        match self.request.source {
            Source::Elements(count) => usize::from(count),
            Source::Inline => 0,
        }
    }

    /// Returns whether the message uses a receive of the peer.
    fn takes_receive(&self) -> bool {
        !self.fetches() && self.request.opcode != SendOpcode::Write
    }

    fn opcode(&self) -> Opcode {
        work::completion_opcode(self.request.opcode)
    }
}

/// Event for which the requester waits besides acknowledgements.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
enum Timer {
    /// Nothing.
    #[default]
    Idle,
    /// The local ACK timeout.
    Ack(Instant),
    /// The end of the delay that an RNR NAK requested. Nothing is sent before.
    Rnr(Instant),
}

/// State of the requester.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Requester {
    /// Requests that have not completed, oldest first.
    queue: VecDeque<Request>,
    /// Elements of these requests.
    #[serde(with = "wire")]
    elements: VecDeque<Sge>,
    /// Number of the first of these elements.
    first_element: u64,
    /// Index of the request in the queue that is sent next.
    sending: usize,
    /// Packet of that request that is sent next.
    packet: u32,
    /// Oldest unacknowledged PSN.
    unacked: Psn,
    /// First PSN that has not been sent.
    unsent: Psn,
    /// First PSN of the next request.
    next: Psn,
    /// Number of requests so far, 24 bits.
    messages: u32,
    /// Receives of the peer.
    credit: Credit,
    /// Number of requests before `sending` that wait for a response.
    fetching: u32,
    /// Retries left for timeouts and sequence errors.
    retries: u8,
    /// Retries left for RNR NAKs.
    rnr_retries: u8,
    timer: Timer,
    recovery: Recovery,
    rtt: Rtt,
    /// Limit on packets in flight on a wire.
    window: Window,
    /// Value of `unacked` for which a missing response has been requested again.
    gap: Option<Psn>,
    /// PSN of the packet for which the peer last had no receive, until it makes progress.
    refused: Option<Psn>,
    /// Whether a response was dropped because pages for it were missing.
    starved: bool,
    /// Whether a rate limit holds back the packets after the next one, whose acknowledgement should arrive meanwhile.
    pauses: bool,
    /// Whether the last request of the queue cannot be executed.
    stopped: bool,
    /// Whether the end of draining has been noted.
    drained: bool,
    /// The datagrams or frames of the request in the queue, if it is a send in segments.
    pub(super) segments: TcpSegments,
    /// Elements of a datagram, kept only for their capacity.
    #[serde(skip)]
    spare: Vec<Sge>,
}

impl Requester {
    /// Creates a requester whose first packet has this PSN. `is_wire` says whether packets travel on a wire. A
    /// `selective` requester sends only the necessary packets again.
    pub(super) fn new(psn: Psn, selective: bool, is_wire: bool) -> Self {
        Self {
            recovery: Recovery::new(selective, is_wire),
            unacked: psn,
            unsent: psn,
            next: psn,
            ..Self::default()
        }
    }

    /// Returns the PSN of the next request.
    pub(super) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Takes the PSN of a packet that is not acknowledged.
    pub(super) fn take_psn(&mut self) -> Psn {
        let psn = self.next;
        self.next = psn.add(1);
        psn
    }

    /// Returns an empty vector for elements, to be returned by [`put_spare`](Self::put_spare).
    pub(super) fn take_spare(&mut self) -> Vec<Sge> {
        std::mem::take(&mut self.spare)
    }

    /// Takes back the vector for elements.
    pub(super) fn put_spare(&mut self, mut elements: Vec<Sge>) {
        elements.clear();
        self.spare = elements;
    }

    /// Returns the oldest unacknowledged PSN.
    pub(super) fn unacknowledged(&self) -> Psn {
        self.unacked
    }

    /// Returns the number of requests that were taken and have not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Notes that draining begins.
    pub(super) fn begin_draining(&mut self) {
        self.drained = false;
    }

    /// Continues to send after a request failed, from the first unused PSN on.
    pub(super) fn resume(&mut self) {
        self.next = self.unsent;
        self.stopped = false;
    }

    /// Stops sending.
    pub(super) fn stop(&mut self) {
        self.timer = Timer::Idle;
        self.recovery.forget();
        self.stopped = true;
    }

    /// Returns when the timer expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timer = match self.timer {
            Timer::Idle => None,
            Timer::Ack(at) | Timer::Rnr(at) => Some(at),
        };
        [timer, self.recovery.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Abandons the oldest request. Returns its `wr_id` and the opcode of its completion.
    pub(super) fn abandon(&mut self) -> Option<(u64, Opcode)> {
        let request = self.pop()?;
        self.segments.end();
        Some((request.request.wr_id, request.opcode()))
    }

    /// Keeps a datagram that was taken from the ring entry `index` and waits for pages or for its receiver, or of which
    /// only some segments were sent.
    pub(super) fn hold(&mut self, index: u32, request: SendRequest, elements: &[Sge]) {
        let before = self.elements.len() as u64;
        self.elements.extend(elements);
        self.queue.push_back(Request {
            request,
            index,
            first_element: self.first_element + before,
            message: 0,
            first_psn: self.next,
            packets: 0,
            fetched: 0,
            executed: false,
            failure: None,
        });
    }

    /// Takes back the datagram that was kept, and appends its elements to `elements`.
    pub(super) fn resume_held(&mut self, elements: &mut Vec<Sge>) -> Option<(u32, SendRequest)> {
        elements.extend(self.elements_of(self.queue.front()?));
        let held = self.pop()?;
        Some((held.index, held.request))
    }

    /// Removes the oldest request from the queue.
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

    /// Returns the elements of a request.
    fn elements_of(&self, request: &Request) -> impl Iterator<Item = &Sge> {
        let first = (request.first_element - self.first_element) as usize;
        self.elements.range(first..first + request.elements())
    }

    /// Sends all unacknowledged packets again.
    fn go_back(&mut self) {
        self.recovery.forget();
        self.rtt.abort();
        self.rewind();
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    fn rewind(&mut self) {
        self.sending = 0;
        self.fetching = 0;
        self.packet = 0;
        self.skip_acknowledged();
    }

    /// Moves the cursor past packets that have been acknowledged meanwhile.
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

/// Result of an attempt to send a packet.
enum Sent {
    /// A packet with this many bytes of payload was sent.
    Packet(u64),
    /// The request has to wait.
    Blocked,
    /// The request cannot be executed.
    Failed(Status, Cause),
}

impl Qp {
    /// Sends until the turn is over or there is nothing left to send.
    pub(super) fn request<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if self.requester.starved && !self.make_room(resources, io) {
            return;
        }
        while !turn.is_over() {
            if self.waits_for_receiver() || !turn.may_send() || !self.pacer.may_send(io.now) {
                return;
            }
            self.requester.pauses =
                turn.ends_with(self.mtu) || self.pacer.pauses_after(self.mtu, io.now);
            let again = self.requester.has_oldest_due();
            let mut sent = if again {
                self.send_oldest(resources, io)
            } else if self.requester.sending < self.requester.queue.len()
                || self.begin(turn, resources, io)
            {
                self.send_next(resources, io)
            } else {
                Sent::Blocked
            };
            if matches!(sent, Sent::Blocked) && !again {
                sent = self.send_more_again(resources, io);
            }
            match sent {
                Sent::Packet(bytes) => {
                    turn.send(bytes);
                    self.pacer.charge(bytes, io.now);
                }
                Sent::Blocked => return,
                Sent::Failed(status, cause) => {
                    self.requester.stopped = true;
                    let sending = if again { 0 } else { self.requester.sending };
                    if sending == 0 {
                        self.fail_front(status, cause, resources, io);
                    } else if self.requester.queue[sending].failure.is_none() {
                        self.note_refused(cause, resources);
                        self.requester.fail_cursor(status, cause);
                    }
                    return;
                }
            }
        }
    }

    /// Takes the next work request from the ring, if the rate limit permits. Returns whether there was one.
    fn begin<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> bool {
        let begun = turn.may_begin() && self.fetch(resources, io);
        if begun {
            turn.begin();
        }
        begun
    }

    /// Takes the next work request from the ring. Returns whether there was one.
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
                    pkey_index: 0,
                    source: Source::Inline,
                    header: 0,
                    length: 0,
                    target: Target::None,
                    srqn: 0,
                };
                (request, Some((bad.status, bad.cause)))
            }
        };
        resources.note(self.number, || Act::Fetched {
            wr_id: request.wr_id,
            opcode: request.opcode,
            length: request.length.into(),
        });
        let packets = match request.opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => 1,
            opcode if work::is_local(opcode) => 0,
            _ => request.length.div_ceil(self.mtu).max(1),
        };
        requester.queue.push_back(Request {
            request,
            index,
            first_element: requester.first_element + elements_before as u64,
            message: requester.messages.wrapping_add(1) & MAX_PSN,
            first_psn: requester.next,
            packets,
            fetched: 0,
            executed: false,
            failure,
        });
        requester.packet = 0;
        if failure.is_none() {
            requester.next = requester.next.add(packets);
            requester.messages = requester.messages.wrapping_add(1) & MAX_PSN;
        }
        true
    }

    /// Sends the packet at the cursor.
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
        if request.is_local() {
            return self.execute_local(resources, io);
        }
        let psn = request.first_psn.add(if request.fetches() {
            request.fetched
        } else {
            requester.packet
        });
        let ahead = psn.packets_since(requester.unacked);
        if ahead > 0 && self.is_short_of_credit(request) {
            return Sent::Blocked;
        }
        let admitted = match resources.fabric_mtu {
            Some(_) => ahead < MAX_UNACKED,
            None => self.requester.window.admits(ahead),
        };
        if !admitted {
            return Sent::Blocked;
        }
        if !self.congestion.may_send(io.now) {
            return Sent::Blocked;
        }
        let requester = &self.requester;
        let request = &requester.queue[requester.sending];
        let sent = if request.fetches() {
            let depth = u32::from(self.attributes.max_rd_atomic);
            if depth == 0 {
                return Sent::Failed(Status::LocalQueuePairOperation, Cause::WqeReadDepth);
            }
            if requester.fetching >= depth || (ahead > 0 && ahead + request.packets > MAX_UNACKED) {
                return Sent::Blocked;
            }
            self.send_fetch(resources, io)
        } else {
            self.send_packet(resources, io)
        };
        let bytes = match sent {
            Ok(bytes) => bytes,
            Err(mut cause) => {
                if cause == Cause::PageAbsent {
                    match self.demand(Half::Requester, resources) {
                        Ok(()) => return Sent::Blocked,
                        Err(denied) => cause = denied,
                    }
                }
                return Sent::Failed(Status::LocalProtection, cause);
            }
        };
        self.note_access(Half::Requester);
        self.congestion.sent(bytes, io.now);
        if matches!(self.requester.timer, Timer::Idle) {
            self.restart_ack_timer(io.now);
        }
        Sent::Packet(bytes)
    }

    /// Returns whether the peer may have no receive for a message. In that case, the first packet of the message waits
    /// until all packets before it have been acknowledged, and the others wait until the first one has been.
    fn is_short_of_credit(&self, request: &Request) -> bool {
        request.takes_receive()
            && self.requester.unacked.distance_from(request.first_psn) <= 0
            && !self.requester.credit.covers(request.message)
    }

    /// Checks all elements of a request. If pages of one element are missing, continues with the others to find all
    /// missing pages.
    fn check_elements<M: Memory>(
        &self,
        request: &Request,
        rights: u32,
        resources: &Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Cause> {
        let mut result = Ok(());
        for sge in self.requester.elements_of(request) {
            let checked = resources.keys.check(
                sge.lkey.get(),
                self.accessor(),
                rights,
                sge.address.get(),
                sge.length.get().into(),
                io.memory,
            );
            match checked {
                Ok(()) => {}
                Err(Cause::PageAbsent) => result = Err(Cause::PageAbsent),
                Err(cause) => {
                    resources.keys.take_faults();
                    return Err(cause);
                }
            }
        }
        result
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
                    resources
                        .keys
                        .resolve(key, self.accessor(), 0, address, length, memory, ranges)
                },
            ),
        }
    }

    /// Sends a packet of a send or a write, and returns its bytes of payload.
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
        let gathered = self.gather(request, offset, length, resources, io.memory, &mut ranges);
        if let Err(cause) = gathered {
            if cause == Cause::PageAbsent {
                let elements = self.requester.elements_of(request);
                let rest = u64::from(wanted.length) - offset;
                let rest = rest.min(AHEAD);
                Self::look_ahead(elements, offset, rest, 0, self.accessor(), resources, io);
            }
            io.outbox.recycle(Payload::Ranges(ranges));
            return Err(cause);
        }
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
        let unreliable = self.is_unreliable();
        let keys = &resources.keys;
        let passes = keys.has_integrity()
            && (self.requester.elements_of(request)).any(|sge| keys.is_integrity(sge.lkey.get()));
        let mut payload = if unreliable || passes {
            // The request of an unreliable connection completes before the packet arrives.
            copy_of(ranges, io).map_err(|_| Cause::LocalUnmapped)?
        } else {
            payload_of(ranges, io)
        };
        if passes && let Payload::Bytes(bytes) = &mut payload {
            let elements = self.requester.elements_of(request);
            pass_read(elements, offset, bytes, keys, io.memory)?;
        }
        let psn = request.first_psn.add(packet);
        let segment = Segment {
            solicited: position.ends() && wanted.flags & send_flags::SOLICITED != 0,
            ack_request: !unreliable
                && (position.ends()
                    || (packet + 1).is_multiple_of(ACK_INTERVAL)
                    || requester.recovery.is_due()
                    || requester.pauses
                    || self.is_short_of_credit(request)),
            service: self.service(wanted.srqn),
            ..self.segment(psn, body, payload, resources)
        };
        let next = psn.add(1);
        let requester = &mut self.requester;
        requester.packet += 1;
        if position.ends() {
            requester.sending += 1;
            requester.packet = 0;
        }
        self.send_request(segment, next, resources, io);
        if unreliable {
            self.acknowledge(psn, resources, io);
            self.note_drained(resources);
        }
        Ok(length)
    }

    /// Sends a request that has a response of its own.
    fn send_fetch<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<u64, Cause> {
        let requester = &self.requester;
        let request = &requester.queue[requester.sending];
        let wanted = &request.request;
        // Other errors are reported when the response arrives, because an error from the peer comes first.
        if self.check_elements(request, access::LOCAL_WRITE, resources, io)
            == Err(Cause::PageAbsent)
        {
            return Err(Cause::PageAbsent);
        }
        let skipped = request.fetched * self.mtu;
        let mut payload = Payload::Empty;
        let body = match wanted.target {
            Target::Store {
                address,
                rkey,
                value,
            } => {
                let mut bytes = io.outbox.bytes();
                bytes.extend_from_slice(&value.to_le_bytes());
                payload = Payload::Bytes(bytes);
                Body::AtomicWrite(Reth {
                    address,
                    rkey,
                    length: 8,
                })
            }
            Target::Flush(flush) => Body::FlushRequest(flush),
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
        let psn = request.first_psn.add(request.fetched);
        let segment = Segment {
            ack_request: true,
            service: self.service(wanted.srqn),
            ..self.segment(psn, body, payload, resources)
        };
        let next = request.end_psn();
        let requester = &mut self.requester;
        requester.sending += 1;
        requester.packet = 0;
        requester.fetching += 1;
        self.send_request(segment, next, resources, io);
        Ok(0)
    }

    /// Requests the dropped response again if its pages are present now. Returns whether the requester can continue.
    fn make_room<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) -> bool {
        let requester = &self.requester;
        if let Some(front) = requester.queue.front().filter(|front| front.fetches()) {
            let offset = u64::from(front.fetched) * u64::from(self.mtu);
            let rest = (u64::from(front.request.length) - offset).min(AHEAD);
            let elements = requester.elements_of(front);
            let by = self.accessor();
            Self::look_ahead(
                elements,
                offset,
                rest,
                access::LOCAL_WRITE,
                by,
                resources,
                io,
            );
            if resources.keys.has_faults() {
                let Err(cause) = self.demand(Half::Requester, resources) else {
                    return false;
                };
                self.fail_front(Status::LocalProtection, cause, resources, io);
                return false;
            }
        }
        self.note_access(Half::Requester);
        self.requester.starved = false;
        self.requester.go_back();
        self.restart_ack_timer(io.now);
        true
    }

    /// Sends a packet. `next` is the PSN after it.
    fn send_request<M: Memory>(
        &mut self,
        segment: Segment<'static>,
        next: Psn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let requester = &mut self.requester;
        if segment.psn == requester.unsent {
            requester.unsent = next;
            let timed = segment.ack_request && !matches!(segment.body, Body::FlushRequest(_));
            if timed && requester.recovery.is_selective() {
                requester.rtt.begin(segment.psn, io.now);
            }
        } else {
            resources.counters.count(Counter::Retransmits);
            requester.recovery.note_repeated(next);
        }
        resources.send(segment, io);
    }

    /// Returns whether the send queue is draining.
    pub(super) fn is_draining(&self) -> bool {
        self.state == QpState::SendQueueDrain && !self.requester.queue.is_empty()
    }

    /// Raises the event of a drained send queue once.
    pub(super) fn note_drained(&mut self, resources: &mut Resources) {
        let drained = self.state == QpState::SendQueueDrain && !self.is_draining();
        let noted = drained && !std::mem::replace(&mut self.requester.drained, true);
        if noted && self.attributes.sqd_notify {
            self.raise(EventType::SendQueueDrained, None, resources);
        }
    }
}

impl Requester {
    /// Marks the request at the cursor as failed. It completes after those before it.
    fn fail_cursor(&mut self, status: Status, cause: Cause) {
        let request = &mut self.queue[self.sending];
        request.failure = Some((status, cause));
    }
}
