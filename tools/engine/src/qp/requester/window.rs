// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limit on packets in flight on a wire, which adapts to the capacity of the path.
//!
//! The window doubles after each measured round trip in which it held the requester back, unless longer round trips
//! show that packets wait in queues.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Initial and minimum number of packets. If the path holds less, packets wait in queues. A smaller window would fill
/// up soon while a packet is missing, because the packets after it do not count as arrived.
const LEAST: u32 = 256;

/// Maximum number of packets, which is also how many a peer of this kind keeps.
const MOST: u32 = crate::qp::responder::MAX_AHEAD;

/// The window of a connection.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct Window {
    packets: u32,
    /// Whether the window has held the requester back since the last measurement.
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
    /// Returns whether a packet that is this far ahead of the oldest one may be sent.
    pub(super) fn admits(&mut self, ahead: u32) -> bool {
        let admitted = ahead < self.packets;
        self.full |= !admitted;
        admitted
    }

    /// Adjusts the window to a round trip that took `time`, when the shortest recent one took `shortest`.
    pub(super) fn measured(&mut self, time: Duration, shortest: Duration) {
        if time > 4 * shortest {
            self.packets = (self.packets / 2).max(LEAST);
        } else if self.full && time <= 2 * shortest {
            self.packets = (self.packets * 2).min(MOST);
        }
        self.full = false;
    }

    /// Shrinks the window, because all packets in flight were lost or are useless to the peer.
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
