// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Descriptors that the process got from whoever started it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// A duplicate of the descriptor `fd`, which processes that are started later do not get.
///
/// # Errors
/// Nothing is open under this number.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only what started the process knows of descriptors by their numbers, so nothing here closes this one. If
    // nothing is open under the number, the calls below say so and nothing else happens.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let duplicate = fcntl_dupfd_cloexec(borrowed, 3)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    Ok(duplicate)
}
