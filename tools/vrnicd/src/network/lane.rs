// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A queue of frames from one thread to another one, of limited length, on which neither waits for the other.
//!
//! `tests/model.rs` explores all orders in which the two threads can run this.

use vrnic_switch::{Queue, QueueLimits};

use crate::inbox::{Blanks, Inbox};
use crate::sync::{AtomicUsize, Ordering};

/// Memory of the sender for the frames of all its lanes.
pub type FrameBlanks = Blanks<Vec<u8>>;

/// Frames from one thread to another one. The limits hold because only one thread adds frames.
pub struct Lane {
    frames: Inbox<Vec<u8>>,
    limits: QueueLimits,
    /// Number of the frames, which the one thread increases and the other one decreases.
    count: AtomicUsize,
    /// Their size in bytes.
    bytes: AtomicUsize,
}

impl Lane {
    /// Creates an empty lane.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            frames: Inbox::new(),
            limits,
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds a frame at the end; returns it as the error if there is no room.
    pub fn put(&self, frame: Vec<u8>, blanks: &mut FrameBlanks) -> Result<(), Vec<u8>> {
        let bytes = self.bytes.load(Ordering::Relaxed) + frame.len();
        if self.len() >= self.limits.frames || bytes > self.limits.bytes {
            return Err(frame);
        }
        // Counted first, so that the other thread never counts below zero.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        self.frames.put(frame, blanks);
        Ok(())
    }

    /// Takes all frames.
    pub fn take(&self) -> Queue {
        let mut queue = Queue::default();
        for frame in self.frames.take() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(frame.len(), Ordering::Relaxed);
            queue.push(frame);
        }
        queue
    }
}
