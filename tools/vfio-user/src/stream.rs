// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Messages over a UNIX stream socket.
//!
//! Reads as much as the socket holds with one system call and extracts messages from that, so a flood of doorbells
//! costs far less than one call each. A descriptor belongs to the message that contains the last byte of the call that
//! returned it: the kernel never returns bytes from after a descriptor in the same call, and clients send a message's
//! descriptors with its first bytes.
//!
//! The bytes, and how far they have been processed, are in a [`Journal`], so that another process can continue.

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
use zerocopy::{FromZeros, IntoBytes};

use super::journal::Journal;
use super::message::{Header, MAX_FDS, MAX_MESSAGE};
use crate::stop::Stop;

/// Why a stream cannot be continued.
#[derive(Debug)]
pub enum StreamError {
    /// The peer closed the connection.
    Closed,
    /// The daemon is stopping.
    Stopped,
    /// The peer violated the protocol in such a way that message boundaries are lost.
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
    journal: Journal,
    /// Start of the current message, which was returned last, or of the next one.
    position: u64,
    /// Length of the current message.
    current: u64,
    /// Number of bytes received so far.
    received: u64,
    /// Descriptors, each with the stream position directly after the bytes it came with.
    descriptors: VecDeque<(u64, OwnedFd)>,
    stop: Arc<Stop>,
}

impl MessageStream {
    /// Creates a stream from a connected, blocking socket whose state is in `journal`. Waiting for messages ends when
    /// `stop` is signalled.
    pub fn new(socket: UnixStream, stop: Arc<Stop>, journal: Journal) -> Self {
        Self {
            position: journal.position(),
            current: 0,
            received: journal.received(),
            socket,
            journal,
            descriptors: VecDeque::new(),
            stop,
        }
    }

    /// Continues a stream where another process left it, completing a partly sent reply.
    pub fn resume(
        socket: UnixStream,
        stop: Arc<Stop>,
        journal: Journal,
    ) -> Result<Self, StreamError> {
        let mut stream = Self::new(socket, stop, journal);
        if stream.journal.has_reply() {
            stream.journal.send_reply(stream.socket.as_fd())?;
            stream.current = u64::from(stream.header()?.size);
        }
        Ok(stream)
    }

    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Marks the current message as processed and waits for the next one, which replaces the contents of `body` and
    /// `fds`.
    pub fn receive(
        &mut self,
        body: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Header, StreamError> {
        if self.current != 0 {
            self.position += self.current;
            self.current = 0;
            self.journal.advance(self.position);
        }
        let header = self.header()?;
        let size = header.size as usize;
        if !(Header::LEN..=MAX_MESSAGE).contains(&size) {
            return Err(StreamError::Desynchronised("impossible message size"));
        }
        self.need(size)?;
        body.resize(size - Header::LEN, 0);
        self.journal
            .read(self.position + Header::LEN as u64, body.as_mut_slice());
        self.current = size as u64;
        let end = self.position + self.current;
        fds.clear();
        while self
            .descriptors
            .front()
            .is_some_and(|(last, _)| *last <= end)
        {
            fds.extend(self.descriptors.pop_front().map(|(_, fd)| fd));
        }
        Ok(header)
    }

    /// Sends the reply to the current message.
    pub fn send(&mut self, header: &Header, body: &[u8]) -> Result<(), StreamError> {
        self.journal.set_reply(header.as_bytes(), body)?;
        Ok(self.journal.send_reply(self.socket.as_fd())?)
    }

    /// Returns the header of the message at the position.
    fn header(&mut self) -> Result<Header, StreamError> {
        self.need(Header::LEN)?;
        let mut header = Header::new_zeroed();
        self.journal.read(self.position, header.as_mut_bytes());
        Ok(header)
    }

    /// Receives until at least `length` bytes after the position are available.
    fn need(&mut self, length: usize) -> Result<(), StreamError> {
        while self.received - self.position < length as u64 {
            self.fill()?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), StreamError> {
        let (fds, lost) = loop {
            match self.journal.receive(self.socket.as_fd()) {
                Ok(received) => break received,
                Err(Errno::AGAIN) => {
                    if !self.stop.wait_readable(self.socket.as_fd()) {
                        return Err(StreamError::Stopped);
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        };
        let received = self.journal.received();
        if received == self.received {
            return Err(StreamError::Closed);
        }
        self.received = received;
        if lost {
            return Err(StreamError::Desynchronised(TOO_MANY_FDS));
        }
        // The message that contains the last byte ends there or later.
        self.descriptors
            .extend(fds.into_iter().map(|fd| (received, fd)));
        if self.descriptors.len() > 4 * MAX_FDS {
            return Err(StreamError::Desynchronised(TOO_MANY_FDS));
        }
        Ok(())
    }
}

const TOO_MANY_FDS: &str = "more file descriptors than allowed in one message";

/// Sends bytes with descriptors; returns the number of bytes sent.
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

/// Receives bytes with descriptors; returns `None` if there are none yet.
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
        return Err(StreamError::Desynchronised(TOO_MANY_FDS));
    }
    Ok(Some((received.bytes, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::command;

    fn pair() -> (MessageStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (
            MessageStream::new(
                ours,
                Arc::new(Stop::new().unwrap()),
                Journal::new().unwrap().0,
            ),
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
        // The header with the descriptor first, the body later.
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
