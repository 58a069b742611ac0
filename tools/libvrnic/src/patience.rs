// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Polling on a machine with one processor.
//!
//! A program that polls for a message keeps its processor busy. If the sender is a process on the same,
//! only processor, it cannot run until the poller's time slice ends: a message of microseconds then takes
//! milliseconds. So on one processor, and only there, a program yields after it polled in vain
//! some times. With several processors polling never makes a system call.

use core::sync::atomic::{AtomicU32, Ordering};

/// Polls in vain before others may go first. Together they take about as long as it takes to ask
/// the scheduler, so that asking costs a program that is alone little.
const POLLS: u32 = 32;

/// Counts polls in vain.
#[derive(Debug)]
pub struct Patience {
    /// Polls left; unused with several processors. A hint, so that races do not matter.
    left: AtomicU32,
    endless: bool,
}

impl Patience {
    /// As the number of processors demands that this process may use.
    pub fn of_this_process() -> Self {
        Self::new(processors() != 1)
    }

    fn new(endless: bool) -> Self {
        Self {
            left: AtomicU32::new(POLLS),
            endless,
        }
    }

    /// Called after each poll; whether others were let go first.
    #[inline]
    pub fn polled(&self, found: bool) -> bool {
        if self.endless {
            return false;
        }
        self.polled_on_one_processor(found)
    }

    fn polled_on_one_processor(&self, found: bool) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if found || left == 0 {
            self.left.store(POLLS, Ordering::Relaxed);
        } else {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        if found || left != 0 {
            return false;
        }
        // SAFETY: Has no preconditions.
        unsafe { libc::sched_yield() };
        true
    }
}

impl Clone for Patience {
    fn clone(&self) -> Self {
        Self::new(self.endless)
    }
}

/// Processors that this process may use; 0 if that is not known.
fn processors() -> u32 {
    let mut mask = [0_u64; 1024 / 64];
    // SAFETY: The size is that of the mask.
    let known =
        unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) == 0 };
    if !known {
        return 0;
    }
    mask.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_processor_others_go_first_after_some_polls() {
        let patience = Patience::new(false);
        for _ in 0..3 {
            assert!((0..POLLS).all(|_| !patience.polled(false)));
            assert!(patience.polled(false));
        }
        assert!((0..POLLS).all(|_| !patience.polled(false)));
        assert!(!patience.polled(true), "what is found ends the wait");
        assert!(!patience.polled(false));
    }

    #[test]
    fn on_several_nobody_is_let_go_first() {
        let patience = Patience::new(true);
        assert!((0..POLLS * 3).all(|_| !patience.polled(false)));
    }

    #[test]
    fn this_process_has_a_processor() {
        assert!(processors() >= 1);
    }
}
