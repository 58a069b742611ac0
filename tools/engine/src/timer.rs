// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Timers.

use crate::time::Instant;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Reminders to look at objects of one kind, in order of time.
///
/// The deadline of a queue pair moves with every acknowledgement, so deadlines are not kept here. Each object has at
/// most one reminder, which is not later than its deadline. When the reminder is due, the object is asked for its
/// deadline, and gets another reminder if that is in the future.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timers {
    reminders: BTreeSet<(Instant, u32)>,
}

impl Timers {
    /// Requests a reminder to look at object `number`. `reminder` is the time of the existing reminder, if any, and is
    /// updated.
    pub(crate) fn remind(&mut self, number: u32, at: Instant, reminder: &mut Option<Instant>) {
        if reminder.is_none_or(|existing| at < existing) {
            self.forget(number, reminder.take());
            self.reminders.insert((at, number));
            *reminder = Some(at);
        }
    }

    /// Forgets the reminder of an object.
    pub(crate) fn forget(&mut self, number: u32, reminder: Option<Instant>) {
        if let Some(at) = reminder {
            self.reminders.remove(&(at, number));
        }
    }

    /// Returns the time of the first reminder.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.reminders.first().map(|(at, _)| *at)
    }

    /// Takes the first reminder that is due, and returns its time and object.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.reminders.pop_first()
    }
}

/// Returns the local ACK timeout of the 5-bit encoding: 4.096 µs times 2 to the `timeout`; `None` for 0, which means
/// infinite (IBTA volume 1, 9.7.6.1.3).
pub fn ack_timeout(timeout: u8) -> Option<Duration> {
    (timeout != 0).then(|| Duration::from_nanos(4096 << (timeout & 31)))
}

/// RNR timer for the 5-bit encoding (IBTA volume 1, table 45), in units of 10 µs.
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns how long to wait after an RNR NAK with this timer field.
pub fn rnr_timeout(timer: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_TIMER[usize::from(timer & 31)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_match_the_standard() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
        assert_eq!(rnr_timeout(0), Duration::from_nanos(655_360_000));
        assert_eq!(rnr_timeout(1), Duration::from_micros(10));
        assert_eq!(rnr_timeout(12), Duration::from_micros(640));
        assert_eq!(rnr_timeout(31), Duration::from_nanos(491_520_000));
    }

    #[test]
    fn earlier_reminders_win_and_later_ones_wait() {
        let mut timers = Timers::default();
        let mut reminder = None;
        timers.remind(7, Instant::from_nanos(50), &mut reminder);
        timers.remind(7, Instant::from_nanos(90), &mut reminder);
        timers.remind(7, Instant::from_nanos(20), &mut reminder);
        assert_eq!(timers.next(), Some(Instant::from_nanos(20)));
        assert_eq!(timers.pop_due(Instant::from_nanos(19)), None);
        assert_eq!(
            timers.pop_due(Instant::from_nanos(60)),
            Some((Instant::from_nanos(20), 7))
        );
        assert_eq!(timers.next(), None);
        reminder = None;
        timers.remind(7, Instant::from_nanos(30), &mut reminder);
        timers.forget(7, reminder);
        assert_eq!(timers.next(), None);
    }
}
