// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The server, which dispatches requests.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;

use crate::access::Access;
use crate::http::{Bad, MAX_BODY, Request, Response};
use crate::lessons::{Classroom, LESSONS};
use crate::page;
use crate::source::{Source, make_exact};

/// Largest number of simultaneous connections.
const MAX_CLIENTS: usize = 32;
/// How long a client may take to send a request, and to accept a part of the response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between signs of life to a client that gets nothing else.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Longest capture in seconds.
const MAX_CAPTURE: u64 = 60;
/// Largest number of pages of a device's steps in one response.
const MAX_PAGES: usize = 8;
/// Largest number of objects of each kind in one response.
const MAX_OBJECTS: usize = 4096;

/// Options of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen at; port 0 means a free port.
    pub listen: SocketAddr,
    /// Control socket of vrnicd.
    pub socket: PathBuf,
    /// Whether pages may make changes.
    pub allow_actions: bool,
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    office: Arc<Office>,
}

/// What is needed to answer requests.
#[derive(Debug)]
struct Office {
    access: Access,
    source: Arc<Source>,
    address: SocketAddr,
    clients: AtomicUsize,
    classroom: Option<Arc<Classroom>>,
}

/// A client's slot among [`MAX_CLIENTS`]; given back when dropped.
struct Place(Arc<Office>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Starts to listen. Also fails if there is no vrnicd.
    pub fn bind(options: Options) -> Result<Self> {
        Self::open(options, None)
    }

    /// Like [`bind`](Self::bind), for a lab with lessons.
    pub fn teach(listen: SocketAddr, classroom: Arc<Classroom>) -> Result<Self> {
        let options = Options {
            listen,
            socket: classroom.control().to_owned(),
            allow_actions: true,
        };
        Self::open(options, Some(classroom))
    }

    fn open(options: Options, classroom: Option<Arc<Classroom>>) -> Result<Self> {
        Client::connect(&options.socket)?;
        let listener = TcpListener::bind(options.listen)
            .with_context(|| format!("cannot listen at {}", options.listen))?;
        let address = listener.local_addr()?;
        Ok(Self {
            listener,
            office: Arc::new(Office {
                access: Access::new(address)?,
                source: Arc::new(Source::new(
                    options.socket,
                    options.allow_actions,
                    classroom.is_some(),
                )),
                address,
                clients: AtomicUsize::new(0),
                classroom,
            }),
        })
    }

    /// Returns the address to open in a browser.
    pub fn url(&self) -> String {
        format!(
            "http://{}/?token={}",
            self.office.address,
            self.office.access.token()
        )
    }

    /// Serves forever.
    pub fn run(&self) -> ! {
        let source = self.office.source.clone();
        let watched = std::thread::Builder::new().name("source".into());
        if let Err(error) = watched.spawn(move || source.run()) {
            eprintln!("vrnicctl: no thread to ask vrnicd with: {error}");
        }
        loop {
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) => {
                    eprintln!("vrnicctl: cannot accept a client: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let place = Place(self.office.clone());
            if self.office.clients.fetch_add(1, Ordering::SeqCst) >= MAX_CLIENTS {
                refuse(&client);
                continue;
            }
            let thread = std::thread::Builder::new().name("client".into());
            // If no thread can be started, the client's slot and connection are released at once.
            let _ = thread.spawn(move || {
                // A client that disconnects misses the rest.
                let _ = converse(&client, &place.0);
            });
        }
    }
}

/// Rejects a client because there are too many, without waiting for it.
fn refuse(mut client: &TcpStream) {
    let _ = client.set_nonblocking(true);
    let _ = Response::text(503, "Too many clients.").write(&mut client);
}

fn converse(client: &TcpStream, office: &Office) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut output = BufWriter::new(client);
    let request = match Request::read(&mut &*client) {
        Ok(request) => request,
        Err(Bad::Gone(error)) => return Err(error),
        Err(Bad::Refused(status, why)) => {
            Response::text(status, why).write(&mut output)?;
            // Reads the rest of the request: unread data would reset the connection before the client has read the
            // response.
            client.shutdown(Shutdown::Write)?;
            io::copy(&mut Read::take(client, 1 << 20), &mut io::sink())?;
            return Ok(());
        }
    };
    if let Err(refusal) = office.access.check(&request) {
        return Response::text(refusal.status(), refusal.text()).write(&mut output);
    }
    if (request.method(), request.path()) == ("GET", "/api/events") {
        return stream(office, &mut output);
    }
    answer(office, &request).write(&mut output)
}

fn answer(office: &Office, request: &Request) -> Response {
    match (request.method(), request.path()) {
        ("GET", "/") if office.access.is_invited(request) => {
            Response::see_other("/").with("Set-Cookie", office.access.set_cookie())
        }
        ("GET", "/api/objects") => asked(objects(office, request)),
        ("GET", "/api/trace") => asked(trace(office, request)),
        ("POST", "/api/decode") => match crate::decode::decode(request.body()) {
            Ok(decoded) => asked(serde_json::to_value(decoded).map_err(Into::into)),
            Err(error) => Response::text(400, &format!("{error:#}")),
        },
        (_, "/api/action" | "/api/capture") if !office.source.allows_actions() => Response::text(
            403,
            "This page is read-only: start vrnicctl web with --allow-actions to allow actions.",
        ),
        ("GET", "/api/capture") => match capture(office, request) {
            Ok(file) => Response::new("application/octet-stream", file).with(
                "Content-Disposition",
                "attachment; filename=\"vrnic.pcapng\"".into(),
            ),
            Err(error) => Response::text(502, &format!("{error:#}")),
        },
        ("POST", "/api/action") => asked(act(office, request)),
        ("GET", "/api/lessons") if office.classroom.is_some() => {
            asked(serde_json::to_value(LESSONS).map_err(Into::into))
        }
        ("POST", "/api/lesson") => match &office.classroom {
            Some(classroom) => asked(go_on(classroom, request)),
            None => Response::text(404, "Start vrnicctl lessons to see the lessons."),
        },
        ("GET", path) => match page::file(path) {
            Some((kind, content)) => Response::new(kind, content),
            None => Response::text(404, "There is no such page."),
        },
        ("POST", _) => Response::text(404, "There is no such action."),
        _ => Response::text(405, "Only GET and POST are supported."),
    }
}

fn asked(answer: Result<Value>) -> Response {
    match answer {
        Ok(mut value) => {
            make_exact(&mut value);
            Response::json(&value)
        }
        Err(error) => Response::text(502, &format!("{error:#}")),
    }
}

/// Returns the objects of all devices of which there are too many to be part of the state.
fn objects(office: &Office, request: &Request) -> Result<Value> {
    fn cut<T>(mut all: Vec<T>) -> Vec<T> {
        all.truncate(MAX_OBJECTS);
        all
    }
    let index: usize = request.parameter("device").unwrap_or_default().parse()?;
    office.source.ask(|client| {
        let devices = client.devices()?;
        let device = devices.get(index).context("there is no such device")?;
        let name = &device.name;
        Ok(json!({
            "device": name,
            "mrs": cut(client.mrs(name)?),
            "mws": cut(client.mws(name)?),
            "cqs": cut(client.cqs(name)?),
            "srqs": cut(client.srqs(name)?),
            "groups": cut(client.groups(name)?),
            "flows": cut(client.flows(name)?),
            "faults": cut(client.faults(name)?),
        }))
    })
}

/// Returns the latest steps of all devices, for each from the step that the client names.
fn trace(office: &Office, request: &Request) -> Result<Value> {
    let from = request.parameter("from").unwrap_or_default().split(',');
    let from: Vec<u64> = from.filter_map(|number| number.parse().ok()).collect();
    office.source.ask(|client| {
        let mut all = Vec::new();
        for (index, device) in client.devices()?.iter().enumerate() {
            let from = from.get(index).copied().unwrap_or(0);
            let mut trace = client.trace(&device.name, from)?;
            for _ in 1..MAX_PAGES {
                if trace.waiting == 0 {
                    break;
                }
                let next = trace.first + trace.steps.len() as u64;
                let more = client.trace(&device.name, next)?;
                if more.first != next {
                    break;
                }
                trace.steps.extend(more.steps);
                trace.waiting = more.waiting;
            }
            all.push(json!({ "device": device.name, "first": trace.first, "steps": trace.steps }));
        }
        Ok(json!({ "devices": all }))
    })
}

/// A change that a page may make.
#[derive(serde::Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
enum Action {
    /// Brings the link of a device up or takes it down.
    Link { device: String, up: bool },
    /// Arms a fault.
    Fault { device: String, fault: String },
    /// Disarms all faults of a device.
    ClearFaults { device: String },
    /// Sets the filter of the log.
    Log { filter: String },
}

/// Captures what a device sends and receives for some seconds, and returns the file.
fn capture(office: &Office, request: &Request) -> Result<Vec<u8>> {
    let index: usize = request.parameter("device").unwrap_or_default().parse()?;
    let seconds: u64 = request.parameter("seconds").unwrap_or_default().parse()?;
    ensure!(
        (1..=MAX_CAPTURE).contains(&seconds),
        "a capture takes 1 to {MAX_CAPTURE} seconds"
    );
    // Uses its own connection, so that other requests do not have to wait.
    let mut client = office.source.connect()?;
    let devices = client.devices()?;
    let device = devices.get(index).context("there is no such device")?;
    let choice = Choice {
        device: Some(device.name.clone()),
        max_bytes: Some(MAX_BODY as u64),
        ..Choice::default()
    };
    let file = rustix::fs::memfd_create("vrnic.pcapng", rustix::fs::MemfdFlags::CLOEXEC)?;
    let capture = client.start_capture(choice, "vrnicctl web", file.as_fd())?;
    std::thread::sleep(Duration::from_secs(seconds));
    client.stop_capture(capture.id)?;
    let (mut file, mut bytes) = (File::from(file), Vec::new());
    file.seek(SeekFrom::Start(0))?;
    file.take(MAX_BODY as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn act(office: &Office, request: &Request) -> Result<Value> {
    let action = serde_json::from_slice(request.body()).context("no such action")?;
    office.source.ask(|client| {
        Ok(match action {
            Action::Link { device, up } => {
                client.set_link(&device, up)?;
                json!({ "done": if up { "The link is up." } else { "The link is down." } })
            }
            Action::Fault { device, fault } => {
                let id = client.add_fault(&device, &fault)?;
                json!({ "done": format!("Fault {id} is armed.") })
            }
            Action::ClearFaults { device } => {
                let count = client.clear_faults(&device, None)?;
                json!({ "done": format!("{count} faults are cleared.") })
            }
            Action::Log { filter } => {
                let filter = client.log(Some(filter))?;
                json!({ "done": format!("The filter is {filter}.") })
            }
        })
    })
}

/// Starts a lesson or carries out its next step.
fn go_on(classroom: &Classroom, request: &Request) -> Result<Value> {
    let wanted = serde_json::from_slice(request.body()).context("no such step")?;
    Ok(serde_json::to_value(classroom.go_on(&wanted)?)?)
}

/// Sends each new state as soon as the client has accepted the previous one.
fn stream(office: &Office, output: &mut impl Write) -> io::Result<()> {
    Response::new("text/event-stream", "").begin(output)?;
    let mut watcher = office.source.watch();
    loop {
        match watcher.next(HEARTBEAT) {
            Some(state) => write!(output, "data: {state}\n\n")?,
            // A comment; writing it fails if the client has disconnected.
            None => output.write_all(b":\n\n")?,
        }
        output.flush()?;
    }
}
