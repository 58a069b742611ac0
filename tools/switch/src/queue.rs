// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The queue of an endpoint, and a pool of empty buffers.

use std::collections::VecDeque;

/// Limits of an endpoint's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Largest number of frames.
    pub frames: usize,
    /// Largest total size of the frames in bytes.
    pub bytes: usize,
}

impl Default for QueueLimits {
    /// Returns 4096 frames and 8 MiB, a little more than an RNIC may have in flight at a time.
    fn default() -> Self {
        Self {
            frames: 4096,
            bytes: 8 << 20,
        }
    }
}

/// A FIFO of frames. Callers check for room before they push.
#[derive(Debug, Default)]
pub struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    /// Returns whether there is room for a frame of `length` bytes.
    pub fn has_room(&self, limits: QueueLimits, length: usize) -> bool {
        self.frames.len() < limits.frames && self.bytes + length <= limits.bytes
    }

    /// Returns the number of queued frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame at the end.
    pub fn push(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Takes the first frame.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

impl IntoIterator for Queue {
    type Item = Vec<u8>;
    type IntoIter = std::collections::vec_deque::IntoIter<Vec<u8>>;

    fn into_iter(self) -> Self::IntoIter {
        self.frames.into_iter()
    }
}

/// Empty buffers that are reused, so that frames need no allocation.
#[derive(Debug, Default)]
pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Largest number of buffers kept.
    const BUFFERS: usize = 1024;
    /// Buffers larger than this are not kept.
    const CAPACITY: usize = 16 << 10;

    /// Returns an empty buffer.
    pub fn get(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub fn put(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < Self::BUFFERS && (1..=Self::CAPACITY).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bounded_in_frames_and_bytes() {
        let limits = QueueLimits {
            frames: 2,
            bytes: 100,
        };
        let mut queue = Queue::default();
        assert!(queue.has_room(limits, 100) && !queue.has_room(limits, 101));
        queue.push(vec![1; 60]);
        assert!(queue.has_room(limits, 40) && !queue.has_room(limits, 41));
        queue.push(vec![2; 1]);
        assert!(!queue.has_room(limits, 0));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop(), Some(vec![1; 60]));
        assert_eq!(queue.pop(), Some(vec![2]));
        assert!(queue.pop().is_none() && queue.has_room(limits, 100));
    }

    #[test]
    fn a_pool_keeps_what_is_worth_it() {
        let mut pool = Pool::default();
        pool.put(Vec::with_capacity(Pool::CAPACITY + 1));
        assert_eq!(pool.get().capacity(), 0);
        pool.put(vec![1, 2, 3]);
        let buffer = pool.get();
        assert!(buffer.is_empty() && buffer.capacity() >= 3);
        for _ in 0..2 * Pool::BUFFERS {
            pool.put(vec![0]);
        }
        assert_eq!(pool.0.len(), Pool::BUFFERS);
    }
}
