// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Resources that the queue pairs of a device share.

use crate::{
    cause::Cause,
    completion_counter::CompletionCounters,
    counter::Counters,
    cq::{Cq, Notice, Pushed},
    event::{AsyncEvents, CompletionEvents},
    explain::{Explanation, Happening, Record},
    fault::Faults,
    gid::GidTable,
    keys::Keys,
    limits::{Features, Limits},
    memory::{HostRange, Memory, Unmapped},
    multicast::Groups,
    pause::Paused,
    persistence::Syncs,
    qp::{Held, Kept},
    segment::{Outbox, Path, Payload, Segment},
    srq::{Entry, Srq},
    state::wire,
    subnet::{Subnet, Violation, pkeys_match},
    table::Table,
    time::Instant,
    timer::Timers,
    trace::{Act, Trace},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use vrnic_wire::{
    completion::{Cqe, Status},
    counter::Counter,
    event::EventType,
    port::{DEFAULT_PKEY, FULL_MEMBERSHIP, Mtu},
    qp::SMI_QPN,
    work::Sge,
};

/// What one call of the device works with: guest memory, the time, and where segments go.
#[derive(Debug)]
pub struct Io<'a, M: Memory> {
    /// Guest memory. It resolves addresses of the guest that the device belongs to.
    pub memory: &'a M,
    /// Current time, never earlier than in the previous call.
    pub now: Instant,
    /// Where outgoing segments go.
    pub outbox: &'a mut Outbox,
}

/// What determines the state of the port.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Port {
    /// Whether the device's own link is up.
    pub(crate) link: bool,
    /// Whether the driver has enabled the port.
    pub(crate) enabled: bool,
    /// Whether a fault keeps the port down.
    pub(crate) broken: bool,
    /// InfiniBand: whether management packets pass although the link is not up for others.
    pub(crate) managed: bool,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            link: true,
            enabled: true,
            broken: false,
            managed: false,
        }
    }
}

impl Port {
    /// Returns whether anything is sent or received.
    pub(crate) fn is_active(self) -> bool {
        self.link && self.enabled && !self.broken
    }

    /// Returns whether packets of subnet management are sent and received.
    fn is_manageable(self) -> bool {
        self.managed && self.enabled && !self.broken
    }
}

/// A user of a completion queue that failed, by its number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Untold {
    /// A queue pair.
    QueuePair(u32),
    /// A shared receive queue.
    SharedQueue(u32),
}

/// Everything that queue pairs use but do not own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Limits from the configuration.
    #[serde(skip)]
    pub(crate) limits: Limits,
    /// Largest payload of a segment on this fabric; `None` if the path MTU of each queue pair determines it.
    pub(crate) fabric_mtu: Option<u32>,
    pub(crate) port: Port,
    /// The port on a subnet; `None` on Ethernet.
    pub(crate) subnet: Option<Box<Subnet>>,
    /// Largest path MTU and largest length of a datagram.
    #[serde(with = "wire")]
    pub(crate) mtu: Mtu,
    /// Largest number of bytes after the header of an Ethernet frame.
    pub(crate) frame_mtu: u16,
    pub(crate) keys: Keys,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) gids: GidTable,
    pub(crate) groups: Groups,
    /// Datagrams that were sent to groups with members on this device.
    pub(crate) looped: Vec<Segment<'static>>,
    pub(crate) counters: Counters,
    pub(crate) completion_counters: CompletionCounters,
    pub(crate) async_events: AsyncEvents,
    pub(crate) completion_events: CompletionEvents,
    /// Timers of queue pairs.
    pub(crate) timers: Timers,
    /// Timers of completion queues whose events are held back.
    pub(crate) held_events: Timers,
    /// Receivers for which nothing may be sent.
    pub(crate) paused: Paused,
    pub(crate) bad_qkeys: u32,
    pub(crate) bad_pkeys: u32,
    /// Segments that wait for pages.
    pub(crate) held: Held,
    /// Packets that arrived out of order.
    pub(crate) kept: Kept,
    /// Whether connections keep packets that arrive early, and retransmit only the missing ones.
    pub(crate) recovers_selectively: bool,
    /// Whether connections may have an alternate path.
    pub(crate) migrates_paths: bool,
    /// Flushes to persistent memory.
    pub(crate) syncs: Syncs,
    /// Explanations of what went wrong recently.
    pub(crate) record: Record,
    /// Recent steps, while someone requests them. No decision depends on them.
    #[serde(skip)]
    pub(crate) trace: Trace,
    /// Time of the current call of the device.
    pub(crate) now: Instant,
    /// Faults on demand.
    pub(crate) faults: Faults,
    /// Completion queues with completions since the last look at their arm words.
    unannounced: Vec<u32>,
    /// Users of completion queues that failed, which have not been told yet.
    untold: BTreeSet<Untold>,
    /// Ranges of an access. Kept only to reuse the allocation.
    #[serde(skip)]
    scratch: Vec<HostRange>,
}

impl Resources {
    /// Creates empty resources.
    pub(crate) fn new(
        limits: Limits,
        features: Features,
        fabric_mtu: Option<u32>,
        vectors: u16,
        seed: [u8; 32],
    ) -> Self {
        Self {
            limits,
            fabric_mtu,
            port: Port::default(),
            subnet: None,
            mtu: Mtu::Mtu4096,
            frame_mtu: 0,
            keys: Keys::new(&limits, features, seed),
            cqs: Table::new(1, limits.cq),
            srqs: Table::new(1, limits.srq),
            gids: GidTable::new(limits.gid_table),
            groups: Groups::new(&limits),
            looped: Vec::new(),
            counters: Counters::new(limits.counter_sets),
            completion_counters: CompletionCounters::default(),
            async_events: AsyncEvents::default(),
            completion_events: CompletionEvents::new(vectors),
            timers: Timers::default(),
            held_events: Timers::default(),
            paused: Paused::default(),
            bad_qkeys: 0,
            bad_pkeys: 0,
            held: Held::default(),
            kept: Kept::default(),
            recovers_selectively: true,
            migrates_paths: features.path_migration,
            syncs: Syncs::default(),
            record: Record::default(),
            trace: Trace::default(),
            now: Instant::default(),
            faults: Faults::default(),
            unannounced: Vec::new(),
            untold: BTreeSet::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds an explanation of something that went wrong to the record.
    pub(crate) fn explain(&mut self, what: Explanation) {
        self.record.add(Explanation {
            time: self.now,
            ..what
        });
    }

    /// Takes a receive from the shared receive queue `srqn` and appends its elements. Returns `None` if there is none.
    pub(crate) fn take_shared_receive<M: Memory>(
        &mut self,
        srqn: u32,
        elements: &mut Vec<Sge>,
        memory: &M,
    ) -> Result<Option<Entry>, Cause> {
        let srq = self.srqs.get_mut(srqn).ok_or(Cause::SrqFailed)?;
        let taken = srq.take(elements, memory);
        match taken {
            Ok(Some(_)) => self.check_srq_limit(srqn, memory),
            Ok(None) | Err(Cause::SrqFailed) => {}
            Err(cause) => self.note_failed_srq(srqn, cause),
        }
        taken
    }

    /// Makes a shared receive queue fail unless it has already failed.
    pub(crate) fn fail_srq(&mut self, srqn: u32, cause: Cause) {
        if self.srqs.get_mut(srqn).is_some_and(Srq::fail) {
            self.note_failed_srq(srqn, cause);
        }
    }

    /// Reports that a shared receive queue has just failed.
    fn note_failed_srq(&mut self, srqn: u32, cause: Cause) {
        let happening = Happening::Event(EventType::SrqError);
        self.explain(Explanation::new(happening, srqn, Some(cause)));
        self.async_events
            .raise(EventType::SrqError, srqn, Some(cause), &mut self.counters);
    }

    /// Raises the limit event of a shared receive queue if the limit is reached.
    pub(crate) fn check_srq_limit<M: Memory>(&mut self, srqn: u32, memory: &M) {
        if let Some(srq) = self.srqs.get_mut(srqn)
            && srq.take_limit_event(memory)
        {
            self.async_events
                .raise(EventType::SrqLimitReached, srqn, None, &mut self.counters);
        }
    }

    /// Writes a completion to the completion queue `cqn`. Returns its status, which a fault may have changed.
    pub(crate) fn complete<M: Memory>(
        &mut self,
        cqn: u32,
        cqe: Cqe,
        solicited: bool,
        io: &Io<'_, M>,
    ) -> u8 {
        if self.faults.is_busy() {
            return self.complete_among_faults(cqn, cqe, solicited, io);
        }
        let status = cqe.status;
        self.write_completion(cqn, cqe, solicited, io);
        status
    }

    /// Writes a completion that no fault delays.
    pub(crate) fn write_completion<M: Memory>(
        &mut self,
        cqn: u32,
        cqe: Cqe,
        solicited: bool,
        io: &Io<'_, M>,
    ) {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        let status = cqe.status;
        let stamped = Cqe {
            timestamp: self.faults.clock(io.now).as_nanos().into(),
            ..cqe
        };
        match cq.push(stamped, solicited, io.memory) {
            Pushed::Done => {}
            Pushed::First => self.unannounced.push(cqn),
            Pushed::Failed(cause) => return self.note_failed_cq(cqn, cause),
            Pushed::Lost => {
                // The queue pair came to the queue after that had failed. Flushed requests have no news.
                if status != Status::Flushed.raw() {
                    self.untold.insert(Untold::QueuePair(cqe.qpn.get()));
                }
                return;
            }
        }
        self.note_completion(cqn, stamped, io.memory);
        self.counters.count(Counter::Completions);
        if status == Status::Flushed.raw() {
            self.counters.count(Counter::Flushes);
        } else if status != Status::Success.raw() {
            self.counters.count(Counter::CompletionErrors);
        }
    }

    /// Reports that a completion queue has just failed.
    pub(crate) fn note_failed_cq(&mut self, cqn: u32, cause: Cause) {
        if let Some(cq) = self.cqs.get(cqn) {
            let users = cq.users.iter().copied().map(Untold::QueuePair);
            let shared = cq.srqs.iter().copied().map(Untold::SharedQueue);
            self.untold.extend(users.chain(shared));
        }
        let happening = Happening::Event(EventType::CqError);
        self.explain(Explanation::new(happening, cqn, Some(cause)));
        self.async_events
            .raise(EventType::CqError, cqn, Some(cause), &mut self.counters);
    }

    /// Notes that a queue pair with these completion queues entered the error state. If one of them has failed, the
    /// queue pair loses its flushed requests, and is told.
    pub(crate) fn note_in_error(&mut self, qpn: u32, cqns: [u32; 2]) {
        let loses = |cq: &Cq| cq.has_failed() && cq.users.contains(&qpn);
        if cqns.iter().any(|cqn| self.cqs.get(*cqn).is_some_and(loses)) {
            self.untold.insert(Untold::QueuePair(qpn));
        }
    }

    /// Returns whether users of a completion queue that failed have not been told yet.
    pub(crate) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Takes the next of these users.
    pub(crate) fn next_untold(&mut self) -> Option<Untold> {
        self.untold.pop_first()
    }

    /// Forgets a user that is destroyed: another one may get its number.
    pub(crate) fn forget_untold(&mut self, user: Untold) {
        self.untold.remove(&user);
    }

    /// Raises the events that are due for the completions since the last call. Returns whether there are any.
    pub(crate) fn announce<M: Memory>(&mut self, memory: &M) -> bool {
        if self.unannounced.is_empty() {
            return false;
        }
        let mut raised = false;
        for &cqn in &self.unannounced {
            if let Some(cq) = self.cqs.get(cqn) {
                cq.publish(memory);
            }
        }
        memory.fence();
        let mut unannounced = std::mem::take(&mut self.unannounced);
        for cqn in unannounced.drain(..) {
            if let Some(cq) = self.cqs.get_mut(cqn) {
                let notice = cq.take_event(self.now, memory);
                raised |= self.heed(cqn, notice);
            }
        }
        self.unannounced = unannounced;
        raised
    }

    /// Raises the events that were held back and are now due.
    pub(crate) fn release_events<M: Memory>(&mut self, memory: &M) {
        while let Some((_, cqn)) = self.held_events.pop_due(self.now) {
            self.look_at_held_event(cqn, memory);
        }
    }

    /// Checks whether the event of a completion queue, which has no reminder any more, is due.
    pub(crate) fn look_at_held_event<M: Memory>(&mut self, cqn: u32, memory: &M) {
        if let Some(cq) = self.cqs.get_mut(cqn) {
            cq.reminder = None;
            let notice = cq.look_at_held(self.now, memory);
            self.heed(cqn, notice);
        }
    }

    /// Acts on a completion queue's decision about its event. Returns whether the event is raised.
    fn heed(&mut self, cqn: u32, notice: Notice) -> bool {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return false;
        };
        match notice {
            Notice::Nothing => {}
            Notice::Wait(until) => self.held_events.remind(cqn, until, &mut cq.reminder),
            Notice::Raise if self.faults.is_busy() && self.withhold_notice(cqn) => return false,
            Notice::Raise => {
                let Some(cq) = self.cqs.get_mut(cqn) else {
                    return false;
                };
                self.completion_events.raise(cq.vector, cqn);
                self.note(0, || Act::Notified { cqn });
                self.counters.count(Counter::CompletionEvents);
            }
        }
        notice == Notice::Raise
    }

    /// Returns whether the state of the port lets a segment pass.
    pub(crate) fn passes(&self, segment: &Segment<'_>) -> bool {
        self.port.is_active()
            || self.port.is_manageable()
                && segment.path.lids.is_some()
                && segment.destination_qpn == SMI_QPN
    }

    /// Returns whether packets that arrive on this path, which leads to no group, can be for the port. On Ethernet, the
    /// network delivers by GID; on a subnet it delivers by LID, whatever GID a packet has.
    pub(crate) fn may_be_for_port(&self, path: &Path) -> bool {
        let subnet = self.subnet.as_ref();
        subnet.is_none_or(|subnet| subnet.port.is_named_by(path))
    }

    /// Returns whether datagrams to a group that arrive on this path can be for the port at all.
    pub(crate) fn may_be_in_group(&self, path: &Path) -> bool {
        match (path.lids, &self.subnet) {
            (Some(lids), Some(_)) => lids.global,
            (None, None) => self.gids.has_link(path.vlan, path.roce_v1),
            _ => false,
        }
    }

    /// Returns the number of entries of the P_Key table.
    pub(crate) fn pkey_table_length(&self) -> u16 {
        match &self.subnet {
            Some(subnet) => subnet.port.pkeys.len() as u16,
            None => 1,
        }
    }

    /// Returns the P_Key with this index, for outgoing packets.
    pub(crate) fn pkey(&self, index: u16) -> u16 {
        match &self.subnet {
            Some(subnet) => subnet.port.pkey(index),
            None => DEFAULT_PKEY,
        }
    }

    /// Returns the index of the P_Key by which a queue pair accepts a packet: its own, or with `None` any. Returns
    /// `None` if the queue pair does not accept the packet.
    pub(crate) fn admitting_pkey(&self, own: Option<u16>, pkey: u16) -> Option<u16> {
        let Some(subnet) = &self.subnet else {
            return (pkey == DEFAULT_PKEY).then_some(0);
        };
        if let Some(index) = own {
            pkeys_match(subnet.port.pkey(index), pkey).then_some(index)
        } else {
            let mut pkeys = subnet.port.pkeys.iter();
            let index = pkeys.position(|&own| pkeys_match(own, pkey));
            index.map(|index| index as u16)
        }
    }

    /// Reports a packet with this wrong Q_Key or, with `None`, with a wrong P_Key.
    pub(crate) fn note_violation(&mut self, segment: &Segment<'_>, qkey: Option<u32>) {
        let count = if qkey.is_some() {
            &mut self.bad_qkeys
        } else {
            &mut self.bad_pkeys
        };
        *count = count.saturating_add(1);
        if let Some(subnet) = &mut self.subnet {
            subnet.note_violation(Violation::of(segment, qkey));
        }
    }

    /// Sends a segment, unless the port is down or the P_Key is from an empty entry of the P_Key table.
    pub(crate) fn send<M: Memory>(&mut self, segment: Segment<'static>, io: &mut Io<'_, M>) {
        if !self.passes(&segment) || segment.pkey & !FULL_MEMBERSHIP == 0 {
            io.outbox.recycle(segment.payload);
            return;
        }
        self.counters.count(Counter::TransmitPackets);
        self.counters
            .add(Counter::TransmitBytes, segment.payload.len());
        if segment.path.is_multicast() && !self.groups.members(&segment.path.group()).is_empty() {
            self.looped.push(segment.clone());
        }
        if self.faults.is_busy() {
            return self.leave(segment, io);
        }
        self.note_sent(&segment, io.memory);
        io.outbox.segments.push(segment);
    }

    /// Calls `work` with an empty vector for ranges that keeps its capacity.
    pub(crate) fn with_scratch<R>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Vec<HostRange>) -> R,
    ) -> R {
        let mut ranges = std::mem::take(&mut self.scratch);
        ranges.clear();
        let result = work(self, &mut ranges);
        self.scratch = ranges;
        result
    }
}

/// Makes a payload of the ranges, or an empty one if there are none.
pub(crate) fn payload_of<M: Memory>(
    ranges: Vec<HostRange>,
    io: &mut Io<'_, M>,
) -> Payload<'static> {
    if ranges.is_empty() {
        io.outbox.recycle(Payload::Ranges(ranges));
        Payload::Empty
    } else {
        Payload::Ranges(ranges)
    }
}

/// Makes a payload of a copy of the bytes that are now in these ranges of guest memory.
pub(crate) fn copy_of<M: Memory>(
    ranges: Vec<HostRange>,
    io: &mut Io<'_, M>,
) -> Result<Payload<'static>, Unmapped> {
    if ranges.is_empty() {
        return Ok(payload_of(ranges, io));
    }
    let mut bytes = io.outbox.bytes();
    let copied = ranges.iter().try_for_each(|range| {
        let start = bytes.len();
        bytes.resize(start + range.length as usize, 0);
        io.memory.read_payload(*range, &mut bytes[start..])
    });
    io.outbox.recycle(Payload::Ranges(ranges));
    let payload = Payload::Bytes(bytes);
    match copied {
        Ok(()) => Ok(payload),
        Err(unmapped) => {
            io.outbox.recycle(payload);
            Err(unmapped)
        }
    }
}
