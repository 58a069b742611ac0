// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two queue pairs that communicate: the requests of their programs, and the expected results.
//!
//! Each request has its own bytes at both ends, so the result does not depend on how requests overlap. A word for
//! atomics is changed by one end only, so the values fetched are known, and it can be checked that each atomic is
//! executed once.

mod check;
mod count;
mod grant;
mod request;

use crate::{
    device::Device,
    network::mac_of,
    plan::{Deed, FlowPlan, Kind},
};
pub use check::Circumstances;
use count::Counters;
use grant::Grant;
use request::QKEY;
use std::time::Duration;
use vrnic_engine::{
    Rnic,
    testing::{Completion, Guest, Mr, PagedRegion, Qp, QpOptions, gid_of},
    time::Instant,
};
use vrnic_wire::{
    command::{DeregisterMr, DestroyQp},
    completion::Opcode,
    memory::access,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, GRH_LENGTH},
};

/// Bit that marks the `wr_id`s of receives.
const RECEIVE: u64 = 1 << 15;
/// Shift of the part of a `wr_id` that identifies flow and end.
const OWNER_SHIFT: u32 = 16;
/// Slot of the request that binds the window for the peer, which is the first request.
const SETUP: usize = usize::MAX;

/// Layout of the regions of a flow.
#[derive(Copy, Clone, Debug)]
struct Layout {
    slot: usize,
    /// Largest number of requests of an end.
    count: usize,
}

impl Layout {
    fn source(self, slot: usize) -> usize {
        slot * self.slot
    }

    fn written(self, slot: usize) -> usize {
        (self.count + slot) * self.slot
    }

    fn read(self, slot: usize) -> usize {
        (2 * self.count + slot) * self.slot
    }

    fn receive_length(self) -> usize {
        self.slot + GRH_LENGTH
    }

    fn received(self, index: usize) -> usize {
        3 * self.count * self.slot + index * self.receive_length()
    }

    fn fetched(self, slot: usize) -> usize {
        self.received(self.count).next_multiple_of(8) + slot * 8
    }

    fn word(self) -> usize {
        self.fetched(self.count)
    }

    fn length(self) -> usize {
        self.word() + 8
    }
}

/// A posted request.
#[derive(Copy, Clone, Debug)]
struct Posted {
    name: u64,
    kind: Kind,
    length: usize,
    slot: usize,
    signaled: bool,
    opcode: Opcode,
    /// The value that an atomic must fetch.
    fetches: u64,
}

/// A message that the peer must receive.
#[derive(Copy, Clone, Debug)]
struct Message {
    kind: Kind,
    length: usize,
    slot: usize,
    /// Immediate data, or the key to invalidate.
    immediate: u32,
}

/// Access that an end grants to its peer.
#[derive(Debug)]
struct Window {
    grant: Grant,
    /// Whether it is bound and has not been invalidated.
    is_given: bool,
    /// Whether it has been invalidated.
    is_stale: bool,
}

/// One end of a flow.
#[derive(Debug)]
pub struct End {
    /// Index of its device.
    pub device: usize,
    incarnation: u32,
    /// Its queue pair.
    pub qp: Qp,
    /// Number of the shared receive queue, for XRC.
    srqn: u32,
    mr: Mr,
    /// The region, if it is paged on demand.
    paged: Option<PagedRegion>,
    /// Whether some of its pages will never exist.
    lacks_pages: bool,
    window: Option<Window>,
    /// A window that only this end uses, and whether it is bound.
    scratch: Option<(Grant, bool)>,
    /// Completion counters. Targets have none: they belong to no context.
    counters: Option<Counters>,
    posted: Vec<Posted>,
    messages: Vec<Message>,
    /// Value of the peer's word once everything posted has completed.
    word: u64,
    next: usize,
    receives_posted: usize,
    sends: Vec<Completion>,
    receives: Vec<Completion>,
    /// Messages that have arrived, in order.
    came: Vec<usize>,
    is_destroyed: bool,
    /// Contents of the region when it was deregistered.
    deregistered: Option<Vec<u8>>,
    /// State before the flow was stopped.
    stopped: Option<QpState>,
}

/// Two queue pairs that communicate.
#[derive(Debug)]
pub struct Flow {
    plan: FlowPlan,
    layout: Layout,
    /// Both ends.
    pub ends: [End; 2],
    /// When the flow began.
    pub began: Instant,
    /// Harm in the network before the start.
    pub harm: u64,
}

/// Returns byte `at` of what end `side` of a flow sends from a slot. It is never 0, the initial value of memory.
fn pattern(flow: usize, side: usize, slot: usize, at: usize) -> u8 {
    ((flow * 13 + side * 89 + slot * 31 + at * 7) % 251) as u8 + 1
}

impl Flow {
    /// Creates and connects everything.
    pub fn start(plan: &FlowPlan, devices: &mut [Device], now: Instant, harm: u64) -> Self {
        let layout = Layout {
            slot: plan.slot,
            count: plan.ops[0].len().max(plan.ops[1].len()).max(1),
        };
        let ends = [0, 1].map(|side| {
            let device = &mut devices[plan.ends[side]];
            let options = QpOptions {
                qp_type: plan.type_of(side),
                entries: (layout.count as u32 + 1).next_power_of_two(),
                signal_all: plan.signal_all && plan.type_of(side) != QpType::XrcTarget,
                ..QpOptions::default()
            };
            let qp = device.qp(options, plan.shared[side], plan.cqs[side]);
            let is_target = options.qp_type == QpType::XrcTarget;
            let counters = (!is_target).then(|| Counters::new(qp.qpn, device));
            let arena = device.guest.arena(layout.length());
            let rights = access::QUEUE_PAIR | access::PLACEMENT;
            let (length, is_paged) = (layout.length(), plan.paging[side].is_some());
            let mr = device.insist(|guest, rnic| {
                if is_paged {
                    guest.try_register_paged(rnic, arena.clone(), 0, length, rights)
                } else {
                    guest.try_register(rnic, arena.clone(), length, rights | access::MW_BIND)
                }
            });
            let given = plan.windows[side].map(|kind| Grant::new(kind, &mr, device));
            let binds = plan.ops[side].iter().any(|op| op.kind == Kind::Bind);
            let scratch = binds.then(|| Grant::new(plan.scratch, &mr, device));
            for slot in 0..plan.ops[side].len().max(plan.ops[1 - side].len()) {
                let bytes: Vec<u8> = (0..layout.slot)
                    .map(|at| pattern(plan.number, side, slot, at))
                    .collect();
                mr.arena.put(layout.source(slot), &bytes);
            }
            End {
                device: plan.ends[side],
                incarnation: device.incarnation,
                qp,
                srqn: device.xrc_srqn(),
                paged: is_paged.then(|| PagedRegion::new(&mr)),
                lacks_pages: false,
                mr,
                window: given.map(|grant| Window {
                    grant,
                    is_given: false,
                    is_stale: false,
                }),
                scratch: scratch.map(|grant| (grant, false)),
                counters,
                posted: Vec::new(),
                messages: Vec::new(),
                word: 0,
                next: 0,
                receives_posted: 0,
                sends: Vec::new(),
                receives: Vec::new(),
                came: Vec::new(),
                is_destroyed: false,
                deregistered: None,
                stopped: None,
            }
        });
        let mut flow = Self {
            plan: plan.clone(),
            layout,
            ends,
            began: now,
            harm,
        };
        for side in 0..2 {
            flow.connect(side, devices);
            let wanted = plan.receives(side);
            let early = if plan.late_receives.is_some() {
                wanted / 2
            } else {
                wanted
            };
            flow.post_receives(side, early, devices);
            flow.bind_window(side, devices);
        }
        flow
    }

    fn connect(&mut self, side: usize, devices: &mut [Device]) {
        use attribute::{
            ACCESS_FLAGS, ADDRESS_VECTOR, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_RD_ATOMIC,
            MIN_RNR_TIMER, PATH_MTU, PKEY_INDEX, PORT, QKEY as QKEY_BIT, RETRY_COUNT, RNR_RETRY,
            RQ_PSN, SQ_PSN, TIMEOUT,
        };
        let plan = &self.plan;
        let peer = &self.ends[1 - side];
        let waits = plan.late_receives.is_some()
            || plan.shared[1 - side]
            || plan.paging[1 - side].is_some();
        let attributes = QpAttributes {
            path_mtu: plan.mtu.raw(),
            rq_psn: plan.psns[1 - side].into(),
            sq_psn: plan.psns[side].into(),
            dest_qpn: peer.qp.qpn.into(),
            access: (access::QUEUE_PAIR | access::PLACEMENT).into(),
            qkey: QKEY.into(),
            port: 1,
            max_rd_atomic: plan.reads,
            max_dest_rd_atomic: plan.reads,
            // 10.24 ms if its pages take time to come, otherwise 10 us.
            min_rnr_timer: if plan.paging[side].is_some() { 20 } else { 1 },
            timeout: plan.timeout,
            retry_count: plan.retries,
            rnr_retry: if waits { 7 } else { 5 },
            address: self.address(1 - side),
            ..Default::default()
        };
        let masks = match plan.type_of(side) {
            QpType::ReliableConnection => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ],
            QpType::UnreliableConnection => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN,
                SQ_PSN,
            ],
            QpType::XrcInitiator => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN,
                TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ],
            QpType::XrcTarget => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                TIMEOUT | SQ_PSN,
            ],
            _ => [PKEY_INDEX | PORT | QKEY_BIT, 0, SQ_PSN],
        };
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        let end = &self.ends[side];
        for (state, mask) in states.into_iter().zip(masks) {
            devices[end.device].modify(end.qp.qpn, state, mask, attributes);
        }
    }

    /// Returns the address of an end.
    fn address(&self, side: usize) -> AddressVector {
        let device = self.plan.ends[side];
        AddressVector {
            dgid: gid_of(device),
            dmac: mac_of(device),
            hop_limit: 64,
            ..Default::default()
        }
    }

    fn owner(&self, side: usize) -> u64 {
        ((self.plan.number * 2 + side) as u64) << OWNER_SHIFT
    }

    /// Returns the `wr_id` of a send. They are consecutive.
    fn name(&self, side: usize, slot: usize) -> u64 {
        self.owner(side) | slot.wrapping_add(1) as u64
    }

    /// Returns whether the end still has its queue pair.
    fn lives(&self, side: usize, devices: &[Device]) -> bool {
        let end = &self.ends[side];
        !end.is_destroyed && devices[end.device].incarnation == end.incarnation
    }

    /// Posts receives until `wanted` have been posted.
    fn post_receives(&mut self, side: usize, wanted: usize, devices: &mut [Device]) {
        if self.plan.shared[side] || !self.lives(side, devices) {
            return;
        }
        let (layout, first) = (self.layout, self.ends[side].receives_posted);
        for index in first..wanted {
            let name = self.owner(side) | RECEIVE | index as u64;
            let end = &mut self.ends[side];
            let Device { guest, rnic, .. } = &mut devices[end.device];
            let sge = end.mr.sge(layout.received(index), layout.receive_length());
            assert!(guest.post_receive(rnic, &mut end.qp, name, &[sge]));
            end.receives_posted += 1;
        }
    }

    /// Posts the late receives.
    pub fn post_late(&mut self, devices: &mut [Device]) {
        for side in 0..2 {
            self.post_receives(side, self.plan.receives(side), devices);
        }
    }

    fn bind_window(&mut self, side: usize, devices: &mut [Device]) {
        let (name, length) = (self.name(side, SETUP), self.layout.length());
        let end = &mut self.ends[side];
        let Some(window) = &mut end.window else {
            return;
        };
        let (send, opcode) = window.grant.give(name, &end.mr, length, access::QUEUE_PAIR);
        end.posted.push(Posted {
            name,
            kind: Kind::Bind,
            length: 0,
            slot: SETUP,
            signaled: true,
            opcode,
            fetches: 0,
        });
        let Device { guest, rnic, .. } = &mut devices[end.device];
        assert!(guest.post_send(rnic, &mut end.qp, &send));
    }

    /// Posts the next request of an end. Returns the time until the request after that.
    pub fn post(&mut self, side: usize, devices: &mut [Device]) -> Option<Duration> {
        let slot = self.ends[side].next;
        let op = *self.plan.ops[side].get(slot)?;
        self.ends[side].next += 1;
        if self.lives(side, devices) {
            let send = self.request(side, slot, op);
            let end = &mut self.ends[side];
            let Device { guest, rnic, .. } = &mut devices[end.device];
            assert!(
                guest.post_send(rnic, &mut end.qp, &send),
                "the send queue is full"
            );
        }
        self.plan.ops[side].get(slot + 1).map(|op| op.pause)
    }

    /// Applies a deed to an end.
    pub fn suffer(&mut self, deed: Deed, side: usize, devices: &mut [Device]) {
        if !self.lives(side, devices) {
            return;
        }
        let end = &mut self.ends[side];
        let device = &mut devices[end.device];
        match deed {
            Deed::Error => {
                device.modify(end.qp.qpn, QpState::Error, 0, QpAttributes::default());
            }
            Deed::Destroy => self.destroy_qp(side, devices),
            // A region cannot be deregistered while windows are bound to it.
            Deed::Deregister if end.window.is_some() || end.scratch.is_some() => {}
            Deed::Deregister => {
                device.command(DeregisterMr {
                    pd: device.guest.pd.into(),
                    key: end.mr.key.into(),
                });
                end.deregistered = Some(end.mr.arena.get(0, self.layout.length()));
            }
        }
    }

    /// Returns the end whose region has a key, if the region is paged on demand.
    pub fn paged_end(&self, device: &Device, key: u32) -> Option<usize> {
        self.ends.iter().position(|end| {
            let is_here = end.device == device.index && end.incarnation == device.incarnation;
            is_here && end.paged.is_some() && end.mr.key == key
        })
    }

    /// Lets the driver handle the pages of an end, unless these no longer exist.
    pub fn page(
        &mut self,
        side: usize,
        devices: &mut [Device],
        work: impl FnOnce(&mut PagedRegion, &mut Guest, &mut Rnic),
    ) {
        let end = &mut self.ends[side];
        let Device {
            guest,
            rnic,
            incarnation,
            ..
        } = &mut devices[end.device];
        if let Some(paged) = &mut end.paged
            && *incarnation == end.incarnation
            && end.deregistered.is_none()
        {
            work(paged, guest, rnic);
            end.mr.arena = paged.arena().clone();
        }
    }

    /// Takes away all pages of an end's region from some page on, for good.
    pub fn punch(&mut self, side: usize, part: u32, devices: &mut [Device]) {
        self.ends[side].lacks_pages = true;
        self.page(side, devices, |paged, guest, rnic| {
            let first = ((u64::from(paged.pages()) * u64::from(part)) >> 16) as u32;
            paged.punch(guest, rnic, first..paged.pages());
        });
    }

    fn destroy_qp(&mut self, side: usize, devices: &mut [Device]) {
        let end = &mut self.ends[side];
        devices[end.device].command(DestroyQp {
            qpn: end.qp.qpn.into(),
            ..Default::default()
        });
        end.is_destroyed = true;
    }

    /// Stops the flow when nothing is in flight any more; remaining requests are flushed from now on.
    pub fn stop(&mut self, devices: &mut [Device]) {
        for side in 0..2 {
            if self.lives(side, devices) {
                let end = &mut self.ends[side];
                let device = &mut devices[end.device];
                end.stopped = Some(device.state(end.qp.qpn));
            }
        }
        for side in 0..2 {
            if self.lives(side, devices) {
                let end = &self.ends[side];
                let (device, qpn) = (&mut devices[end.device], end.qp.qpn);
                device.modify(qpn, QpState::Error, 0, QpAttributes::default());
            }
        }
    }

    fn destroy(mut self, devices: &mut [Device]) {
        for side in 0..2 {
            let is_here =
                devices[self.ends[side].device].incarnation == self.ends[side].incarnation;
            if !is_here {
                continue;
            }
            if self.lives(side, devices) {
                self.destroy_qp(side, devices);
            }
            let end = &mut self.ends[side];
            let device = &mut devices[end.device];
            let pd = device.guest.pd;
            let given = end.window.take().map(|window| window.grant);
            let scratch = end.scratch.take().map(|(grant, _)| grant);
            for grant in given.into_iter().chain(scratch) {
                grant.free(device);
            }
            if let Some(counters) = end.counters.take() {
                counters.free(device);
            }
            if end.deregistered.is_none() {
                device.command(DeregisterMr {
                    pd: pd.into(),
                    key: end.mr.key.into(),
                });
            }
            device.guest.free(end.mr.arena.clone());
            device.guest.free(end.qp.sq.arena.clone());
        }
    }

    /// Returns devices and queue pairs of both ends.
    pub fn subjects(&self) -> Vec<(usize, u32)> {
        self.ends
            .iter()
            .map(|end| (end.device, end.qp.qpn))
            .collect()
    }

    /// Returns the end to which a queue pair of a device belongs.
    pub fn end_of(&self, device: &Device, qpn: u32) -> Option<usize> {
        self.ends.iter().position(|end| {
            let is_here = end.device == device.index && end.incarnation == device.incarnation;
            is_here && end.qp.qpn == qpn
        })
    }

    /// Returns the flow's queue pairs on a device.
    pub fn qpns(&self, device: usize) -> Vec<u32> {
        let here = self.ends.iter().filter(|end| end.device == device);
        here.map(|end| end.qp.qpn).collect()
    }

    /// Returns the plan.
    pub fn plan(&self) -> &FlowPlan {
        &self.plan
    }

    /// Returns the number of posted requests.
    pub fn requests(&self) -> usize {
        self.ends.iter().map(|end| end.posted.len()).sum()
    }

    /// Returns the number of posted fast registrations.
    pub fn registrations(&self) -> usize {
        let posted = self.ends.iter().flat_map(|end| &end.posted);
        let is_one = |posted: &&Posted| posted.opcode == Opcode::RegisterRegion;
        posted.filter(is_one).count()
    }

    /// Returns how many pages of guest memory a plan needs per end, for the region, the rings and their page lists.
    pub fn pages(plan: &FlowPlan) -> usize {
        let layout = Layout {
            slot: plan.slot,
            count: plan.ops[0].len().max(plan.ops[1].len()).max(1),
        };
        let region = layout.length().div_ceil(4096);
        // A paged region is copied for a moment, and fast registrations have tables.
        region + region / 3 + 55
    }
}
