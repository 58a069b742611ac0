// SPDX-License-Identifier: GPL-2.0

//! Tables by which events find their objects.
//!
//! Hardware refers to objects by number, and events race with the destruction of objects. An object
//! owns its [`Place`] in a table, and with it its number. Dropping a place waits for running
//! handlers of the object, and no handler starts afterwards. Hardware may reuse a number as soon as
//! it has forgotten the object. The new owner of the number therefore waits until the old one is
//! gone, so it never gets events that were meant for the old one.
//!
//! - Completion handlers run in any context without a lock, at most one of each object at a time.
//! - Handlers of asynchronous events may sleep. They run under a mutex of their object.

use core::{
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ptr::NonNull, //
};

use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        List,
        ListArc,
        ListLinks,
        TryNewListArc, //
    },
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    static_lock_class,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq,
        SpinLockIrqGuard,
        UniqueArc, //
    },
    types::Opaque, //
};

use crate::bindings;

/// A pointer to a C object in a table.
pub(crate) struct Pointer<T>(pub(crate) NonNull<T>);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: The core's objects may be used by any thread; the tables make sure that they are alive.
unsafe impl<T> Send for Pointer<T> {}

// SAFETY: A shared reference gives only a copy of the pointer.
unsafe impl<T> Sync for Pointer<T> {}

/// An object that events find by its number.
pub(crate) trait Numbered {
    /// Decides whether the object's user is notified of an event.
    type Notice: Send + Sync;

    /// Delivers events of an entry that were held back, after [`Table::deliver_later`]. Soft
    /// interrupt.
    fn deliver(table: &Table<Self>, entry: &Arc<Entry<Self>>)
    where
        Self: Sized,
    {
        let _ = (table, entry);
    }
}

/// Stage in the life of an object.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    /// The object is in use, or about to be.
    Alive,
    /// The hardware is being told to forget the object, and may reuse its number.
    Ending,
    /// No handler of the object runs, or will run.
    Ended,
    /// Another object may have the number.
    Gone,
}

/// A table's record of an object.
#[pin_data]
pub(crate) struct Entry<T: Numbered> {
    pub(super) number: u32,
    pub(super) object: Pointer<T>,
    pub(super) notice: T::Notice,
    /// Whether events ignore the entry although it is still in the table. Changed under the lock of
    /// the table.
    pub(super) hidden: Atomic<bool>,
    /// Whether the completion handler is running. Changed under the lock of the table.
    pub(super) running: Atomic<bool>,
    /// Whether the entry is in the list of those that are [due](Table::deliver_later).
    #[pin]
    is_due: AtomicTracker,
    #[pin]
    due: ListLinks,
    /// Held while a handler of asynchronous events runs.
    #[pin]
    phase: Mutex<Phase>,
    /// Signals that the phase has become [`Phase::Gone`].
    #[pin]
    gone: CondVar,
}

impl_list_arc_safe! {
    impl{T: Numbered} ListArcSafe<0> for Entry<T> {
        tracked_by is_due: AtomicTracker;
    }
}

impl_list_item! {
    impl{T: Numbered} ListItem<0> for Entry<T> {
        using ListLinks { self.due };
    }
}

impl<T: Numbered> Entry<T> {
    /// Returns the object, which exists as long as the entry is in its table.
    pub(crate) fn object(&self) -> NonNull<T> {
        self.object.0
    }

    /// Runs `handler`, which may sleep, unless the object is gone. Returns whether it ran.
    pub(crate) fn with(&self, handler: impl FnOnce(NonNull<T>)) -> bool {
        let phase = self.phase.lock();
        let is_there = matches!(*phase, Phase::Alive | Phase::Ending);
        if is_there {
            handler(self.object.0);
        }
        is_there
    }

    /// Waits until an object is gone whose number the hardware has reused. `EIO` if the hardware
    /// was never told to forget the object.
    fn wait_for_end(&self) -> Result {
        let mut phase = self.phase.lock();
        loop {
            match *phase {
                Phase::Alive => return Err(EIO),
                Phase::Ending | Phase::Ended => self.gone.wait(&mut phase),
                Phase::Gone => return Ok(()),
            }
        }
    }
}

/// Memory for an object's place in a table, allocated before the object is created.
pub(crate) struct NewPlace<T: Numbered> {
    table: Arc<Table<T>>,
    entry: UniqueArc<MaybeUninit<Entry<T>>>,
    node: RBTreeNodeReservation<u32, Arc<Entry<T>>>,
}

impl<T: Numbered> NewPlace<T> {
    pub(crate) fn new(table: &Arc<Table<T>>) -> Result<Self> {
        Ok(Self {
            table: table.clone(),
            entry: UniqueArc::new_uninit(GFP_KERNEL)?,
            node: RBTreeNodeReservation::new(GFP_KERNEL)?,
        })
    }

    /// Creates the place of `object`, to which the hardware assigned `number`. Events find it only
    /// after [`Unpublished::publish`].
    pub(crate) fn assign(
        self,
        number: u32,
        object: NonNull<T>,
        notice: T::Notice,
    ) -> (Place<T>, Unpublished<T>) {
        // One name for all types, because they share a lock class, which lockdep identifies by the
        // name's address.
        static PHASE: &CStr = c"rdma::event::Entry::phase";
        static GONE: &CStr = c"rdma::event::Entry::gone";

        let entry = self.entry.pin_init_with(pin_init!(Entry {
            number,
            object: Pointer(object),
            notice,
            hidden: Atomic::new(false),
            running: Atomic::new(false),
            is_due <- AtomicTracker::new(),
            due <- ListLinks::new(),
            phase <- Mutex::new(Phase::Alive, PHASE, static_lock_class!()),
            gone <- CondVar::new(GONE, static_lock_class!()),
        }));
        let entry: Result<_, core::convert::Infallible> = entry;
        let entry: Arc<Entry<T>> = match entry {
            Ok(entry) => entry.into(),
            Err(never) => match never {},
        };
        let unpublished = Unpublished {
            table: self.table.clone(),
            number,
            node: self.node.into_node(number, entry.clone()),
        };
        let table = self.table;
        (Place { table, entry }, unpublished)
    }
}

/// A place that events cannot find yet.
pub(crate) struct Unpublished<T: Numbered> {
    table: Arc<Table<T>>,
    number: u32,
    node: RBTreeNode<u32, Arc<Entry<T>>>,
}

impl<T: Numbered> Unpublished<T> {
    /// Makes events find the object from now on. Sleeps.
    ///
    /// The hardware may have reused the number of an object that is being destroyed: this waits
    /// until that object and all its events are gone. `EIO` if the number belongs to an object that
    /// is not being destroyed.
    pub(crate) fn publish(self) -> Result {
        loop {
            let mut entries = self.table.entries.lock();
            let Some(occupant) = entries.tree.get(&self.number).cloned() else {
                entries.tree.insert(self.node);
                return Ok(());
            };
            drop(entries);
            occupant.wait_for_end()?;
        }
    }
}

/// An object's place in a table. Dropping it gives up the place, and waits for running handlers of
/// the object. Sleeps.
pub(crate) struct Place<T: Numbered> {
    pub(super) table: Arc<Table<T>>,
    pub(super) entry: Arc<Entry<T>>,
}

impl<T: Numbered> Place<T> {
    /// Returns the number of the object.
    pub(crate) fn number(&self) -> u32 {
        self.entry.number
    }

    /// Records that the hardware is about to be told to forget the object.
    pub(crate) fn begin_end(&self) {
        *self.entry.phase.lock() = Phase::Ending;
    }
}

impl<T: Numbered> Drop for Place<T> {
    fn drop(&mut self) {
        let number = self.entry.number;
        let mut entries = self.table.entries.lock();
        self.entry.hidden.store(true, Relaxed);
        self.table.wait_for_handlers(&mut entries, &self.entry);
        drop(entries);
        // Waits for the handler of an asynchronous event.
        *self.entry.phase.lock() = Phase::Ended;

        // Another object may have the number only after this.
        let mut entries = self.table.entries.lock();
        let node = match entries.tree.get(&number) {
            Some(entry) if Arc::ptr_eq(entry, &self.entry) => entries.tree.remove_node(&number),
            _ => None,
        };
        drop(entries);
        // Freed without holding the lock.
        drop(node);
        *self.entry.phase.lock() = Phase::Gone;
        self.entry.gone.notify_all();
    }
}

/// The entries of a table.
pub(super) struct Entries<T: Numbered> {
    pub(super) tree: RBTree<u32, Arc<Entry<T>>>,
    /// Entries of which events must be delivered. Their objects may be gone.
    due: List<Entry<T>>,
}

/// Objects by number.
///
/// This uses C's work items instead of `workqueue::Work`, which can be neither cancelled nor waited
/// for: it could run after the module is gone. They run in a soft interrupt, which needs no thread,
/// so threads that free memory can wait for them.
///
/// # Invariants
///
/// `late` was initialised with the function [`Self::late_callback`], and is disabled before `self`
/// is freed.
#[pin_data(PinnedDrop)]
pub(crate) struct Table<T: Numbered> {
    #[pin]
    pub(super) entries: SpinLockIrq<Entries<T>>,
    /// Signals that the handler of an entry has returned.
    #[pin]
    pub(super) idle: CondVar,
    /// Work that delivers events that were held back.
    #[pin]
    late: Opaque<bindings::work_struct>,
}

// SAFETY: A work item may be queued and disabled by any thread. All other members are `Send`.
unsafe impl<T: Numbered> Send for Table<T> {}

// SAFETY: Several threads may queue and disable a work item at the same time. All other members are
// `Sync`.
unsafe impl<T: Numbered> Sync for Table<T> {}

#[pinned_drop]
impl<T: Numbered> PinnedDrop for Table<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised by the type invariant. On return the work does not run, and will not
        // run again.
        unsafe { bindings::disable_work_sync(self.late.get()) };
    }
}

impl<T: Numbered> Table<T> {
    /// Creates an empty table.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // One name for all types, because they share a lock class, which lockdep identifies by the
        // name's address.
        static ENTRIES: &CStr = c"rdma::event::Table::entries";
        static IDLE: &CStr = c"rdma::event::Table::idle";
        static LATE: &CStr = c"rdma::event::Table::late";

        Arc::pin_init(
            pin_init!(Self {
                entries <- SpinLockIrq::new(
                    Entries {
                        tree: RBTree::new(),
                        due: List::new(),
                    },
                    ENTRIES,
                    static_lock_class!(),
                ),
                idle <- CondVar::new(IDLE, static_lock_class!()),
                late <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes; it will be in an `Arc`, not on a stack.
                    unsafe {
                        bindings::init_work_with_key(
                            slot,
                            Some(Self::late_callback),
                            false,
                            LATE.as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Schedules a call of [`Numbered::deliver`] for an entry of the locked table. May be called in
    /// any context.
    pub(super) fn deliver_later(
        &self,
        mut entries: SpinLockIrqGuard<'_, Entries<T>>,
        entry: &Arc<Entry<T>>,
    ) {
        if let Ok(due) = ListArc::try_from_arc(entry.clone()) {
            entries.due.push_back(due);
        }
        drop(entries);
        self.schedule();
    }

    /// Makes the work item run.
    fn schedule(&self) {
        // SAFETY: Initialised by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_bh_wq,
                self.late.get(),
            )
        };
    }

    /// Runs the work item: handles one entry that is due, so that other soft interrupts and threads
    /// need not wait for more than that, however many there are.
    ///
    /// # Safety
    ///
    /// `work` must be the `late` of a [`Table`] which lives until this returns.
    unsafe extern "C" fn late_callback(work: *mut bindings::work_struct) {
        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe { &*work.byte_sub(offset_of!(Self, late)).cast::<Self>() };
        let mut entries = this.entries.lock();
        let due = entries.due.pop_front().map(ListArc::into_arc);
        let are_more = !entries.due.is_empty();
        drop(entries);
        if are_more {
            this.schedule();
        }
        if let Some(entry) = due {
            T::deliver(this, &entry);
        }
    }

    /// Finds an object by its number. May be called in any context.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Entry<T>>> {
        let entries = self.entries.lock();
        let entry = entries.tree.get(&number)?;
        (!entry.hidden.load(Relaxed)).then(|| entry.clone())
    }

    /// Returns the first object with at least this number.
    fn next(&self, number: u32) -> Option<Arc<Entry<T>>> {
        let entries = self.entries.lock();
        let cursor = entries.tree.cursor_lower_bound(&number)?;
        Some(cursor.current().1.clone())
    }

    /// Calls `f` for each object. The table is not locked during the calls, so objects may be added
    /// and go away in the meantime.
    pub(crate) fn each(&self, f: impl Fn(&Entry<T>)) {
        let mut next = Some(0);

        while let Some(entry) = next.and_then(|number| self.next(number)) {
            next = entry.number.checked_add(1);
            f(&entry);
        }
    }

    /// Waits until the completion handler of an entry does not run. It must not be started anew.
    pub(super) fn wait_for_handlers(
        &self,
        entries: &mut SpinLockIrqGuard<'_, Entries<T>>,
        entry: &Entry<T>,
    ) {
        while entry.running.load(Relaxed) {
            self.idle.wait(entries);
        }
    }
}
