// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The server side of the control socket.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};
use tracing::{debug, info, warn};

use super::inspector::{Inspector, Topic};
use super::protocol::{self, MAX_REQUEST, Reply, Request};
use crate::capture::{Capture, Center, Known};
use crate::logging;
use crate::recording::{self, Tape};
use crate::socket;
use crate::stop::Stop;

/// Largest number of clients at a time.
const MAX_CLIENTS: usize = 16;
/// Largest number of clients waiting to be accepted.
const BACKLOG: i32 = 16;
/// How long a client may take to send a request, and to read a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client waits for a capture to end.
const FINISH: Duration = Duration::from_secs(5);

/// Interval between checks whether a recording has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The bound socket; removed when dropped.
pub struct Server {
    socket: UnixListener,
    path: PathBuf,
    office: Office,
}

/// What is needed to answer clients.
#[derive(Clone)]
struct Office {
    /// Whether clients may arm faults.
    faults: bool,
    inspector: Arc<Inspector>,
    captures: Arc<Center>,
}

/// A client's slot among [`MAX_CLIENTS`]; given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(taken.clone());
        // If all slots were taken, dropping `place` undoes the increment.
        (taken.fetch_add(1, Ordering::SeqCst) < MAX_CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Takes systemd's socket at `path`, or binds one there with permissions `mode`, minus the process's umask.
    /// Replaces a socket on which no process listens any more; fails if anything else exists at `path`. Clients may arm
    /// faults if `faults` is set.
    pub fn bind(
        path: &Path,
        mode: u32,
        inspector: Arc<Inspector>,
        captures: Arc<Center>,
        faults: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            socket: match socket::inherited(path) {
                Some(socket) => socket.try_clone()?,
                None => bind(path, mode)?,
            },
            path: path.to_owned(),
            office: Office {
                faults,
                inspector,
                captures,
            },
        })
    }

    /// Serves clients until `stop` is signalled. Blocks.
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
            let office = self.office.clone();
            let thread = std::thread::Builder::new().name("control".into());
            let spawned = thread.spawn(move || {
                let _place = place;
                if let Err(error) = converse(&client, &office) {
                    debug!(%error, "control client dropped");
                }
            });
            if let Err(error) = spawned {
                warn!(%error, "cannot start a thread for a control client");
            }
        }
    }
}

fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    socket::make_room(path)?;
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Must happen before the bind, so that the socket never has other permissions (unix(7)).
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

impl Drop for Server {
    fn drop(&mut self) {
        socket::remove(&self.path);
    }
}

/// A client's input: bytes, and at most one descriptor at a time.
struct Input<'a> {
    socket: &'a UnixStream,
    /// The latest descriptor received.
    descriptor: Option<OwnedFd>,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            self.socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptor = rights.last().or(self.descriptor.take());
            }
        }
        Ok(received.bytes)
    }
}

/// Answers one client until it disconnects.
fn converse(client: &UnixStream, office: &Office) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(Input {
        socket: client,
        descriptor: None,
    });
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
        let descriptor = input.get_mut().descriptor.take();
        let reply = match serde_json::from_slice(&line) {
            Ok(request) => execute(request, descriptor, office),
            Err(error) => Reply::Error(format!("bad request: {error}")),
        };
        send(client, &reply)?;
    }
}

fn execute(request: Request, descriptor: Option<OwnedFd>, office: &Office) -> Reply {
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
        Request::CaptureStart { name, choice } => {
            let Some(descriptor) = descriptor else {
                return Reply::Error("the request has no file descriptor".into());
            };
            match office.captures.start(choice, File::from(descriptor), &name) {
                Ok(capture) => begin(capture, office),
                Err(error) => Reply::Error(format!("{error:#}")),
            }
        }
        Request::RecordStart {
            device,
            name,
            max_bytes,
        } => {
            let Some(descriptor) = descriptor else {
                return Reply::Error("the request has no file descriptor".into());
            };
            let limit = max_bytes.unwrap_or(recording::MAX_BYTES);
            match Tape::new(File::from(descriptor), &name, limit) {
                // If the worker never takes the recording, it is dropped, which ends it at once.
                Ok(tape) => office.inspector.ask(Topic::Tape(device, Some(tape))),
                Err(error) => Reply::Error(format!("{error:#}")),
            }
        }
        Request::RecordStop { device } => end_recording(device, office),
        Request::CaptureStop { id } => end(id, office),
        Request::Captures => {
            let known = office.captures.known();
            Reply::Captures(known.iter().map(|known| describe(known)).collect())
        }
        Request::FaultAdd { .. } | Request::FaultClear { .. } if !office.faults => {
            let why = "the configuration does not allow faults: it needs `faults = true`";
            Reply::Error(why.into())
        }
        request => office.inspector.ask(Topic::Request(request)),
    }
}

/// Gives a capture to the worker.
fn begin(capture: Capture, office: &Office) -> Reply {
    let id = capture.id();
    match office.inspector.ask(Topic::Capture(Some(capture))) {
        // If the worker never takes the capture, it is dropped, which ends it at once.
        Reply::Error(error) => Reply::Error(error),
        _ => found(id, office),
    }
}

/// Ends a recording and waits until its file is finished, unless that takes too long.
fn end_recording(device: String, office: &Office) -> Reply {
    let deadline = Instant::now() + FINISH;
    loop {
        let device = device.clone();
        let stop = Topic::Request(Request::RecordStop { device });
        match office.inspector.ask(stop) {
            Reply::Recording(recording) if !recording.has_ended() && Instant::now() < deadline => {
                std::thread::sleep(LOOK);
            }
            reply => return reply,
        }
    }
}

/// Takes a capture from the worker and waits until its file is finished, unless that takes too long.
fn end(id: u64, office: &Office) -> Reply {
    if let Reply::Error(error) = found(id, office) {
        return Reply::Error(error);
    }
    if let Reply::Error(error) = office.inspector.ask(Topic::EndOfCapture(id)) {
        return Reply::Error(error);
    }
    office.captures.wait(Some(id), FINISH);
    found(id, office)
}

fn found(id: u64, office: &Office) -> Reply {
    let known = office.captures.known();
    match known.iter().find(|known| known.id == id) {
        Some(known) => Reply::Capture(describe(known)),
        None => Reply::Error(format!("no capture has the number {id}")),
    }
}

fn describe(known: &Known) -> protocol::Capture {
    let (packets, bytes, missing) = known.counts();
    protocol::Capture {
        id: known.id,
        file: known.file.clone(),
        choice: known.choice.clone(),
        packets,
        bytes,
        missing,
        ended: known.ended(),
    }
}

fn send(mut client: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    client.write_all(&line)
}
