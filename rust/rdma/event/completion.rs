// SPDX-License-Identifier: GPL-2.0

//! Completion events: who is told of them, and when.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::table::{
    Entry,
    Named,
    Place,
    Table, //
};
use crate::bindings;

/// Whether the user of a completion queue is told of a completion event.
///
/// `ib_core` calls a queue of the kernel its user's before it can take events: `ib_alloc_cq` sets
/// the workqueue of its handler after it has armed the queue, and `ib_free_cq` ends the work before
/// it destroys the queue. In both times there are no queue pairs, and without them no honest device
/// has an event. One of another device, or one that was on its way when the last queue pair went,
/// waits for the next queue pair.
///
/// `queue_pairs` and `held_back` are changed under the lock of the table.
pub(crate) struct Notice {
    /// Processes arm their queues themselves, and `ib_uverbs` takes events at any time.
    of_process: bool,
    /// Its user asked for an event and has not been given it.
    armed: Atomic<bool>,
    /// Queue pairs whose sends or receives complete here; twice, if both do.
    queue_pairs: Atomic<u32>,
    /// There was an event, but no queue pair.
    held_back: Atomic<bool>,
}

impl Notice {
    /// That of a queue of a process or, otherwise, of the kernel.
    pub(crate) fn new(of_process: bool) -> Self {
        Self {
            of_process,
            armed: Atomic::new(false),
            queue_pairs: Atomic::new(0),
            held_back: Atomic::new(false),
        }
    }

    /// Whether the user is told of an event that came in now.
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

impl Named for bindings::ib_cq {
    type Notice = Notice;
}

impl Place<bindings::ib_cq> {
    /// Whether the queue is a process's.
    pub(crate) fn is_of_process(&self) -> bool {
        self.entry.notice.of_process
    }

    /// The queue's user asks for an event. To be called before the hardware is asked. May be called
    /// in any context.
    pub(crate) fn arm(&self) {
        self.entry.notice.armed.store(true, Relaxed);
    }

    /// Sends or receives of one more queue pair complete here.
    pub(crate) fn add_queue_pair(&self) {
        let notice = &self.entry.notice;
        let tree = self.table.tree.lock();
        notice.queue_pairs.fetch_add(1, Relaxed);
        let is_due = notice.held_back.xchg(false, Relaxed);
        let told = is_due && self.entry.begin_completion();
        drop(tree);
        if told {
            // SAFETY: Just begun.
            unsafe { self.table.run_completion(&self.entry) };
        }
    }

    /// Those of one queue pair do not any more. On return no handler runs for the last of them.
    /// Sleeps.
    pub(crate) fn remove_queue_pair(&self) {
        let mut tree = self.table.tree.lock();
        // Whoever comes from here on finds that there are none left.
        if self.entry.notice.queue_pairs.fetch_sub(1, Relaxed) == 1 {
            self.table.wait_for_handlers(&mut tree, &self.entry);
        }
    }
}

impl Entry<bindings::ib_cq> {
    /// Whether the queue's user may be told of asynchronous events: those of the kernel may if
    /// there are queue pairs.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.of_process || self.notice.queue_pairs.load(Relaxed) != 0
    }

    /// Whether the queue's user is told of an event that came in now. If so, the handler has begun.
    ///
    /// The table must be locked, and have the entry, or its place be there.
    fn begin_completion(&self) -> bool {
        let told = self.notice.take();
        if told {
            self.running.fetch_add(1, Relaxed);
        }
        told
    }
}

impl Table<bindings::ib_cq> {
    /// There was a completion event for queue `number`: has its user told, if he asked for that.
    /// Returns whether there is such a queue. May be called in any context.
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
            // SAFETY: Just begun.
            unsafe { self.run_completion(&entry) };
        }
        true
    }

    /// As [`complete`](Self::complete) for each queue.
    pub(crate) fn complete_all(&self) {
        self.each(|entry| {
            // Another one that has the number now is told as well.
            self.complete(entry.number);
        });
    }

    /// Runs a completion handler that has begun, without any lock.
    ///
    /// # Safety
    ///
    /// [`Entry::begin_completion`] must have returned `true` for this: so the queue is constructed,
    /// and not destroyed before the handler has returned.
    unsafe fn run_completion(&self, entry: &Entry<bindings::ib_cq>) {
        // SAFETY: Guaranteed by the caller. The handler of a queue of a process was set before the
        // queue was created, and that of one of the kernel before it has queue pairs.
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
