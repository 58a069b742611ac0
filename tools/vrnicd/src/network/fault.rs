// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Faults of a switch port, which affect the RoCE frames that pass through it. Other frames pass unchanged.

use vrnic_engine::fault::{Armory, Direction, Faults, Kind, Line};
use vrnic_engine::memory::Nowhere;
use vrnic_engine::segment::Segment;
use vrnic_engine::time::Instant;
use vrnic_roce::{MAX_OVERHEAD, damage, encode, parse};

/// The faults of a port. Faults act on packets, so a frame that a fault strikes is parsed and encoded again.
#[derive(Default)]
pub struct PortFaults {
    line: Line,
    /// Segments to be forwarded; kept for its allocation.
    goes: Vec<Segment<'static>>,
}

/// A frame made by a fault.
pub struct Made {
    /// The frame.
    pub frame: Vec<u8>,
    /// Kind of the fault.
    pub by: Option<&'static Kind>,
}

impl PortFaults {
    /// Returns whether frames need not be shown to the faults.
    pub fn is_idle(&self) -> bool {
        self.line.is_idle()
    }

    /// Returns the faults, to be inspected.
    pub fn faults(&self) -> &Faults {
        self.line.faults()
    }

    /// Returns the faults, to be armed or cleared.
    pub fn armory(&mut self) -> Armory<'_> {
        self.line.armory()
    }

    /// Shows a passing frame to the faults. Returns the fault that struck it, if any; otherwise the frame goes on
    /// unchanged. Frames that go on in addition to the original frame, or in place of one that was struck, are added to
    /// `made`.
    pub fn pass(
        &mut self,
        direction: Direction,
        frame: &[u8],
        now: Instant,
        made: &mut Vec<Made>,
    ) -> Option<&'static Kind> {
        let segment = parse(frame).ok()?;
        let struck = self.line.pass(direction, &segment, now, &mut self.goes);
        made.extend(self.goes.drain(..).filter_map(|segment| written(&segment)));
        struck
    }

    /// Returns the next frame whose delay by a fault has ended, and its direction.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Direction, Made)> {
        loop {
            let (direction, segment) = self.line.pop_due(now)?;
            if let Some(made) = written(&segment) {
                return Some((direction, made));
            }
        }
    }

    /// Returns when the next delayed frame is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.line.next_deadline()
    }
}

/// Encodes a packet as a frame. This succeeds because the packet arrived in a frame.
fn written(segment: &Segment<'_>) -> Option<Made> {
    let mut frame = vec![0; MAX_OVERHEAD + segment.payload.len() as usize];
    let length = encode(segment, &Nowhere, &mut frame).ok()?;
    frame.truncate(length);
    damage(&mut frame, segment.touched.damage);
    Some(Made {
        frame,
        by: segment.touched.kind,
    })
}
