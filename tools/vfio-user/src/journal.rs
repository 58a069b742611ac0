// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The state of a connection, in memory that outlives the daemon.
//!
//! If the daemon dies while a client waits for a reply, the client would wait until it gives up, with its virtual CPUs
//! standing still. A client that gets a reply twice, or half a reply, gives up at once. So everything that a successor
//! needs is in memory shared with a process that survives, the holder: the bytes received and not yet processed, and
//! the reply being sent. Nothing is lost and nothing is done twice, at whatever instruction the daemon is killed:
//!
//! * *Received bytes* are received directly into the ring, and the kernel notes their number within the same system
//!   call (`noted_io`). Both happen or neither.
//! * *The total number of bytes transferred* in each direction is the larger one of two sums, base + noted length.
//!   Before a call, the noted length of the smaller sum is set to 0, and then its base to the larger sum. Neither store
//!   changes the larger sum, so the total is correct after each store, and only the kernel's note raises it.
//! * *The position* is the start of the first message that has not been processed. A single store moves it over a
//!   complete message, after the last byte of the reply (if the message wants one) has been sent.
//! * *The reply* is written while nothing refers to it. Then one store records the position of the message that it
//!   answers. From then on, the reply belongs to that message, and its unsent bytes are to be sent. When the position
//!   moves, the reply refers to an old message, and therefore no longer counts.
//!
//! So a message that wants a reply is in one of three states: unanswered (the successor answers it), answered by the
//! recorded reply (the successor sends the rest of it, which may be nothing), or before the position. A message that
//! wants no reply may be executed twice if the successor executes such messages at all; a device that is gone does not.
//!
//! The page with the notes is locked into memory, so that the kernel's store to it cannot fail for lack of memory while
//! the process dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use super::message::MAX_MESSAGE;
use super::noted_io::{self, NOTE_LEN, NOTED};
use crate::mapping::Mapping;

/// Word: start of the first message that has not been processed.
const POSITION: u64 = 0;
/// Word: start of the message that the reply answers.
const REPLY_TO: u64 = 8;
/// Word: number of bytes sent before the reply.
const REPLY_BEGIN: u64 = 16;
/// Word: length of the reply.
const REPLY_LEN: u64 = 24;
/// Total numbers of bytes received and sent.
const RECEIVED: Tally = Tally(64);
const SENT: Tally = Tally(RECEIVED.0 + Tally::LEN);
/// Size of the above: one page.
const NOTES_LEN: u64 = 4096;
/// The ring of received bytes. The byte at stream position `p` is at `p % RING_LEN`.
const RING: u64 = NOTES_LEN;
const RING_LEN: u64 = 64 << 10;
/// The reply.
const REPLY: u64 = RING + RING_LEN;
const LENGTH: u64 = REPLY + MAX_MESSAGE.next_multiple_of(4096) as u64;

const _: () = assert!(SENT.0 + Tally::LEN <= NOTES_LEN);
// So an incomplete message always leaves room in the ring for more of it.
const _: () = assert!((MAX_MESSAGE as u64) < RING_LEN);

/// Shared memory with the state of one connection. Only one thread of one process uses it at a time.
pub struct Journal(Mapping);

impl Journal {
    /// Creates memory for a new connection, and the descriptor with which another process opens it.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(
            "vrnicd-journal",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, LENGTH)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let journal = Self::open(&fd)?;
        journal.store(REPLY_TO, u64::MAX);
        Ok((journal, fd))
    }

    /// Opens memory created by another process.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        let memory = Mapping::new(fd)?;
        if memory.len() != LENGTH || !memory.is_writable() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // If locking is not permitted, the page still stays in memory unless memory is very short.
        let _ = memory.lock(0, NOTES_LEN);
        Ok(Self(memory))
    }

    /// Returns the start of the first message that has not been processed.
    pub fn position(&self) -> u64 {
        self.load(POSITION)
    }

    /// Marks everything before `position`, which is the end of a message, as processed.
    pub fn advance(&self, position: u64) {
        self.store(POSITION, position);
    }

    /// Returns the number of bytes received since the connection began.
    pub fn received(&self) -> u64 {
        RECEIVED.total(self)
    }

    /// Copies received bytes, starting at `position`, which is at or after [`position`](Self::position).
    pub fn read(&self, position: u64, buffer: &mut [u8]) {
        let [first, second] = ring(position, buffer.len() as u64);
        let (head, tail) = buffer.split_at_mut(first.1 as usize);
        let _ = self.0.read(first.0, head);
        let _ = self.0.read(second.0, tail);
    }

    /// Receives as much as there is room for. Returns the descriptors that came along, and whether some of them were
    /// lost. Returns `EAGAIN` if there is nothing to receive. At the end of the stream, [`received`](Self::received)
    /// does not change.
    pub fn receive(&self, socket: BorrowedFd<'_>) -> Result<(Vec<OwnedFd>, bool), Errno> {
        let received = self.received();
        let room = RING_LEN.saturating_sub(received.saturating_sub(self.position()));
        let note = RECEIVED.prepare(self);
        killed_here();
        let outcome = noted_io::receive(socket, &self.0, note, &ring(received, room));
        killed_here();
        outcome
    }

    /// Sets the reply to the message at the position to `header` and `body`. Returns `E2BIG` if it is longer than a
    /// message may be.
    pub fn set_reply(&self, header: &[u8], body: &[u8]) -> Result<(), Errno> {
        if header.len() + body.len() > MAX_MESSAGE {
            return Err(Errno::TOOBIG);
        }
        let _ = self.0.write(REPLY, header);
        let _ = self.0.write(REPLY + header.len() as u64, body);
        self.store(REPLY_BEGIN, SENT.total(self));
        self.store(REPLY_LEN, (header.len() + body.len()) as u64);
        self.store(REPLY_TO, self.position());
        Ok(())
    }

    /// Returns whether the message at the position has its reply, sent or not.
    pub fn has_reply(&self) -> bool {
        self.load(REPLY_TO) == self.position()
    }

    /// Sends the rest of the reply.
    pub fn send_reply(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        loop {
            let sent = SENT.total(self).saturating_sub(self.load(REPLY_BEGIN));
            let missing = self.load(REPLY_LEN).saturating_sub(sent);
            if missing == 0 {
                return Ok(());
            }
            let note = SENT.prepare(self);
            killed_here();
            noted_io::send(socket, &self.0, note, REPLY + sent, missing)?;
            killed_here();
        }
    }

    /// Sends the first `length` bytes of the reply, as if the socket accepted no more, for tests of a successor.
    pub fn send_part_of_reply(&self, socket: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
        let note = SENT.prepare(self);
        noted_io::send(socket, &self.0, note, REPLY, length)
    }

    fn load(&self, offset: u64) -> u64 {
        self.0
            .with_u64(offset, |word| word.load(Ordering::Acquire))
            .unwrap_or(0)
    }

    fn store(&self, offset: u64, value: u64) {
        killed_here();
        let _ = self
            .0
            .with_u64(offset, |word| word.store(value, Ordering::Release));
    }
}

/// Returns the pieces of the ring that contain `length` bytes from stream position `position` on.
fn ring(position: u64, length: u64) -> [(u64, u64); 2] {
    let start = position % RING_LEN;
    let first = length.min(RING_LEN - start);
    [(RING + start, first), (RING, length - first)]
}

/// Counts the bytes transferred in one direction; see the module's documentation. Consists of two bases followed by two
/// structures of the kernel, at this offset.
#[derive(Clone, Copy)]
struct Tally(u64);

impl Tally {
    const LEN: u64 = 2 * (8 + NOTE_LEN);

    fn base(self, index: u64) -> u64 {
        self.0 + 8 * index
    }

    fn note(self, index: u64) -> u64 {
        self.0 + 16 + NOTE_LEN * index
    }

    fn sum(self, journal: &Journal, index: u64) -> u64 {
        let noted = journal.0.with_u32(self.note(index) + NOTED, |length| {
            length.load(Ordering::Acquire)
        });
        journal.load(self.base(index)) + u64::from(noted.unwrap_or(0))
    }

    /// Returns the number of bytes transferred so far.
    fn total(self, journal: &Journal) -> u64 {
        self.sum(journal, 0).max(self.sum(journal, 1))
    }

    /// Prepares for a system call; returns the offset of the structure for it.
    fn prepare(self, journal: &Journal) -> u64 {
        let sums = [self.sum(journal, 0), self.sum(journal, 1)];
        let smaller = u64::from(sums[1] < sums[0]);
        killed_here();
        let _ = journal.0.with_u32(self.note(smaller) + NOTED, |length| {
            length.store(0, Ordering::Release);
        });
        journal.store(self.base(smaller), sums[0].max(sums[1]));
        self.note(smaller)
    }
}

/// Marks a point at which tests kill the daemon.
fn killed_here() {
    #[cfg(test)]
    tests::killed_here();
}

#[cfg(test)]
mod tests;
