// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The rate limit of a device.
//!
//! A limit holds back what makes up the traffic: requests, datagrams and the data of read responses. Acknowledgements
//! pass, so that peers do not mistake a slow device for a dead one. A device that could not send in time catches up, by
//! up to [`BURST`].

use crate::time::Instant;
use serde::{Deserialize, Serialize};
use std::{num::NonZeroU64, time::Duration};

/// A device that is late may send at once what it missed in this time. It also sends for no longer than this before the
/// next queue pair has its turn.
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

/// State of the limit for one kind of traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Pace {
    per_second: Option<NonZeroU64>,
    /// When the traffic so far has used up its time.
    due: Instant,
}

impl Pace {
    /// Returns how much may be sent now.
    fn allows(&self, now: Instant) -> u64 {
        match self.per_second {
            None => u64::MAX,
            Some(_) if self.due > now => 0,
            Some(rate) => u64::try_from(u128::from(rate.get()) * BURST.as_nanos() / SECOND)
                .unwrap_or(u64::MAX)
                .max(1),
        }
    }

    /// Accounts for `amount` that was sent.
    fn charge(&mut self, amount: u64, now: Instant) {
        let Some(rate) = self.per_second.filter(|_| amount > 0) else {
            return;
        };
        let missed = (now - self.due).min(BURST);
        let from = now.as_nanos().max(self.due.as_nanos()) - missed.as_nanos() as u64;
        let time = u64::try_from(u128::from(amount) * SECOND / u128::from(rate.get()));
        self.due = Instant::from_nanos(from) + Duration::from_nanos(time.unwrap_or(u64::MAX));
    }
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
        let pace = |per_second| Pace {
            per_second,
            due: now,
        };
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
        self.bytes.due.max(self.requests.due)
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
}
