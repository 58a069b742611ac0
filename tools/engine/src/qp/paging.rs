// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Waiting for pages of on-demand memory regions.
//!
//! Nothing here blocks. Work that needs missing pages requests them, and is tried again when the driver has answered or
//! when the queue pair gets a turn for another reason. Packets of transports without acknowledgements will not be sent
//! again, so they are kept meanwhile as long as there is room.

use super::{Qp, receive::pieces};
use crate::{
    cause::Cause,
    keys::{AHEAD, Accessor},
    memory::Memory,
    pages::Half,
    resources::{Io, Resources},
    segment::{Body, Segment},
    state,
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, ops::Range};
use vrnic_wire::{counter::Counter, event::EventType, memory::access, work::Sge};

/// Maximum bytes of segments that a device keeps.
const MAX_HELD: usize = 16 << 20;

/// Maximum number of segments that it keeps for one queue pair.
const MAX_SEGMENTS: usize = 64;

/// Assumed memory of a segment besides its payload, in bytes.
const OVERHEAD: usize = 256;

/// Bytes of a receive whose pages are requested together. The length of the message is not known yet.
const RECEIVE_AHEAD: u64 = 64 << 10;

/// Segments that wait for pages, by the queue pair that they are for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    #[serde(serialize_with = "state::map")]
    segments: FxHashMap<u32, VecDeque<Segment<'static>>>,
    bytes: usize,
}

impl Held {
    /// Returns whether segments wait for this queue pair.
    fn has(&self, qpn: u32) -> bool {
        self.segments.contains_key(&qpn)
    }

    /// Keeps a segment. Returns whether there is room for it.
    fn push(&mut self, qpn: u32, segment: Segment<'static>) -> bool {
        let bytes = Self::bytes_of(&segment);
        let kept = self.segments.get(&qpn).map_or(0, VecDeque::len);
        if self.bytes + bytes > MAX_HELD || kept >= MAX_SEGMENTS {
            return false;
        }
        self.bytes += bytes;
        self.segments.entry(qpn).or_default().push_back(segment);
        true
    }

    /// Takes the oldest segment.
    fn pop(&mut self, qpn: u32) -> Option<Segment<'static>> {
        let queue = self.segments.get_mut(&qpn)?;
        let segment = queue.pop_front()?;
        if queue.is_empty() {
            self.segments.remove(&qpn);
        }
        self.bytes -= Self::bytes_of(&segment);
        Some(segment)
    }

    /// Puts the oldest segment back.
    fn put_back(&mut self, qpn: u32, segment: Segment<'static>) {
        self.bytes += Self::bytes_of(&segment);
        self.segments.entry(qpn).or_default().push_front(segment);
    }

    /// Drops the segments that wait for a queue pair, and returns their number.
    pub(crate) fn forget(&mut self, qpn: u32) -> u64 {
        let queue = self.segments.remove(&qpn).unwrap_or_default();
        self.bytes -= queue.iter().map(Self::bytes_of).sum::<usize>();
        queue.len() as u64
    }

    fn bytes_of(segment: &Segment) -> usize {
        segment.payload.len() as usize + OVERHEAD
    }
}

/// Whether a half of a queue pair waits, and what was denied.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Await {
    /// Whether the half waits.
    active: bool,
    /// Index of a region, and the pages of it that the driver has refused since the wait began.
    denied: Option<(u32, Range<u32>)>,
}

impl Qp {
    /// Returns whether this half waits for pages.
    pub(super) fn waits(&self, half: Half) -> bool {
        self.awaits[half as usize].active
    }

    /// Notes that an access of this half found all its pages.
    pub(super) fn note_access(&mut self, half: Half) {
        let waits = &mut self.awaits[half as usize];
        if waits.active {
            *waits = Await::default();
        }
    }

    /// Stops waiting for pages.
    pub(super) fn stop_waiting(&mut self) {
        self.awaits = Default::default();
    }

    /// Notes that the driver refuses pages of the region with this index, for which this half may wait.
    pub(crate) fn deny(&mut self, half: Half, index: u32, pages: &Range<u32>) {
        let waits = &mut self.awaits[half as usize];
        if waits.active {
            waits.denied = Some((index, pages.clone()));
        }
    }

    /// Asks the driver for the pages that accesses of this half lacked. Returns an error if the driver has refused the
    /// first of them since it was asked.
    pub(super) fn demand(&mut self, half: Half, resources: &mut Resources) -> Result<(), Cause> {
        let faults = resources.keys.take_faults();
        let waits = &mut self.awaits[half as usize];
        if let (Some((index, pages)), Some(first)) = (&waits.denied, faults.first())
            && first.index == *index
            && pages.contains(&first.want.pages.start)
        {
            *waits = Await::default();
            if let Some((Cause::PageAbsent, access)) = resources.keys.take_refused() {
                resources.keys.refuse(Cause::LocalPage, access);
            }
            return Err(Cause::LocalPage);
        }
        waits.active = true;
        for key in resources.keys.wait_for((self.number, half), &faults) {
            resources.counters.count(Counter::PageFaults);
            let (events, counters) = (&mut resources.async_events, &mut resources.counters);
            events.raise(EventType::PageFault, key, None, counters);
        }
        Ok(())
    }

    /// Finds the other missing pages of up to `limit` bytes of `elements` from byte `offset` on, so that all of them
    /// are requested at once.
    pub(super) fn look_ahead<'a, M: Memory>(
        elements: impl Iterator<Item = &'a Sge>,
        offset: u64,
        limit: u64,
        rights: u32,
        by: Accessor,
        resources: &Resources,
        io: &Io<'_, M>,
    ) {
        resources.keys.take_faults();
        // Other errors are found when these bytes are accessed.
        let _ = pieces(elements, offset, limit, |key, address, length| {
            let checked = (resources.keys).check(key, by, rights, address, length, io.memory);
            checked.or_else(|cause| match cause {
                Cause::PageAbsent => Ok(()),
                other => Err(other),
            })
        });
    }

    /// Looks ahead as [`look_ahead`](Self::look_ahead) does, in the receive that was taken.
    pub(super) fn look_ahead_in_receive<M: Memory>(
        &self,
        offset: u64,
        resources: &Resources,
        io: &Io<'_, M>,
    ) {
        let elements = self.receive.elements();
        let by = self.receive.accessor(self.accessor());
        Self::look_ahead(
            elements,
            offset,
            RECEIVE_AHEAD,
            access::LOCAL_WRITE,
            by,
            resources,
            io,
        );
    }

    /// Looks ahead as [`look_ahead`](Self::look_ahead) does, in the `length` bytes of remote memory at `address`.
    pub(super) fn look_ahead_remote<M: Memory>(
        (rkey, address, length): (u32, u64, u64),
        right: u32,
        by: Accessor,
        resources: &Resources,
        io: &Io<'_, M>,
    ) {
        resources.keys.take_faults();
        // Only missing pages matter here.
        let _ = (resources.keys).check(rkey, by, right, address, length.min(AHEAD), io.memory);
    }

    /// Processes a segment that will not be sent again, or keeps it until its pages are present and all segments before
    /// it have been processed.
    pub(super) fn take_or_hold<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if !resources.held.has(self.number) && self.take_unrepeated(segment, resources, io) {
            return;
        }
        let kept = segment.to_owned(io.memory);
        if !kept.is_ok_and(|kept| resources.held.push(self.number, kept)) {
            resources.counters.count(Counter::Dropped);
        }
    }

    /// Processes the segments that were kept, as far as their pages are present.
    pub(super) fn take_held<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        while let Some(segment) = resources.held.pop(self.number) {
            if !self.receives() {
                resources.counters.count(Counter::Dropped);
            } else if self.take_unrepeated(&segment, resources, io) {
                io.outbox.recycle(segment.payload);
            } else {
                return resources.held.put_back(self.number, segment);
            }
        }
    }

    /// Processes a segment that will not be sent again. Returns `false` if it has to wait for pages.
    fn take_unrepeated<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        match segment.body {
            Body::Datagram { .. } => self.receive_datagram(segment, resources, io),
            Body::Frame { .. } => self.receive_frame(segment, resources, io),
            _ => self.take_unacknowledged(segment, resources, io),
        }
    }
}
