// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Messages over a UNIX stream socket.
//!
//! Reads as much as the socket holds in one system call and takes messages out of that, so that a flood of doorbells
//! costs far less than a call each. Descriptors belong to the message that holds the last byte of the call that
//! brought them: the kernel never returns bytes from behind a descriptor in the same call, and clients send a
//! message's descriptors with its first bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use super::journal::{Journal, Position};
use super::message::{Header, MAX_FDS, MAX_MESSAGE};
use crate::stop::Stop;

/// Bytes read in one go.
const READ_SIZE: usize = 64 * 1024;

/// Why a stream cannot go on.
#[derive(Debug)]
pub enum StreamError {
    /// The peer closed the connection.
    Closed,
    /// The daemon stops.
    Stopped,
    /// The peer broke the protocol so badly that the boundaries of messages are lost.
    Desynchronised(&'static str),
    /// The socket failed.
    Io(io::Error),
}

impl From<Errno> for StreamError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            _ => Self::Io(errno.into()),
        }
    }
}

/// One connection.
pub struct MessageStream {
    socket: UnixStream,
    /// Bytes received and not yet consumed: `input[start..]`.
    input: Vec<u8>,
    start: usize,
    /// Stream position of `input[start]`.
    position: u64,
    /// Descriptors with the stream position just behind the bytes they came with.
    descriptors: VecDeque<(u64, OwnedFd)>,
    output: Vec<u8>,
    /// Index in `input` of the first byte behind all messages whose header was looked at; may lie behind its end.
    scanned: usize,
    /// Bytes to skip before the next message.
    skip: u64,
    journal: Option<Journal>,
    stop: Arc<Stop>,
}

impl MessageStream {
    /// Takes over a connected, blocking socket. Waiting for messages ends when `stop` says so. What the peer is owed is
    /// noted in `journal`.
    pub fn new(socket: UnixStream, stop: Arc<Stop>, journal: Option<Journal>) -> Self {
        Self {
            socket,
            input: Vec::new(),
            start: 0,
            position: 0,
            descriptors: VecDeque::new(),
            output: Vec::new(),
            scanned: 0,
            skip: 0,
            journal,
            stop,
        }
    }

    /// Takes a stream up where another process left it.
    pub fn resume(socket: UnixStream, stop: Arc<Stop>, position: Position) -> Self {
        let mut stream = Self::new(socket, stop, None);
        stream.input = position.header;
        stream.skip = position.skip;
        stream
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits for the next message; its body replaces `body`, its descriptors `fds`.
    pub fn receive(
        &mut self,
        body: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Header, StreamError> {
        while self.skip > 0 {
            let there = self.need(1)?.len() as u64;
            let count = there.min(self.skip);
            self.consume(count as usize);
            self.skip -= count;
        }
        let header = self.need(Header::LEN)?;
        let (header, _) = Header::read_from_prefix(header).map_err(|_| StreamError::Closed)?;
        let size = header.size as usize;
        if !is_possible(size) {
            return Err(StreamError::Desynchronised("impossible message size"));
        }
        let message = self.need(size)?;
        body.clear();
        body.extend_from_slice(&message[Header::LEN..size]);
        self.consume(size);
        fds.clear();
        while self
            .descriptors
            .front()
            .is_some_and(|(end, _)| *end <= self.position)
        {
            fds.extend(self.descriptors.pop_front().map(|(_, fd)| fd));
        }
        Ok(header)
    }

    /// Sends a reply.
    pub fn send(&mut self, header: &Header, body: &[u8]) -> Result<(), StreamError> {
        self.output.clear();
        self.output.extend_from_slice(header.as_bytes());
        self.output.extend_from_slice(body);
        let mut sent = 0;
        while sent < self.output.len() {
            sent += send(self.socket.as_fd(), &self.output[sent..], &[])?;
        }
        if let Some(journal) = &self.journal {
            journal.settle(header.id);
        }
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        self.position += count as u64;
    }

    /// Notes in the journal what the bytes read so far ask for.
    fn scan(&mut self) {
        let Some(journal) = &self.journal else { return };
        while let Some(bytes) = self.input.get(self.scanned..)
            && let Ok((header, _)) = Header::read_from_prefix(bytes)
            && is_possible(header.size as usize)
        {
            if header.is_command() && header.wants_reply() {
                journal.owe(header.id);
            }
            self.scanned += header.size as usize;
        }
        match self.input.get(self.scanned..) {
            Some(part) => journal.set_position(part, 0),
            None => journal.set_position(&[], (self.scanned - self.input.len()) as u64),
        }
    }

    /// Reads until at least `length` unconsumed bytes are there, and gives all there are.
    fn need(&mut self, length: usize) -> Result<&[u8], StreamError> {
        while self.input.len() - self.start < length {
            self.fill()?;
        }
        Ok(&self.input[self.start..])
    }

    fn fill(&mut self) -> Result<(), StreamError> {
        self.input.drain(..self.start);
        self.scanned = self.scanned.saturating_sub(self.start);
        self.start = 0;
        let old = self.input.len();
        self.input.resize(old + READ_SIZE, 0);
        let (count, fds) = loop {
            match receive(self.socket.as_fd(), &mut self.input[old..]) {
                Ok(Some(received)) => break received,
                Ok(None) if self.stop.wait_readable(self.socket.as_fd()) => {}
                outcome => {
                    self.input.truncate(old);
                    return Err(outcome.err().unwrap_or(StreamError::Stopped));
                }
            }
        };
        self.input.truncate(old + count);
        if count == 0 {
            return Err(StreamError::Closed);
        }
        self.scan();
        // Positions are of bytes' ends; the message that contains the last byte ends there or later, so the comparison
        // in
        // `receive` is with the byte itself.
        let last_byte = self.position + self.input.len() as u64;
        self.descriptors
            .extend(fds.into_iter().map(|fd| (last_byte, fd)));
        if self.descriptors.len() > 4 * MAX_FDS {
            return Err(StreamError::Desynchronised("too many file descriptors"));
        }
        Ok(())
    }
}

/// Whether a message can have that many bytes.
fn is_possible(size: usize) -> bool {
    (Header::LEN..=MAX_MESSAGE).contains(&size)
}

/// Sends bytes with descriptors; returns how many bytes went out.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })
}

/// Receives bytes with descriptors; `None` if there are none yet.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<Option<(usize, Vec<OwnedFd>)>, StreamError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    });
    let received = match received {
        Err(Errno::AGAIN) => return Ok(None),
        received => received?,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(StreamError::Desynchronised(
            "more file descriptors than allowed in one message",
        ));
    }
    Ok(Some((received.bytes, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfio_user::message::command;

    fn pair() -> (MessageStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (
            MessageStream::new(ours, Arc::new(Stop::new().unwrap()), None),
            theirs,
        )
    }

    fn message(id: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Header::request(id, command::DMA_MAP, body.len(), false)
            .as_bytes()
            .to_vec();
        bytes.extend(body);
        bytes
    }

    #[test]
    fn descriptors_come_with_their_message() {
        let (mut stream, peer) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(peer.as_fd(), &message(1, &[1; 40]), &[]).unwrap();
        send(
            peer.as_fd(),
            &message(2, &[2; 40]),
            &[null.as_fd(), null.as_fd()],
        )
        .unwrap();
        send(peer.as_fd(), &message(3, &[]), &[]).unwrap();
        // Header with the descriptor first, body later.
        let late = message(4, &[4; 8]);
        send(peer.as_fd(), &late[..16], &[null.as_fd()]).unwrap();
        send(peer.as_fd(), &late[16..], &[]).unwrap();
        let (mut body, mut fds) = (Vec::new(), Vec::new());
        for (id, length, count) in [(1, 40, 0), (2, 40, 2), (3, 0, 0), (4, 8, 1)] {
            let header = stream.receive(&mut body, &mut fds).unwrap();
            assert_eq!((header.id, body.len(), fds.len()), (id, length, count));
        }
        drop(peer);
        assert!(matches!(
            stream.receive(&mut body, &mut fds),
            Err(StreamError::Closed)
        ));
    }

    #[test]
    fn byte_by_byte_is_fine_and_a_bad_size_is_not() {
        let (mut stream, peer) = pair();
        let writer = std::thread::spawn(move || {
            for byte in message(9, &[5; 100]) {
                send(peer.as_fd(), &[byte], &[]).unwrap();
            }
            let mut bad = message(10, &[]);
            bad[4..8].copy_from_slice(&15u32.to_ne_bytes());
            send(peer.as_fd(), &bad, &[]).unwrap();
            peer
        });
        let (mut body, mut fds) = (Vec::new(), Vec::new());
        assert_eq!(stream.receive(&mut body, &mut fds).unwrap().id, 9);
        assert_eq!(body, [5; 100]);
        assert!(matches!(
            stream.receive(&mut body, &mut fds),
            Err(StreamError::Desynchronised(_))
        ));
        drop(writer.join().unwrap());
    }
}
