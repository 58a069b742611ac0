// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Round-trip time of answers, measured only on packets that were sent once (Karn's algorithm), and smoothed as in RFC
//! 6298.

use crate::{psn::Psn, time::Instant};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Minimum time after which an answer is taken to be lost, on a wire.
const LEAST: Duration = Duration::from_micros(50);

/// The same on a local fabric, where packets are lost only on demand and needless wakeups should be avoided.
const LEAST_LOCAL: Duration = Duration::from_millis(1);

/// How long the shortest time is remembered, because the path may change.
const MEMORY: Duration = Duration::from_secs(10);

/// Times of a connection, in nanoseconds.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Rtt {
    /// Smoothed time; 0 if nothing was measured.
    smoothed: u64,
    /// Average deviation from the smoothed time.
    deviation: u64,
    /// Shortest recent time, and when it was measured.
    shortest: Option<(u64, Instant)>,
    /// A packet whose answer is being timed, and when it was sent.
    timed: Option<(Psn, Instant)>,
}

impl Rtt {
    /// Starts timing a packet, unless another one is being timed.
    pub(super) fn begin(&mut self, psn: Psn, now: Instant) {
        self.timed.get_or_insert((psn, now));
    }

    /// Stops timing, because packets are sent again and it is not known which one is answered.
    pub(super) fn abort(&mut self) {
        self.timed = None;
    }

    /// Notes that everything before `unacked` was answered. Returns the time of the answer if it was measured.
    pub(super) fn answered(&mut self, unacked: Psn, now: Instant) -> Option<Duration> {
        let (_, sent) = self
            .timed
            .take_if(|(psn, _)| unacked.distance_from(*psn) > 0)?;
        self.measured(now - sent, now);
        Some(now - sent)
    }

    /// Adds a measured time.
    pub(super) fn measured(&mut self, time: Duration, now: Instant) {
        let time = time.as_nanos().clamp(1, u64::MAX.into()) as u64;
        if self.smoothed == 0 {
            self.smoothed = time;
            self.deviation = time / 2;
        } else {
            self.deviation = self.deviation / 4 * 3 + self.smoothed.abs_diff(time) / 4;
            self.smoothed = self.smoothed / 8 * 7 + time / 8;
        }
        self.shortest = match self.shortest {
            Some((shortest, at)) if shortest <= time && now - at < MEMORY => Some((shortest, at)),
            _ => Some((time, now)),
        };
    }

    /// Returns whether a time was measured.
    pub(super) fn is_known(&self) -> bool {
        self.smoothed != 0
    }

    /// Returns the time after which an answer is taken to be lost, if a time was measured.
    pub(super) fn patience(&self, is_wire: bool) -> Option<Duration> {
        if !self.is_known() {
            return None;
        }
        let least = if is_wire { LEAST } else { LEAST_LOCAL };
        let usual = self
            .smoothed
            .saturating_add(self.deviation.saturating_mul(4));
        Some(Duration::from_nanos(usual).max(least))
    }

    /// Returns whether an answer after this time is too early to be one.
    pub(super) fn is_too_soon(&self, time: Duration) -> bool {
        time < Duration::from_nanos(self.smoothed / 2)
    }

    /// Returns whether an answer should have arrived after this time.
    pub(super) fn is_long(&self, time: Duration) -> bool {
        time > Duration::from_nanos(self.smoothed.saturating_mul(2))
    }

    /// Returns whether packets seem to wait in queues on their way.
    pub(super) fn is_queueing(&self) -> bool {
        self.smoothed > self.shortest.map_or(0, |(time, _)| time).saturating_mul(4)
    }

    /// Returns the shortest recent time, or zero if nothing was measured.
    pub(super) fn shortest(&self) -> Duration {
        Duration::from_nanos(self.shortest.map_or(0, |(time, _)| time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Instant {
        Instant::from_nanos(microseconds * 1000)
    }

    #[test]
    fn one_packet_at_a_time_is_timed() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.patience(true), None);
        rtt.begin(Psn::new(7), at(100));
        rtt.begin(Psn::new(9), at(150));
        assert_eq!(
            rtt.answered(Psn::new(7), at(160)),
            None,
            "7 is not answered"
        );
        assert_eq!(
            rtt.answered(Psn::new(8), at(300)),
            Some(Duration::from_micros(200))
        );
        assert_eq!(rtt.answered(Psn::new(10), at(300)), None);
        assert_eq!(rtt.patience(true), Some(Duration::from_micros(600)));
        rtt.begin(Psn::new(11), at(400));
        rtt.abort();
        assert_eq!(rtt.answered(Psn::new(12), at(500)), None, "sent again");
    }

    #[test]
    fn steady_times_make_impatient() {
        let mut rtt = Rtt::default();
        for round in 0..100 {
            rtt.measured(Duration::from_micros(80), at(round * 100));
        }
        assert!(
            rtt.patience(true) < Some(Duration::from_micros(90)),
            "{rtt:?}"
        );
        rtt.measured(Duration::from_micros(200), at(10_000));
        assert!(
            rtt.patience(true) > Some(Duration::from_micros(200)),
            "{rtt:?}"
        );
        assert_eq!(rtt.shortest(), Duration::from_micros(80));
        rtt.measured(Duration::from_micros(200), at(11_000_000));
        assert_eq!(rtt.shortest(), Duration::from_micros(200), "forgotten");
        assert!(rtt.is_too_soon(Duration::from_micros(20)));
        assert!(!rtt.is_too_soon(Duration::from_micros(150)));
    }
}
