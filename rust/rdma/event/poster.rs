// SPDX-License-Identifier: GPL-2.0

//! Who has requests of users: queue pairs and shared receive queues. Whether their users are told
//! of events, and where their requests complete.

use core::ptr;

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::table::{
    Entry,
    Named,
    Place, //
};
use crate::bindings;

/// Who has requests of users: a queue pair or a shared receive queue, from the beginning or its
/// last reset on. No other has the same, not even one that has the number of an object that is
/// gone.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Poster(u64);

impl Poster {
    /// One that there was never before.
    pub(crate) fn new() -> Self {
        static NEXT: Atomic<u64> = Atomic::new(1);

        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// In which order the requests of a queue complete: that in which they were posted.
///
/// Who sees one complete may free what is to be called for those before it (`ib_drain_qp`), which
/// the driver may have kept back.
pub(crate) struct Order {
    /// Position of the last request that was posted.
    posted: Atomic<u64>,
    /// Position of the last request that completed.
    completed: Atomic<u64>,
}

impl Order {
    /// That of a queue to which nothing was posted.
    pub(crate) const fn new() -> Self {
        Self {
            posted: Atomic::new(0),
            completed: Atomic::new(0),
        }
    }

    /// Whether the request at `position` may complete. If so, none before it may any more.
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
    /// A shared receive queue has none.
    order: Option<&'a Order>,
}

impl<'a> WorkQueue<'a> {
    /// A queue without an order.
    pub(crate) const fn unordered(poster: Poster) -> Self {
        Self {
            poster,
            order: None,
        }
    }

    /// A queue whose requests complete in the order in which they were posted.
    pub(crate) const fn ordered(poster: Poster, order: &'a Order) -> Self {
        Self {
            poster,
            order: Some(order),
        }
    }

    /// Whose requests these are.
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

/// Where requests of a queue pair complete.
pub(crate) struct Completes {
    /// The queue of its sends, by its address.
    pub(crate) send_cq: *mut bindings::ib_cq,
    /// That of its receives.
    pub(crate) recv_cq: *mut bindings::ib_cq,
    /// Whose receives it takes, if they are not its own.
    pub(crate) receives: Option<Poster>,
}

impl Completes {
    /// Nowhere.
    pub(crate) const NOWHERE: Self = Self {
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        receives: None,
    };
}

// SAFETY: The pointers are only compared.
unsafe impl Send for Completes {}

// SAFETY: As above.
unsafe impl Sync for Completes {}

/// Whether the user of an object is told of asynchronous events of it, and whose its requests are.
///
/// A user in the kernel may not be ready for them before the verb that creates the object has
/// returned: what its handler looks at may be what the verb returns (`ib_mad` does that). Then no
/// honest device has an event; it has one after the user has done something with the object.
pub(crate) struct InUse {
    in_use: Atomic<bool>,
    /// Port of a queue pair, 0 before it has one.
    port: Atomic<u32>,
    /// Number of the [`Poster`].
    poster: Atomic<u64>,
    /// Of a queue pair.
    completes: Completes,
    /// Of the sends of a queue pair.
    sends: Order,
    /// Of the receives of a queue pair that has no shared queue.
    receives: Order,
}

impl InUse {
    /// That of a new object of a process, which takes events at any time, or of the kernel.
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

    /// That of a queue pair.
    pub(crate) fn of_queue_pair(of_process: bool, completes: Completes) -> Self {
        Self {
            completes,
            ..Self::new(of_process)
        }
    }
}

impl Named for bindings::ib_qp {
    type Notice = InUse;
}

impl Named for bindings::ib_srq {
    type Notice = InUse;
}

impl<T: Named<Notice = InUse>> Place<T> {
    /// The object's user does something with it. May be called in any context.
    pub(crate) fn begin_use(&self) {
        self.entry.notice.in_use.store(true, Relaxed);
    }

    /// Whose the requests of the object are. May be called in any context.
    pub(crate) fn poster(&self) -> Poster {
        Poster(self.entry.notice.poster.load(Relaxed))
    }
}

impl Place<bindings::ib_srq> {
    /// The queue, as requests are posted to it.
    pub(crate) fn queue(&self) -> WorkQueue<'_> {
        WorkQueue::unordered(self.poster())
    }
}

impl Place<bindings::ib_qp> {
    /// The queue of sends.
    pub(crate) fn send_queue(&self) -> WorkQueue<'_> {
        WorkQueue::ordered(self.poster(), &self.entry.notice.sends)
    }

    /// The queue of receives.
    pub(crate) fn recv_queue(&self) -> WorkQueue<'_> {
        WorkQueue::ordered(self.poster(), &self.entry.notice.receives)
    }

    /// The queue pair belongs to a port from now on.
    pub(crate) fn set_port(&self, port: u32) {
        self.entry.notice.port.store(port, Relaxed);
    }

    /// The queue pair was reset: what had been posted to it is forgotten.
    pub(crate) fn reset(&self) {
        self.entry.notice.poster.store(Poster::new().0, Relaxed);
    }
}

impl<T: Named<Notice = InUse>> Entry<T> {
    /// Whether the object's user may be told of events.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.in_use.load(Relaxed)
    }
}

impl Entry<bindings::ib_qp> {
    /// Port of the queue pair, 0 before it has one.
    pub(crate) fn port(&self) -> u32 {
        self.notice.port.load(Relaxed)
    }

    /// Whether the request that `poster` has posted as the one at `position` completes in `cq`. If
    /// so, none that was posted before it to the same queue does any more.
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
