// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Makes guest memory persistent. A disk may be slow, so a separate thread does it.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::{io, thread};

use tracing::warn;
use vrnic_engine::memory::HostRange;

use super::{Mapping, RegionTable};
use crate::inbox::Latest;
use crate::waker::Waker;

/// A part of a mapping.
struct Part {
    mapping: Arc<Mapping>,
    offset: u64,
    length: u64,
}

/// The channel for tasks, and the result of the last one.
type Thread = (Sender<Vec<Part>>, Arc<Latest<bool>>);

/// Runs one task at a time for one device. The thread is started for the first task.
pub struct Syncer {
    device: String,
    waker: Arc<Waker>,
    thread: Option<Thread>,
    busy: bool,
    /// Whether the result of the current task is no longer wanted.
    forgotten: bool,
}

impl Syncer {
    /// Creates an idle syncer; `waker` wakes the thread that collects the results.
    pub fn new(device: &str, waker: Arc<Waker>) -> Self {
        Self {
            device: device.to_owned(),
            waker,
            thread: None,
            busy: false,
            forgotten: false,
        }
    }

    /// Returns whether a task is running, even a forgotten one.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins a task, whose result [`result`](Self::result) will return. No other task may be running. Returns false if
    /// the task cannot be started.
    pub fn begin(&mut self, ranges: &[HostRange], regions: &RegionTable) -> bool {
        let part = |range: &HostRange| {
            Some(Part {
                mapping: regions.mapping(range.region)?.clone(),
                offset: range.offset,
                length: range.length,
            })
        };
        let parts: Option<Vec<Part>> = ranges.iter().map(part).collect();
        if self.thread.is_none() {
            match self.spawn() {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    warn!(device = %self.device, %error, "cannot start a thread that writes guest memory to its disk");
                }
            }
        }
        // Memory from before a reset can no longer be synced.
        if let (Some(parts), Some((tasks, _))) = (parts, &self.thread) {
            self.busy = tasks.send(parts).is_ok();
        }
        self.busy
    }

    /// Discards the result of the current task, if there is one.
    pub fn forget(&mut self) {
        self.forgotten = self.busy;
    }

    fn spawn(&self) -> io::Result<Thread> {
        let (tasks, received) = channel::<Vec<Part>>();
        let result = Arc::new(Latest::new());
        let own = result.clone();
        let (device, waker) = (self.device.clone(), self.waker.clone());
        let work = move || {
            for parts in received {
                let done = parts.iter().all(|part| {
                    let result = part.mapping.sync(part.offset, part.length);
                    if let Err(error) = &result {
                        warn!(%device, %error, "guest memory could not be written to its disk");
                    }
                    result.is_ok()
                });
                own.put(done);
                waker.wake();
            }
        };
        thread::Builder::new().name("sync".to_owned()).spawn(work)?;
        Ok((tasks, result))
    }

    /// Returns the result of the task once it has finished, unless the task was forgotten.
    pub fn result(&mut self) -> Option<bool> {
        if !self.busy {
            return None;
        }
        let (_, result) = self.thread.as_ref()?;
        let result = result.take()?;
        self.busy = false;
        (!std::mem::take(&mut self.forgotten)).then_some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_memory::GuestMemory;
    use vrnic_engine::memory::{GuestAddress, Memory};

    #[test]
    fn a_task_is_done_and_the_waker_woken() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(0x4000).unwrap();
        let guest = GuestMemory::new();
        let fd = file.reopen().unwrap().into();
        guest.map(0x1000, 0x4000, &fd, 0, true).unwrap();
        let regions = RegionTable::new(0);
        let memory = regions.device(&guest, None);
        let range = memory.resolve(GuestAddress(0x1800), 0x1000).unwrap();
        assert_eq!(memory.persistent_length(range.region), Some(0x4000));

        let waker = Arc::new(Waker::new().unwrap());
        let mut syncer = Syncer::new("test", waker.clone());
        assert_eq!(syncer.result(), None);
        for _ in 0..3 {
            memory.write(range, b"kept").unwrap();
            assert!(syncer.begin(&[range], &regions));
            let result = loop {
                waker.announce();
                if let Some(result) = syncer.result() {
                    break result;
                }
                // Sleeps forever if nothing wakes it.
                waker.sleep(None);
            };
            assert!(result);
            assert_eq!(syncer.result(), None);
        }
        assert!(syncer.begin(&[range], &regions));
        syncer.forget();
        while syncer.is_busy() {
            assert_eq!(syncer.result(), None);
        }
        assert!(!syncer.begin(&[range], &regions.next()));
        assert!(!syncer.is_busy());
    }
}
