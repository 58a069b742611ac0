// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Time, as a value: the engine has no clock of its own.

use serde::{Deserialize, Serialize};
use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A point in time on the device's clock: nanoseconds since an arbitrary origin.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instant(u64);

impl Instant {
    /// Returns the time `nanoseconds` after the clock's origin.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Returns the time `delay` later, or the last time of the clock if that is earlier.
    fn add(self, delay: Duration) -> Self {
        let nanoseconds = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Returns the time from `earlier` to this time, or zero if `earlier` is not earlier.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
