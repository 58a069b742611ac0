// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Congestion control of RoCE (annex A17, 9), which InfiniBand does not have. A queue pair answers packets that a
//! switch has marked with congestion notification packets. A queue pair that receives a notification sends more slowly
//! for a while.
//!
//! The rate follows a simple form of DCQCN. Each notification reduces the rate by a share, which is larger if there
//! were more notifications recently. Without notifications, the rate first goes half-way back to its former value,
//! several times. Then it grows beyond that value, until there is no limit any more.

use super::Qp;
use crate::{
    memory::Memory,
    psn::Psn,
    resources::{Io, Resources},
    segment::{Body, ECN_MARKED, ECN_MASK, Payload, Segment},
    time::Instant,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vrnic_wire::counter::Counter;

/// Minimum time between two notifications of a connection, and between two cuts of its rate.
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// Time without notifications after which the rate grows.
const GROWTH_INTERVAL: Duration = Duration::from_micros(55);

/// Line rate in bytes per second: 100 Gbit/s, as the port reports.
const LINE_RATE: u64 = 12_500_000_000;

/// Minimum rate in bytes per second.
const MIN_RATE: u64 = LINE_RATE / 1000;

/// Growth of the target per interval once the rate has recovered, in bytes per second.
const GROWTH: u64 = LINE_RATE / 200;

/// Number of recovery intervals before the target grows.
const RECOVERY: u32 = 5;

/// Maximum congestion. The minimum is 0.
const FULL: u32 = 1 << 16;

/// Fraction by which the congestion changes with each notification, or each interval without: 1/`GAIN`.
const GAIN: u32 = 16;

/// After a pause, as many bytes as this time is worth may be sent at once.
const BURST: Duration = Duration::from_micros(20);

/// State of a rate limit.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Limit {
    /// Bytes per second.
    rate: u64,
    /// Rate to which the limit returns.
    target: u64,
    /// Degree of congestion, up to [`FULL`].
    congestion: u32,
    /// When the rate was last cut.
    cut: Instant,
    /// When the rate last changed.
    changed: Instant,
    /// Number of intervals since the cut.
    intervals: u32,
    /// When the bytes sent so far have left at this rate.
    busy_until: Instant,
}

/// Congestion state of a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Congestion {
    limit: Option<Limit>,
    /// When the peer was last notified.
    notified: Option<Instant>,
    /// When sending can continue, if it waits.
    waiting: Option<Instant>,
}

impl Congestion {
    /// Forgets the congestion of the old path after a change to a new one.
    pub(super) fn change_path(&mut self) {
        *self = Self::default();
    }

    /// Returns when sending can continue, if it waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting
    }

    /// Forgets the deadline if it has passed.
    pub(super) fn forget_deadline(&mut self, now: Instant) {
        self.waiting = self.waiting.filter(|&at| at > now);
    }

    /// Returns whether a packet may be sent now.
    pub(super) fn may_send(&mut self, now: Instant) -> bool {
        self.grow(now);
        self.waiting = self
            .limit
            .map(|limit| limit.busy_until)
            .filter(|&at| at > now);
        self.waiting.is_none()
    }

    /// Notes that a packet with this many bytes of payload was sent.
    pub(super) fn sent(&mut self, bytes: u64, now: Instant) {
        /// Bytes of headers.
        const OVERHEAD: u64 = 64;
        if let Some(limit) = &mut self.limit {
            let time = Duration::from_nanos((bytes + OVERHEAD) * 1_000_000_000 / limit.rate);
            let idle_since =
                Instant::from_nanos(now.as_nanos().saturating_sub(BURST.as_nanos() as u64));
            limit.busy_until = limit.busy_until.max(idle_since) + time;
        }
    }

    /// Reduces the rate because of a notification. Returns whether the rate was cut.
    fn slow_down(&mut self, now: Instant) -> bool {
        self.grow(now);
        let limit = self.limit.get_or_insert(Limit {
            rate: LINE_RATE,
            target: LINE_RATE,
            congestion: FULL,
            cut: Instant::default(),
            changed: now,
            intervals: 0,
            busy_until: now,
        });
        let first = limit.cut == Instant::default();
        if !first && now - limit.cut < NOTIFICATION_INTERVAL {
            return false;
        }
        limit.target = limit.rate;
        let cut = limit.rate * u64::from(limit.congestion) / u64::from(2 * FULL);
        limit.rate = (limit.rate - cut).max(MIN_RATE);
        limit.congestion += (FULL - limit.congestion) / GAIN;
        (limit.cut, limit.changed, limit.intervals) = (now, now, 0);
        true
    }

    /// Increases the rate for the time without notifications.
    fn grow(&mut self, now: Instant) {
        while let Some(limit) = &mut self.limit
            && now - limit.changed >= GROWTH_INTERVAL
        {
            limit.changed = limit.changed + GROWTH_INTERVAL;
            limit.congestion -= limit.congestion / GAIN;
            limit.intervals += 1;
            if limit.intervals > RECOVERY {
                limit.target = (limit.target + GROWTH).min(LINE_RATE);
            }
            limit.rate = limit.rate.midpoint(limit.target);
            // Going half-way repeatedly never reaches the line rate.
            if limit.rate > LINE_RATE - GROWTH {
                self.limit = None;
            }
        }
    }
}

impl Qp {
    /// Notifies the peer if a packet of the connection is marked, but not too often.
    pub(super) fn note_mark<M: Memory>(
        &mut self,
        segment: &Segment<'_>,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        // On InfiniBand, the sender sets these bits as it likes.
        if segment.path.lids.is_some() || segment.path.traffic_class & ECN_MASK != ECN_MARKED {
            return;
        }
        resources.counters.count(Counter::MarkedPackets);
        let recently = |at| io.now - at < NOTIFICATION_INTERVAL;
        if self.congestion.notified.is_some_and(recently) {
            return;
        }
        self.congestion.notified = Some(io.now);
        resources.counters.count(Counter::NotificationsSent);
        let body = Body::CongestionNotification;
        let notification = self.segment(Psn::default(), body, Payload::Empty, resources);
        resources.send(notification, io);
    }

    /// Processes the peer's notification that packets on the way to it are marked.
    pub(super) fn take_notification(&mut self, resources: &mut Resources, now: Instant) {
        if self.congestion.slow_down(now) {
            resources.counters.count(Counter::NotificationsHandled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Instant {
        Instant::from_nanos(microseconds * 1000)
    }

    /// Returns the bytes that may be sent between two times, with an attempt in each microsecond.
    fn throughput(congestion: &mut Congestion, from: u64, to: u64) -> u64 {
        let mut bytes = 0;
        for time in from..to {
            // The line itself cannot send more.
            for _ in 0..3 {
                if congestion.may_send(at(time)) {
                    congestion.sent(4096, at(time));
                    bytes += 4096 + 64;
                }
            }
        }
        bytes
    }

    #[test]
    fn notifications_halve_the_rate_and_silence_brings_it_back() {
        let mut congestion = Congestion::default();
        assert!(congestion.may_send(at(1)));
        assert!(congestion.slow_down(at(100)));
        assert!(!congestion.slow_down(at(120)), "too soon");
        let halved = throughput(&mut congestion, 100, 150);
        let expected = LINE_RATE / 2 * 50 / 1_000_000;
        assert!(halved.abs_diff(expected) < expected / 10, "{halved}");
        // Constant notifications reduce the rate to the minimum, but not below.
        for time in (0..40).map(|n| 150 + n * 50) {
            congestion.slow_down(at(time));
        }
        let least = throughput(&mut congestion, 2100, 2150);
        assert!(least <= 4160, "{least}");
        // No more notifications.
        assert!(!congestion.may_send(at(2151)) || congestion.limit.is_some());
        assert!(congestion.may_send(at(200_000)));
        assert!(congestion.limit.is_none());
        assert_eq!(congestion.deadline(), None);
    }

    #[test]
    fn sending_goes_on_at_the_deadline() {
        let mut congestion = Congestion::default();
        for time in 0..30 {
            congestion.slow_down(at(100 + time * 50));
        }
        let mut now = at(1600);
        let mut sent = 0;
        for _ in 0..100 {
            if congestion.may_send(now) {
                congestion.sent(4096, now);
                sent += 1;
            } else {
                let next = congestion.deadline().expect("deadline");
                assert!(next > now);
                now = next;
            }
        }
        assert!(sent >= 49, "{sent}");
    }

    #[test]
    fn long_silence_costs_no_time() {
        let mut congestion = Congestion::default();
        congestion.slow_down(at(1));
        assert!(congestion.may_send(Instant::from_nanos(u64::MAX)));
        assert!(congestion.limit.is_none());
    }
}
