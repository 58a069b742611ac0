// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A limit for lines of the log that a guest or a VMM can cause as often as it likes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of lines that are logged at once.
const BURST: u32 = 20;

/// After that, one line is logged in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// How much one device may log. Clones are the same quota.
#[derive(Clone, Default)]
pub struct Quota(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// When the quota is full again, if nothing is logged until then.
    full: Option<Instant>,
    left_out: u64,
}

impl Quota {
    /// Returns whether a line may be logged now, and then also how many were left out before it.
    pub fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = state.full.map_or(now, |full| full.max(now));
        if full - now > INTERVAL * (BURST - 1) {
            state.left_out += 1;
            return None;
        }
        state.full = Some(full + INTERVAL);
        Some(std::mem::take(&mut state.left_out))
    }
}

/// Logs a line as `tracing`'s macro of that name does, unless the quota is used up.
macro_rules! limited {
    ($quota:expr, $level:ident, $($line:tt)+) => {
        if let Some(left_out) = $quota.take() {
            if left_out > 0 {
                tracing::warn!(left_out, "lines of the log were left out: a device caused too many");
            }
            tracing::$level!($($line)+);
        }
    };
}
pub(crate) use limited;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_and_then_little() {
        let (quota, start) = (Quota::default(), Instant::now());
        let logged = (0..1000).filter(|_| quota.take_at(start).is_some()).count();
        assert_eq!(logged, BURST as usize);
        assert_eq!(quota.take_at(start + INTERVAL), Some(980));
        assert_eq!(quota.take_at(start + INTERVAL), None);
        // A device that was quiet may log as much as at first.
        let later = start + 100 * INTERVAL;
        assert_eq!(quota.take_at(later), Some(1));
        let logged = (0..1000).filter(|_| quota.take_at(later) == Some(0));
        assert_eq!(logged.count(), BURST as usize - 1);
    }
}
