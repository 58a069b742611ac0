// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The rate limits of a device and of its queue pairs.
//!
//! The limit of a device holds back what makes up the traffic: requests, datagrams and the data of read responses. That
//! of a queue pair holds back its requests and datagrams. Acknowledgements pass, so that peers do not mistake a slow
//! device for a dead one. Whoever could not send in time catches up, by up to [`BURST`] or by what the owner of a queue
//! pair allows.

use crate::{cause::Cause, time::Instant};
use serde::{Deserialize, Serialize};
use std::{num::NonZeroU64, time::Duration};

/// Whoever is late may send at once what was missed in this time, unless the limit of a queue pair says otherwise. A
/// device with a limit also sends for no longer than this before the next queue pair has its turn.
const BURST: Duration = Duration::from_millis(1);

/// Nanoseconds per second.
const SECOND: u128 = 1_000_000_000;

/// Largest traffic of a device; `None` means no limit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes of payload per second, including those of read responses.
    pub bytes: Option<NonZeroU64>,
    /// Requests and datagrams per second. Retransmissions do not count.
    pub requests: Option<NonZeroU64>,
}

/// Amount of traffic that a queue pair sends, or may send, in a turn.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes of payload.
    pub(crate) bytes: u64,
    /// Number of requests that are started.
    pub(crate) requests: u64,
}

impl Traffic {
    /// No limit.
    pub(crate) const ENDLESS: Self = Self {
        bytes: u64::MAX,
        requests: u64::MAX,
    };

    /// Returns whether either amount is 0.
    pub(crate) fn is_none(&self) -> bool {
        self.bytes == 0 || self.requests == 0
    }
}

/// State of the limit for one kind of traffic. Rounding errors do not add up, whatever the traffic consists of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Pace {
    per_second: Option<NonZeroU64>,
    /// Traffic of this time may be made up for.
    burst: Duration,
    /// When the traffic began that `amount` is about.
    since: Instant,
    /// Traffic since then.
    amount: u64,
}

impl Pace {
    fn new(per_second: Option<NonZeroU64>, burst: Duration, now: Instant) -> Self {
        Self {
            per_second,
            burst,
            since: now,
            amount: 0,
        }
    }

    /// Returns when the traffic so far, and `more`, has used up its time.
    fn due_after(&self, more: u64) -> Instant {
        let Some(rate) = self.per_second else {
            return self.since;
        };
        self.since + time_of(self.amount.saturating_add(more), rate)
    }

    /// Returns when the traffic so far has used up its time.
    fn due(&self) -> Instant {
        self.due_after(0)
    }

    /// Returns how much may be sent now.
    fn allows(&self, now: Instant) -> u64 {
        match self.per_second {
            None => u64::MAX,
            Some(_) if self.due() > now => 0,
            Some(rate) => u64::try_from(u128::from(rate.get()) * self.burst.as_nanos() / SECOND)
                .unwrap_or(u64::MAX)
                .max(1),
        }
    }

    /// Accounts for `amount` that was sent.
    fn charge(&mut self, amount: u64, now: Instant) {
        if self.per_second.is_none() || amount == 0 {
            return;
        }
        if now - self.due() > self.burst {
            // What was missed longer ago is lost.
            let burst = u64::try_from(self.burst.as_nanos()).unwrap_or(u64::MAX);
            self.since = Instant::from_nanos(now.as_nanos().saturating_sub(burst));
            self.amount = 0;
        }
        self.amount = self.amount.saturating_add(amount);
    }
}

/// Returns how long `amount` takes at a rate per second.
fn time_of(amount: u64, rate: NonZeroU64) -> Duration {
    let time = u128::from(amount) * SECOND / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
}

/// Enforces the rate limit of a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pacer {
    bytes: Pace,
    requests: Pace,
}

impl Pacer {
    /// Changes the limit. Earlier traffic does not count any more.
    pub(crate) fn set(&mut self, limit: RateLimit, now: Instant) {
        let pace = |per_second| Pace::new(per_second, BURST, now);
        self.bytes = pace(limit.bytes);
        self.requests = pace(limit.requests);
    }

    /// Returns how much may be sent now. The last packet may exceed it.
    #[inline]
    pub(crate) fn allows(&self, now: Instant) -> Traffic {
        Traffic {
            bytes: self.bytes.allows(now),
            requests: self.requests.allows(now),
        }
    }

    /// Accounts for traffic that was sent.
    #[inline]
    pub(crate) fn charge(&mut self, sent: Traffic, now: Instant) {
        self.bytes.charge(sent.bytes, now);
        self.requests.charge(sent.requests, now);
    }

    /// Returns when something may be sent again.
    pub(crate) fn due(&self) -> Instant {
        self.bytes.due().max(self.requests.due())
    }
}

/// Largest rate limit of a queue pair in kbit/s. The smallest is 1.
pub(crate) const MAX_QP_RATE: u32 = 1_000_000_000;

/// Rate limit of a queue pair, as its owner sets it (`struct ibv_qp_rate_limit_attr`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpLimit {
    /// Rate in kbit/s, or 0 without a limit.
    pub(crate) rate: u32,
    /// Bytes that may be sent without a pause; 0 means those of [`BURST`].
    pub(crate) max_burst: u32,
    /// Bytes of a typical packet. It is only reported, because each packet counts with its real length.
    pub(crate) typical_packet: u16,
}

impl QpLimit {
    /// Checks the limit. A packet that the owner thinks typical has `mtu` bytes unless the limit names another length.
    pub(crate) fn check(&self, mtu: u32) -> Result<(), Cause> {
        let typical = match self.typical_packet {
            0 => mtu,
            length => length.into(),
        };
        let valid = match (self.rate, self.max_burst) {
            (0, burst) => burst == 0 && self.typical_packet == 0,
            (rate, 0) => rate <= MAX_QP_RATE,
            (rate, burst) => rate <= MAX_QP_RATE && burst >= typical,
        };
        valid.then_some(()).ok_or(Cause::AttributeValue)
    }
}

/// Returns the static rate of an InfiniBand path in kbit/s (IBTA volume 1, 15.2.5.16), in the encoding of the verbs.
/// Returns `None` if it is the rate of the port, 100 Gbit/s, or more, or has no meaning.
pub(crate) fn static_rate(raw: u8) -> Option<u32> {
    let mbit_4ths = match raw {
        2 => 10_000,
        5 => 20_000,
        3 => 40_000,
        11 => 56_250,
        6 => 80_000,
        15 => 103_125,
        19 => 112_500,
        4 => 120_000,
        7 => 160_000,
        20 => 212_500,
        12 => 225_000,
        8 => 240_000,
        9 => 320_000,
        _ => return None,
    };
    Some(mbit_4ths * 250)
}

/// Enforces the rate limit of a queue pair.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct QpPacer {
    pace: Pace,
    /// When sending can continue, if the queue pair waits for that.
    waiting: Option<Instant>,
}

impl QpPacer {
    /// Changes the limit, and the [`static_rate`] of the path. Earlier traffic does not count any more.
    pub(crate) fn set(&mut self, limit: QpLimit, path: Option<u32>, now: Instant) {
        let rate = [limit.rate, path.unwrap_or(0)]
            .into_iter()
            .filter(|&rate| rate > 0)
            .min();
        let per_second = NonZeroU64::new(u64::from(rate.unwrap_or(0)) * 1000 / 8);
        let burst = match (per_second, limit.max_burst) {
            (Some(rate), bytes @ 1..) => time_of(bytes.into(), rate),
            _ => BURST,
        };
        *self = Self {
            pace: Pace::new(per_second, burst, now),
            waiting: None,
        };
    }

    /// Returns whether a packet may be sent now. If not, there has to be another attempt at the
    /// [deadline](Self::deadline).
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        if self.pace.per_second.is_none() {
            return true;
        }
        self.waiting = Some(self.pace.due()).filter(|&due| due > now);
        self.waiting.is_none()
    }

    /// Returns whether a pause follows a packet of this many bytes that is sent now.
    #[inline]
    pub(crate) fn pauses_after(&self, bytes: u32, now: Instant) -> bool {
        self.pace.per_second.is_some() && self.pace.due_after(bytes.into()) > now
    }

    /// Accounts for a packet that was sent.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u64, now: Instant) {
        self.pace.charge(bytes, now);
    }

    /// Returns when a packet may be sent, at `now` or later.
    #[inline]
    pub(crate) fn earliest(&self, now: Instant) -> Instant {
        match self.pace.per_second {
            None => now,
            Some(_) => self.pace.due().max(now),
        }
    }

    /// Returns the rate in kbit/s; `None` without a limit.
    pub(crate) fn rate(&self) -> Option<u32> {
        let rate = self.pace.per_second?.get() * 8 / 1000;
        u32::try_from(rate).ok()
    }

    /// Returns when sending can continue, if the queue pair waits for that.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting
    }

    /// Forgets the deadline if it has passed.
    pub(crate) fn forget_deadline(&mut self, now: Instant) {
        self.waiting = self.waiting.filter(|&at| at > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bytes: u64, requests: u64) -> Pacer {
        let mut pacer = Pacer::default();
        let limit = RateLimit {
            bytes: NonZeroU64::new(bytes),
            requests: NonZeroU64::new(requests),
        };
        pacer.set(limit, Instant::default());
        pacer
    }

    fn sent(bytes: u64, requests: u64) -> Traffic {
        Traffic { bytes, requests }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let mut pacer = limit(0, 0);
        pacer.charge(sent(u64::MAX, u64::MAX), at(5));
        assert_eq!(pacer.allows(at(5)), Traffic::ENDLESS);
        assert!(pacer.due() <= at(5));
    }

    #[test]
    fn what_was_sent_takes_its_time() {
        // 1000 bytes per millisecond, and one request.
        let mut pacer = limit(1_000_000, 1000);
        let allowed = sent(1000, 1);
        assert_eq!(pacer.allows(at(0)), allowed);
        pacer.charge(sent(3000, 1), at(0));
        assert_eq!(pacer.due(), at(3000));
        assert_eq!(pacer.allows(at(2999)).bytes, 0);
        assert_eq!(pacer.allows(at(2999)).requests, 1);
        assert!(pacer.allows(at(2999)).is_none());
        assert_eq!(pacer.allows(at(3000)), allowed);
    }

    #[test]
    fn who_is_late_makes_up_for_a_millisecond() {
        let mut pacer = limit(1_000_000, 0);
        pacer.charge(sent(1000, 0), at(400));
        // The first 400 microseconds had passed unused.
        assert_eq!(pacer.due(), at(1000));
        pacer.charge(sent(1000, 0), at(9000));
        assert_eq!(pacer.due(), at(9000));
        pacer.charge(sent(1000, 0), at(9000));
        assert_eq!(pacer.due(), at(10_000));
    }

    #[test]
    fn no_rate_overflows() {
        let mut pacer = limit(1, u64::MAX);
        pacer.charge(sent(u64::MAX, u64::MAX), at(u64::MAX / 1000));
        assert!(pacer.allows(at(0)).is_none());
    }

    #[test]
    fn rounding_errors_do_not_add_up() {
        // A byte takes a third of a nanosecond.
        let mut pacer = limit(3_000_000_000, 0);
        (0..3_000_000).for_each(|_| pacer.charge(sent(1, 0), at(0)));
        assert_eq!(pacer.due(), at(1000));
    }

    fn qp_limit(rate: u32, max_burst: u32, typical_packet: u16) -> QpLimit {
        QpLimit {
            rate,
            max_burst,
            typical_packet,
        }
    }

    #[test]
    fn limits_of_queue_pairs_are_in_range() {
        for (limit, valid) in [
            (qp_limit(0, 0, 0), true),
            (qp_limit(0, 4096, 0), false),
            (qp_limit(0, 0, 1), false),
            (qp_limit(1, 0, 0), true),
            (qp_limit(MAX_QP_RATE, 0, u16::MAX), true),
            (qp_limit(MAX_QP_RATE + 1, 0, 0), false),
            (qp_limit(u32::MAX, u32::MAX, 0), false),
            (qp_limit(1000, 2047, 0), false),
            (qp_limit(1000, 2048, 0), true),
            (qp_limit(1000, 99, 100), false),
            (qp_limit(1000, 100, 100), true),
        ] {
            assert_eq!(limit.check(2048).is_ok(), valid, "{limit:?}");
        }
    }

    #[test]
    fn a_queue_pair_pauses_between_packets() {
        let mut pacer = QpPacer::default();
        assert!(pacer.may_send(at(0)) && !pacer.pauses_after(u32::MAX, at(0)));
        pacer.charge(u64::MAX, at(0));
        assert_eq!((pacer.earliest(at(7)), pacer.deadline()), (at(7), None));
        // 8 Mbit/s are 1 byte per microsecond.
        pacer.set(qp_limit(8000, 0, 0), None, at(10));
        assert!(pacer.may_send(at(10)) && pacer.pauses_after(1, at(10)));
        pacer.charge(100, at(10));
        assert_eq!(pacer.earliest(at(10)), at(110));
        assert!(!pacer.may_send(at(109)));
        assert_eq!(pacer.deadline(), Some(at(110)));
        pacer.forget_deadline(at(109));
        assert_eq!(pacer.deadline(), Some(at(110)));
        assert!(pacer.may_send(at(110)));
        assert_eq!(pacer.deadline(), None);
    }

    #[test]
    fn a_queue_pair_sends_no_longer_bursts_than_it_may() {
        for (max_burst, expected) in [(500, 600), (0, 1100)] {
            let mut pacer = QpPacer::default();
            pacer.set(qp_limit(8000, max_burst, 100), None, at(0));
            let mut bytes = 0;
            while pacer.may_send(at(100_000)) {
                pacer.charge(100, at(100_000));
                bytes += 100;
            }
            // The last packet began within the burst.
            assert_eq!(bytes, expected, "{max_burst}");
        }
    }

    #[test]
    fn the_lower_one_of_limit_and_static_rate_counts() {
        for (limit, path, expected) in [
            (8000, None, Some(1_000_000)),
            (0, Some(16_000), Some(2_000_000)),
            (8000, Some(16_000), Some(1_000_000)),
            (8000, Some(4000), Some(500_000)),
            (0, None, None),
        ] {
            let mut pacer = QpPacer::default();
            pacer.set(qp_limit(limit, 0, 0), path, at(0));
            assert_eq!(pacer.pace.per_second.map(NonZeroU64::get), expected);
            let kilobits = [limit, path.unwrap_or(0)];
            let lower = kilobits.into_iter().filter(|&rate| rate > 0).min();
            assert_eq!(pacer.rate(), lower);
        }
        let mut pacer = QpPacer::default();
        pacer.set(qp_limit(MAX_QP_RATE, 0, 0), None, at(0));
        assert_eq!(pacer.rate(), Some(MAX_QP_RATE));
    }

    #[test]
    fn static_rates_below_that_of_the_port_have_a_meaning() {
        let mut all: Vec<u32> = (0..=u8::MAX).filter_map(static_rate).collect();
        all.sort_unstable();
        let mbits = all.iter().map(|rate| rate / 1000).collect::<Vec<_>>();
        let expected = [
            2500, 5000, 10_000, 14_062, 20_000, 25_781, 28_125, 30_000, 40_000, 53_125, 56_250,
            60_000, 80_000,
        ];
        assert_eq!(mbits, expected);
        assert_eq!(static_rate(0), None);
    }
}
