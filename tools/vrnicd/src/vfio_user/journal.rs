// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a connection owes its client, in memory that outlives the daemon.
//!
//! A client that waits for a reply when the daemon dies would wait until it gives up, with its virtual CPUs standing
//! still. So each connection notes in a page shared with the [holder](crate::holder) which request is still to be
//! answered and where in the stream the next message begins.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::message::Header;
use crate::guest_memory::Mapping;

const LENGTH: u64 = 4096;
/// Word: [`PENDING`] and the id of the request.
const REQUEST: u64 = 0;
/// Word: bytes that belong to a message of which the beginning was read.
const MISSING: u64 = 8;
/// Word: bytes of a header that were read.
const HEADER_LENGTH: u64 = 16;
/// The bytes.
const HEADER: u64 = 24;

const PENDING: u64 = 1 << 63;

/// The page.
pub struct Journal(Mapping);

/// Where a stream is to be taken up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the next header that were read already.
    pub header: Vec<u8>,
    /// Bytes to skip before the next header.
    pub skip: u64,
}

impl Journal {
    /// A new page, and the descriptor by which another process opens it.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(
            "vrnicd-journal",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, LENGTH)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::open(&fd)?, fd))
    }

    /// Opens the page of another process.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        let mapping = Mapping::new(fd)?;
        if mapping.len() < LENGTH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self(mapping))
    }

    /// A request that wants a reply was read.
    pub fn owe(&self, id: u16) {
        self.store(REQUEST, PENDING | u64::from(id));
    }

    /// The reply to a request was sent.
    pub fn settle(&self, id: u16) {
        if self.load(REQUEST) == PENDING | u64::from(id) {
            self.store(REQUEST, 0);
        }
    }

    /// The request that still wants a reply.
    pub fn owed(&self) -> Option<u16> {
        let word = self.load(REQUEST);
        (word & PENDING != 0).then_some(word as u16)
    }

    /// Everything read so far ends with `header`, a part of a header, or with a message of which `skip` bytes are still
    /// to come.
    pub fn set_position(&self, header: &[u8], skip: u64) {
        let header = header.get(..Header::LEN).unwrap_or(header);
        let _ = self.0.write(HEADER, header);
        self.store(HEADER_LENGTH, header.len() as u64);
        self.store(MISSING, skip);
    }

    /// Where the stream is to be taken up.
    pub fn position(&self) -> Position {
        let mut header = vec![0; self.load(HEADER_LENGTH).min(Header::LEN as u64) as usize];
        let _ = self.0.read(HEADER, &mut header);
        Position {
            header,
            skip: self.load(MISSING),
        }
    }

    fn load(&self, offset: u64) -> u64 {
        self.0
            .with_u64(offset, |word| word.load(Ordering::Acquire))
            .unwrap_or(0)
    }

    fn store(&self, offset: u64, value: u64) {
        let _ = self
            .0
            .with_u64(offset, |word| word.store(value, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_reads_what_was_noted() {
        let (journal, fd) = Journal::new().unwrap();
        let reader = Journal::open(&fd).unwrap();
        assert_eq!(
            (reader.owed(), reader.position()),
            (None, Position::default())
        );
        journal.owe(7);
        journal.owe(0);
        journal.settle(7);
        assert_eq!(reader.owed(), Some(0));
        journal.settle(0);
        assert_eq!(reader.owed(), None);
        journal.set_position(&[1, 2, 3], 0);
        assert_eq!(
            reader.position(),
            Position {
                header: vec![1, 2, 3],
                skip: 0
            }
        );
        journal.set_position(&[], 99);
        assert_eq!(
            reader.position(),
            Position {
                header: vec![],
                skip: 99
            }
        );
    }
}
