// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Faults of a port of the switch: what they do to the RoCE frames that pass it. Other frames pass as they are.

use vrnic_engine::fault::{Armory, Direction, Faults, Kind, Line};
use vrnic_engine::memory::Nowhere;
use vrnic_engine::segment::Segment;
use vrnic_engine::time::Instant;
use vrnic_roce::{MAX_OVERHEAD, damage, encode, parse};

/// The faults of a port. They fire on packets, so a frame that a fault strikes is read, and written anew.
#[derive(Default)]
pub struct PortFaults {
    line: Line,
    /// What goes on; kept for its allocation.
    goes: Vec<Segment<'static>>,
}

/// A frame that a fault made.
pub struct Made {
    /// The frame.
    pub frame: Vec<u8>,
    /// What fault.
    pub by: Option<&'static Kind>,
}

impl PortFaults {
    /// Whether frames need not be shown to them.
    pub fn is_idle(&self) -> bool {
        self.line.is_idle()
    }

    /// The faults, to look at them.
    pub fn faults(&self) -> &Faults {
        self.line.faults()
    }

    /// The faults, to arm some or to clear them.
    pub fn armory(&mut self) -> Armory<'_> {
        self.line.armory()
    }

    /// A frame passes. Gives the fault that struck it; without one it goes on as it is. What goes on besides, or in
    /// place of a frame that was struck, is added to `made`.
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

    /// The next frame that was put off until now, and which way it goes.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Direction, Made)> {
        loop {
            let (direction, segment) = self.line.pop_due(now)?;
            if let Some(made) = written(&segment) {
                return Some((direction, made));
            }
        }
    }

    /// When there is one.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.line.next_deadline()
    }
}

/// The frame of a packet that came in one, so that there always is one.
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
