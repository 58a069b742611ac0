// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A tiny process that lets QEMU survive the death of the daemon.
//!
//! QEMU aborts if the socket of a vfio-user device closes with messages unread, which is what happens when a daemon is
//! killed under load. The holder keeps a duplicate of each connected socket. When the daemon is gone, the holder
//! shuts the write side down, so that QEMU sees an orderly end (the device then reads as all ones, like a card that
//! was pulled out), and goes on reading until QEMU closes the socket.
//!
//! The holder is this same program, started as `vrnicd holder` before any thread exists. It leaves the terminal's
//! session, so that whatever ends the daemon does not end it too.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use tracing::{debug, warn};

use crate::vfio_user::stream::{receive, send};

/// Name of the subcommand that makes this program a holder.
pub const SUBCOMMAND: &str = "holder";

/// Keep the descriptor that comes along.
const HOLD: u8 = 1;
/// Close it.
const RELEASE: u8 = 2;

/// The daemon's end.
pub struct Holder {
    control: Arc<OwnedFd>,
    next: AtomicU64,
    _process: Child,
}

/// A socket in the holder's keeping; given up when dropped.
pub struct Held {
    control: Arc<OwnedFd>,
    id: u64,
}

impl Holder {
    /// Starts a holder process running `program` with [`SUBCOMMAND`].
    pub fn start(program: &std::path::Path) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let process = Command::new(program)
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            control: Arc::new(ours),
            next: AtomicU64::new(0),
            _process: process,
        })
    }

    /// Gives a duplicate of `socket` to the holder. `None`, with a warning, if the holder is gone.
    pub fn hold(&self, socket: BorrowedFd<'_>) -> Option<Held> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match send(self.control.as_fd(), &message(HOLD, id), &[socket]) {
            Ok(_) => Some(Held {
                control: self.control.clone(),
                id,
            }),
            Err(error) => {
                warn!(%error, "holder process is gone: QEMU will abort if this daemon dies under load");
                None
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = send(self.control.as_fd(), &message(RELEASE, self.id), &[]);
    }
}

fn message(kind: u8, id: u64) -> [u8; 9] {
    let mut bytes = [kind; 9];
    bytes[1..].copy_from_slice(&id.to_ne_bytes());
    bytes
}

/// The holder's whole life. `control` is its end of the pair. Returns when there is nothing left to hold.
pub fn run(control: BorrowedFd<'_>) -> io::Result<()> {
    // Fails only for a leader of a process group, which need not leave.
    let _ = rustix::process::setsid();
    let mut held = BTreeMap::new();
    while let Some((message, fd)) = next(control)? {
        let id = u64::from_ne_bytes([
            message[1], message[2], message[3], message[4], message[5], message[6], message[7],
            message[8],
        ]);
        match (message[0], fd) {
            (HOLD, Some(fd)) => {
                held.insert(id, fd);
            }
            _ => {
                held.remove(&id);
            }
        }
    }
    debug!(sockets = held.len(), "daemon is gone");
    drain(held.into_values().collect());
    Ok(())
}

/// Next message of the daemon; `None` once it is gone.
fn next(control: BorrowedFd<'_>) -> io::Result<Option<([u8; 9], Option<OwnedFd>)>> {
    let mut bytes = [0; 9];
    loop {
        let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        match receive(control, &mut bytes) {
            Ok(None) => {}
            Ok(Some((0, _))) | Err(_) => return Ok(None),
            Ok(Some((_, mut fds))) => return Ok(Some((bytes, fds.pop()))),
        }
    }
}

/// Ends the write side of each socket and reads what comes until the peer closes it.
fn drain(mut sockets: Vec<OwnedFd>) {
    let mut waste = vec![0; 64 * 1024];
    for socket in &sockets {
        let _ = shutdown(socket, Shutdown::Write);
    }
    while !sockets.is_empty() {
        let mut fds: Vec<_> = sockets
            .iter()
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        if poll(&mut fds, None).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        sockets.retain(|socket| {
            // Descriptors that come along are closed by `receive`'s caller: they are dropped here.
            !ready.next().unwrap_or(false)
                || match receive(socket.as_fd(), &mut waste) {
                    Ok(Some((count, _))) => count > 0,
                    Ok(None) => true,
                    Err(_) => false,
                }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn sockets_are_drained_after_the_daemon_died() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let holder = std::thread::spawn(move || run(theirs.as_fd()).unwrap());
        let (daemon_end, mut qemu_end) = UnixStream::pair().unwrap();
        let (released, mut other) = UnixStream::pair().unwrap();
        send(ours.as_fd(), &message(HOLD, 1), &[daemon_end.as_fd()]).unwrap();
        send(ours.as_fd(), &message(HOLD, 2), &[released.as_fd()]).unwrap();
        send(ours.as_fd(), &message(RELEASE, 2), &[]).unwrap();
        qemu_end.write_all(&[0; 1000]).unwrap();
        drop((daemon_end, released));
        assert_eq!(
            other.read(&mut [0]).unwrap(),
            0,
            "released sockets are closed"
        );
        drop(ours);
        assert_eq!(
            qemu_end.read(&mut [0]).unwrap(),
            0,
            "an orderly end, not a reset"
        );
        for _ in 0..1000 {
            qemu_end.write_all(&[0; 4096]).unwrap();
        }
        drop(qemu_end);
        holder.join().unwrap();
    }
}
