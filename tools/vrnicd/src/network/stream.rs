// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! QEMU's `-netdev stream`: each frame is preceded by its length in four bytes, most significant first (QEMU,
//! net/stream.c).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::medium::{MAX_FRAME, Medium};
use crate::socket;

/// Size of the length in bytes.
const PREFIX: usize = 4;
/// Number of bytes read at once: more than the longest frame.
const READ: usize = 2 * (PREFIX + MAX_FRAME);
/// Number of bytes collected for one write.
const WRITE: usize = 64 << 10;

/// A listening socket and its latest connection.
pub struct Stream {
    listener: UnixListener,
    path: PathBuf,
    peer: Option<UnixStream>,
    /// Bytes received that do not make up a complete frame yet.
    received: Vec<u8>,
    /// Bytes being written, and how many of them have been written.
    sending: Vec<u8>,
    sent: usize,
}

impl Stream {
    /// Listens at `path`.
    ///
    /// # Errors
    /// `path` exists and is not a stale socket, or the directory is not writable.
    pub fn listen(path: &Path) -> Result<Self> {
        let listener = socket::bind(path)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            peer: None,
            received: Vec::with_capacity(READ),
            sending: Vec::new(),
            sent: 0,
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        socket::remove(&self.path);
    }
}

impl Medium for Stream {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.peer.as_ref().map(AsFd::as_fd)
    }

    fn listener(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.as_fd())
    }

    /// The newest connection replaces an older one: the VM was restarted, and its predecessor may not be quite gone.
    fn accept(&mut self) -> io::Result<bool> {
        let (peer, _) = self.listener.accept()?;
        peer.set_nonblocking(true)?;
        let replaced = self.peer.is_some();
        self.close();
        self.peer = Some(peer);
        Ok(replaced)
    }

    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(peer) = &self.peer else {
            return Ok(());
        };
        match recv(peer, spare_capacity(&mut self.received), RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut rest = self.received.as_slice();
        while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX>() {
            let length = u32::from_be_bytes(*prefix) as usize;
            if length > MAX_FRAME {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a frame of {length} bytes"),
                ));
            }
            let Some((frame, next)) = behind.split_at_checked(length) else {
                break;
            };
            take(frame);
            rest = next;
        }
        let used = self.received.len() - rest.len();
        self.received.drain(..used);
        Ok(())
    }

    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool> {
        let Some(peer) = &self.peer else {
            frames.clear();
            return Ok(false);
        };
        loop {
            if self.sent == self.sending.len() {
                self.sending.clear();
                self.sent = 0;
                while self.sending.len() < WRITE {
                    let Some(frame) = frames.pop_front() else {
                        break;
                    };
                    self.sending
                        .extend_from_slice(&(frame.len() as u32).to_be_bytes());
                    self.sending.extend_from_slice(&frame);
                    spent(frame);
                }
                if self.sending.is_empty() {
                    return Ok(false);
                }
            }
            match send(peer, &self.sending[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn close(&mut self) {
        self.peer = None;
        self.received.clear();
        self.sending.clear();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn connected() -> (tempfile::TempDir, Stream, UnixStream) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut stream = Stream::listen(&path).unwrap();
        let qemu = UnixStream::connect(&path).unwrap();
        assert!(!stream.accept().unwrap());
        (directory, stream, qemu)
    }

    fn read(stream: &mut Stream) -> io::Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        stream
            .read(&mut |frame| frames.push(frame.to_vec()))
            .map(|()| frames)
    }

    #[test]
    fn frames_may_come_in_any_pieces() {
        let (_directory, mut stream, mut qemu) = connected();
        let mut bytes = Vec::new();
        for length in [1u32, 60, 0, 1500] {
            bytes.extend(length.to_be_bytes());
            bytes.extend(vec![length as u8; length as usize]);
        }
        let mut frames = Vec::new();
        for piece in bytes.chunks(7) {
            qemu.write_all(piece).unwrap();
            frames.extend(read(&mut stream).unwrap());
        }
        let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 60, 0, 1500]);
        assert!(not_now(&read(&mut stream).unwrap_err()));
        drop(qemu);
        assert_eq!(
            read(&mut stream).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_connection() {
        let (_directory, mut stream, mut qemu) = connected();
        qemu.write_all(&[0, 1, 0, 1]).unwrap();
        assert_eq!(
            read(&mut stream).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_full_socket_is_written_later_and_in_order() {
        let (_directory, mut stream, mut qemu) = connected();
        let mut frames: VecDeque<Vec<u8>> = (0..2000u32)
            .map(|number| vec![number as u8; 1000])
            .collect();
        assert!(stream.write(&mut frames, &mut |_| {}).unwrap(), "full");
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            qemu.read_to_end(&mut all).unwrap();
            all
        });
        while stream.write(&mut frames, &mut |_| {}).unwrap() {
            std::thread::yield_now();
        }
        stream.close();
        let all = reader.join().unwrap();
        for (number, chunk) in all.chunks(1004).enumerate() {
            assert_eq!(chunk[..4], 1000u32.to_be_bytes());
            assert_eq!(chunk[4..], [number as u8; 1000]);
        }
        assert_eq!(all.len(), 2000 * 1004);
    }

    #[test]
    fn the_newest_connection_counts() {
        let (directory, mut stream, mut old) = connected();
        let mut new = UnixStream::connect(directory.path().join("socket")).unwrap();
        assert!(stream.accept().unwrap());
        assert_eq!(old.read(&mut [0; 9]).unwrap(), 0);
        let mut frames = VecDeque::from([vec![7; 60]]);
        assert!(!stream.write(&mut frames, &mut |_| {}).unwrap());
        let mut frame = [0; 64];
        new.read_exact(&mut frame).unwrap();
        assert_eq!(frame[3..], [[60].as_slice(), &[7; 60]].concat());
        drop(stream);
        assert!(!directory.path().join("socket").exists());
    }

    use super::super::medium::not_now;
}
