// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

mod attributes;
mod congestion;
mod counting;
mod credit;
mod datagram;
mod explain;
mod flush;
mod migration;
mod paging;
mod raw;
mod receive;
mod requester;
mod responder;
mod transition;

use crate::{
    cause::Cause,
    completion_counter::Counting,
    context::Owner,
    explain::{Access, Explanation, Happening},
    fault::{Occasion, Seam, Subject},
    keys::Accessor,
    memory::{HostRange, Memory},
    pages::Half,
    psn::Psn,
    rate::QpPacer,
    resources::{Io, Resources},
    ring::{Broken, WorkQueue},
    scaling::Scaling,
    segment::{Body, Gid, Path, Payload, Segment, Service, Touched},
    state::{self, wire},
    time::Instant,
    turn::Turn,
    work::Capacities,
};
use attributes::Attributes;
use congestion::Congestion;
use migration::{PathMigration, Way};
use paging::Await;
pub(crate) use paging::Held;
use receive::Receive;
use requester::Requester;
pub(crate) use responder::Kept;
use responder::Responder;
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    command::QpPaths,
    completion::{Cqe, Opcode, Status},
    counter::Counter,
    event::EventType,
    port::Mtu,
    qp::{QpAttributes, QpState, QpType},
};

/// Q_Key of the GSI queue pair (IBTA volume 1, 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;

/// Properties of a queue pair that are fixed when it is created.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Creation {
    #[serde(with = "wire")]
    pub(crate) qp_type: QpType,
    pub(crate) context: u32,
    pub(crate) owner: Owner,
    pub(crate) slot: u32,
    pub(crate) pd: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    /// Shared receive queue, which replaces `rq`.
    pub(crate) srqn: Option<u32>,
    /// XRC domain of an XRC target.
    pub(crate) xrcdn: Option<u32>,
    /// [`qp_flags`](vrnic_wire::command::qp_flags).
    pub(crate) flags: u8,
    pub(crate) capacities: Capacities,
    pub(crate) translations: usize,
    pub(crate) sq: WorkQueue,
    pub(crate) rq: WorkQueue,
    /// How frames are distributed, only for receive scaling.
    pub(crate) scaling: Option<Box<Scaling>>,
}

impl Creation {
    /// Returns whether the queue pair has this flag.
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// On whose behalf requests of the peer are executed. An XRC target learns it from each request.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
struct Receiver {
    /// Protection domain of the memory that the peer accesses.
    pd: u32,
    /// Completion queue for receives.
    cqn: u32,
    /// Shared receive queue from which receives are taken.
    srqn: Option<u32>,
}

impl Receiver {
    fn of(created: &Creation) -> Self {
        Self {
            pd: created.pd,
            cqn: created.recv_cqn,
            srqn: created.srqn,
        }
    }
}

/// A queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Qp {
    /// QP number.
    number: u32,
    created: Creation,
    #[serde(with = "wire")]
    state: QpState,
    attributes: Attributes,
    /// Path to the peer of a connection.
    path: Path,
    migration: PathMigration,
    /// Maximum payload of a segment.
    #[serde(deserialize_with = "state::mtu")]
    mtu: u32,
    requester: Requester,
    responder: Responder,
    receiver: Receiver,
    receive: Receive,
    /// The last access by this queue pair or its peer that was refused, and the reason.
    refused: Option<(Cause, Access)>,
    congestion: Congestion,
    pacer: QpPacer,
    /// Whether and how each [`Half`] waits for pages.
    awaits: [Await; Half::ALL.len()],
    /// Whether the queue pair waits for its turn.
    pub(crate) scheduled: bool,
    /// Whether the queue pair waits for the rate limit of the device.
    pub(crate) held_back: bool,
    /// The paused receiver for which the queue pair waits.
    pub(crate) awaited: Option<Gid>,
    /// When the queue pair will be reminded to check its timer.
    pub(crate) reminder: Option<Instant>,
    /// Counter set of the queue pair. If there is none, only the port's counters count.
    pub(crate) counter_set: Option<u32>,
    /// What completion counters count. Most queue pairs have none.
    counting: Option<Box<Counting>>,
    /// How often the queue pair is in tables of others.
    pub(crate) uses: usize,
}

impl Qp {
    /// Creates a queue pair in the reset state.
    pub(crate) fn new(number: u32, created: Creation) -> Self {
        Self {
            number,
            receiver: Receiver::of(&created),
            created,
            state: QpState::Reset,
            attributes: Attributes::default(),
            path: Path::default(),
            migration: PathMigration::default(),
            mtu: Mtu::Mtu256.bytes(),
            requester: Requester::default(),
            responder: Responder::default(),
            receive: Receive::default(),
            refused: None,
            congestion: Congestion::default(),
            pacer: QpPacer::default(),
            awaits: Default::default(),
            scheduled: false,
            held_back: false,
            awaited: None,
            reminder: None,
            counter_set: None,
            counting: None,
            uses: 0,
        }
    }

    /// Returns the properties that are fixed at creation.
    pub(crate) fn created(&self) -> &Creation {
        &self.created
    }

    /// Returns the identity with which the queue pair accesses memory.
    fn accessor(&self) -> Accessor {
        Accessor {
            qpn: self.number,
            pd: self.receiver.pd,
            kernel: self.created.capacities.kernel,
        }
    }

    /// Returns the [`accessor`](Self::accessor) for memory of the protection domain `pd`.
    fn accessor_in(&self, pd: u32) -> Accessor {
        Accessor {
            pd,
            ..self.accessor()
        }
    }

    /// Returns whether the queue pair is an unreliable connection.
    fn is_unreliable(&self) -> bool {
        self.created.qp_type == QpType::UnreliableConnection
    }

    /// Returns whether the queue pair is a reliable connection, XRC or not.
    fn is_reliable(&self) -> bool {
        matches!(
            self.created.qp_type,
            QpType::ReliableConnection | QpType::XrcInitiator | QpType::XrcTarget
        )
    }

    /// Returns whether the queue pair has exactly one peer.
    fn is_connection(&self) -> bool {
        self.is_unreliable() || self.is_reliable()
    }

    /// Returns whether the queue pair is for whole Ethernet frames.
    fn is_raw(&self) -> bool {
        matches!(
            self.created.qp_type,
            QpType::RawPacket | QpType::ReceiveQueue
        )
    }

    /// Returns the service of packets of this queue pair. Packets of an XRC connection are for the shared receive queue
    /// `srqn`.
    fn service(&self, srqn: u32) -> Service {
        match self.created.qp_type {
            QpType::XrcInitiator | QpType::XrcTarget => Service::Xrc { srqn },
            QpType::UnreliableConnection => Service::Unreliable,
            _ => Service::Reliable,
        }
    }

    /// Returns whether the peer may send packets of this service and kind. Each end of an XRC connection has only one
    /// half of a reliable one.
    fn takes(&self, service: Service, body: &Body) -> bool {
        match (self.created.qp_type, service) {
            (QpType::ReliableConnection, Service::Reliable)
            | (QpType::UnreliableConnection, Service::Unreliable) => true,
            (QpType::XrcInitiator, Service::Xrc { .. }) => body.is_response(),
            (QpType::XrcTarget, Service::Xrc { .. }) => !body.is_response(),
            _ => false,
        }
    }

    /// Returns the receiver of what the queue pair would send next, as far as that is known.
    pub(crate) fn receiver(&self) -> Option<Gid> {
        match self.state {
            QpState::Reset | QpState::Init | QpState::SendQueueError | QpState::Error => None,
            _ if self.is_connection() => Some(self.path.destination),
            _ => self.awaited,
        }
    }

    /// Returns whether the state allows neither sending nor receiving.
    fn is_quiet(&self) -> bool {
        matches!(self.state, QpState::Reset | QpState::Init)
    }

    /// Returns whether the state allows receiving messages.
    fn receives(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrain
                | QpState::SendQueueError
        )
    }

    /// Works until the turn is over or there is nothing to do.
    pub(crate) fn run<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if self.is_quiet() {
            return;
        }
        self.take_held(resources, io);
        turn.half(|part| self.take_kept(part, resources, io));
        // Half of the turn is for the peer's requests, so that neither side's requests are kept waiting.
        turn.half(|part| self.respond(part, resources, io));
        if matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrain) {
            match self.created.qp_type {
                QpType::ReliableConnection
                | QpType::UnreliableConnection
                | QpType::XrcInitiator => self.request(turn, resources, io),
                QpType::XrcTarget | QpType::ReceiveQueue | QpType::ReceiveScaling => {}
                QpType::Smi | QpType::Gsi | QpType::UnreliableDatagram | QpType::RawPacket => {
                    self.send_datagrams(turn, resources, io);
                }
            }
        }
        match self.state {
            QpState::Error => {
                self.forget_kept(resources);
                self.flush_sends(turn, resources, io);
                self.flush_receives(turn, resources, io);
            }
            QpState::SendQueueError => self.flush_sends(turn, resources, io),
            _ => {}
        }
        self.arm_timer(resources);
    }

    /// Processes a segment that arrived for this queue pair.
    pub(crate) fn take_segment<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let way = if self.is_connection() {
            self.migration.way_of(segment, &self.path, || {
                self.admits(segment, Way::Current, resources)
            })
        } else {
            Way::Strange
        };
        let from_peer = matches!(way, Way::Current | Way::Alternate);
        let expected = match segment.body {
            Body::Frame { .. } => self.is_raw(),
            Body::Datagram { .. } => !self.is_connection() && !self.is_raw(),
            // Notifications do not carry the service. There are none on InfiniBand.
            Body::CongestionNotification => from_peer && segment.path.lids.is_none(),
            ref body => from_peer && self.takes(segment.service, body),
        };
        let admitted = self.admits(segment, way, resources);
        if !admitted {
            resources.note_violation(segment, None);
        }
        if !expected || !self.receives() || !admitted {
            if way == Way::Wrong
                && admitted
                && self.receives()
                && self.takes(segment.service, &segment.body)
            {
                self.note_wrong_way(resources);
            }
            resources.counters.count(Counter::Dropped);
            return;
        }
        resources.counters.count(Counter::ReceivePackets);
        resources
            .counters
            .add(Counter::ReceiveBytes, segment.payload.len());
        if self.is_connection() {
            self.follow_peer(way, segment, resources, io);
            self.note_mark(segment, resources, io);
        }
        match segment.body {
            Body::CongestionNotification => self.take_notification(resources, io.now),
            Body::Datagram { .. } | Body::Frame { .. } => self.take_or_hold(segment, resources, io),
            _ if self.is_unreliable() => self.take_or_hold(segment, resources, io),
            ref body if body.is_response() => {
                if self.state == QpState::ReadyToReceive {
                    resources.counters.count(Counter::Dropped);
                } else {
                    self.take_response(segment, resources, io);
                }
            }
            _ => self.take_request(segment, resources, io),
        }
        self.arm_timer(resources);
    }

    /// Returns whether the queue pair accepts the P_Key of a segment that arrived by `way`.
    fn admits(&self, segment: &Segment<'_>, way: Way, resources: &Resources) -> bool {
        match self.created.qp_type {
            QpType::Smi | QpType::RawPacket | QpType::ReceiveQueue => true,
            QpType::Gsi => resources.admitting_pkey(None, segment.pkey).is_some(),
            _ => {
                let own = Some(self.pkey_index_of(way));
                resources.admitting_pkey(own, segment.pkey).is_some()
            }
        }
    }

    /// Checks the timer.
    pub(crate) fn remind<M: Memory>(
        &mut self,
        reminder: Instant,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if self.reminder == Some(reminder) {
            self.reminder = None;
        }
        self.congestion.forget_deadline(io.now);
        self.pacer.forget_deadline(io.now);
        self.requester_timer(resources, io);
        self.arm_timer(resources);
    }

    /// Requests a reminder for the timer, if it runs.
    fn arm_timer(&mut self, resources: &mut Resources) {
        let deadlines = [
            self.requester.deadline(),
            self.congestion.deadline(),
            self.pacer.deadline(),
        ];
        if let Some(mut deadline) = deadlines.into_iter().flatten().min() {
            if let Some(strike) = resources.strike(|| Occasion::of_qp(Seam::Timer, self.subject()))
            {
                deadline = deadline + strike.args.delay;
            }
            resources
                .timers
                .remind(self.number, deadline, &mut self.reminder);
        }
    }

    /// Returns the state.
    pub(crate) fn state(&self) -> QpState {
        self.state
    }

    /// Returns the properties by which a fault chooses a queue pair.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            qpn: self.number,
            peer: self.attributes.dest_qpn,
            qp_type: self.created.qp_type,
            state: self.state,
            context: self.created.context,
            owner: self.created.owner,
            kernel: self.created.capacities.kernel,
        }
    }

    /// Enters the state that follows a completion with an error. For a send on a queue pair that is not a reliable
    /// connection, that is the send queue error state.
    pub(crate) fn fail_quietly<M: Memory>(&mut self, send: bool, io: &Io<'_, M>) {
        if !send || self.is_reliable() {
            self.enter_error(io);
        } else if self.state == QpState::ReadyToSend {
            self.state = QpState::SendQueueError;
        }
    }

    /// Enters the error state. Posted requests are flushed in the following turns. The peer still gets an
    /// acknowledgement of what arrived before, but nothing else.
    pub(crate) fn enter_error<M: Memory>(&mut self, io: &Io<'_, M>) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.stop_waiting();
        self.requester.stop();
        self.responder.stop();
        self.created.rq.need_doorbell(io.memory);
    }

    /// Raises a fatal event and enters the error state, for a failure that no completion reports.
    pub(crate) fn fail<M: Memory>(
        &mut self,
        cause: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        self.raise(EventType::QpFatal, Some(cause), resources);
        self.enter_error(io);
    }

    /// Fails because a ring cannot be read.
    fn fail_ring<M: Memory>(
        &mut self,
        broken: Broken,
        producer: Cause,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        let cause = match broken {
            Broken::Producer => producer,
            Broken::Unmapped => Cause::RingUnmapped,
        };
        self.fail(cause, resources, io);
    }

    /// Creates a packet to the peer of a connection.
    fn segment(
        &self,
        psn: Psn,
        body: Body,
        payload: Payload<'static>,
        resources: &Resources,
    ) -> Segment<'static> {
        Segment {
            path: self.path,
            source_qpn: self.number,
            destination_qpn: self.attributes.dest_qpn,
            pkey: resources.pkey(self.attributes.pkey_index),
            psn,
            solicited: false,
            ack_request: false,
            // A congestion notification is not about paths, so its bit is clear.
            migrated: self.migration.is_migrated() && !matches!(body, Body::CongestionNotification),
            service: self.service(0),
            body,
            payload,
            checksums_ok: false,
            touched: Touched::NOT,
        }
    }

    /// Raises an event for this queue pair.
    fn raise(&self, event: EventType, cause: Option<Cause>, resources: &mut Resources) {
        if cause.is_some() {
            let refused = self
                .refused
                .filter(|(why, _)| cause.is_some_and(|cause| cause.as_remote() == why.as_remote()));
            resources.explain(Explanation {
                peer_qpn: self.attributes.dest_qpn,
                access: refused.map(|(_, access)| access),
                ..Explanation::new(Happening::Event(event), self.number, cause)
            });
        }
        resources
            .async_events
            .raise(event, self.number, cause, &mut resources.counters);
    }

    /// Creates a completion of this queue pair.
    fn cqe(&self, wr_id: u64, opcode: Opcode, status: Status, cause: Option<Cause>) -> Cqe {
        Cqe {
            wr_id: wr_id.into(),
            qpn: self.number.into(),
            opcode: opcode.raw(),
            status: status.raw(),
            vendor_error: cause.map_or(0, Cause::code).into(),
            ..Cqe::default()
        }
    }

    /// Returns the state and the attributes, as queries report them.
    pub(crate) fn query(&self) -> QpAttributes {
        let mut attributes = self.attributes.report();
        attributes.state = self.state.raw();
        attributes.current_state = self.state.raw();
        attributes.sq_draining = u8::from(self.is_draining());
        attributes.path_migration_state = self.migration.state().raw();
        if !self.is_quiet() {
            attributes.rq_psn = self.responder.expected().raw().into();
        }
        if matches!(
            self.state,
            QpState::ReadyToSend | QpState::SendQueueDrain | QpState::SendQueueError
        ) {
            attributes.sq_psn = self.requester.next_psn().raw().into();
        }
        attributes
    }

    /// Returns the result of [`query`](Self::query) and the alternate path.
    pub(crate) fn query_paths(&self) -> QpPaths {
        QpPaths {
            attributes: self.query(),
            alternate: self.migration.alternate(),
        }
    }

    /// Returns the memory of all entries of the send queue and of the receive queue.
    pub(crate) fn places(&self) -> [Vec<HostRange>; 2] {
        [self.created.sq.places(), self.created.rq.places()]
    }

    /// Returns what the queue pair is doing, for display.
    pub(crate) fn snapshot<M: Memory>(&self, memory: &M) -> QpSnapshot {
        let posted = |queue: &WorkQueue| {
            let (posted, _) = queue.posted(&|range, offset| memory.glance(range, offset));
            posted
        };
        QpSnapshot {
            number: self.number,
            qp_type: self.created.qp_type,
            state: self.state,
            context: self.created.context,
            owner: self.created.owner,
            pd: self.created.pd,
            destination_qpn: self.attributes.dest_qpn,
            path: self.path,
            send_psn: self.requester.next_psn().raw(),
            unacknowledged_psn: self.requester.unacknowledged().raw(),
            receive_psn: self.responder.expected().raw(),
            sends_in_flight: self.requester.in_flight(),
            responses_waiting: self.responder.waiting(),
            send_cqn: self.created.send_cqn,
            receive_cqn: self.created.recv_cqn,
            mtu: self.mtu,
            sends_posted: posted(&self.created.sq),
            send_entries: self.created.sq.entries(),
            receives_posted: posted(&self.created.rq),
            receive_entries: self.created.rq.entries(),
            srqn: self.created.srqn,
            xrcdn: self.created.xrcdn,
            rate_limit: self.pacer.rate(),
            max_burst: self.attributes.rate_limit.max_burst,
        }
    }
}

/// What a queue pair is doing.
#[derive(Clone, Debug)]
pub struct QpSnapshot {
    /// Number.
    pub number: u32,
    /// Type.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Context that owns the queue pair.
    pub context: u32,
    /// Owner of the context.
    pub owner: Owner,
    /// Protection domain.
    pub pd: u32,
    /// Number of the peer; 0 if not connected.
    pub destination_qpn: u32,
    /// Path to the peer; zero if not connected.
    pub path: Path,
    /// PSN of the next request.
    pub send_psn: u32,
    /// Oldest PSN that the peer has not acknowledged.
    pub unacknowledged_psn: u32,
    /// Next PSN from the peer.
    pub receive_psn: u32,
    /// Send work requests taken from the ring and not yet completed.
    pub sends_in_flight: usize,
    /// Reads, atomics and flushes of the peer that wait to be answered.
    pub responses_waiting: usize,
    /// Completion queue of sends.
    pub send_cqn: u32,
    /// Completion queue of receives.
    pub receive_cqn: u32,
    /// Maximum payload of a packet.
    pub mtu: u32,
    /// Send work requests that were posted and have not completed; `None` if the ring is broken.
    pub sends_posted: Option<u32>,
    /// Number of entries of the send queue; 0 if there is none.
    pub send_entries: u32,
    /// Receives that were posted and have not been used; `None` if the ring is broken.
    pub receives_posted: Option<u32>,
    /// Number of entries of the receive queue; 0 if there is none.
    pub receive_entries: u32,
    /// Shared receive queue.
    pub srqn: Option<u32>,
    /// XRC domain.
    pub xrcdn: Option<u32>,
    /// How fast it may send in kbit/s: its rate limit or the static rate of its path, whichever is lower; `None` if it
    /// has neither.
    pub rate_limit: Option<u32>,
    /// Bytes that it may send without a pause, as its owner set them with the rate limit; 0 means that the device
    /// chooses.
    pub max_burst: u32,
}
