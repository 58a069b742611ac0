// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Where a front end leaves messages for the worker, in bounded memory and without waiting.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Activation, Backend, Notifier};
use crate::waker::Waker;

/// A message that must not be merged with others.
pub enum Request {
    /// The driver set DRIVER_OK.
    Activate(Activation),
    /// The driver, or the VMM, reset the device.
    Reset {
        /// What to report when it is done.
        generation: u64,
        /// To whom.
        notifier: Arc<dyn Notifier>,
    },
}

/// A set of small numbers that any thread may add to and one thread empties.
struct AtomicSet {
    words: Box<[AtomicU64]>,
    /// Bit `w` of summary word `s`: word `64 * s + w` may have bits.
    summary: Box<[AtomicU64]>,
}

impl AtomicSet {
    fn new(size: usize) -> Self {
        let words = size.div_ceil(64);
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: zeros(words),
            summary: zeros(words.div_ceil(64)),
        }
    }

    /// Adds `number` if it is small enough.
    fn insert(&self, number: usize) {
        let word = number / 64;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / 64)) {
            bits.fetch_or(1 << (number % 64), Ordering::SeqCst);
            summary.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    /// Removes all numbers, giving each to `visit`. What is added meanwhile is either visited or stays.
    fn drain(&self, mut visit: impl FnMut(usize)) {
        for (index, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            each_bit(summary.swap(0, Ordering::SeqCst), |bit| {
                let word = index * 64 + bit;
                if let Some(bits) = self.words.get(word) {
                    each_bit(bits.swap(0, Ordering::SeqCst), |bit| visit(word * 64 + bit));
                }
            });
        }
    }

    fn is_empty(&self) -> bool {
        self.summary
            .iter()
            .all(|summary| summary.load(Ordering::SeqCst) == 0)
    }
}

fn each_bit(mut bits: u64, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// Messages for one device. A million rings of one doorbell page take as much room as one.
pub struct Mailbox {
    /// At most one reset and one activation are ever outstanding: the front end starts none before the last one ended.
    requests: Mutex<VecDeque<Request>>,
    has_requests: AtomicBool,
    queues: AtomicSet,
    doorbells: AtomicSet,
    /// Last value written to each doorbell page.
    values: Box<[AtomicU32]>,
    panic_requested: AtomicBool,
    hostile: AtomicBool,
    presence: AtomicU64,
    waker: Arc<Waker>,
}

impl Mailbox {
    /// For a device with `queues` virtqueues and `doorbell_pages` doorbell pages.
    pub fn new(queues: u16, doorbell_pages: u32, waker: Arc<Waker>) -> Self {
        Self {
            requests: Mutex::new(VecDeque::new()),
            has_requests: AtomicBool::new(false),
            queues: AtomicSet::new(usize::from(queues)),
            doorbells: AtomicSet::new(doorbell_pages as usize),
            values: (0..doorbell_pages).map(|_| AtomicU32::new(0)).collect(),
            panic_requested: AtomicBool::new(false),
            hostile: AtomicBool::new(false),
            presence: AtomicU64::new(0),
            waker,
        }
    }

    /// Next request, oldest first.
    pub fn next_request(&self) -> Option<Request> {
        if !self.has_requests.load(Ordering::SeqCst) {
            return None;
        }
        let mut requests = self.lock();
        let request = requests.pop_front();
        self.has_requests
            .store(!requests.is_empty(), Ordering::SeqCst);
        request
    }

    /// Gives each queue that was notified to `visit`.
    pub fn drain_queues(&self, visit: impl FnMut(usize)) {
        self.queues.drain(visit);
    }

    /// Gives each doorbell page that was written, and the last value written to it, to `visit`.
    pub fn drain_doorbells(&self, mut visit: impl FnMut(u32, u32)) {
        self.doorbells.drain(|page| {
            let value = self
                .values
                .get(page)
                .map_or(0, |value| value.load(Ordering::SeqCst));
            visit(page as u32, value);
        });
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.has_requests.load(Ordering::SeqCst)
            && self.queues.is_empty()
            && self.doorbells.is_empty()
            && !self.panic_requested.load(Ordering::SeqCst)
    }

    /// For tests of containment: makes the engine panic at its next turn.
    pub fn request_panic(&self) {
        self.panic_requested.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// For tests of drivers: makes the device hostile to those to come, or honest again. Returns which.
    pub fn change_sides(&self) -> bool {
        !self.hostile.fetch_xor(true, Ordering::SeqCst)
    }

    /// Whether a driver that comes now is to find a hostile device.
    pub fn is_hostile(&self) -> bool {
        self.hostile.load(Ordering::SeqCst)
    }

    /// The device is pulled out of its slot, or put back.
    pub fn change_presence(&self) {
        self.presence.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a panic was requested; clears the request.
    pub fn take_panic_request(&self) -> bool {
        self.panic_requested.load(Ordering::Relaxed)
            && self.panic_requested.swap(false, Ordering::SeqCst)
    }

    fn push(&self, request: Request) {
        let mut requests = self.lock();
        requests.push_back(request);
        self.has_requests.store(true, Ordering::SeqCst);
        drop(requests);
        self.waker.wake();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Mailbox {
    fn activate(&self, activation: Activation) {
        self.push(Request::Activate(activation));
    }

    fn reset(&self, generation: u64, notifier: Arc<dyn Notifier>) {
        self.push(Request::Reset {
            generation,
            notifier,
        });
    }

    fn presence(&self) -> u64 {
        self.presence.load(Ordering::SeqCst)
    }

    fn queue_notify(&self, queue: u16) {
        self.queues.insert(usize::from(queue));
        self.waker.wake();
    }

    fn doorbell(&self, page: u32, value: u32) {
        if let Some(slot) = self.values.get(page as usize) {
            slot.store(value, Ordering::SeqCst);
            self.doorbells.insert(page as usize);
            self.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox() -> Mailbox {
        Mailbox::new(6, 10_000, Arc::new(Waker::new().unwrap()))
    }

    #[test]
    fn doorbells_merge_and_none_is_lost() {
        let mailbox = mailbox();
        for value in 0..100 {
            mailbox.doorbell(9999, value);
        }
        mailbox.doorbell(0, 7);
        mailbox.doorbell(10_000, 1);
        assert!(!mailbox.is_empty());
        let mut seen = Vec::new();
        mailbox.drain_doorbells(|page, value| seen.push((page, value)));
        assert_eq!(seen, [(0, 7), (9999, 99)]);
        assert!(mailbox.is_empty());
    }

    #[test]
    fn every_ring_is_seen_while_others_ring() {
        const RINGS: u32 = 20_000;
        let mailbox = mailbox();
        let mut last = [0; 4];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    (1..=RINGS).for_each(|value| mailbox.doorbell(thread * 2500, value));
                });
            }
            // The last ring of each page must be seen, whatever happened to be merged.
            while last.iter().any(|&value| value != RINGS) {
                mailbox.drain_doorbells(|page, value| last[page as usize / 2500] = value);
            }
        });
        // The value may have been seen before its bit was set, so bits may be left; once drained, nothing is.
        mailbox.drain_doorbells(|_, value| assert_eq!(value, RINGS));
        assert!(mailbox.is_empty());
    }
}
