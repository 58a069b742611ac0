// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Makes data that peers wrote persistent, so that it survives a loss of power.
//!
//! Writing to a disk takes time, so the embedding program does it, for one queue pair at a time: [`Engine::next_sync`]
//! returns what to write next, and [`Engine::synced`] takes the result. Until then, the flush that requested it and all
//! later responses of its queue pair wait.

use crate::{
    cause::Cause,
    fault::{Occasion, Seam},
    memory::{HostRange, Memory},
    psn::Psn,
    region::RegionMemory,
    rnic::Engine,
    state,
};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vrnic_wire::memory::access;

/// Progress of a flush.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Progress {
    /// It waits for others.
    Waits,
    /// It is being executed, with this serial number.
    UnderWay(u64),
    /// It is finished; the flag is whether it succeeded.
    Over(bool),
}

/// The flush of a queue pair that is in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Flushing {
    /// Its PSN.
    psn: Psn,
    /// What to make persistent.
    ranges: Vec<HostRange>,
    progress: Progress,
}

impl Flushing {
    /// Creates a flush that waits.
    pub(crate) fn new(psn: Psn, ranges: Vec<HostRange>) -> Self {
        Self {
            psn,
            ranges,
            progress: Progress::Waits,
        }
    }

    /// Returns whether this is the flush with this PSN.
    pub(crate) fn is_of(&self, psn: Psn) -> bool {
        self.psn == psn
    }

    /// Returns whether it succeeded; `None` if it is not finished.
    pub(crate) fn result(&self) -> Option<bool> {
        match self.progress {
            Progress::Over(done) => Some(done),
            Progress::Waits | Progress::UnderWay(_) => None,
        }
    }

    fn begin(&mut self, serial: u64) -> Option<Vec<HostRange>> {
        (self.progress == Progress::Waits).then(|| {
            self.progress = Progress::UnderWay(serial);
            std::mem::take(&mut self.ranges)
        })
    }

    fn end(&mut self, serial: u64, done: bool) -> bool {
        let mine = self.progress == Progress::UnderWay(serial);
        if mine {
            self.progress = Progress::Over(done);
        }
        mine
    }
}

/// Order of the flushes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Syncs {
    /// Queue pairs whose flushes wait, or did when they were queued.
    queue: VecDeque<u32>,
    #[serde(serialize_with = "state::set")]
    queued: FxHashSet<u32>,
    /// Queue pair whose flush is being executed, and the serial number of the flush.
    under_way: Option<(u32, u64)>,
    serial: u64,
}

impl Syncs {
    /// Queues a queue pair whose flush waits.
    pub(crate) fn push(&mut self, qpn: u32) {
        if self.queued.insert(qpn) {
            self.queue.push_back(qpn);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let qpn = self.queue.pop_front()?;
        self.queued.remove(&qpn);
        Some(qpn)
    }
}

impl Engine {
    /// Returns whether [`next_sync`](Self::next_sync) would look for a flush.
    pub(crate) fn wants_sync(&self) -> bool {
        let syncs = &self.resources.syncs;
        syncs.under_way.is_none() && !syncs.queue.is_empty()
    }

    /// Returns what to make persistent next, one range in each block of memory. Returns `None` if there is nothing, or
    /// if [`synced`](Self::synced) has not been called since the last request.
    pub fn next_sync(&mut self) -> Option<Vec<HostRange>> {
        if self.resources.syncs.under_way.is_some() {
            return None;
        }
        while let Some(qpn) = self.resources.syncs.pop() {
            let serial = self.resources.syncs.serial;
            let flushing = self.qps.get_mut(qpn).and_then(|qp| qp.flushing());
            if let Some(ranges) = flushing.and_then(|flushing| flushing.begin(serial)) {
                self.resources.syncs.serial += 1;
                self.resources.syncs.under_way = Some((qpn, serial));
                return Some(ranges);
            }
        }
        None
    }

    /// Reports whether the ranges from the last [`next_sync`](Self::next_sync) were made persistent. The caller must
    /// call [`poll`](Self::poll) afterwards.
    pub fn synced(&mut self, done: bool) {
        let Some((qpn, serial)) = self.resources.syncs.under_way.take() else {
            return;
        };
        let subject = self.qps.get(qpn).map(crate::qp::Qp::subject);
        let strike = self.resources.strike(|| Occasion {
            qp: subject,
            ..Occasion::new(Seam::Sync)
        });
        let done = done && strike.is_none();
        // The queue pair may be gone, and another may have its number.
        let flushing = self.qps.get_mut(qpn).and_then(|qp| qp.flushing());
        if flushing.is_some_and(|flushing| flushing.end(serial, done)) {
            self.qps.schedule(qpn);
        }
    }
}

/// Adds a range to a list with one range per block. The range of the block grows to include everything between the two.
/// Returns whether it is the first range of its block.
fn include(ranges: &mut Vec<HostRange>, range: HostRange) -> bool {
    let block = ranges.iter_mut().find(|other| other.region == range.region);
    let Some(other) = block else {
        ranges.push(range);
        return true;
    };
    let start = other.offset.min(range.offset);
    let end = (other.offset + other.length).max(range.offset + range.length);
    other.offset = start;
    other.length = end - start;
    false
}

/// Returns the ranges that a flush of a region with these rights must make persistent, one in each block: none without
/// the right to flush. On-demand pages have none yet.
pub(crate) fn flush_ranges<M: Memory>(
    rights: u32,
    region: &RegionMemory,
    memory: &M,
) -> Result<Vec<HostRange>, Cause> {
    let mut ranges = Vec::new();
    if rights & access::FLUSH_PERSISTENT == 0 {
        return Ok(ranges);
    }
    match region {
        RegionMemory::Buffer(buffer) => {
            for range in buffer.all() {
                if include(&mut ranges, range) && memory.persistent_length(range.region).is_none() {
                    return Err(Cause::NotPersistent);
                }
            }
        }
        RegionMemory::Paged(_) => {}
        RegionMemory::Nested(_)
        | RegionMemory::Integrity(_)
        | RegionMemory::All
        | RegionMemory::Null => {
            return Err(Cause::NotPersistent);
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionId;

    #[test]
    fn one_range_for_each_block() {
        let range = |region, offset, length| HostRange {
            region: RegionId(region),
            offset,
            length,
        };
        let mut ranges = Vec::new();
        for (one, first) in [
            (range(1, 100, 10), true),
            (range(2, 7, 1), true),
            (range(1, 50, 10), false),
            (range(1, 105, 1), false),
        ] {
            assert_eq!(include(&mut ranges, one), first);
        }
        assert_eq!(ranges, [range(1, 50, 60), range(2, 7, 1)]);
    }

    #[test]
    fn a_queue_pair_is_queued_once() {
        let mut syncs = Syncs::default();
        for qpn in [2, 3, 2, 2, 3] {
            syncs.push(qpn);
        }
        assert_eq!(
            [syncs.pop(), syncs.pop(), syncs.pop()],
            [Some(2), Some(3), None]
        );
        syncs.push(2);
        assert_eq!(syncs.pop(), Some(2));
    }
}
