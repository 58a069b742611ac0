// SPDX-License-Identifier: GPL-2.0

//! Queues that users post requests to: queue pairs and shared receive queues. This module tracks
//! whether their users may be notified of events, and where their requests complete.

use core::ptr;

use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

use super::table::{
    Entry,
    Numbered,
    Place, //
};
use crate::bindings;

/// Identity of a queue pair or shared receive queue, for the time from its creation or last reset.
/// Identities are never reused, even if object numbers are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Poster(u64);

impl Poster {
    /// Creates a new, unique identity.
    pub(crate) fn new() -> Self {
        static NEXT: Atomic<u64> = Atomic::new(1);

        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// Completion order of a queue's requests, which is the order in which they were posted.
///
/// A user that sees a completion may free the completion handlers of all earlier requests
/// (`ib_drain_qp`). If the driver reports one of those requests late, its completion must not be
/// delivered.
pub(crate) struct Order {
    /// Position of the last request that was posted.
    posted: Atomic<u64>,
    /// Position of the last request that completed.
    completed: Atomic<u64>,
}

impl Order {
    /// Creates the order of a queue to which nothing was posted yet.
    pub(crate) const fn new() -> Self {
        Self {
            posted: Atomic::new(0),
            completed: Atomic::new(0),
        }
    }

    /// Returns whether the request at `position` may complete. If so, no earlier one may complete
    /// any more.
    fn complete(&self, position: u64) -> bool {
        let mut completed = self.completed.load(Relaxed);
        while position > completed {
            match self.completed.cmpxchg(completed, position, Relaxed) {
                Ok(_) => return true,
                Err(now) => completed = now,
            }
        }
        false
    }
}

/// A queue that requests are posted to.
#[derive(Copy, Clone)]
pub(crate) struct WorkQueue<'a> {
    poster: Poster,
    /// Absent for a shared receive queue.
    order: Option<&'a Order>,
}

impl<'a> WorkQueue<'a> {
    /// Creates a queue without an order.
    pub(crate) const fn unordered(poster: Poster) -> Self {
        Self {
            poster,
            order: None,
        }
    }

    /// Creates a queue whose requests complete in the order in which they were posted.
    pub(crate) const fn ordered(poster: Poster, order: &'a Order) -> Self {
        Self {
            poster,
            order: Some(order),
        }
    }

    /// Returns the identity of the queue's object.
    pub(crate) fn poster(&self) -> Poster {
        self.poster
    }

    /// Appends a request, and returns its position.
    pub(crate) fn append(&self) -> u64 {
        match self.order {
            Some(order) => order.posted.fetch_add(1, Relaxed) + 1,
            None => 0,
        }
    }
}

/// Completion queues of a queue pair.
pub(crate) struct Completes {
    /// Completion queue of the sends, only for comparison.
    pub(crate) send_cq: *mut bindings::ib_cq,
    /// Completion queue of the receives, only for comparison.
    pub(crate) recv_cq: *mut bindings::ib_cq,
    /// The shared receive queue that provides the receives, if there is one.
    pub(crate) receives: Option<Poster>,
}

impl Completes {
    /// No completion queues.
    pub(crate) const NOWHERE: Self = Self {
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        receives: None,
    };
}

// SAFETY: The pointers are only compared.
unsafe impl Send for Completes {}

// SAFETY: Comparing pointers does not access what they point to.
unsafe impl Sync for Completes {}

/// State of an object: whether its user may be notified of asynchronous events, and the identity of
/// its requests.
///
/// A user in the kernel may not be ready for events before the verb that creates the object has
/// returned: its handler may access the very object that the verb returns (`ib_mad` does that). A
/// correct device raises no event before the user has used the object.
pub(crate) struct InUse {
    in_use: Atomic<bool>,
    /// Port of a queue pair; 0 before it has one.
    port: Atomic<u32>,
    /// Number of the [`Poster`].
    poster: Atomic<u64>,
    /// Completion queues of a queue pair.
    completes: Completes,
    /// Order of the sends of a queue pair.
    sends: Order,
    /// Order of the receives of a queue pair without a shared receive queue.
    receives: Order,
}

impl InUse {
    /// Creates the state of a new object of a process, which takes events at any time, or of the
    /// kernel.
    pub(crate) fn new(of_process: bool) -> Self {
        Self {
            in_use: Atomic::new(of_process),
            port: Atomic::new(0),
            poster: Atomic::new(Poster::new().0),
            completes: Completes::NOWHERE,
            sends: Order::new(),
            receives: Order::new(),
        }
    }

    /// Creates the state of a new queue pair.
    pub(crate) fn of_queue_pair(of_process: bool, completes: Completes) -> Self {
        Self {
            completes,
            ..Self::new(of_process)
        }
    }
}

impl Numbered for bindings::ib_qp {
    type Notice = InUse;
}

impl Numbered for bindings::ib_srq {
    type Notice = InUse;
}

impl Numbered for bindings::ib_wq {
    type Notice = InUse;
}

impl<T: Numbered<Notice = InUse>> Place<T> {
    /// Records that the object's user has used it. May be called in any context.
    pub(crate) fn begin_use(&self) {
        // The handler may rely on everything that the user did before.
        self.entry.notice.in_use.store(true, Release);
    }

    /// Returns the identity of the object's requests. May be called in any context.
    pub(crate) fn poster(&self) -> Poster {
        Poster(self.entry.notice.poster.load(Relaxed))
    }
}

impl Place<bindings::ib_srq> {
    /// Returns the queue that requests are posted to.
    pub(crate) fn queue(&self) -> WorkQueue<'_> {
        WorkQueue::unordered(self.poster())
    }
}

impl Place<bindings::ib_qp> {
    /// Returns the send queue.
    pub(crate) fn send_queue(&self) -> WorkQueue<'_> {
        WorkQueue::ordered(self.poster(), &self.entry.notice.sends)
    }

    /// Returns the receive queue.
    pub(crate) fn recv_queue(&self) -> WorkQueue<'_> {
        WorkQueue::ordered(self.poster(), &self.entry.notice.receives)
    }

    /// Records the port of the queue pair.
    pub(crate) fn set_port(&self, port: u32) {
        self.entry.notice.port.store(port, Relaxed);
    }

    /// Records that the queue pair was reset, which drops all posted requests.
    pub(crate) fn reset(&self) {
        self.entry.notice.poster.store(Poster::new().0, Relaxed);
    }
}

impl<T: Numbered<Notice = InUse>> Entry<T> {
    /// Returns whether the object's user may be notified of events.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.in_use.load(Acquire)
    }
}

impl Entry<bindings::ib_qp> {
    /// Returns the port of the queue pair; 0 before it has one.
    pub(crate) fn port(&self) -> u32 {
        self.notice.port.load(Relaxed)
    }

    /// Returns whether the request that `poster` posted at `position` completes in `cq`. If so, no
    /// request that was posted earlier to the same queue completes any more.
    pub(crate) fn complete(
        &self,
        poster: Poster,
        is_receive: bool,
        position: u64,
        cq: *const bindings::ib_cq,
    ) -> bool {
        let InUse {
            completes,
            sends,
            receives,
            ..
        } = &self.notice;
        let own = poster == Poster(self.notice.poster.load(Relaxed));
        match (is_receive, completes.receives) {
            (false, _) => own && ptr::eq(completes.send_cq, cq) && sends.complete(position),
            (true, None) => own && ptr::eq(completes.recv_cq, cq) && receives.complete(position),
            (true, Some(shared)) => poster == shared && ptr::eq(completes.recv_cq, cq),
        }
    }
}
