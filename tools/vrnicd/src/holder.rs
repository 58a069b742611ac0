// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A tiny process that keeps VMs alive when the daemon dies.
//!
//! Without it, QEMU aborts if the socket of a vfio-user device closes with unread messages, as happens when a daemon is
//! killed under load. A virtual CPU that waits for a reply hangs until QEMU gives up. And without a server, QEMU exits
//! at the next reset of the machine.
//!
//! The holder keeps a duplicate of each connected socket and of the connection's [`Journal`]. When the daemon dies, the
//! holder raises all interrupts so that the driver looks at its device. Then it continues from the journal where the
//! daemon stopped, which may be in the middle of a reply. Until QEMU closes the socket, the holder acts as a card that
//! has been pulled out.
//!
//! If the daemon has accepted a connection but not yet passed it to the holder, the connection ends with the daemon. At
//! that point the VMM has not sent anything yet; it reports at startup that there is no device.
//!
//! The holder is this same program, started as `vrnicd holder` before any thread exists. It leaves the terminal's
//! session, so that a signal to the terminal's processes ends the daemon but not the holder.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use tracing::warn;

use crate::stop::Stop;
use crate::vfio_user::dead_device::DeadDevice;
use crate::vfio_user::journal::Journal;
use crate::vfio_user::message::MAX_FDS;
use crate::vfio_user::stream::{MessageStream, StreamError, receive, send};
use crate::vfio_user::{Disconnect, take_over};

/// Name of the subcommand that runs this program as a holder.
pub const SUBCOMMAND: &str = "holder";

/// Keep the socket and the journal that come with the message.
const HOLD: u8 = 1;
/// Close everything that belongs to this connection.
const RELEASE: u8 = 2;
/// Keep the eventfds of vectors that come with the message; drop all eventfds if it has none.
const VECTORS: u8 = 3;

/// The daemon's end of the connection to the holder.
pub struct Holder {
    control: Arc<OwnedFd>,
    next: AtomicU64,
    _process: Child,
}

/// A connection that the holder keeps; released when dropped.
pub struct Held {
    control: Arc<OwnedFd>,
    id: u64,
}

impl Holder {
    /// Starts a holder process running `program` with [`SUBCOMMAND`].
    pub fn start(program: &std::path::Path) -> io::Result<Self> {
        let (ours, theirs) = control_pair()?;
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

    /// Gives duplicates of a connection's socket and journal to the holder. Returns `None`, and logs a warning, if the
    /// holder is gone.
    pub fn hold(&self, socket: BorrowedFd<'_>, journal: BorrowedFd<'_>) -> Option<Held> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match send(
            self.control.as_fd(),
            &message(HOLD, id, 0),
            &[socket, journal],
        ) {
            Ok(_) => Some(Held {
                control: self.control.clone(),
                id,
            }),
            Err(error) => {
                warn!(%error, "holder process is gone: QEMU will not survive the death of this daemon");
                None
            }
        }
    }
}

impl Held {
    /// Passes the holder the eventfds of vectors `first` and following, with which it can interrupt the driver.
    pub fn set_vectors(&self, first: u32, eventfds: &[OwnedFd]) {
        let fds: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
        for (some, first) in fds.chunks(MAX_FDS).zip((first..).step_by(MAX_FDS)) {
            let _ = send(
                self.control.as_fd(),
                &message(VECTORS, self.id, first),
                some,
            );
        }
    }

    /// Tells the holder that no eventfd is in use any more.
    pub fn forget_vectors(&self) {
        let _ = send(self.control.as_fd(), &message(VECTORS, self.id, 0), &[]);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = send(self.control.as_fd(), &message(RELEASE, self.id, 0), &[]);
    }
}

fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A message to the holder: connection, first vector, kind.
type Message = [u8; 16];

fn message(kind: u8, id: u64, first: u32) -> Message {
    let mut bytes = Message::default();
    bytes[..8].copy_from_slice(&id.to_ne_bytes());
    bytes[8..12].copy_from_slice(&first.to_ne_bytes());
    bytes[12] = kind;
    bytes
}

/// A connection as the holder keeps it.
struct Connection {
    socket: OwnedFd,
    journal: OwnedFd,
    vectors: BTreeMap<u32, OwnedFd>,
}

/// Runs the holder. `control` is its end of the socket pair. Returns when no connection is left.
pub fn run(control: BorrowedFd<'_>) -> io::Result<()> {
    // Fails only if the process leads a process group, in which case it can stay where it is.
    let _ = rustix::process::setsid();
    let mut held: BTreeMap<u64, Connection> = BTreeMap::new();
    while let Some((message, fds)) = next(control)? {
        let [a, b, c, d, e, f, g, h, i, j, k, l, kind, ..] = message;
        let id = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let first = u32::from_ne_bytes([i, j, k, l]);
        match kind {
            HOLD => {
                if let Ok([socket, journal]) = <[OwnedFd; 2]>::try_from(fds) {
                    held.insert(
                        id,
                        Connection {
                            socket,
                            journal,
                            vectors: BTreeMap::new(),
                        },
                    );
                }
            }
            VECTORS => {
                if let Some(connection) = held.get_mut(&id) {
                    if fds.is_empty() {
                        connection.vectors.clear();
                    }
                    connection.vectors.extend((first..).zip(fds));
                }
            }
            _ => {
                held.remove(&id);
            }
        }
    }
    let threads: Vec<_> = held
        .into_values()
        .map(|connection| std::thread::spawn(|| connection.outlive()))
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

/// Returns the next message from the daemon, or `None` once the daemon is gone.
fn next(control: BorrowedFd<'_>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut bytes = Message::default();
    loop {
        let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        match receive(control, &mut bytes) {
            // No descriptors are left. The daemon is alive; the connection whose descriptors were lost is not kept when
            // it dies.
            Ok(None) | Err(StreamError::Desynchronised(_)) => {}
            Ok(Some((0, _))) | Err(_) => return Ok(None),
            Ok(Some((_, fds))) => return Ok(Some((bytes, fds))),
        }
    }
}

impl Connection {
    /// Stands in for the daemon until the peer closes the connection.
    fn outlive(self) {
        let Self {
            socket,
            journal,
            vectors,
        } = self;
        let duplicate = socket.try_clone();
        let outcome = Journal::open(&journal).and_then(|journal| {
            // Each connection has its own thread here, so a VMM that blocks this write harms only itself.
            for eventfd in vectors.values() {
                let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
            }
            let stop = Arc::new(Stop::new()?);
            Ok(
                match MessageStream::resume(UnixStream::from(socket), stop, journal) {
                    Ok(stream) => take_over(stream, &mut DeadDevice::default()),
                    Err(error) => error.into(),
                },
            )
        });
        if let (Ok(socket), Ok(Disconnect::Protocol(_) | Disconnect::Io(_)) | Err(_)) =
            (duplicate, outcome)
        {
            drain(&socket);
        }
    }
}

/// Shuts down the write side, then reads and discards until the peer closes the socket. Used when the connection cannot
/// be continued.
fn drain(socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Write);
    let mut waste = vec![0; 64 * 1024];
    loop {
        if poll(&mut [PollFd::new(socket, PollFlags::IN)], None).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Descriptors that arrive are dropped, which closes them.
        match receive(socket.as_fd(), &mut waste) {
            Ok(Some((0, _))) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    use rustix::event::{EventfdFlags, eventfd};
    use zerocopy::{FromBytes, IntoBytes};

    use crate::vfio_user::message::{Header, RegionAccess, command};

    fn bytes_of(id: u16, command: u16, body: &[u8], no_reply: bool) -> Vec<u8> {
        let mut bytes = Header::request(id, command, body.len(), no_reply)
            .as_bytes()
            .to_vec();
        bytes.extend(body);
        bytes
    }

    fn reply(stream: &mut UnixStream) -> (Header, Vec<u8>) {
        let mut header = [0; Header::LEN];
        stream.read_exact(&mut header).unwrap();
        let header = Header::read_from_bytes(&header).unwrap();
        let mut body = vec![0; header.size as usize - Header::LEN];
        stream.read_exact(&mut body).unwrap();
        (header, body)
    }

    #[test]
    fn a_vm_finds_a_dead_device_after_the_daemon_died() {
        let (ours, theirs) = control_pair().unwrap();
        let holder = std::thread::spawn(move || run(theirs.as_fd()).unwrap());
        let (daemon_end, mut qemu_end) = UnixStream::pair().unwrap();
        let (released, mut other) = UnixStream::pair().unwrap();
        let (journal, journal_fd) = Journal::new().unwrap();
        let vector = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let hold = |id, socket: &UnixStream| {
            send(
                ours.as_fd(),
                &message(HOLD, id, 0),
                &[socket.as_fd(), journal_fd.as_fd()],
            )
            .unwrap();
        };
        hold(1, &daemon_end);
        hold(2, &released);
        send(ours.as_fd(), &message(VECTORS, 1, 0), &[vector.as_fd()]).unwrap();
        send(ours.as_fd(), &message(RELEASE, 2, 0), &[]).unwrap();

        // The daemon read a request, sent the first half of its reply, and read half of the next message.
        let access = RegionAccess {
            offset: 0x14,
            region: 0,
            count: 1,
        };
        let first = Header::request(5, command::DEVICE_RESET, 0, false);
        let mut write = RegionAccess { count: 4, ..access }.as_bytes().to_vec();
        write.extend([0; 4]);
        let second = bytes_of(6, command::REGION_WRITE, &write, true);
        qemu_end.write_all(first.as_bytes()).unwrap();
        qemu_end.write_all(&second[..20]).unwrap();
        journal.receive(daemon_end.as_fd()).unwrap();
        let answer = first.reply(0);
        journal.set_reply(answer.as_bytes(), &[]).unwrap();
        journal.send_part_of_reply(daemon_end.as_fd(), 7).unwrap();
        qemu_end.write_all(&second[20..]).unwrap();
        drop((daemon_end, released));
        assert_eq!(
            other.read(&mut [0]).unwrap(),
            0,
            "released sockets are closed"
        );
        drop(ours);

        assert_eq!(reply(&mut qemu_end), (answer, vec![]));
        qemu_end
            .write_all(&bytes_of(7, command::REGION_READ, access.as_bytes(), false))
            .unwrap();
        let (header, body) = reply(&mut qemu_end);
        assert_eq!(
            (header.id, header.result(), body[16..].to_vec()),
            (7, Ok(()), vec![0x40])
        );
        assert_eq!(
            rustix::io::read(&vector, &mut [0; 8]),
            Ok(8),
            "the driver was interrupted"
        );
        qemu_end
            .write_all(&bytes_of(8, command::DEVICE_RESET, &[], false))
            .unwrap();
        assert_eq!(reply(&mut qemu_end).0.result(), Ok(()));

        // Garbage ends the conversation but does not kill the peer.
        qemu_end.write_all(&[0; 1000]).unwrap();
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
