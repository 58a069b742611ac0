// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Polling on a machine with one CPU.
//!
//! A program that polls for a message keeps its CPU busy. If the sender is a process on the same,
//! only CPU, it cannot run until the poller's time slice ends, and a message that should take
//! microseconds takes milliseconds. So if there is only one CPU, a program yields after some
//! unsuccessful polls. With several CPUs, polling never makes a system call.

use core::sync::atomic::{AtomicU32, Ordering};

/// Number of unsuccessful polls before yielding. Together they take about as long as a call of the
/// scheduler, so that yielding costs little if no other program wants to run.
const POLLS: u32 = 32;

/// Counts unsuccessful polls.
#[derive(Debug)]
pub struct Patience {
    /// Polls left; unused with several CPUs. This is only a hint, so races do not matter.
    left: AtomicU32,
    endless: bool,
}

impl Patience {
    /// Creates a counter that suits the number of CPUs that this process may use.
    pub fn of_this_process() -> Self {
        Self::new(processors() != 1)
    }

    fn new(endless: bool) -> Self {
        Self {
            left: AtomicU32::new(POLLS),
            endless,
        }
    }

    /// Counts a poll, which was successful if `found`. Returns whether it yielded the CPU.
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
        // SAFETY: The call has no preconditions.
        unsafe { libc::sched_yield() };
        true
    }
}

impl Clone for Patience {
    fn clone(&self) -> Self {
        Self::new(self.endless)
    }
}

/// Returns the number of CPUs that this process may use; 0 if unknown.
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
