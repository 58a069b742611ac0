// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The state of a connection, in memory that outlives the daemon.
//!
//! A client that waits for a reply when the daemon dies would wait until it gives up, with its virtual CPUs standing
//! still; one that gets a reply twice, or half of one, gives up at once. So everything that a successor needs lies in
//! memory shared with the process that stays, the holder: the bytes that were received and not yet dealt with, and the
//! reply that is being sent. Nothing is lost and nothing is done twice, at whatever instruction the daemon is killed:
//!
//! * *Received bytes.* They are received straight into the ring, and how many is noted by the kernel within the same
//!   system call (`noted_io`). Both happen or neither.
//! * *How many bytes went so far*, in each direction, is the larger one of two sums, base + noted length. Before a
//!   call the smaller one gets the noted length 0 and then the larger sum as its base. Neither store changes the
//!   larger one, so the total is right after each, and only the kernel's note raises it.
//! * *The position* is where the first message begins that is not dealt with. It moves over a whole message, by one
//!   store, after the reply to it (if it wants one) was sent to the last byte.
//! * *The reply* is written while nothing refers to it. Then one store says at which position the message begins that
//!   it answers. From there on the reply is what that message gets, from the byte on that was not sent yet. When the
//!   position moves, the reply refers to a message of the past, which is as good as none.
//!
//! So a message that wants a reply is in one of three states: not answered at all (the successor answers), answered by
//! the reply that is noted (the successor sends what is missing, which may be nothing), or behind the position. A
//! message that wants none may be executed twice if the successor executes it at all; a device that is gone
//! does not.
//!
//! The page with the notes is locked into memory, so that the kernel's store to it cannot fail for want of memory while
//! the process dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use super::message::MAX_MESSAGE;
use super::noted_io::{self, NOTE_LEN, NOTED};
use crate::mapping::Mapping;

/// Word: where the first message begins that is not dealt with.
const POSITION: u64 = 0;
/// Word: where the message begins that the reply answers.
const REPLY_TO: u64 = 8;
/// Word: bytes that were sent before the reply.
const REPLY_BEGIN: u64 = 16;
/// Word: bytes of the reply.
const REPLY_LEN: u64 = 24;
/// Bytes that were received and sent.
const RECEIVED: Tally = Tally(64);
const SENT: Tally = Tally(RECEIVED.0 + Tally::LEN);
/// One page for the above.
const NOTES_LEN: u64 = 4096;
/// Bytes received; that of stream position `p` is at `p % RING_LEN`.
const RING: u64 = NOTES_LEN;
const RING_LEN: u64 = 64 << 10;
/// The reply.
const REPLY: u64 = RING + RING_LEN;
const LENGTH: u64 = REPLY + MAX_MESSAGE.next_multiple_of(4096) as u64;

const _: () = assert!(SENT.0 + Tally::LEN <= NOTES_LEN);
// A message that is not whole leaves room for more of it.
const _: () = assert!((MAX_MESSAGE as u64) < RING_LEN);

/// Shared memory with the state of one connection. One thread of one process uses it at a time.
pub struct Journal(Mapping);

impl Journal {
    /// Memory for a new connection, and the descriptor by which another process opens it.
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

    /// Opens the memory of another process.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        let memory = Mapping::new(fd)?;
        if memory.len() != LENGTH || !memory.is_writable() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Without the permission the page stays in memory all the same unless memory is very short.
        let _ = memory.lock(0, NOTES_LEN);
        Ok(Self(memory))
    }

    /// Where the first message begins that is not dealt with.
    pub fn position(&self) -> u64 {
        self.load(POSITION)
    }

    /// Everything before `position`, the end of a message, is dealt with.
    pub fn advance(&self, position: u64) {
        self.store(POSITION, position);
    }

    /// Bytes that were received since the connection began.
    pub fn received(&self) -> u64 {
        RECEIVED.total(self)
    }

    /// Copies bytes of the input out. They were received, and begin at or behind [`position`](Self::position).
    pub fn read(&self, position: u64, buffer: &mut [u8]) {
        let [first, second] = ring(position, buffer.len() as u64);
        let (head, tail) = buffer.split_at_mut(first.1 as usize);
        let _ = self.0.read(first.0, head);
        let _ = self.0.read(second.0, tail);
    }

    /// Receives as much as there is room for. Gives the descriptors that came along, and whether some of them were
    /// lost. `EAGAIN` if there is nothing. No more bytes than before at the end of the stream.
    pub fn receive(&self, socket: BorrowedFd<'_>) -> Result<(Vec<OwnedFd>, bool), Errno> {
        let received = self.received();
        let room = RING_LEN.saturating_sub(received.saturating_sub(self.position()));
        let note = RECEIVED.prepare(self);
        killed_here();
        let outcome = noted_io::receive(socket, &self.0, note, &ring(received, room));
        killed_here();
        outcome
    }

    /// Makes `header` and `body` the reply to the message at the position. `E2BIG` if it is longer than a message can
    /// be.
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

    /// Whether the message at the position has its reply, sent or not.
    pub fn has_reply(&self) -> bool {
        self.load(REPLY_TO) == self.position()
    }

    /// Sends what is missing of the reply.
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

    /// Sends the first `length` bytes of the reply, as if the socket took no more: for tests of a successor.
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

/// The pieces of the ring that hold `length` bytes from stream position `position` on.
fn ring(position: u64, length: u64) -> [(u64, u64); 2] {
    let start = position % RING_LEN;
    let first = length.min(RING_LEN - start);
    [(RING + start, first), (RING, length - first)]
}

/// Counts the bytes that went in one direction; see the module's documentation. Two bases, then two structures of the
/// kernel, at this offset.
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

    /// Bytes that went so far.
    fn total(self, journal: &Journal) -> u64 {
        self.sum(journal, 0).max(self.sum(journal, 1))
    }

    /// Gets ready for a system call; gives the offset of the structure for it.
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

/// In tests: here the daemon may be killed.
fn killed_here() {
    #[cfg(test)]
    tests::killed_here();
}

#[cfg(test)]
mod tests;
