// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Tells all threads that the daemon is stopping.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A flag that threads can wait for together with a descriptor.
pub struct Stop(OwnedFd);

impl Stop {
    /// Creates a flag that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Sets the flag permanently.
    pub fn stop(&self) {
        // The eventfd is never read, so it stays readable. The only possible error is a full counter, which is readable
        // too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until `fd` is readable or at its end. Returns false if the daemon is stopping.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>) -> bool {
        loop {
            let mut fds = [
                PollFd::new(&self.0, PollFlags::IN),
                PollFd::from_borrowed_fd(fd, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
