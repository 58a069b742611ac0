// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The mailbox in which a front end leaves messages for the workers, in bounded memory and without waiting.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::{Activation, Backend, Notifier};
use crate::atomic_set::AtomicSet;
use crate::waker::Waker;

/// A message that must not be merged with others.
pub enum Request {
    /// The driver set DRIVER_OK.
    Activate(Activation),
    /// The driver, or the VMM, reset the device.
    Reset {
        /// Number to report when the reset is complete.
        generation: u64,
        /// Receiver of this report.
        notifier: Arc<dyn Notifier>,
    },
}

/// Messages for one device. A million rings of one doorbell page take as much room as one.
pub struct Mailbox {
    /// Holds at most one reset and one activation: the front end starts neither before the previous one has ended.
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
    /// Creates the mailbox of a device with `queues` virtqueues and `doorbell_pages` doorbell pages.
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

    /// Removes and returns the oldest request. Does not wait for the front end if that leaves another one just now: the
    /// mailbox then keeps [saying](Self::has_orders) that there are requests.
    pub fn next_request(&self) -> Option<Request> {
        if !self.has_requests.load(Ordering::SeqCst) {
            return None;
        }
        let mut requests = match self.requests.try_lock() {
            Ok(requests) => requests,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let request = requests.pop_front();
        self.has_requests
            .store(!requests.is_empty(), Ordering::SeqCst);
        request
    }

    /// Calls `visit` with each queue that was notified.
    pub fn drain_queues(&self, visit: impl FnMut(usize)) {
        self.queues.drain(visit);
    }

    /// Calls `visit` with each doorbell page that was written and the last value written to it.
    pub fn drain_doorbells(&self, mut visit: impl FnMut(u32, u32)) {
        self.doorbells.drain(|page| {
            let value = self
                .values
                .get(page)
                .map_or(0, |value| value.load(Ordering::SeqCst));
            visit(page as u32, value);
        });
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.has_requests.load(Ordering::SeqCst)
            && self.queues.is_empty()
            && self.doorbells.is_empty()
            && !self.panic_requested.load(Ordering::SeqCst)
    }

    /// Returns whether there are requests, or this queue was notified.
    pub fn has_orders(&self, queue: u16) -> bool {
        self.has_requests.load(Ordering::SeqCst) || self.queues.contains(usize::from(queue))
    }

    /// Makes the engine panic in its next turn, for tests of containment.
    pub fn request_panic(&self) {
        self.panic_requested.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Toggles whether the device is hostile to drivers that start from now on, for tests of drivers. Returns whether
    /// it is.
    pub fn change_sides(&self) -> bool {
        !self.hostile.fetch_xor(true, Ordering::SeqCst)
    }

    /// Returns whether a driver that starts now is to get a hostile device.
    pub fn is_hostile(&self) -> bool {
        self.hostile.load(Ordering::SeqCst)
    }

    /// Records that the device was removed from its slot or put back.
    pub fn change_presence(&self) {
        self.presence.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether a panic was requested, and clears the request.
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

    struct Deaf;

    impl Notifier for Deaf {
        fn queue_used(&self, _: u16) {}
        fn needs_reset(&self) {}
        fn reset_done(&self, _: u64) {}
    }

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
    fn the_worker_does_not_wait_for_a_front_end_that_got_stuck() {
        let mailbox = mailbox();
        let reset = |generation| {
            mailbox.reset(generation, Arc::new(Deaf));
        };
        reset(1);
        let stuck = mailbox.lock();
        assert!(mailbox.next_request().is_none());
        assert!(mailbox.has_orders(0) && !mailbox.is_empty());
        drop(stuck);
        let request = mailbox.next_request();
        assert!(matches!(
            request,
            Some(Request::Reset { generation: 1, .. })
        ));
        assert!(mailbox.next_request().is_none() && mailbox.is_empty());
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
            // The last ring of each page must be seen, regardless of which rings were merged.
            while last.iter().any(|&value| value != RINGS) {
                mailbox.drain_doorbells(|page, value| last[page as usize / 2500] = value);
            }
        });
        // A value may have been seen before its bit was set, so some bits may remain; this drains them.
        mailbox.drain_doorbells(|_, value| assert_eq!(value, RINGS));
        assert!(mailbox.is_empty());
    }
}
