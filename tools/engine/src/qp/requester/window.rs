// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How many packets are on their way on a wire: as many as the path holds.
//!
//! The window doubles with each measured round trip in which it was what held the requester back, as long as
//! packets do not queue up on the way, which shows in the time that they take.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Packets at first, and at least. If the path holds less, they wait on it; but while a packet is missing, none
/// of those behind it counts as arrived, and a smaller window would be full soon.
const LEAST: u32 = 256;

/// Packets at most. A peer of this kind keeps as many.
const MOST: u32 = crate::qp::responder::MAX_AHEAD;

/// The window of a connection.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct Window {
    packets: u32,
    /// Whether it held the requester back since the last measurement.
    full: bool,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            packets: LEAST,
            full: false,
        }
    }
}

impl Window {
    /// Whether a packet that is so many ahead of the oldest one may be sent.
    pub(super) fn admits(&mut self, ahead: u32) -> bool {
        let admitted = ahead < self.packets;
        self.full |= !admitted;
        admitted
    }

    /// A round trip took `time`; the shortest of late took `shortest`.
    pub(super) fn measured(&mut self, time: Duration, shortest: Duration) {
        if time > 4 * shortest {
            self.packets = (self.packets / 2).max(LEAST);
        } else if self.full && time <= 2 * shortest {
            self.packets = (self.packets * 2).min(MOST);
        }
        self.full = false;
    }

    /// Everything on its way was lost, or is worth nothing to the peer.
    pub(super) fn collapse(&mut self) {
        self.packets = self.packets.min(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_while_it_is_full_and_nothing_queues_up() {
        const SHORT: Duration = Duration::from_micros(100);
        let mut window = Window::default();
        window.measured(SHORT, SHORT);
        assert!(!window.admits(LEAST), "it was not full");
        window.measured(SHORT, SHORT);
        assert!(window.admits(LEAST) && !window.admits(2 * LEAST));
        window.measured(3 * SHORT, SHORT);
        assert!(!window.admits(2 * LEAST), "packets queue up");
        for _ in 0..20 {
            assert!(!window.admits(MOST));
            window.measured(SHORT, SHORT);
        }
        assert!(window.admits(MOST - 1) && !window.admits(MOST));
        window.measured(5 * SHORT, SHORT);
        assert!(!window.admits(MOST / 2) && window.admits(MOST / 2 - 1));
        window.collapse();
        assert!(!window.admits(LEAST) && window.admits(LEAST - 1));
    }
}
