// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device is doing, for display. Lists come in pages, each of which takes a bounded time.

use crate::{
    explain::Explanation,
    memory::{HostRange, Memory},
    qp::{Qp, QpSnapshot},
    region::Region,
    rnic::Engine,
    segment::Gid,
    window::Window,
};
use std::time::Duration;
use vrnic_wire::{
    command::{FlowFields, FlowType, MwType, TunnelFields},
    qp::{GSI_QPN, SMI_QPN},
};

/// State of a completion queue.
#[derive(Copy, Clone, Debug)]
pub struct CqSnapshot {
    /// Number.
    pub number: u32,
    /// Context that owns it.
    pub context: u32,
    /// Completion vector.
    pub vector: u16,
    /// Number of entries in the ring.
    pub entries: u32,
    /// Number of completions for which an event waits; it does not wait if this is less than 2.
    pub moderation_count: u32,
    /// Longest time for which an event waits.
    pub moderation_period: Duration,
    /// Number of completions that the driver side has not read; `None` if its index is not possible.
    pub unread: Option<u32>,
    /// Whether `unread` is exact. If not, it is an upper bound, because the driver side's index is not known.
    pub exact: bool,
    /// Whether an event is requested; `None` if that is not known.
    pub armed: Option<bool>,
    /// Number of queue pairs that use it.
    pub queue_pairs: usize,
    /// Whether it overran or its memory is gone.
    pub failed: bool,
}

/// State of a shared receive queue.
#[derive(Copy, Clone, Debug)]
pub struct SrqSnapshot {
    /// Number.
    pub number: u32,
    /// Context that owns it.
    pub context: u32,
    /// Protection domain.
    pub pd: u32,
    /// Number of entries in the ring.
    pub entries: u32,
    /// Number of posted receives that have not been taken; `None` if the ring is broken.
    pub posted: Option<u32>,
    /// Whether `posted` is exact. If not, it is a lower bound, because the driver side's index is not known.
    pub exact: bool,
    /// The limit; 0 if none is set or it was reached.
    pub limit: u32,
    /// Number of queue pairs that use it.
    pub queue_pairs: u32,
    /// XRC domain, if it belongs to one.
    pub xrcdn: Option<u32>,
    /// Completion queue of its receives, if it belongs to an XRC domain.
    pub cqn: Option<u32>,
    /// Whether it failed.
    pub failed: bool,
}

/// State of a memory region.
#[derive(Copy, Clone, Debug)]
pub struct MrSnapshot {
    /// Its key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// [`access`](vrnic_wire::memory::access) rights.
    pub access: u32,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// Length in bytes; `None` if it covers all memory of the guest.
    pub length: Option<u64>,
    /// Number of host ranges that it needs.
    pub translations: usize,
    /// Whether it can be used: false while it waits for a work request that registers it.
    pub valid: bool,
}

impl MrSnapshot {
    /// Describes a region with this key.
    pub(crate) fn new(key: u32, region: &Region) -> Self {
        Self {
            key,
            pd: region.pd,
            access: region.access,
            iova: region.iova,
            length: region.length(),
            translations: region.translations(),
            valid: !region.is_free(),
        }
    }
}

/// State of a memory window.
#[derive(Copy, Clone, Debug)]
pub struct MwSnapshot {
    /// Its key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Type.
    pub mw_type: MwType,
    /// What it is bound to; `None` if it is not bound.
    pub bound: Option<BoundMw>,
}

impl MwSnapshot {
    /// Describes a window with this key.
    pub(crate) fn new(key: u32, window: &Window, bound: Option<BoundMw>) -> Self {
        Self {
            key,
            pd: window.pd,
            mw_type: window.mw_type,
            bound,
        }
    }
}

/// The object that a key names.
#[derive(Copy, Clone, Debug)]
pub enum Named {
    /// A memory region. The last byte of its key may differ from that in the request.
    Region(MrSnapshot),
    /// A memory window. The last byte of its key may differ as well.
    Window(MwSnapshot),
    /// An object that was removed recently.
    Removed,
    /// No known object.
    Nothing,
}

/// Binding of a memory window.
#[derive(Copy, Clone, Debug)]
pub struct BoundMw {
    /// Key of the region.
    pub region: u32,
    /// Address of the first byte for peers.
    pub first: u64,
    /// Number of bytes.
    pub length: u64,
    /// [`access`](vrnic_wire::memory::access) rights.
    pub access: u32,
    /// Queue pair that bound it; 0 once the queue pair is gone.
    pub qpn: u32,
}

/// A multicast group that has members on this device.
#[derive(Clone, Debug)]
pub struct GroupSnapshot {
    /// Its GID.
    pub gid: Gid,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Queue pairs that are attached to it.
    pub members: Vec<u32>,
}

/// A completion counter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CompletionCounterSnapshot {
    /// Number.
    pub number: u32,
    /// Context that owns it.
    pub context: u32,
    /// Number of queue pairs that have it.
    pub queue_pairs: u32,
    /// Number of operations that succeeded.
    pub completions: u64,
    /// Number of operations that failed or were flushed.
    pub errors: u64,
}

/// A flow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FlowSnapshot {
    /// Number.
    pub number: u32,
    /// Queue pair that gets the frames.
    pub qpn: u32,
    /// Type.
    pub flow_type: FlowType,
    /// Priority of a flow of type `Normal`: the lowest number goes first.
    pub priority: u16,
    /// Whether a flow of type `Normal` gets copies and leaves the frames to others.
    pub dont_trap: bool,
    /// Values of the fields.
    pub value: FlowFields,
    /// Bits of the fields that have to be equal.
    pub mask: FlowFields,
    /// The fields of a tunnel, if any count.
    pub tunnel: Option<TunnelSnapshot>,
    /// Tag of its frames; 0 if it has none.
    pub tag: u32,
    /// Whether it drops its frames.
    pub drops: bool,
    /// Number of frames that it got.
    pub packets: u64,
    /// Number of bytes in them.
    pub bytes: u64,
}

/// The fields of a tunnel, and of the packet in it, that the frames of a flow have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TunnelSnapshot {
    /// Values of the fields of the tunnel.
    pub value: TunnelFields,
    /// Bits of these fields that have to be equal.
    pub mask: TunnelFields,
    /// Values of the fields of the packet.
    pub inner_value: FlowFields,
    /// Bits of these fields that have to be equal.
    pub inner_mask: FlowFields,
}

/// A queue with a ring in guest memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// The send queue of this queue pair.
    Send(u32),
    /// The receive queue of this queue pair.
    Receive(u32),
    /// This shared receive queue.
    Shared(u32),
    /// This completion queue.
    Completion(u32),
}

impl Engine {
    /// Returns the places of the entries of all rings. Takes time in proportion to their number.
    pub fn rings(&self) -> Vec<(Queue, Vec<HostRange>)> {
        let mut all: Vec<(Queue, Vec<HostRange>)> = Vec::new();
        let gsi = self.qps.gsi.iter().map(|qp| (GSI_QPN, qp.as_ref()));
        let others = self.qps.table.page(0, usize::MAX).into_iter().flatten();
        let smi = self.qps.smi.iter().map(|qp| (SMI_QPN, qp.as_ref()));
        for (qpn, qp) in smi
            .chain(gsi)
            .chain(others.map(|(qpn, qp)| (qpn, qp.as_ref())))
        {
            let [sends, receives] = qp.places();
            all.push((Queue::Send(qpn), sends));
            all.push((Queue::Receive(qpn), receives));
        }
        let srqs = self
            .resources
            .srqs
            .page(0, usize::MAX)
            .into_iter()
            .flatten();
        all.extend(srqs.map(|(srqn, srq)| (Queue::Shared(srqn), srq.places())));
        let cqs = self.resources.cqs.page(0, usize::MAX).into_iter().flatten();
        all.extend(cqs.map(|(cqn, cq)| (Queue::Completion(cqn), cq.places())));
        all
    }

    /// Returns the state of a queue pair.
    pub fn qp<M: Memory>(&self, qpn: u32, memory: &M) -> Option<QpSnapshot> {
        self.qps.get(qpn).map(|qp| qp.snapshot(memory))
    }

    /// Returns the queue pairs in up to `limit` slots, from slot `first` on; `None` if `first` is beyond the last slot.
    /// Queue pairs 0 and 1 have no slot and come before the first.
    pub fn qp_page<M: Memory>(
        &self,
        first: usize,
        limit: usize,
        memory: &M,
    ) -> Option<Vec<QpSnapshot>> {
        let snapshot = |qp: &Qp| qp.snapshot(memory);
        let special = [&self.qps.smi, &self.qps.gsi];
        let special = special.into_iter().filter_map(|qp| qp.as_deref());
        let mut special = special.filter(|_| first == 0).peekable();
        let page = self.qps.table.page(first, limit);
        if special.peek().is_none() && page.is_none() {
            return None;
        }
        let others = page.into_iter().flatten().map(|(_, qp)| qp.as_ref());
        Some(special.chain(others).map(snapshot).collect())
    }

    /// Returns the completion queues in up to `limit` slots, from slot `first` on; `None` if `first` is beyond the last
    /// slot.
    pub fn cq_page<M: Memory>(
        &self,
        first: usize,
        limit: usize,
        memory: &M,
    ) -> Option<Vec<CqSnapshot>> {
        let page = self.resources.cqs.page(first, limit)?;
        Some(
            page.map(|(number, cq)| {
                cq.snapshot(number, &|range, offset| memory.glance(range, offset))
            })
            .collect(),
        )
    }

    /// Returns the shared receive queues in up to `limit` slots, from slot `first` on; `None` if `first` is beyond the
    /// last slot.
    pub fn srq_page<M: Memory>(
        &self,
        first: usize,
        limit: usize,
        memory: &M,
    ) -> Option<Vec<SrqSnapshot>> {
        let page = self.resources.srqs.page(first, limit)?;
        Some(
            page.map(|(number, srq)| {
                srq.snapshot(number, &|range, offset| memory.glance(range, offset))
            })
            .collect(),
        )
    }

    /// Returns the object that a key names.
    pub fn key(&self, key: u32) -> Named {
        self.resources.keys.named(key)
    }

    /// Returns the state of a completion queue.
    pub fn cq<M: Memory>(&self, cqn: u32, memory: &M) -> Option<CqSnapshot> {
        let cq = self.resources.cqs.get(cqn)?;
        Some(cq.snapshot(cqn, &|range, offset| memory.glance(range, offset)))
    }

    /// Returns the state of a shared receive queue.
    pub fn srq<M: Memory>(&self, srqn: u32, memory: &M) -> Option<SrqSnapshot> {
        let srq = self.resources.srqs.get(srqn)?;
        Some(srq.snapshot(srqn, &|range, offset| memory.glance(range, offset)))
    }

    /// Returns the memory regions among up to `limit` objects with keys, from object `first` on, in no particular
    /// order; `None` if `first` is beyond the last object. Takes time in proportion to `first`.
    pub fn mr_page(&self, first: usize, limit: usize) -> Option<Vec<MrSnapshot>> {
        let page = self.resources.keys.page(first, limit)?;
        Some(
            page.map(|(key, region)| MrSnapshot::new(key, region))
                .collect(),
        )
    }

    /// Returns the memory windows among these objects, like [`mr_page`](Self::mr_page).
    pub fn mw_page(&self, first: usize, limit: usize) -> Option<Vec<MwSnapshot>> {
        let page = self.resources.keys.window_page(first, limit)?;
        Some(page.collect())
    }

    /// Returns up to `limit` multicast groups in the order of their GIDs, from group `first` on; `None` if `first` is
    /// beyond the last group. Takes time in proportion to `first`.
    pub fn group_page(&self, first: usize, limit: usize) -> Option<Vec<GroupSnapshot>> {
        let rest = self.resources.groups.iter().skip(first).take(limit);
        let page: Vec<_> = rest
            .map(|((gid, lid), members)| GroupSnapshot {
                gid: *gid,
                lid: *lid,
                members: members.to_vec(),
            })
            .collect();
        (!page.is_empty()).then_some(page)
    }

    /// Returns up to `limit` flows in the order in which they are tried, from flow `first` on; `None` if `first` is
    /// beyond the last flow.
    pub fn flow_page(&self, first: usize, limit: usize) -> Option<Vec<FlowSnapshot>> {
        let page: Vec<_> = self.flows.iter().skip(first).take(limit).collect();
        (!page.is_empty()).then_some(page)
    }

    /// Returns the completion counters in up to `limit` slots, from slot `first` on; `None` if `first` is beyond the
    /// last slot.
    pub fn completion_counter_page(
        &self,
        first: usize,
        limit: usize,
    ) -> Option<Vec<CompletionCounterSnapshot>> {
        self.resources.completion_counters.page(first, limit)
    }

    /// Takes the oldest explanation of something that went wrong. The device keeps a few hundred.
    pub fn next_explanation(&mut self) -> Option<Explanation> {
        self.resources.record.take()
    }
}
