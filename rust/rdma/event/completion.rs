// SPDX-License-Identifier: GPL-2.0

//! Completion events: which of them are passed to the user of the queue, and when.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::table::{
    Entry,
    Numbered,
    Place,
    Table, //
};
use crate::bindings;

/// Decides whether the user of a completion queue is notified of a completion event.
///
/// `ib_core` hands out a kernel queue before the queue's handler can take events: `ib_alloc_cq`
/// sets the workqueue of the handler after it has armed the queue, and `ib_free_cq` stops the work
/// before it destroys the queue. At both times the queue has no queue pairs, and a correct device
/// raises no events. An event from an incorrect device, or one that was still in flight when the
/// last queue pair went away, is held back until the queue has a queue pair again.
///
/// `queue_pairs` and `held_back` are changed under the lock of the table.
pub(crate) struct Notice {
    /// The queue belongs to a process. Processes arm their queues themselves, and `ib_uverbs` takes
    /// events at any time.
    of_process: bool,
    /// The user asked for an event and has not received it yet.
    armed: Atomic<bool>,
    /// Number of queue pairs whose sends or receives complete here; twice for a queue pair whose
    /// sends and receives both do.
    queue_pairs: Atomic<u32>,
    /// An event arrived while there was no queue pair.
    held_back: Atomic<bool>,
}

impl Notice {
    /// Creates the state for a queue of a process or, otherwise, of the kernel.
    pub(crate) fn new(of_process: bool) -> Self {
        Self {
            of_process,
            armed: Atomic::new(false),
            queue_pairs: Atomic::new(0),
            held_back: Atomic::new(false),
        }
    }

    /// Returns whether the user must be notified of an event that has just arrived.
    fn take(&self) -> bool {
        if self.of_process {
            return true;
        }
        if self.queue_pairs.load(Relaxed) == 0 {
            self.held_back.store(true, Relaxed);
            return false;
        }
        self.armed.xchg(false, Relaxed)
    }
}

impl Numbered for bindings::ib_cq {
    type Notice = Notice;
}

impl Place<bindings::ib_cq> {
    /// Returns whether the queue belongs to a process.
    pub(crate) fn is_of_process(&self) -> bool {
        self.entry.notice.of_process
    }

    /// Records that the queue's user asks for an event. Must be called before the hardware is
    /// asked. May be called in any context.
    pub(crate) fn arm(&self) {
        self.entry.notice.armed.store(true, Relaxed);
    }

    /// Records that sends or receives of one more queue pair complete here.
    pub(crate) fn add_queue_pair(&self) {
        let notice = &self.entry.notice;
        let tree = self.table.tree.lock();
        notice.queue_pairs.fetch_add(1, Relaxed);
        let is_due = notice.held_back.xchg(false, Relaxed);
        let told = is_due && self.entry.begin_completion();
        drop(tree);
        if told {
            // SAFETY: The handler was begun above.
            unsafe { self.table.run_completion(&self.entry) };
        }
    }

    /// Undoes one [`add_queue_pair`](Self::add_queue_pair). After the last one, no handler runs
    /// once this has returned. Sleeps.
    pub(crate) fn remove_queue_pair(&self) {
        let mut tree = self.table.tree.lock();
        // Events that arrive from here on find that no queue pairs are left.
        if self.entry.notice.queue_pairs.fetch_sub(1, Relaxed) == 1 {
            self.table.wait_for_handlers(&mut tree, &self.entry);
        }
    }
}

impl Entry<bindings::ib_cq> {
    /// Returns whether the queue's user may be notified of asynchronous events. A user in the
    /// kernel may be if there are queue pairs.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.of_process || self.notice.queue_pairs.load(Relaxed) != 0
    }

    /// Returns whether the user must be notified of an event that has just arrived. If so, the
    /// handler counts as running.
    ///
    /// The table must be locked, and must contain the entry, or the entry's place must still exist.
    fn begin_completion(&self) -> bool {
        let told = self.notice.take();
        if told {
            self.running.fetch_add(1, Relaxed);
        }
        told
    }
}

impl Table<bindings::ib_cq> {
    /// Dispatches a completion event to queue `number`: notifies the queue's user if it asked for
    /// that. Returns whether there is such a queue. May be called in any context.
    pub(crate) fn complete(&self, number: u32) -> bool {
        let tree = self.tree.lock();
        let Some(entry) = tree.get(&number).cloned() else {
            return false;
        };
        if entry.hidden.load(Relaxed) {
            return false;
        }
        let told = entry.begin_completion();
        drop(tree);
        if told {
            // SAFETY: The handler was begun above.
            unsafe { self.run_completion(&entry) };
        }
        true
    }

    /// Like [`complete`](Self::complete), for each queue.
    pub(crate) fn complete_all(&self) {
        self.each(|entry| {
            // If the number has gone to another queue by now, that queue gets an extra event.
            self.complete(entry.number);
        });
    }

    /// Runs a completion handler that has begun, without any lock.
    ///
    /// # Safety
    ///
    /// [`Entry::begin_completion`] must have returned `true` for this call. It guarantees that the
    /// queue is constructed, and not destroyed before the handler has returned.
    unsafe fn run_completion(&self, entry: &Entry<bindings::ib_cq>) {
        // SAFETY: Guaranteed by the caller. The handler of a process's queue was set before the
        // queue was created, and the handler of a kernel queue before it got queue pairs.
        unsafe {
            let cq = entry.object.0.as_ptr();
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
        let tree = self.tree.lock();
        let before = entry.running.fetch_sub(1, Relaxed);
        drop(tree);
        if before == 1 {
            self.idle.notify_all();
        }
    }
}
