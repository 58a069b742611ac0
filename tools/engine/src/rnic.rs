// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device.

pub use crate::resources::Io;
use crate::{
    cause::Cause,
    checksum::Envelope,
    command::{Progress, memory::Resolution},
    context::Context,
    event::names_port,
    flow::{FlowEnd, FlowTable, Route, Steered},
    limits::{Features, Limits, MAX_XRCDS},
    memory::Memory,
    pause,
    qp::Qp,
    rate::{Pacer, RateLimit},
    resources::{Port, Resources, Untold},
    segment::{Body, DATAGRAM_MTU, Gid, Group, LOCAL_MTU, Path, Segment},
    state::wire,
    subnet::{HcaPort, PortAnswer, PortRequest, Violation},
    table::Table,
    time::Instant,
    trace::Act,
    turn::{Budget, Turn},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use vrnic_wire::{
    command::{ContextKind, qp_flags},
    config::Config,
    counter::Counter,
    event::{AsyncEvent, CompletionEvent, EventType},
    port::{GidEntry, Mtu, PortAttributes, PortState},
    qp::{GSI_QPN, MULTICAST_QPN, QpState, QpType, SMI_QPN},
};

/// Maximum number of contexts whose notify areas are checked in a turn.
const LOOKS_PER_TURN: usize = 32;

/// Maximum number of pending words that are taken in a turn, of all contexts together; fewer if they have many bits.
const WORDS_PER_TURN: u32 = 32;

/// Maximum number of queue pairs that learn at once that their completion queue failed.
const TOLD_AT_ONCE: usize = 64;

/// Maximum number of timers that expire in a turn.
const TIMERS_PER_TURN: usize = 64;

/// Maximum number of bytes of additional copies of packets before the device has its next turn: the length of a port's
/// queue.
const COPIES_PER_TURN: u64 = 8 << 20;

/// Number of bytes that take as long as the rest of the work for a copy.
const COPY_BYTES: u64 = 1024;

/// How messages are divided into segments.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// For the local fabric, with [`LOCAL_MTU`] bytes each.
    #[default]
    Local,
    /// For a wire, by the path MTU of each queue pair.
    PathMtu,
}

/// Link layer of the port of a device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet.
    #[default]
    Ethernet,
    /// InfiniBand. Messages are divided as for a wire, and the GID table is that of the subnet.
    InfiniBand,
}

/// How a reliable connection recovers lost packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// The responder keeps packets that arrive after a missing one. The requester sends only the missing packet again
    /// if its peer keeps the others, too.
    #[default]
    Selective,
    /// The responder drops packets that arrive after a missing one, and the requester sends them again with that one.
    /// This is what the standard describes and other devices do.
    GoBackN,
}

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// MAC address of the network device with which the device is paired.
    pub mac: [u8; 6],
    /// GUID of the node.
    pub node_guid: u64,
    /// Number of completion vectors, at least 1.
    pub completion_vectors: u16,
    /// Number of doorbell pages, which limits the number of contexts; 0 if there is no doorbell region.
    pub doorbell_pages: u32,
    /// Maximum path MTU, which is also the maximum length of a datagram.
    pub max_mtu: Mtu,
    /// Largest number of bytes after the header and the tag of an Ethernet frame of the port's network.
    pub frame_mtu: u16,
    /// How messages are divided into segments.
    pub segmentation: Segmentation,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// How connections recover lost packets.
    pub recovery: Recovery,
    /// Features that were negotiated.
    pub features: Features,
    /// Limits.
    pub limits: Limits,
    /// Seed from which keys are derived. It must never be used twice, and guests must not know it.
    pub seed: [u8; 32],
}

impl Default for RnicConfig {
    /// Returns a configuration for tests, with keys that can be guessed.
    fn default() -> Self {
        Self {
            mac: [2, 0, 0, 0, 0, 1],
            node_guid: 0x0200_00ff_fe00_0001,
            completion_vectors: 4,
            doorbell_pages: 4096,
            segmentation: Segmentation::Local,
            link_layer: LinkLayer::Ethernet,
            recovery: Recovery::default(),
            features: Features::ALL,
            max_mtu: Mtu::Mtu4096,
            frame_mtu: 9000,
            limits: Limits::default(),
            seed: [0; 32],
        }
    }
}

/// A protection domain.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pd {
    pub(crate) context: u32,
    #[serde(with = "wire")]
    pub(crate) kind: ContextKind,
    /// Number of regions, windows and queue pairs that belong to the domain.
    pub(crate) users: u32,
}

/// An XRC domain.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Xrcd {
    /// Queue pairs that belong to the domain.
    pub(crate) targets: BTreeSet<u32>,
    /// Number of shared receive queues that belong to the domain.
    pub(crate) srqs: u32,
}

/// Queue pairs, and the order of their turns.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QueuePairs {
    pub(crate) table: Table<Box<Qp>>,
    /// QP1, if it exists.
    pub(crate) gsi: Option<Box<Qp>>,
    /// QP0, if it exists.
    pub(crate) smi: Option<Box<Qp>>,
    /// Queue pairs with work, in the order of arrival.
    ready: VecDeque<u32>,
    /// Queue pairs that wait for the rate limit of the device, in the order of arrival.
    held_back: VecDeque<u32>,
}

impl QueuePairs {
    /// Returns the queue pair with this number.
    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        match qpn {
            SMI_QPN => self.smi.as_deref(),
            GSI_QPN => self.gsi.as_deref(),
            _ => self.table.get(qpn).map(Box::as_ref),
        }
    }

    /// Returns a mutable reference to the queue pair with this number.
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        match qpn {
            SMI_QPN => self.smi.as_deref_mut(),
            GSI_QPN => self.gsi.as_deref_mut(),
            _ => self.table.get_mut(qpn).map(Box::as_mut),
        }
    }

    /// Returns the number of queue pairs.
    pub(crate) fn len(&self) -> u32 {
        self.table.len() + u32::from(self.gsi.is_some()) + u32::from(self.smi.is_some())
    }

    /// Schedules a turn of the queue pair, unless it already waits for one.
    pub(crate) fn schedule(&mut self, qpn: u32) {
        if let Some(qp) = self.get_mut(qpn)
            && !std::mem::replace(&mut qp.scheduled, true)
        {
            self.ready.push_back(qpn);
        }
    }

    /// Schedules a turn of the queue pair for when the rate limit lets it send.
    fn hold_back(&mut self, qpn: u32) {
        if let Some(qp) = self.get_mut(qpn)
            && !std::mem::replace(&mut qp.held_back, true)
        {
            self.held_back.push_back(qpn);
        }
    }

    /// Returns the next queue pair. One that the rate limit held back gets a turn only if it `may_send` now.
    fn next(&mut self, may_send: bool) -> Option<u32> {
        if let Some(qpn) = self.ready.pop_front() {
            return Some(qpn);
        }
        let qpn = may_send.then(|| self.held_back.pop_front())??;
        if let Some(qp) = self.get_mut(qpn) {
            qp.held_back = false;
        }
        Some(qpn)
    }
}

/// Numbers of a device's objects, and what it is doing.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Contexts.
    pub contexts: u32,
    /// Contexts whose notify areas are being polled.
    pub polled_contexts: usize,
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: usize,
    /// Memory windows.
    pub mws: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// XRC domains.
    pub xrcds: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Attachments of queue pairs to multicast groups.
    pub attachments: usize,
    /// Counter sets.
    pub counter_sets: u32,
    /// Completion counters.
    pub completion_counters: u32,
    /// Flows.
    pub flows: usize,
    /// Queue pairs with work.
    pub ready_qps: usize,
    /// Host ranges used by page lists.
    pub translations: usize,
    /// Bytes of packets that arrived before their turn.
    pub kept_bytes: usize,
}

/// An RDMA device. See the [crate documentation](crate) for how to drive it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Engine {
    /// Not part of the saved state. The caller supplies it again when the state is restored.
    #[serde(skip)]
    pub(crate) config: RnicConfig,
    pub(crate) resources: Resources,
    pub(crate) contexts: Table<Context>,
    /// Context of each doorbell page.
    pub(crate) pages: Vec<Option<u32>>,
    pub(crate) pds: Table<Pd>,
    pub(crate) xrcds: Table<Xrcd>,
    pub(crate) qps: QueuePairs,
    pub(crate) flows: FlowTable,
    /// Queue pairs that get the frame that is being received.
    #[serde(skip)]
    steered: Route,
    /// Number of host ranges used by all page lists.
    pub(crate) translations: usize,
    /// Page list of a command that takes several turns.
    pub(crate) resolution: Option<Resolution>,
    /// Other command that takes several turns.
    pub(crate) progress: Option<Progress>,
    /// Number of pages that commands have handled. Only the caller looks at it.
    #[serde(skip)]
    pub(crate) effort: u64,
    /// Contexts that are polled, or about to be.
    polled: Vec<u32>,
    /// Index of the context to check next.
    next_look: usize,
    /// Enforces the rate limit of the device.
    pacer: Pacer,
    /// Bytes by which earlier turns exceeded their budgets, and of additional copies of packets.
    overdrawn: u64,
    /// Whether a fault made the device fail.
    pub(crate) failing: bool,
    /// Whether a fault wants the process to end.
    pub(crate) killing: bool,
}

impl Engine {
    /// Creates a device in the state after a reset. To reset a device, create a new one with a fresh seed.
    pub fn new(mut config: RnicConfig) -> Self {
        config.completion_vectors = config.completion_vectors.max(1);
        config.limits = config.limits.clamped();
        let limits = &mut config.limits;
        let infiniband = config.link_layer == LinkLayer::InfiniBand;
        if infiniband {
            config.segmentation = Segmentation::PathMtu;
            limits.gid_table = crate::subnet::GIDS;
        }
        if config.doorbell_pages != 0 {
            limits.contexts = limits.contexts.min(config.doorbell_pages);
        }
        let mtu = match config.segmentation {
            Segmentation::Local => Some(LOCAL_MTU),
            Segmentation::PathMtu => None,
        };
        let mut resources = Resources::new(
            *limits,
            config.features,
            mtu,
            config.completion_vectors,
            config.seed,
        );
        resources.mtu = config.max_mtu;
        resources.frame_mtu = config.frame_mtu;
        if infiniband {
            resources.subnet = Some(Box::default());
            // The link is down until the subnet manager brings the port up.
            resources.port.link = false;
        }
        resources.recovers_selectively = config.recovery == Recovery::Selective;
        config.seed = [0; 32];
        Self {
            resources,
            contexts: Table::new(1, config.limits.contexts),
            pages: vec![None; config.limits.contexts as usize],
            pds: Table::new(1, config.limits.pd),
            xrcds: Table::new(1, MAX_XRCDS),
            qps: QueuePairs {
                // The limit includes QP0 and QP1, which are not in the table.
                table: Table::new(2, config.limits.qp),
                gsi: None,
                smi: None,
                ready: VecDeque::new(),
                held_back: VecDeque::new(),
            },
            flows: FlowTable::default(),
            steered: Route::default(),
            translations: 0,
            resolution: None,
            progress: None,
            effort: 0,
            polled: Vec::new(),
            next_look: 0,
            pacer: Pacer::default(),
            overdrawn: 0,
            failing: false,
            killing: false,
            config,
        }
    }

    /// Returns how many pages, or what takes as long, commands have handled so far. The caller should execute no more
    /// commands in a turn when this has grown by [`PAGES_AT_ONCE`](crate::PAGES_AT_ONCE).
    pub fn effort(&self) -> u64 {
        self.effort
    }

    /// Returns the features that were negotiated.
    pub fn features(&self) -> Features {
        self.config.features
    }

    /// Returns the device configuration space.
    pub fn config_space(&self) -> Config {
        Config {
            mac: self.config.mac,
            completion_vectors: self.config.completion_vectors.into(),
            node_guid: self.config.node_guid.into(),
            doorbell_pages: self.config.doorbell_pages.into(),
            ports: 1.into(),
            reserved: [0; 8],
        }
    }

    /// Executes a control command. `request` is its readable part, and its writable part is appended to `reply`. Any
    /// bytes get an answer. Returns `false` if the command takes several turns: there is no reply yet, and the caller
    /// must call this again with the same request after other work had its turn.
    #[must_use]
    pub fn execute<M: Memory>(
        &mut self,
        request: &[u8],
        reply: &mut Vec<u8>,
        io: &mut Io<'_, M>,
    ) -> bool {
        self.resources.now = io.now;
        let done = crate::command::execute(self, request, reply, io);
        self.settle(io);
        done
    }

    /// Processes a write of `value` to doorbell page `page` by the driver.
    pub fn doorbell(&mut self, page: u32, value: u32) {
        self.resources.counters.count(Counter::Doorbells);
        let context = self.pages.get(page as usize).copied().flatten();
        if !context.is_some_and(|context| self.ring(context, value)) {
            self.resources.counters.count(Counter::InvalidDoorbells);
        }
    }

    /// Rings a doorbell of a context for a slot. Returns whether the slot belongs to a queue pair.
    pub(crate) fn ring(&mut self, number: u32, slot: u32) -> bool {
        if self.resources.faults.is_busy() {
            let owner = self
                .contexts
                .get(number)
                .and_then(|found| found.owner(slot));
            if self.withhold_doorbell(number, slot, owner) {
                return owner.is_some();
            }
        }
        self.ring_now(number, slot)
    }

    /// Rings a doorbell as [`ring`](Self::ring) does, but ignores faults.
    pub(crate) fn ring_now(&mut self, number: u32, slot: u32) -> bool {
        let Some(context) = self.contexts.get_mut(number) else {
            return false;
        };
        let owner = context.owner(slot);
        if !std::mem::replace(&mut context.listed, true) {
            self.polled.push(number);
        }
        if let Some(qpn) = owner {
            self.qps.schedule(qpn);
        }
        owner.is_some()
    }

    /// Checks the notify areas of polled contexts, and works as much as `budget` allows. Later turns pay for the part
    /// of the last segment that exceeds it. Returns whether there was or still is work, or there are new events.
    pub fn poll<M: Memory>(&mut self, budget: Budget, io: &mut Io<'_, M>) -> bool {
        self.resources.now = io.now;
        let mut left = self.resources.faults.budget(budget, io.now);
        // A turn without work still reports events, unless a fault holds the device back.
        if left.is_over() && !budget.is_over() {
            return false;
        }
        let found = self.look_at_contexts(io);
        let mut worked = false;
        self.overdrawn = left.pay(Budget {
            units: 0,
            bytes: self.overdrawn,
        });
        while !left.is_over() {
            let allowed = self.pacer.allows(io.now);
            let Some(qpn) = self.qps.next(!allowed.is_none()) else {
                break;
            };
            if !self.resources.paused.is_empty() && self.waits(qpn) {
                // However many there are, the turn ends.
                left.pay(Budget { units: 1, bytes: 0 });
                continue;
            }
            let mut turn = Turn::new(left, allowed);
            let ran = self.act(qpn, |qp, resources| {
                qp.scheduled = false;
                qp.run(&mut turn, resources, io);
            });
            if ran.is_none() {
                continue;
            }
            let mut spent = turn.spent();
            worked |= spent.units > 0;
            spent.units = spent.units.max(1);
            self.overdrawn += left.pay(spent);
            self.pacer.charge(turn.sent(), io.now);
            if turn.is_held_back() {
                self.qps.hold_back(qpn);
            }
            if turn.leaves_work() {
                self.qps.schedule(qpn);
            }
            self.loop_back(io);
        }
        let told = self.settle(io);
        found || worked || told || !self.qps.ready.is_empty()
    }

    /// Lets a queue pair wait if its receiver is paused. Returns whether it waits.
    #[cold]
    fn waits(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        let Some(receiver) = qp.receiver() else {
            return false;
        };
        let paused = &mut self.resources.paused;
        if !paused.contains(&receiver) {
            return false;
        }
        qp.scheduled = false;
        if qp.awaited.replace(receiver) != Some(receiver) {
            paused.wait(&receiver, qpn);
        }
        true
    }

    /// Puts off the timer of a queue pair, whose `reminder` was due, if its receiver is paused. Returns whether it is.
    #[cold]
    fn puts_off(&mut self, qpn: u32, reminder: Instant) -> bool {
        let resources = &mut self.resources;
        let qp = self.qps.get_mut(qpn);
        let Some(qp) = qp.filter(|qp| {
            let receiver = qp.receiver();
            receiver.is_some_and(|receiver| resources.paused.contains(&receiver))
        }) else {
            return false;
        };
        if qp.reminder == Some(reminder) {
            qp.reminder = None;
        }
        let later = resources.now + pause::RETRY;
        qp.excuse_peer(later);
        resources.timers.remind(qpn, later, &mut qp.reminder);
        true
    }

    /// Lets everything wait that is for `receiver`, answers of connections as well, until the next call of
    /// [`resume`](Self::resume). Only congestion notifications are still sent, and the last acknowledgement of a queue
    /// pair that fails.
    pub(crate) fn pause(&mut self, receiver: Gid) {
        self.resources.paused.pause(receiver);
    }

    /// Ends a [pause](Self::pause).
    pub(crate) fn resume(&mut self, receiver: &Gid) {
        for qpn in self.resources.paused.resume(receiver) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.awaited = None;
                self.qps.schedule(qpn);
            }
        }
    }

    /// Returns whether queue pairs wait for another turn of the device, because the last one was too short for them.
    pub fn has_ready(&self) -> bool {
        !self.qps.ready.is_empty()
    }

    /// Announces to all polled contexts that the worker is about to sleep, and checks for work again. Returns `true` if
    /// there is work, in which case the worker must not sleep.
    pub fn prepare_sleep<M: Memory>(&mut self, io: &mut Io<'_, M>) -> bool {
        self.resources.now = io.now;
        let told = self.settle(io);
        let waits = self.resources.faults.conditions.is_stuck() || !self.qps.ready.is_empty();
        if waits && self.resources.faults.holds_back(io.now) {
            return told;
        }
        for &number in &self.polled {
            if let Some(context) = self.contexts.get(number)
                && context.polled
            {
                context.announce_sleep(io.memory);
            }
        }
        io.memory.fence();
        let mut work = told || !self.qps.ready.is_empty();
        let contexts = &mut self.contexts;
        self.polled.retain(|&number| {
            let Some(context) = contexts.get_mut(number) else {
                return false;
            };
            // A context that was rung and has not been checked yet may have work.
            if !context.polled || context.has_work(io.memory) {
                context.start_polling(io.now, io.memory);
                work = true;
                true
            } else {
                context.stop_polling();
                false
            }
        });
        work
    }

    /// Takes the pending bits of the polled contexts that are next. Returns whether there were any.
    fn look_at_contexts<M: Memory>(&mut self, io: &mut Io<'_, M>) -> bool {
        let mut found = false;
        let mut left = WORDS_PER_TURN;
        for _ in 0..self.polled.len().min(LOOKS_PER_TURN) {
            if left == 0 {
                break;
            }
            if self.next_look >= self.polled.len() {
                self.next_look = 0;
            }
            let Some(&number) = self.polled.get(self.next_look) else {
                break;
            };
            let Some(context) = self.contexts.get_mut(number) else {
                self.polled.swap_remove(self.next_look);
                continue;
            };
            if !context.polled {
                context.start_polling(io.now, io.memory);
                io.memory.fence();
            }
            let qps = &mut self.qps;
            let counters = &mut self.resources.counters;
            let ring = |qpn| qps.schedule(qpn);
            found |= context.look(&mut left, io.now, counters, io.memory, ring);
            if context.is_idle(io.now) {
                context.announce_sleep(io.memory);
                io.memory.fence();
                if context.has_work(io.memory) {
                    context.start_polling(io.now, io.memory);
                    found = true;
                } else {
                    context.stop_polling();
                    self.polled.swap_remove(self.next_look);
                    continue;
                }
            }
            self.next_look += 1;
        }
        found
    }

    /// Receives a segment for a GID of this device, or a frame that arrived at its port. `io.outbox` takes back its
    /// payload. The caller must call [`poll`](Self::poll) afterwards.
    pub fn receive<M: Memory>(&mut self, segment: &mut Segment<'_>, io: &mut Io<'_, M>) {
        self.resources.now = io.now;
        if self.resources.faults.is_busy() {
            return self.arrive(segment, io);
        }
        self.accept(segment, io);
    }

    /// Processes a segment that no fault holds back.
    pub(crate) fn accept<M: Memory>(&mut self, segment: &mut Segment<'_>, io: &mut Io<'_, M>) {
        self.resources.note_arrived(segment);
        if matches!(segment.body, Body::Frame { .. }) {
            self.steer(segment.payload.bytes());
            self.deliver_frame(segment, io);
            return io.outbox.recycle(segment.take_payload());
        }
        if segment.path.is_multicast() {
            // The device's own packets were delivered when they were sent.
            if !self.is_own(&segment.path) {
                self.receive_multicast(segment, None, io);
            }
            return io.outbox.recycle(segment.take_payload());
        }
        let qpn = segment.destination_qpn;
        let taken = self.resources.passes(segment)
            && self.resources.may_be_for_port(&segment.path)
            && self
                .act(qpn, |qp, resources| {
                    qp.take_segment(segment, resources, io);
                })
                .is_some();
        if taken {
            self.qps.schedule(qpn);
        } else {
            self.resources.counters.count(Counter::Dropped);
        }
        io.outbox.recycle(segment.take_payload());
    }

    /// Lets the queue pair with this number act, if there is one. Events are counted for it meanwhile.
    pub(crate) fn act<R>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Qp, &mut Resources) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(qpn)?;
        self.resources.counters.act_for(qp.counter_set);
        if self.resources.faults.is_busy() {
            self.resources.faults.act_for(Some(qp.subject()));
        }
        let from = qp.state();
        let result = work(qp, &mut self.resources);
        let to = qp.state();
        if from != to {
            self.resources.note(qpn, || Act::Moved { from, to });
            if to == QpState::Error {
                let created = qp.created();
                let cqns = [created.send_cqn, created.recv_cqn];
                self.resources.note_in_error(qpn, cqns);
            }
        }
        self.resources.faults.act_for(None);
        self.resources.counters.act_for(None);
        Some(result)
    }

    /// Returns whether queue pairs can send and receive whole frames.
    pub(crate) fn has_raw_packets(&self) -> bool {
        self.config.features.raw_packets && self.resources.subnet.is_none()
    }

    /// Returns whether the frames of a flow can be distributed among queues.
    pub(crate) fn has_receive_scaling(&self) -> bool {
        self.config.features.receive_scaling && self.has_raw_packets()
    }

    /// Returns whether queue pairs of this type fill in and check the checksums of IP packets.
    pub(crate) fn has_checksums(&self, qp_type: QpType) -> bool {
        self.config.features.checksums
            && match qp_type {
                QpType::RawPacket | QpType::ReceiveQueue => self.has_raw_packets(),
                QpType::UnreliableDatagram => self.resources.subnet.is_some(),
                _ => false,
            }
    }

    /// Notes in a segment that arrived whether it is an IP packet with the right checksums.
    pub(crate) fn check_checksums(&self, segment: &mut Segment<'_>) {
        let envelope = match segment.body {
            Body::Frame { .. } => Some((QpType::RawPacket, Envelope::Frame)),
            Body::Datagram { .. } => Some((QpType::UnreliableDatagram, Envelope::Datagram)),
            _ => None,
        };
        segment.checksums_ok = envelope.is_some_and(|(qp_type, envelope)| {
            self.has_checksums(qp_type) && envelope.is_right(segment.payload.bytes())
        });
    }

    /// Returns the flows, which determine the frames that queue pairs of this device get.
    pub fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// Finds the queue pairs to which flows direct a frame. [`receive_steered`](Self::receive_steered) delivers it.
    pub(crate) fn steer(&mut self, frame: &[u8]) -> Steered {
        self.steered.clear();
        let active = self.resources.port.is_active();
        Steered {
            passes: !active || self.flows.find(frame, &mut self.steered),
            taken: self.steered.is_taken(),
        }
    }

    /// Receives the frame that was just [steered](Self::steer).
    pub(crate) fn receive_steered<M: Memory>(
        &mut self,
        segment: &mut Segment<'_>,
        io: &mut Io<'_, M>,
    ) {
        self.resources.now = io.now;
        if self.resources.faults.is_busy() {
            return self.arrive(segment, io);
        }
        self.resources.note_arrived(segment);
        self.deliver_frame(segment, io);
        io.outbox.recycle(segment.take_payload());
    }

    /// Delivers the frame that was just [steered](Self::steer).
    fn deliver_frame<M: Memory>(&mut self, segment: &mut Segment<'_>, io: &mut Io<'_, M>) {
        let mut route = std::mem::take(&mut self.steered);
        self.flows.count(&route, segment.payload.len());
        if route.ends.is_empty() && !route.is_dropped {
            self.resources.counters.count(Counter::Dropped);
        }
        for (copies, FlowEnd { qpn, tag }) in route.ends.drain(..).enumerate() {
            if copies > 0 && !self.pay_for_copy(segment) {
                continue;
            }
            segment.body = Body::Frame { tag };
            self.act(qpn, |qp, resources| qp.take_segment(segment, resources, io));
            self.qps.schedule(qpn);
        }
        self.steered = route;
    }

    /// Pays for an additional copy of a packet: the sender has paid for one, and this device pays for the others, so
    /// that they do not slow down others. Returns false if there were too many, and counts this one as dropped.
    fn pay_for_copy(&mut self, segment: &Segment) -> bool {
        let pays = self.overdrawn < COPIES_PER_TURN;
        if pays {
            self.overdrawn += COPY_BYTES + segment.payload.len();
        } else {
            self.resources.counters.count(Counter::Dropped);
        }
        pays
    }

    /// Delivers a datagram to all members of its group. It does not count as dropped if there are none. `sender` is the
    /// queue pair of this device that sent it.
    fn receive_multicast<M: Memory>(
        &mut self,
        segment: &Segment,
        sender: Option<u32>,
        io: &mut Io<'_, M>,
    ) {
        let path = &segment.path;
        if !self.resources.port.is_active()
            || segment.destination_qpn != MULTICAST_QPN
            || !matches!(segment.body, Body::Datagram { .. })
            || !self.resources.may_be_in_group(path)
        {
            return self.resources.counters.count(Counter::Dropped);
        }
        let mut index = 0;
        while let Some(&qpn) = self.resources.groups.members(&path.group()).get(index) {
            index += 1;
            // A queue pair of this device has paid for all copies of what it sends.
            if index > 1 && sender.is_none() && !self.pay_for_copy(segment) {
                continue;
            }
            let taken = self.act(qpn, |qp, resources| {
                if sender != Some(qpn) || !qp.created().has(qp_flags::BLOCK_OWN_MULTICAST) {
                    qp.take_segment(segment, resources, io);
                }
            });
            if taken.is_some() {
                self.qps.schedule(qpn);
            }
        }
    }

    /// Delivers datagrams that queue pairs sent to groups with local members.
    fn loop_back<M: Memory>(&mut self, io: &mut Io<'_, M>) {
        if self.resources.looped.is_empty() {
            return;
        }
        let mut looped = std::mem::take(&mut self.resources.looped);
        for mut segment in looped.drain(..) {
            self.check_checksums(&mut segment);
            self.receive_multicast(&segment, Some(segment.source_qpn), io);
            io.outbox.recycle(segment.payload);
        }
        self.resources.looped = looped;
    }

    /// Counts a packet that is not a valid segment, or not for a GID of this device.
    pub fn count_bad_packet(&mut self, wrong_crc: bool) {
        self.resources.counters.count(if wrong_crc {
            Counter::IcrcErrors
        } else {
            Counter::MalformedPackets
        });
    }

    /// Handles expired timers.
    pub fn advance<M: Memory>(&mut self, io: &mut Io<'_, M>) {
        self.resources.now = io.now;
        if self.resources.faults.is_busy() {
            self.advance_faults(io);
            if self.resources.faults.conditions.is_stuck() {
                self.settle(io);
                return;
            }
        }
        for _ in 0..TIMERS_PER_TURN {
            let Some((reminder, qpn)) = self.resources.timers.pop_due(io.now) else {
                break;
            };
            if !self.resources.paused.is_empty() && self.puts_off(qpn, reminder) {
                continue;
            }
            let reminded = self.act(qpn, |qp, resources| qp.remind(reminder, resources, io));
            if reminded.is_some() {
                self.qps.schedule(qpn);
            }
        }
        self.resources.async_events.release(io.now);
        self.resources.release_events(io.memory);
        self.settle(io);
    }

    /// Returns the latest time for the next call of [`advance`](Self::advance).
    pub fn next_deadline(&self) -> Option<Instant> {
        let resources = &self.resources;
        let faults = resources.faults.next_deadline();
        if resources.faults.conditions.is_stuck() {
            return faults;
        }
        let pace = resources
            .faults
            .pace()
            .filter(|_| !self.qps.ready.is_empty());
        let held_back = !self.qps.held_back.is_empty();
        let deadlines = [
            held_back.then(|| self.pacer.due()),
            resources.timers.next(),
            resources.held_events.next(),
            resources.async_events.next_held(),
            faults,
            pace,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Raises completion events that are due, and tells some queue pairs that their completion queue failed. Returns
    /// whether there is anything to report, or others are still to be told.
    fn settle<M: Memory>(&mut self, io: &mut Io<'_, M>) -> bool {
        let failed = self.resources.has_untold();
        for _ in 0..TOLD_AT_ONCE {
            match self.resources.next_untold() {
                None => break,
                Some(Untold::QueuePair(qpn)) => {
                    let fail = |qp: &mut Qp, resources: &mut Resources| {
                        qp.fail(Cause::CqFailed, resources, io);
                    };
                    if self.act(qpn, fail).is_some() {
                        self.qps.schedule(qpn);
                    }
                    // This was it.
                    self.resources.forget_untold(Untold::QueuePair(qpn));
                }
                Some(Untold::SharedQueue(srqn)) => self.resources.fail_srq(srqn, Cause::CqFailed),
            }
        }
        if self.resources.faults.is_busy() {
            self.settle_victims(io);
        }
        self.resources.announce(io.memory) || failed
    }

    /// Returns the next asynchronous event. To be called when the driver has a buffer for it.
    pub fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let event = self.take_async_event();
        let resources = &mut self.resources;
        if let Some(event) = &event
            && resources.faults.is_busy()
            && let Ok(event_type) = EventType::try_from(event.event_type.get())
        {
            resources.faults.event_given(event_type, resources.now);
        }
        resources.note_event(event)
    }

    fn take_async_event(&mut self) -> Option<AsyncEvent> {
        let resources = &mut self.resources;
        if let Some(released) = resources.async_events.pop_released() {
            return Some(released);
        }
        loop {
            let event = resources.async_events.pop()?;
            if !resources.faults.is_busy() {
                return Some(event);
            }
            let goes = resources.withhold_event(event);
            if goes.is_some() {
                return goes;
            }
        }
    }

    /// Returns the next completion event of a vector. To be called when the driver has a buffer for it.
    pub fn next_completion_event(&mut self, vector: u16) -> Option<CompletionEvent> {
        let event = self.resources.completion_events.pop(vector)?;
        if let Some(cq) = self.resources.cqs.get_mut(event.cqn.get()) {
            cq.event_waits = false;
        }
        Some(event)
    }

    /// Returns whether the device has this GID.
    pub fn has_gid(&self, gid: &Gid) -> bool {
        match &self.resources.subnet {
            Some(subnet) => subnet.port.has_gid(gid),
            None => self.resources.gids.iter().any(|entry| entry.gid == *gid),
        }
    }

    /// Returns whether the device has this LID.
    pub fn has_lid(&self, lid: u16) -> bool {
        let subnet = self.resources.subnet.as_ref();
        subnet.is_some_and(|subnet| subnet.port.has_lid(lid))
    }

    /// Returns whether a packet by this path came from this device.
    fn is_own(&self, path: &Path) -> bool {
        match path.lids {
            Some(lids) => self.has_lid(lids.source),
            None => self.has_gid(&path.source),
        }
    }

    /// Returns whether the port is on an InfiniBand subnet.
    pub fn is_on_subnet(&self) -> bool {
        self.resources.subnet.is_some()
    }

    /// Returns the state of a port on a subnet, or `None` for an Ethernet port.
    pub fn hca_port(&self) -> Option<&HcaPort> {
        Some(&self.resources.subnet.as_ref()?.port)
    }

    /// Sets the state of a port on a subnet, which a subnet manager or the link changed. `reregister` says whether
    /// clients must register again. Raises events for all changes.
    pub fn set_hca_port(&mut self, port: HcaPort, reregister: bool) {
        let resources = &mut self.resources;
        let Some(subnet) = &mut resources.subnet else {
            return;
        };
        let before = std::mem::replace(&mut subnet.port, port);
        let port = &subnet.port;
        let [lids, manager, pkeys, gids] = port.changes_since(&before);
        let changes = [
            (lids, EventType::LidChange),
            (manager, EventType::SmChange),
            (pkeys, EventType::PkeyChange),
            (gids, EventType::GidChange),
            (reregister, EventType::ClientReregister),
        ];
        resources.mtu = port.active_mtu;
        let state = port.state;
        for (_, event) in changes.into_iter().filter(|(changed, _)| *changed) {
            resources
                .async_events
                .raise(event, 1, None, &mut resources.counters);
        }
        self.change_port(|port| {
            port.link = state == PortState::Active;
            port.managed = state != PortState::Down;
        });
    }

    /// Returns what a command asks of an agent of the port, once.
    pub fn next_port_request(&mut self) -> Option<PortRequest> {
        self.resources.subnet.as_mut()?.next_request()
    }

    /// Sets the answer of the agent. The command must then be executed again.
    pub fn answer_port_request(&mut self, answer: PortAnswer) {
        if let Some(subnet) = &mut self.resources.subnet {
            subnet.answer(answer);
        }
    }

    /// Returns the next packet with a wrong key, for the agent to count and report.
    pub fn next_violation(&mut self) -> Option<Violation> {
        self.resources.subnet.as_mut()?.next_violation()
    }

    /// Returns whether queue pairs of this device are attached to the multicast group.
    pub fn has_group(&self, group: &Group) -> bool {
        !self.resources.groups.members(group).is_empty()
    }

    /// Returns the LIDs of the multicast groups to which queue pairs are attached.
    pub fn group_lids(&self) -> impl Iterator<Item = u16> {
        self.resources.groups.iter().map(|((_, lid), _)| *lid)
    }

    /// Returns the multicast groups to which queue pairs are attached.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.resources.groups.iter().map(|(group, _)| group)
    }

    /// Returns a number that changes whenever these groups do.
    pub fn group_generation(&self) -> u64 {
        self.resources.groups.generation()
    }

    /// Returns all entries of the GID table that are in use.
    pub fn gids(&self) -> impl Iterator<Item = &GidEntry> {
        self.resources.gids.iter()
    }

    /// Returns a number that changes whenever the GID table does.
    pub fn gid_generation(&self) -> u64 {
        self.resources.gids.generation()
    }

    /// Sets the rate limit of the device.
    pub fn set_rate_limit(&mut self, limit: RateLimit) {
        self.pacer.set(limit, self.resources.now);
    }

    /// Brings the link of the port up or down. While it is down, all packets sent or received are lost.
    pub fn set_link(&mut self, up: bool) {
        self.change_port(|port| port.link = up);
    }

    /// Changes the properties that the state of the port depends on. Raises an event if the state changes.
    pub(crate) fn change_port(&mut self, change: impl FnOnce(&mut Port)) {
        let resources = &mut self.resources;
        let before = resources.port.is_active();
        change(&mut resources.port);
        let active = resources.port.is_active();
        if active == before {
            return;
        }
        let event = if active {
            EventType::PortActive
        } else {
            EventType::PortError
        };
        // Pending events about the port are out of date.
        resources.async_events.forget(1, names_port);
        resources
            .async_events
            .raise(event, 1, None, &mut resources.counters);
    }

    /// Returns the attributes of the port.
    pub fn port_attributes(&self) -> PortAttributes {
        const _: () = assert!(Mtu::Mtu4096.bytes() == DATAGRAM_MTU);
        /// Verbs encoding of four lanes.
        const WIDTH_4X: u8 = 2;
        /// Verbs encoding of 25 Gbit/s per lane.
        const SPEED_EDR: u16 = 32;
        /// Verbs encodings of one lane, and of 2.5 Gbit/s per lane.
        const SLOW: (u8, u16) = (1, 1);
        let state = |active| {
            if active {
                PortState::Active.raw()
            } else {
                PortState::Down.raw()
            }
        };
        let (width, speed) = if self.resources.faults.conditions.is_slow_link() {
            SLOW
        } else {
            (WIDTH_4X, SPEED_EDR)
        };
        let port = self.resources.port;
        if let Some(subnet) = &self.resources.subnet {
            let it = &subnet.port;
            let down = !port.enabled || port.broken;
            return PortAttributes {
                state: if down { PortState::Down } else { it.state }.raw(),
                max_mtu: it.max_mtu.raw(),
                active_mtu: it.active_mtu.raw(),
                active_width: it.width,
                active_speed: it.speed.into(),
                pkey_table_length: (it.pkeys.len() as u16).into(),
                gid_table_length: crate::subnet::GIDS.into(),
                max_message_size: crate::limits::MAX_MESSAGE.into(),
                bad_pkey_count: it.bad_pkeys.into(),
                qkey_violation_count: it.bad_qkeys.into(),
                administrative_state: state(port.enabled),
                reserved: [0; 7],
            };
        }
        PortAttributes {
            state: state(port.is_active()),
            max_mtu: self.config.max_mtu.raw(),
            active_mtu: self.resources.mtu.raw(),
            active_width: width,
            active_speed: speed.into(),
            pkey_table_length: 1.into(),
            gid_table_length: self.config.limits.gid_table.into(),
            max_message_size: crate::limits::MAX_MESSAGE.into(),
            bad_pkey_count: self.resources.bad_pkeys.into(),
            qkey_violation_count: self.resources.bad_qkeys.into(),
            administrative_state: state(port.enabled),
            reserved: [0; 7],
        }
    }

    /// Returns the values of all counters, in the order of [`Counter::ALL`].
    pub fn counters(&self) -> &[u64] {
        self.resources.counters.values()
    }

    /// Returns the numbers of objects.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            contexts: self.contexts.len(),
            polled_contexts: self.polled.len(),
            pds: self.pds.len(),
            mrs: self.resources.keys.regions(),
            mws: self.resources.keys.windows(),
            cqs: self.resources.cqs.len(),
            srqs: self.resources.srqs.len(),
            xrcds: self.xrcds.len(),
            qps: self.qps.len(),
            attachments: self.resources.groups.attachments(),
            counter_sets: self.resources.counters.sets(),
            completion_counters: self.resources.completion_counters.len(),
            flows: self.flows.len(),
            ready_qps: self.qps.ready.len(),
            translations: self.translations,
            kept_bytes: self.resources.kept.bytes(),
        }
    }
}
