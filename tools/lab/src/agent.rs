// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The host's end of the channel into a guest: runs programs there, and returns their output and how they ended.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use vrnic_lab::protocol::{Reply, Request, Stream, decode};

/// Something that a program did.
#[derive(Debug, Clone)]
pub enum Event {
    /// It printed something.
    Output(Stream, Vec<u8>),
    /// It ended with this code (128 + signal, as in a shell).
    Exit(i32),
    /// It did not start, or the guest has gone.
    Lost(String),
}

/// A finished program.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// Exit code; 128 + signal if it was killed.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Returns both streams, for error messages.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr).trim().to_owned()
    }
}

#[derive(Default)]
struct Shared {
    programs: Mutex<HashMap<u64, Sender<Event>>>,
    /// Number of times the agent has sent a hello.
    boots: Mutex<u64>,
    booted: Condvar,
}

/// The channel into one guest.
#[derive(Clone)]
pub struct Agent {
    name: String,
    slowness: u32,
    writer: Arc<Mutex<UnixStream>>,
    next: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl Agent {
    /// Connects to the socket of the guest's port. The agent need not be running yet. Waiting for this guest takes up
    /// to `slowness` times as long as usual.
    ///
    /// # Errors
    /// Nothing listens on the socket.
    pub fn connect(name: &str, socket: &Path, slowness: u32) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let shared = Arc::new(Shared::default());
        let reader = BufReader::new(stream.try_clone()?);
        let theirs = shared.clone();
        std::thread::spawn(move || receive(reader, &theirs));
        Ok(Self {
            name: name.to_owned(),
            slowness,
            writer: Arc::new(Mutex::new(stream)),
            next: Arc::default(),
            shared,
        })
    }

    /// Returns how long to wait in this guest for something that usually takes `usual`.
    #[must_use]
    pub fn patience(&self, usual: Duration) -> Duration {
        usual * self.slowness
    }

    /// Returns how often the agent has started: once per boot of the guest.
    #[must_use]
    pub fn boots(&self) -> u64 {
        *self.shared.boots.lock().expect("boot counter")
    }

    /// Waits until the agent has started more than `before` times. Returns false if this takes longer than `patience`.
    #[must_use]
    pub fn wait_boot(&self, before: u64, patience: Duration) -> bool {
        let boots = self.shared.boots.lock().expect("boot counter");
        let (boots, _) = self
            .shared
            .booted
            .wait_timeout_while(boots, patience, |boots| *boots <= before)
            .expect("boot counter");
        *boots > before
    }

    fn send(&self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.writer
            .lock()
            .expect("agent writer")
            .write_all(&line)
            .map_err(|error| anyhow!("VM {}: {error}", self.name))
    }

    /// Starts a program. `argv` is not interpreted by a shell.
    ///
    /// # Errors
    /// The guest has gone.
    pub fn start(&self, argv: &[&str], env: &[(&str, &str)]) -> Result<Program> {
        let env: BTreeMap<_, _> = env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let words = argv.iter().map(|&arg| arg.to_owned()).collect();
        self.request(argv.join(" "), |id| Request::Start {
            id,
            argv: words,
            env,
        })
    }

    /// Waits until something listens on the TCP port of the guest, or until `program`, which should listen there, has
    /// ended. Returns whether something listens.
    ///
    /// # Errors
    /// The guest has gone, or nothing listens within `patience`.
    pub fn await_listener(&self, port: u16, program: &Program, patience: Duration) -> Result<bool> {
        let what = format!("waiting for a listener on port {port}");
        let program = program.id;
        let waiting = self.request(what, |id| Request::AwaitListener { id, port, program })?;
        Ok(waiting.wait(patience)?.code == 0)
    }

    /// Returns whether something listens on the port now, over TCP or rdma_cm.
    ///
    /// # Errors
    /// The guest has gone.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let look = format!(
            "rdma resource show cm_id | grep -q 'state LISTEN .*:{port} ' || ss -Hltn sport = :{port} | grep -q ."
        );
        Ok(self
            .run(&["sh", "-c", &look], Duration::from_secs(30))?
            .code
            == 0)
    }

    /// Sends a request that ends with an exit code.
    fn request(&self, what: String, request: impl FnOnce(u64) -> Request) -> Result<Program> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = channel();
        self.shared
            .programs
            .lock()
            .expect("program table")
            .insert(id, events);
        self.send(&request(id))?;
        Ok(Program {
            agent: self.clone(),
            id,
            events: receiver,
            what,
            over: false,
            seen: Output::default(),
        })
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// It did not start, or did not end within `patience`. A non-zero exit code is not an error here.
    pub fn run(&self, argv: &[&str], patience: Duration) -> Result<Output> {
        self.start(argv, &[])?.wait(patience)
    }

    /// Runs a program that must succeed and returns its standard output.
    ///
    /// # Errors
    /// The same as for [`Agent::run`], or a non-zero exit code.
    pub fn check(&self, argv: &[&str], patience: Duration) -> Result<String> {
        let output = self.run(argv, patience)?;
        if output.code != 0 {
            bail!(
                "VM {}: `{}` exited with {}: {}",
                self.name,
                argv.join(" "),
                output.code,
                output.text()
            );
        }
        Ok(output.stdout)
    }
}

/// A program in a guest. Dropping it kills its process group.
pub struct Program {
    agent: Agent,
    id: u64,
    events: Receiver<Event>,
    what: String,
    over: bool,
    seen: Output,
}

impl Program {
    /// Returns the next event, or `None` if nothing happens for `patience`.
    pub fn next(&mut self, patience: Duration) -> Option<Event> {
        let event = match self.events.recv_timeout(patience) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                Event::Lost(format!("VM {} is gone", self.agent.name))
            }
        };
        if matches!(event, Event::Exit(_) | Event::Lost(_)) {
            self.over = true;
        }
        Some(event)
    }

    /// Waits for the end and collects the output. The wait may be longer in a slower guest.
    ///
    /// # Errors
    /// It did not start, the guest has gone, or `patience` is over. In the last case, the program is killed, and the
    /// message has its output so far.
    pub fn wait(mut self, patience: Duration) -> Result<Output> {
        let patience = self.agent.patience(patience);
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(left) {
                Some(Event::Output(stream, bytes)) => {
                    let text = String::from_utf8_lossy(&bytes);
                    match stream {
                        Stream::Out => self.seen.stdout.push_str(&text),
                        Stream::Err => self.seen.stderr.push_str(&text),
                    }
                }
                Some(Event::Exit(code)) => {
                    self.seen.code = code;
                    return Ok(std::mem::take(&mut self.seen));
                }
                Some(Event::Lost(why)) => bail!("VM {}: `{}`: {why}", self.agent.name, self.what),
                None => {
                    bail!(
                        "VM {}: `{}` did not end within {} s; so far: {}",
                        self.agent.name,
                        self.what,
                        patience.as_secs(),
                        self.seen.text()
                    )
                }
            }
        }
    }

    /// Kills the process group.
    pub fn kill(&self) {
        let _ = self.agent.send(&Request::Kill { id: self.id });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.over {
            self.kill();
        }
        self.agent
            .shared
            .programs
            .lock()
            .expect("program table")
            .remove(&self.id);
    }
}

/// Reads frames until the socket closes, and passes them to their programs.
fn receive(reader: BufReader<UnixStream>, shared: &Shared) {
    for line in reader.split(b'\n') {
        let Ok(line) = line else { break };
        // A guest that dies while it sends a frame leaves an incomplete line; the next one is complete again.
        let Ok(reply) = serde_json::from_slice::<Reply>(&line) else {
            continue;
        };
        let mut programs = shared.programs.lock().expect("program table");
        let (id, event) = match reply {
            Reply::Hello => {
                for (_, program) in programs.drain() {
                    let _ = program.send(Event::Lost("the guest restarted".into()));
                }
                *shared.boots.lock().expect("boot counter") += 1;
                shared.booted.notify_all();
                continue;
            }
            Reply::Pong => continue,
            Reply::Output { id, stream, data } => {
                (id, Event::Output(stream, decode(&data).unwrap_or_default()))
            }
            Reply::Exit { id, code } => (id, Event::Exit(code)),
            Reply::Failed { id, error } => (id, Event::Lost(error)),
        };
        if let Some(program) = programs.get(&id) {
            let _ = program.send(event);
        }
    }
    // Dropping the senders tells every waiting program that the guest has gone.
    shared.programs.lock().expect("program table").clear();
}
