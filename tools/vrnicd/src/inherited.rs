// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Descriptors that the process inherited from its parent.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// Returns a duplicate of the descriptor `fd` that processes started later do not inherit.
///
/// # Errors
/// No descriptor with this number is open.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only the parent knows inherited descriptors by number, so nothing here closes this one. If the number is
    // not open, the calls below fail and have no other effect.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let duplicate = fcntl_dupfd_cloexec(borrowed, 3)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    Ok(duplicate)
}
