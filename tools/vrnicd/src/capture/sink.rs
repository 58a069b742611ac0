// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The file of a capture. A client opened it, so it may be a pipe or a socket that accepts no data.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

/// Number of bytes that a pipe with room accepts without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;
/// How long to wait when a descriptor reports room but has none.
const REST: Duration = Duration::from_millis(10);

/// An open file that is given up when it accepts nothing for a while.
#[derive(Debug)]
pub struct Sink {
    file: File,
    /// Number of bytes written at once.
    piece: usize,
    patience: Duration,
    /// Whether a write has failed, after which no more are tried.
    failed: bool,
}

impl Sink {
    /// Creates a sink that writes to `file` and fails when that accepts nothing for `patience`.
    ///
    /// # Errors
    /// The file is not open for writing.
    pub fn new(file: File, patience: Duration) -> io::Result<Self> {
        let mode = fcntl_getfl(&file)?;
        if !mode.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the descriptor is not open for writing",
            ));
        }
        let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
        let piece = if kind == FileType::RegularFile {
            usize::MAX
        } else {
            PIECE
        };
        Ok(Self {
            file,
            piece,
            patience,
            failed: false,
        })
    }

    /// Waits until there is room.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
            match poll(&mut fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "its reader does not read",
                    ));
                }
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_piece(&mut self, piece: &[u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.patience;
        loop {
            self.wait(deadline)?;
            match self.file.write(piece) {
                // Another process filled it first, or it is a terminal.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(REST);
                }
                outcome => return outcome,
            }
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let outcome = self.write_piece(&bytes[..bytes.len().min(self.piece)]);
        self.failed = outcome.is_err();
        outcome
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_pipe_that_nobody_reads_is_given_up() {
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut sink = Sink::new(file, Duration::from_millis(50)).unwrap();
        let bytes = vec![7; 1 << 20];
        let error = sink.write_all(&bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(sink.write(&bytes).is_err(), "for good");
        drop(sink);
        let mut taken = Vec::new();
        reader.read_to_end(&mut taken).unwrap();
        assert!((PIECE..bytes.len()).contains(&taken.len()));
    }

    #[test]
    fn only_what_is_open_for_writing_is_taken() {
        let (reader, _writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let error = Sink::new(file, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
