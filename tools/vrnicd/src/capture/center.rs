// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Starts captures and keeps track of them.
//!
//! The file of a capture is already open: the client that requests the capture opens it with its own rights. A thread
//! for each capture writes the file. No other thread waits long for it, so a file that accepts no data delays nothing
//! else.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pcap_file::DataLink;
use tracing::{info, warn};

use super::settings::{Choice, Scope};
use super::sink::Sink;
use super::writer::{End, Writer};
use super::{Capture, Progress, QUEUE};

/// Largest number of captures with a running thread.
pub const MAX_RUNNING: usize = 8;
/// Number of captures that are remembered.
const MAX_KNOWN: usize = 32;
/// How long a file may accept nothing before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks whether a capture has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A capture that is running or has ended.
#[derive(Debug)]
pub struct Known {
    /// Number, counted from 1.
    pub id: u64,
    /// Name of the file as given by the client, with control characters escaped.
    pub file: String,
    /// What is captured.
    pub choice: Choice,
    progress: Arc<Progress>,
    /// Why it ended; none while it is running.
    ended: Mutex<Option<String>>,
}

impl Known {
    /// Returns the numbers of packets and bytes written, and of packets missing.
    pub fn counts(&self) -> (u64, u64, u64) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Progress {
            packets,
            bytes,
            missing,
            ..
        } = &*self.progress;
        (value(packets), value(bytes), value(missing))
    }

    /// Returns why it ended; none while it is running.
    pub fn ended(&self) -> Option<String> {
        lock(&self.ended).clone()
    }
}

/// All captures of a daemon.
#[derive(Debug)]
pub struct Center {
    /// Names of the devices.
    devices: Vec<String>,
    /// Names of interfaces: first those of devices, then those of switch ports.
    interfaces: Vec<String>,
    /// Names of devices whose packets are InfiniBand packets.
    infiniband: Vec<String>,
    known: Mutex<Knowledge>,
}

#[derive(Debug, Default)]
struct Knowledge {
    captures: VecDeque<Arc<Known>>,
    last_id: u64,
}

/// Locks a mutex even if it is poisoned: the data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Center {
    /// Creates a center without captures, for devices and ports with these names.
    pub fn new(devices: Vec<String>, ports: impl Iterator<Item = String>) -> Self {
        let ports = ports.map(|name| format!("switch port {name}"));
        Self {
            interfaces: devices.iter().cloned().chain(ports).collect(),
            devices,
            infiniband: Vec::new(),
            known: Mutex::default(),
        }
    }

    /// Sets the names of devices that send InfiniBand packets instead of Ethernet frames.
    #[must_use]
    pub fn with_infiniband(self, infiniband: Vec<String>) -> Self {
        Self { infiniband, ..self }
    }

    /// Returns the interfaces of a file and their link types.
    fn interfaces(&self) -> Vec<(String, DataLink)> {
        let devices = self.devices.len();
        let named = self.interfaces.iter().enumerate();
        named
            .map(|(place, name)| {
                let infiniband = place < devices && self.infiniband.contains(name);
                let link = if infiniband {
                    DataLink::INFINIBAND
                } else {
                    DataLink::ETHERNET
                };
                (name.clone(), link)
            })
            .collect()
    }

    /// Starts a capture. The result must be given to the worker.
    ///
    /// # Errors
    /// The choice is contradictory, the file is not open for writing, or there are too many captures.
    pub fn start(&self, choice: Choice, file: File, name: &str) -> Result<Capture> {
        self.start_with(choice, file, name, PATIENCE)
    }

    pub(super) fn start_with(
        &self,
        choice: Choice,
        file: File,
        name: &str,
        patience: Duration,
    ) -> Result<Capture> {
        choice.check(self.devices.iter().map(String::as_str))?;
        let name = name.escape_debug().to_string();
        let sink =
            Sink::new(file, patience).with_context(|| format!("cannot capture to {name}"))?;
        let progress = Arc::new(Progress::default());
        let mut knowledge = lock(&self.known);
        let running = |known: &&Arc<Known>| known.ended().is_none();
        ensure!(
            knowledge.captures.iter().filter(running).count() < MAX_RUNNING,
            "{MAX_RUNNING} captures are already running"
        );
        knowledge.last_id += 1;
        let known = Arc::new(Known {
            id: knowledge.last_id,
            file: name,
            choice,
            progress: progress.clone(),
            ended: Mutex::new(None),
        });
        let (sender, receiver) = sync_channel(QUEUE);
        let (thread_known, interfaces) = (known.clone(), self.interfaces());
        std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || {
                let Choice {
                    max_packets,
                    max_bytes,
                    ..
                } = thread_known.choice;
                let writer = Writer::begin(sink, &interfaces, progress, max_packets, max_bytes);
                let end = writer.and_then(|writer| writer.run(&receiver));
                thread_known.end(end);
            })?;
        info!(id = known.id, file = known.file, choice = ?known.choice, "capture started");
        knowledge.captures.push_back(known.clone());
        if knowledge.captures.len() > MAX_KNOWN {
            let old = knowledge.captures.iter().position(|known| !running(&known));
            old.map(|old| knowledge.captures.remove(old));
        }
        let scope = Scope::new(&known.choice, &self.devices);
        Ok(Capture::new(
            known.id,
            scope,
            sender,
            known.progress.clone(),
        ))
    }

    /// Returns all captures that are remembered, oldest first.
    pub fn known(&self) -> Vec<Arc<Known>> {
        lock(&self.known).captures.iter().cloned().collect()
    }

    /// Waits for the end of one capture or of all captures, which the worker must have dropped. Returns false if that
    /// takes longer than `patience`.
    pub fn wait(&self, id: Option<u64>, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let awaited = |known: &Arc<Known>| id.is_none_or(|id| known.id == id);
        while self
            .known()
            .iter()
            .any(|known| awaited(known) && known.ended().is_none())
        {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

impl Known {
    /// Records how the capture ended.
    fn end(&self, outcome: Result<End>) {
        let (packets, ..) = self.counts();
        let why = match outcome {
            Ok(End::Stopped) => "stopped".to_owned(),
            Ok(End::Full) => "full".to_owned(),
            Err(error) => {
                let error = error.root_cause().to_string();
                warn!(id = self.id, file = self.file, error, "capture stopped");
                error
            }
        };
        info!(
            id = self.id,
            file = self.file,
            packets,
            why,
            "capture ended"
        );
        self.progress.over.store(true, Ordering::Relaxed);
        *lock(&self.ended) = Some(why);
    }
}
