// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Listening UNIX sockets.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Binds `path`. Replaces a socket that nobody listens on any more; refuses anything else that is there.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    make_room(path)?;
    UnixListener::bind(path)
}

/// Removes a socket at `path` that nobody listens on any more. `AddrInUse` if somebody does, `AlreadyExists` if
/// something else is there.
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
