// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Listening UNIX sockets. They are bound here, or by systemd, which then starts vrnicd when a client connects
//! (`sd_listen_fds(3)`).

use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::OnceLock;

use crate::inherited;

/// First descriptor that systemd passes.
const FIRST: RawFd = 3;

/// Sockets that systemd passed to this process.
static INHERITED: OnceLock<Vec<UnixListener>> = OnceLock::new();

/// Takes the sockets that systemd passed. Must run before any other process is started, because that process must not
/// inherit them.
pub fn inherit() {
    INHERITED.get_or_init(|| {
        let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
        // The sockets were meant for another process.
        if number("LISTEN_PID") != i32::try_from(std::process::id()).ok() {
            return Vec::new();
        }
        let end = FIRST.saturating_add(number("LISTEN_FDS").unwrap_or(0));
        let sockets = (FIRST..end).map_while(|fd| inherited::duplicate(fd).ok());
        sockets.map(UnixListener::from).collect()
    });
}

/// Returns the socket at `path`, if systemd passed it.
pub fn inherited(path: &Path) -> Option<&'static UnixListener> {
    INHERITED.get()?.iter().find(|socket| {
        let address = socket.local_addr();
        address.is_ok_and(|address| address.as_pathname() == Some(path))
    })
}

/// Takes systemd's socket at `path`, or binds one there. Replaces a socket on which no process listens any more; fails
/// if anything else exists at `path`.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(socket) = inherited(path) {
        return socket.try_clone();
    }
    make_room(path)?;
    UnixListener::bind(path)
}

/// Removes the file of a socket that was bound here. systemd keeps its own.
pub fn remove(path: &Path) {
    if inherited(path).is_none() {
        let _ = std::fs::remove_file(path);
    }
}

/// Removes a socket at `path` on which no process listens any more. Returns `AddrInUse` if a process still listens, and
/// `AlreadyExists` if `path` is not a socket.
pub fn make_room(path: &Path) -> io::Result<()> {
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path exists and is not a socket",
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process listens on this socket",
            ));
        }
        std::fs::remove_file(path)?;
    }
    Ok(())
}
