// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tracing::{debug, info, warn};

use super::inspector::Inspector;
use super::protocol::{MAX_REQUEST, Reply, Request};
use crate::logging;
use crate::socket::make_room;
use crate::stop::Stop;

/// Clients at a time.
const MAX_CLIENTS: usize = 16;
/// Clients that may wait for being accepted.
const BACKLOG: i32 = 16;
/// How long a client may think, and how long it may take to read.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bound socket, removed when dropped.
pub struct Server {
    socket: UnixListener,
    path: PathBuf,
    inspector: Arc<Inspector>,
}

/// A client's place among [`MAX_CLIENTS`], given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(taken.clone());
        // If there was none, dropping it takes the addition back.
        (taken.fetch_add(1, Ordering::SeqCst) < MAX_CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Binds `path` with permissions `mode`, less what the process's mask takes away. Replaces a socket that nobody
    /// listens on any more; refuses anything else that is there.
    pub fn bind(path: &Path, mode: u32, inspector: Arc<Inspector>) -> io::Result<Self> {
        make_room(path)?;
        let socket: OwnedFd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Before it is bound, so that there is no moment with other permissions (unix(7)).
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self {
            socket: UnixListener::from(socket),
            path: path.to_owned(),
            inspector,
        })
    }

    /// Serves clients until `stop` says so. Blocks.
    pub fn run(&self, stop: &Stop) {
        let taken = Arc::new(AtomicUsize::new(0));
        while stop.wait_readable(self.socket.as_fd()) {
            let client = match self.socket.accept() {
                Ok((client, _)) => client,
                Err(error) => {
                    warn!(%error, "cannot accept a control client");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let Some(place) = Place::take(&taken) else {
                let refusal = Reply::Error("too many clients".into());
                let _ = client.set_nonblocking(true);
                let _ = send(&client, &refusal);
                continue;
            };
            let inspector = self.inspector.clone();
            let thread = std::thread::Builder::new().name("control".into());
            let spawned = thread.spawn(move || {
                let _place = place;
                if let Err(error) = converse(&client, &inspector) {
                    debug!(%error, "control client dropped");
                }
            });
            if let Err(error) = spawned {
                warn!(%error, "no thread for a control client");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers one client until it goes away.
fn converse(client: &UnixStream, inspector: &Inspector) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(client);
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut input)
            .take(MAX_REQUEST as u64)
            .read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            if line.len() == MAX_REQUEST {
                send(client, &Reply::Error("request is too long".into()))?;
            }
            return Ok(());
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(request) => execute(request, inspector),
            Err(error) => Reply::Error(format!("bad request: {error}")),
        };
        send(client, &reply)?;
    }
}

fn execute(request: Request, inspector: &Inspector) -> Reply {
    match request {
        Request::Log { filter: None } => Reply::Log(logging::filter()),
        Request::Log {
            filter: Some(filter),
        } => match logging::set_filter(&filter) {
            Ok(()) => {
                info!(filter, "log filter changed by a control client");
                Reply::Log(logging::filter())
            }
            Err(error) => Reply::Error(format!("{error:#}")),
        },
        request => inspector.ask(request),
    }
}

fn send(mut client: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    client.write_all(&line)
}
