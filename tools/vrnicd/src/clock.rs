// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The clock of a device, or of a network with its devices.

use std::time::{Duration, Instant as RealInstant};

use vrnic_engine::time::Instant;

/// A clock that advances only while a worker drives its device, or sleeps. Time in which the worker wanted to run but
/// got no CPU does not count: timers would otherwise expire although the replies they wait for have arrived and are
/// merely unread.
///
/// The clock goes with the device from worker to worker, so it never goes back.
pub struct Clock {
    /// Time that the device sees.
    device: Instant,
    /// Real time at which `device` was last updated.
    real: RealInstant,
}

impl Clock {
    /// Longest time that one turn counts for.
    pub const STEP: Duration = Duration::from_millis(2);

    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self {
            device: Instant::default(),
            real: RealInstant::now(),
        }
    }

    /// Returns the time of a turn that begins at `real`.
    pub fn tick(&mut self, real: RealInstant) -> Instant {
        self.pass(real, Self::STEP)
    }

    /// Advances the clock to `real` after a sleep that would have lasted `timeout` without a wake-up.
    pub fn slept(&mut self, real: RealInstant, timeout: Option<Duration>) {
        let limit = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(Self::STEP));
        self.pass(real, limit);
    }

    /// Returns the time from the last update until `deadline`.
    pub fn until(&self, deadline: Instant) -> Duration {
        deadline - self.device
    }

    fn pass(&mut self, real: RealInstant, limit: Duration) -> Instant {
        // Another worker may have begun its turn later and been faster.
        let passed = real.saturating_duration_since(self.real);
        self.device = self.device + passed.min(limit);
        self.real = self.real.max(real);
        self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_sleep_but_not_starvation() {
        let mut clock = Clock::new();
        let begin = clock.real;
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let start = clock.tick(at(0));
        let starved = clock.tick(at(20));
        assert_eq!(starved - start, Clock::STEP);
        clock.slept(at(40), Some(Duration::from_millis(10)));
        let slept = clock.tick(at(40));
        assert_eq!(slept - starved, Duration::from_millis(12));
        clock.slept(at(60), None);
        let last = clock.tick(at(61));
        assert_eq!(last - slept, Duration::from_millis(21));
        assert_eq!(clock.tick(at(50)), last, "a worker that began earlier");
        assert_eq!(clock.tick(at(62)) - last, Duration::from_millis(1));
        assert_eq!(clock.until(last), Duration::ZERO);
    }
}
