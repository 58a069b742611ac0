// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Queries the control socket once for all clients.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Device, Explanation, Gid, Qp, SwitchPort};

/// Interval between queries.
const INTERVAL: Duration = Duration::from_secs(1);
/// If a device has more queue pairs than this, they are not all part of the state.
const QPS_SHOWN: u32 = 4096;
/// Number of a device's failures in the state.
const EXPLANATIONS_SHOWN: usize = 200;

/// The largest number up to which JavaScript represents all integers exactly.
const MAX_EXACT: u64 = 1 << 53;

/// A device with its objects.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    device: Device,
    gid_table: Vec<Gid>,
    qp_list: Vec<Qp>,
    /// Whether there are more queue pairs than listed.
    more_qps: bool,
    explanations: Vec<Told>,
}

/// A failure, with the sentence that `vrnicctl explain` prints for it.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(flatten)]
    what: Explanation,
    object_kind: &'static str,
    sentence: String,
}

/// The state at one time.
#[derive(Debug, Serialize)]
struct State {
    /// Milliseconds since the server started.
    at_ms: u64,
    /// Whether the page may make changes.
    actions: bool,
    /// Whether there are lessons.
    lessons: bool,
    /// Path of the control socket, for equivalent command lines.
    socket: String,
    devices: Vec<Shown>,
    switch: Vec<SwitchPort>,
    /// The error, if there is no data.
    error: Option<String>,
}

/// The newest state, and the number of states so far.
#[derive(Debug, Default)]
struct Newest {
    version: u64,
    text: Arc<str>,
    /// Number of watching clients.
    watchers: usize,
    /// Time of the newest state.
    looked: Option<Instant>,
}

/// Queries the control socket while clients are watching.
#[derive(Debug)]
pub struct Source {
    socket: PathBuf,
    actions: bool,
    lessons: bool,
    start: Instant,
    newest: Mutex<Newest>,
    changed: Condvar,
    /// Clients' requests take turns, so that they count as one client of vrnicd.
    turn: Mutex<()>,
}

/// A watching client; watches as long as it exists.
#[derive(Debug)]
pub struct Watcher {
    source: Arc<Source>,
    /// Version of the state that it has.
    seen: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    /// Creates a source for the vrnicd with that control socket. Pages may make changes if `actions` is set, and
    /// `lessons` tells whether there are lessons.
    pub fn new(socket: PathBuf, actions: bool, lessons: bool) -> Self {
        Self {
            socket,
            actions,
            lessons,
            start: Instant::now(),
            newest: Mutex::default(),
            changed: Condvar::new(),
            turn: Mutex::default(),
        }
    }

    /// Sends a client's request to vrnicd.
    pub fn ask<T>(&self, question: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let _turn = lock(&self.turn);
        question(&mut self.connect()?)
    }

    /// Opens a separate connection to vrnicd, for requests that take long.
    pub fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket)
    }

    /// Returns whether pages may make changes.
    pub fn allows_actions(&self) -> bool {
        self.actions
    }

    /// Adds a watching client.
    pub fn watch(self: &Arc<Self>) -> Watcher {
        let mut newest = lock(&self.newest);
        newest.watchers += 1;
        // An old state, from before a time without watchers, is not sent.
        let fresh = newest
            .looked
            .is_some_and(|looked| looked.elapsed() < 2 * INTERVAL);
        let seen = if fresh { 0 } else { newest.version };
        drop(newest);
        self.changed.notify_all();
        Watcher {
            source: self.clone(),
            seen,
        }
    }

    /// Queries once per second while there are watchers, forever.
    pub fn run(&self) {
        let mut client = None;
        loop {
            {
                let newest = lock(&self.newest);
                let none = |newest: &mut Newest| newest.watchers == 0;
                drop(self.changed.wait_while(newest, none));
            }
            let state = match self.look(&mut client) {
                Ok(state) => state,
                Err(error) => {
                    client = None;
                    self.state(Vec::new(), Vec::new(), Some(format!("{error:#}")))
                }
            };
            // The only possible error is a map whose keys are not strings, and there is none.
            let mut value = serde_json::to_value(&state).unwrap_or_default();
            make_exact(&mut value);
            let text = value.to_string();
            {
                let mut newest = lock(&self.newest);
                newest.version += 1;
                newest.text = text.into();
                newest.looked = Some(Instant::now());
            }
            self.changed.notify_all();
            std::thread::sleep(INTERVAL);
        }
    }

    fn state(&self, devices: Vec<Shown>, switch: Vec<SwitchPort>, error: Option<String>) -> State {
        State {
            at_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            actions: self.actions,
            lessons: self.lessons,
            socket: self.socket.display().to_string(),
            devices,
            switch,
            error,
        }
    }

    fn look(&self, kept: &mut Option<Client>) -> Result<State> {
        // vrnicd disconnects a client that sends no request for a minute.
        let stale = lock(&self.newest)
            .looked
            .is_none_or(|looked| looked.elapsed() > 10 * INTERVAL);
        let client = match kept {
            Some(client) if !stale => client,
            _ => kept.insert(Client::connect(&self.socket)?),
        };
        let switch = client.switch()?;
        let mut devices = Vec::new();
        for device in client.devices()? {
            let more_qps = device.qps > QPS_SHOWN;
            let mut explanations = client.explanations(&device.name, 0)?;
            let skip = explanations.len().saturating_sub(EXPLANATIONS_SHOWN);
            explanations.drain(..skip);
            devices.push(Shown {
                gid_table: client.gids(&device.name)?,
                qp_list: if more_qps {
                    Vec::new()
                } else {
                    client.qps(&device.name)?
                },
                more_qps,
                explanations: explanations.into_iter().map(tell).collect(),
                device,
            });
        }
        Ok(self.state(devices, switch, None))
    }
}

/// Replaces numbers that JavaScript would round by texts in hexadecimal digits.
pub fn make_exact(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(big) = number.as_u64().filter(|number| *number > MAX_EXACT) {
                *value = Value::String(format!("{big:#x}"));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_exact),
        Value::Object(members) => members.values_mut().for_each(make_exact),
        _ => {}
    }
}

fn tell(what: Explanation) -> Told {
    Told {
        object_kind: what.object_kind(),
        sentence: what.to_string(),
        what,
    }
}

impl Watcher {
    /// Waits for a new state and returns the newest one; none if none arrives within `patience`.
    pub fn next(&mut self, patience: Duration) -> Option<Arc<str>> {
        let newest = lock(&self.source.newest);
        let known = |newest: &mut Newest| newest.version == self.seen;
        let waited = self
            .source
            .changed
            .wait_timeout_while(newest, patience, known);
        let (newest, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        self.seen = newest.version;
        Some(newest.text.clone())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.source.newest).watchers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn large_numbers_stay_exact() {
        let mut value =
            json!({ "small": [1, 1u64 << 53, -1, 0.5], "large": [{ "wr_id": u64::MAX - 1 }] });
        make_exact(&mut value);
        let wanted = json!({ "small": [1, 1u64 << 53, -1, 0.5], "large": [{ "wr_id": "0xfffffffffffffffe" }] });
        assert_eq!(value, wanted);
    }
}
