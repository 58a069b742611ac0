// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Sends and receives whose length the kernel itself notes in shared memory.
//!
//! `recvmmsg(2)` and `sendmmsg(2)` store the number of bytes of each message in the caller's `struct mmsghdr` before
//! they return. If that structure is in memory that another process maps too, the number is there as soon as the bytes
//! have been received or sent. The caller cannot be killed between the two.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{cmsghdr, iovec, mmsghdr, msghdr};
use rustix::io::Errno;

use super::message::MAX_FDS;
use crate::mapping::Mapping;

/// Size of the shared memory that a call needs, in bytes; aligned to 8.
pub const NOTE_LEN: u64 = size_of::<mmsghdr>() as u64;
/// Offset at which the kernel stores the transferred length there, as a 32-bit number.
pub const NOTED: u64 = offset_of!(mmsghdr, msg_len) as u64;

/// Size of control messages with [`MAX_FDS`] descriptors, in words.
const CONTROL_WORDS: usize = 3 + MAX_FDS * size_of::<i32>() / 8;

/// Receives into `pieces` of `memory`, each an offset and a length; the kernel notes the received length at `note`.
/// Returns the descriptors that came along, and whether some were lost because there were too many. Returns `EAGAIN` if
/// there is nothing to receive.
pub fn receive(
    socket: BorrowedFd<'_>,
    memory: &Mapping,
    note: u64,
    pieces: &[(u64, u64); 2],
) -> Result<(Vec<OwnedFd>, bool), Errno> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut vectors = vectors(memory, pieces)?;
    // SAFETY: all zeros is a valid `msghdr`: null pointers with lengths of 0.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let at = place(memory, note, header)?;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    retry(|| {
        // SAFETY: `at` is a complete `mmsghdr` in memory that stays mapped during the call. Its vectors point into the
        // same mapping and its control buffer is `control`, both with the lengths stated.
        unsafe { libc::recvmmsg(socket.as_raw_fd(), at, 1, flags, ptr::null_mut()) }
    })?;
    // SAFETY: `at` points to an initialised `msghdr`, to which nothing writes now.
    let header = unsafe { ptr::read(&raw const (*at).msg_hdr) };
    let mut fds = Vec::new();
    // SAFETY: the kernel left `header` with a valid list of control messages in `control`, which is alive.
    let mut message: *const cmsghdr = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: as above, so `message` points to a control message inside `control`.
        let this = unsafe { ptr::read(message) };
        if (this.cmsg_level, this.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: this only computes the start of the message's data and a length.
            let (data, head) = unsafe { (libc::CMSG_DATA(message), libc::CMSG_LEN(0)) };
            let bytes = this.cmsg_len.saturating_sub(head as usize);
            for index in 0..bytes / size_of::<i32>() {
                let mut number = [0; size_of::<i32>()];
                // SAFETY: the kernel installed this many descriptors for this process and wrote their numbers here;
                // each is taken once.
                fds.push(unsafe {
                    let from = data.add(index * number.len());
                    ptr::copy_nonoverlapping(from, number.as_mut_ptr(), number.len());
                    OwnedFd::from_raw_fd(i32::from_ne_bytes(number))
                });
            }
        }
        // SAFETY: `message` is a control message of `header`.
        message = unsafe { libc::CMSG_NXTHDR(&raw const header, message) };
    }
    Ok((fds, header.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Sends `length` bytes at `offset` of `memory`, or a part of them if the socket accepts no more; the kernel notes the
/// sent length at `note`. Waits for room.
pub fn send(
    socket: BorrowedFd<'_>,
    memory: &Mapping,
    note: u64,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let mut vectors = vectors(memory, &[(offset, length)])?;
    // SAFETY: all zeros is a valid `msghdr`: null pointers with lengths of 0.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    let at = place(memory, note, header)?;
    retry(|| {
        // SAFETY: as in `receive`; the kernel only reads what the vectors point to.
        unsafe { libc::sendmmsg(socket.as_raw_fd(), at, 1, libc::MSG_NOSIGNAL) }
    })
}

/// Returns the vectors for `pieces` of `memory`. Returns `EFAULT` if a piece is not entirely in it.
fn vectors<const N: usize>(
    memory: &Mapping,
    pieces: &[(u64, u64); N],
) -> Result<[iovec; N], Errno> {
    let mut vectors = [iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; N];
    for (vector, &(offset, length)) in vectors.iter_mut().zip(pieces) {
        vector.iov_base = memory.pointer(offset, length).ok_or(Errno::FAULT)?.cast();
        vector.iov_len = length as usize;
    }
    Ok(vectors)
}

/// Writes `header` to the structure at `note` without changing the length noted there.
fn place(memory: &Mapping, note: u64, header: msghdr) -> Result<*mut mmsghdr, Errno> {
    #[allow(clippy::cast_ptr_alignment, reason = "checked before it is used")]
    let at = memory
        .pointer(note, NOTE_LEN)
        .filter(|_| memory.is_writable())
        .ok_or(Errno::FAULT)?
        .cast::<mmsghdr>();
    if !at.is_aligned() {
        return Err(Errno::FAULT);
    }
    // SAFETY: aligned and inside a writable mapping, as checked.
    unsafe { ptr::write(&raw mut (*at).msg_hdr, header) };
    Ok(at)
}

fn retry(mut call: impl FnMut() -> i32) -> Result<(), Errno> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}
