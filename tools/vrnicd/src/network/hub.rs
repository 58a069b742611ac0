// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The queues of frames between the worker's thread and the network thread. Neither waits for the other, not even for a
//! lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vrnic_switch::{Queue, QueueLimits};

use super::lane::{FrameBlanks, Lane};
use crate::waker::Waker;

/// Limits of the queue of frames that came to a port from outside.
const INBOUND: QueueLimits = QueueLimits {
    frames: 1024,
    bytes: 4 << 20,
};

/// The ports, and the flags and wakers with which the threads notify each other.
pub struct Hub {
    ports: Vec<HubPort>,
    worker: Arc<Waker>,
    /// Set when something arrived from outside, or a port went up or down.
    news: AtomicBool,
    /// Wakes the network thread.
    pub network: Waker,
    /// Set when there are frames for the outside.
    outbound: AtomicBool,
}

impl Hub {
    /// Creates a hub with a port, which is down, for each of `limits`, those of its queue of frames for the outside.
    pub fn new(limits: &[QueueLimits], worker: Arc<Waker>) -> io::Result<Self> {
        Ok(Self {
            ports: limits.iter().copied().map(HubPort::new).collect(),
            worker,
            news: AtomicBool::new(false),
            network: Waker::new()?,
            outbound: AtomicBool::new(false),
        })
    }

    /// Returns a port.
    pub fn port(&self, index: usize) -> &HubPort {
        &self.ports[index]
    }

    /// Called by the network thread: tells the worker that there is something for it.
    pub fn tell_worker(&self) {
        self.news.store(true, Ordering::SeqCst);
        self.worker.wake();
    }

    /// Called by the worker: returns whether there was news, and clears it. News that comes later sets it again.
    pub fn take_news(&self) -> bool {
        self.news.load(Ordering::SeqCst) && self.news.swap(false, Ordering::SeqCst)
    }

    /// Called by the worker: returns whether there is news.
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::SeqCst)
    }

    /// Called by the worker: tells the network thread that there is something for it.
    pub fn tell_network(&self) {
        self.outbound.store(true, Ordering::SeqCst);
        self.network.wake();
    }

    /// Called by the network thread: returns whether there was something for it, and clears that.
    pub fn take_outbound(&self) -> bool {
        self.outbound.swap(false, Ordering::SeqCst)
    }

    /// Called by the network thread: returns whether there is something for it.
    pub fn has_outbound(&self) -> bool {
        self.outbound.load(Ordering::SeqCst)
    }
}

/// One port.
pub struct HubPort {
    up: AtomicBool,
    inbound: Lane,
    overruns: AtomicU64,
    outbound: Lane,
}

impl HubPort {
    fn new(limits: QueueLimits) -> Self {
        Self {
            up: AtomicBool::new(false),
            inbound: Lane::new(INBOUND),
            overruns: AtomicU64::new(0),
            outbound: Lane::new(limits),
        }
    }

    /// Returns whether a peer is connected to the port.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    /// Called by the network thread: sets whether a peer is connected to the port. Drops frames that waited for the
    /// previous peer.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
        drop(self.take_outbound());
    }

    /// Called by the network thread: queues frames for the worker. Frames for which there is no room are dropped and
    /// counted.
    pub fn deliver(&self, frames: &mut Vec<Vec<u8>>, blanks: &mut FrameBlanks) {
        for frame in frames.drain(..) {
            if self.inbound.put(frame, blanks).is_err() {
                self.overruns.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of frames from outside that were dropped because the worker was too slow.
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    /// Called by the worker: takes all frames that came from outside.
    pub fn take_inbound(&self) -> Queue {
        self.inbound.take()
    }

    /// Returns the number of frames that wait for the outside.
    pub fn waiting(&self) -> usize {
        self.outbound.len()
    }

    /// Called by the worker: queues a frame for the outside; returns the frame as the error if there is no room.
    pub fn offer(&self, frame: Vec<u8>, blanks: &mut FrameBlanks) -> Result<(), Vec<u8>> {
        self.outbound.put(frame, blanks)
    }

    /// Called by the network thread: takes all frames for the outside.
    pub fn take_outbound(&self) -> Queue {
        self.outbound.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_both_ways() {
        let worker = Arc::new(Waker::new().unwrap());
        let limits = QueueLimits {
            frames: 3,
            bytes: 100,
        };
        let hub = Hub::new(&[limits], worker).unwrap();
        let port = hub.port(0);
        let mut frames = vec![vec![0; 60]; INBOUND.frames + 5];
        let blanks = &mut FrameBlanks::new();
        port.deliver(&mut frames, blanks);
        assert!(frames.is_empty());
        assert_eq!(port.overruns(), 5);
        let mut taken = port.take_inbound();
        assert_eq!(std::iter::from_fn(|| taken.pop()).count(), INBOUND.frames);
        assert!(port.take_inbound().is_empty());

        assert!(port.offer(vec![1; 99], blanks).is_ok() && port.offer(vec![2], blanks).is_ok());
        assert_eq!(port.offer(vec![3], blanks), Err(vec![3]));
        assert_eq!(port.waiting(), 2);
        let mut queue = port.take_outbound();
        assert_eq!((queue.len(), port.waiting()), (2, 0));
        assert_eq!(queue.pop(), Some(vec![1; 99]));
        port.set_up(true);
        assert!(port.is_up() && port.offer(vec![4], blanks).is_ok());
        port.set_up(false);
        assert!(!port.is_up() && port.take_outbound().is_empty());
    }

    #[test]
    fn news_is_told_once() {
        let hub = Hub::new(&[], Arc::new(Waker::new().unwrap())).unwrap();
        assert!(!hub.take_news() && !hub.take_outbound());
        hub.tell_worker();
        hub.tell_network();
        assert!(hub.has_news() && hub.has_outbound());
        assert!(hub.take_news() && hub.take_outbound());
        assert!(!hub.take_news() && !hub.has_outbound());
    }
}
