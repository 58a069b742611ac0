// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Puts the worker to sleep and wakes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::watchdog;

/// Lets one thread sleep until other threads have work for it. While the thread is awake, this costs the others one
/// atomic access.
///
/// A thread that has work publishes it, then calls [`wake`](Self::wake). The sleeper calls
/// [`announce`](Self::announce), looks for work once more, then calls [`sleep`](Self::sleep). Both sides have a full
/// fence between their store and their load, so either the sleeper sees the work or the waker sees the announcement.
pub struct Waker {
    eventfd: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
}

impl Waker {
    /// Creates a waker; no thread is asleep.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        })
    }

    /// Ends the announced sleep, if there is one.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Tells the sleeper to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns whether the sleeper has been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Announces that a sleep may follow.
    pub fn announce(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement.
    pub fn cancel(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Returns the descriptor that becomes readable on a wake-up, for a sleeper that waits for other descriptors too.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Ends a sleep during which the caller waited for [`descriptor`](Self::descriptor).
    pub fn slept(&self) {
        self.cancel();
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }

    /// Sleeps until woken, for `timeout` at most.
    pub fn sleep(&self, timeout: Option<Duration>) {
        if !self.is_stopping() {
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            let woken = poll(
                &mut [PollFd::new(&self.eventfd, PollFlags::IN)],
                timeout.as_ref(),
            );
            // A signal may end the sleep early, which does no harm. One is enough, so the timer stops.
            if woken.is_err() {
                watchdog::rest();
            }
        }
        self.slept();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u32 = 20_000;
        let (waker, work, done) = (Waker::new().unwrap(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    work.store(round, Ordering::Release);
                    waker.wake();
                    while done.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
            let mut seen = 0;
            while seen != ROUNDS {
                waker.announce();
                if work.load(Ordering::Acquire) == seen {
                    // If a wake-up got lost, this would sleep forever, and the test would time out.
                    waker.sleep(None);
                } else {
                    waker.cancel();
                }
                seen = work.load(Ordering::Acquire);
                done.store(seen, Ordering::Release);
            }
        });
    }

    #[test]
    fn sleep_ends_at_its_deadline() {
        let waker = Waker::new().unwrap();
        waker.announce();
        waker.sleep(Some(Duration::from_millis(1)));
        waker.stop();
        waker.sleep(None);
    }
}
