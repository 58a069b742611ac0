// SPDX-License-Identifier: GPL-2.0

//! Completion events: which of them are passed to the user of the queue, and when.

use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
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
/// last queue pair went away, is held back until the queue has a queue pair again. A soft interrupt
/// then delivers it, because a verb must not call its caller's handlers.
///
/// A queue's handler never runs twice at the same time. An event that arrives while the handler
/// runs makes it run once more. After [`RUNS_IN_A_ROW`] runs, a soft interrupt continues, because a
/// device that raises events without a cause must not keep a processor in an interrupt.
///
/// `queue_pairs`, `held_back`, `again` and `continues` are changed under the lock of the table.
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
    /// The user must be notified of an event that arrived while the handler was running.
    again: Atomic<bool>,
    /// The soft interrupt must run the handler, which counts as running until then.
    continues: Atomic<bool>,
}

/// How often a handler runs in a row for events that arrive meanwhile.
pub(super) const RUNS_IN_A_ROW: usize = 4;

impl Notice {
    /// Creates the state for a queue of a process or, otherwise, of the kernel.
    pub(crate) fn new(of_process: bool) -> Self {
        Self {
            of_process,
            armed: Atomic::new(false),
            queue_pairs: Atomic::new(0),
            held_back: Atomic::new(false),
            again: Atomic::new(false),
            continues: Atomic::new(false),
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

    fn deliver(table: &Table<Self>, entry: &Arc<Entry<Self>>) {
        let entries = table.entries.lock();
        // Whoever gives up a queue waits for a handler that continues.
        let told = entry.notice.continues.xchg(false, Relaxed)
            || !entry.hidden.load(Relaxed) && entry.begin_held_back();
        drop(entries);
        if told {
            // SAFETY: The handler was begun above, or earlier and has counted as running since.
            unsafe { table.run_completion(entry) };
        }
    }
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
        let entries = self.table.entries.lock();
        notice.queue_pairs.fetch_add(1, Relaxed);
        if notice.held_back.load(Relaxed) {
            self.table.deliver_later(entries, &self.entry);
        }
    }

    /// Undoes one [`add_queue_pair`](Self::add_queue_pair). After the last one, no handler runs
    /// once this has returned. Sleeps.
    pub(crate) fn remove_queue_pair(&self) {
        let mut entries = self.table.entries.lock();
        // Events that arrive from here on find that no queue pairs are left.
        if self.entry.notice.queue_pairs.fetch_sub(1, Relaxed) == 1 {
            self.table.wait_for_handlers(&mut entries, &self.entry);
        }
    }
}

impl Entry<bindings::ib_cq> {
    /// Returns whether the queue's user may be notified of asynchronous events. A user in the
    /// kernel may be if there are queue pairs.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.of_process || self.notice.queue_pairs.load(Relaxed) != 0
    }

    /// Returns whether the caller must run the handler for an event that has just arrived. If so,
    /// the handler counts as running. If the handler is running already and the user must be
    /// notified, it will run once more.
    ///
    /// The table must be locked, and must contain the entry, not hidden.
    fn begin_completion(&self) -> bool {
        if !self.notice.take() {
            return false;
        }
        let is_running = self.running.xchg(true, Relaxed);
        if is_running {
            self.notice.again.store(true, Relaxed);
        }
        !is_running
    }

    /// Like [`begin_completion`](Self::begin_completion), for an event that was held back, if there
    /// is one and the queue has queue pairs now.
    fn begin_held_back(&self) -> bool {
        self.notice.queue_pairs.load(Relaxed) != 0
            && self.notice.held_back.xchg(false, Relaxed)
            && self.begin_completion()
    }
}

impl Table<bindings::ib_cq> {
    /// Dispatches a completion event to queue `number`: notifies the queue's user if it asked for
    /// that. Returns whether there is such a queue. May be called in any context.
    pub(crate) fn complete(&self, number: u32) -> bool {
        let entries = self.entries.lock();
        let Some(entry) = entries.tree.get(&number).cloned() else {
            return false;
        };
        if entry.hidden.load(Relaxed) {
            return false;
        }
        let told = entry.begin_completion();
        drop(entries);
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

    /// Like [`complete_all`](Self::complete_all), for the queues of the kernel.
    pub(crate) fn complete_kernel(&self) {
        self.each(|entry| {
            if !entry.notice.of_process {
                self.complete(entry.number);
            }
        });
    }

    /// Runs a completion handler that has begun, without any lock, until it has run after the last
    /// event or the soft interrupt has to continue.
    ///
    /// # Safety
    ///
    /// [`Entry::begin_completion`] must have returned `true` for this call, or for an earlier one
    /// that left the rest to the soft interrupt. It guarantees that the queue is constructed, and
    /// not destroyed before the handler has returned.
    unsafe fn run_completion(&self, entry: &Arc<Entry<bindings::ib_cq>>) {
        for run in 1..=RUNS_IN_A_ROW {
            // SAFETY: Guaranteed by the caller, until `running` is cleared. The handler of a
            // process's queue was set before the queue was created, and the handler of a kernel
            // queue before it got queue pairs.
            unsafe {
                let cq = entry.object.0.as_ptr();
                if let Some(handler) = (*cq).comp_handler {
                    handler(cq, (*cq).cq_context);
                }
            }
            let entries = self.entries.lock();
            let again = entry.notice.again.xchg(false, Relaxed);
            entry.running.store(again, Relaxed);
            if again && run == RUNS_IN_A_ROW {
                entry.notice.continues.store(true, Relaxed);
                self.deliver_later(entries, entry);
                return;
            }
            drop(entries);
            if !again {
                self.idle.notify_all();
                return;
            }
        }
    }
}
