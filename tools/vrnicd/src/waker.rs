// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Sleep and wake-up of the worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::watchdog;

/// Lets one thread sleep until others have something for it, at the price of one atomic for a thread that is awake.
///
/// Whoever has something publishes it, then calls [`wake`](Self::wake). The sleeper calls
/// [`announce`](Self::announce), looks for work once more, then calls [`sleep`](Self::sleep). Both sides have a full
/// fence between their store and their load, so either the sleeper sees the work or the waker sees the announcement.
pub struct Waker {
    eventfd: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
}

impl Waker {
    /// Nobody sleeps.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        })
    }

    /// Ends the sleep that was announced, if one was.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Tells the sleeper to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the sleeper shall end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Says that a sleep may follow.
    pub fn announce(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub fn cancel(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// For a sleeper that waits for other descriptors too: its own is readable when it is woken.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Ends a sleep in which [`descriptor`](Self::descriptor) was waited for.
    pub fn slept(&self) {
        self.cancel();
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }

    /// Sleeps until woken, at most `timeout`.
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
            // Early returns (signals) are as good as wake-ups, but one is enough.
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
                    // Would time out for ever (and the test with it) if a wake-up got lost.
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
