// SPDX-License-Identifier: GPL-2.0

//! Places of objects in the tables by which events find them.
//!
//! Hardware names objects by numbers, and events race with the objects' end. An object owns its
//! [`Place`] in a table, and with it its number. Whoever gives up a place waits for the handlers
//! that run for the object, and none is begun later. Hardware may give a number away as soon as it
//! has forgotten the object; the next owner waits until the former one is gone, and so cannot be
//! told what was meant for that.
//!
//! - Completion handlers run in interrupt context, without a lock: what runs is counted. A queue of
//!   the kernel is told only what its user asked for (see [`Notice`]).
//! - Handlers of asynchronous events may sleep. They run under a mutex of their object.

use core::{
    mem::MaybeUninit,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
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
};

use crate::bindings;

/// An object of C in a table.
pub(crate) struct Pointer<T>(pub(crate) NonNull<T>);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: The core's objects may be used by any thread; the tables see to it that they live.
unsafe impl<T> Send for Pointer<T> {}

// SAFETY: As above.
unsafe impl<T> Sync for Pointer<T> {}

/// An object that events name.
pub(crate) trait Named {
    /// What decides whether a completion event is told.
    type Notice: Send + Sync;
}

impl Named for bindings::ib_cq {
    type Notice = Notice;
}

impl Named for bindings::ib_qp {
    type Notice = InUse;
}

impl Named for bindings::ib_srq {
    type Notice = InUse;
}

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
    const NOWHERE: Self = Self {
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
}

impl InUse {
    /// That of a new object of a process, which takes events at any time, or of the kernel.
    pub(crate) fn new(of_process: bool) -> Self {
        Self {
            in_use: Atomic::new(of_process),
            port: Atomic::new(0),
            poster: Atomic::new(Poster::new().0),
            completes: Completes::NOWHERE,
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

impl Place<bindings::ib_qp> {
    /// The queue pair belongs to a port from now on.
    pub(crate) fn set_port(&self, port: u32) {
        self.entry.notice.port.store(port, Relaxed);
    }

    /// The queue pair was reset: what had been posted to it is forgotten.
    pub(crate) fn reset(&self) {
        self.entry.notice.poster.store(Poster::new().0, Relaxed);
    }
}

impl Entry<bindings::ib_qp> {
    /// Port of the queue pair, 0 before it has one.
    pub(crate) fn port(&self) -> u32 {
        self.notice.port.load(Relaxed)
    }

    /// Whether requests of `poster` complete in `cq`, those of its receives or of its sends.
    pub(crate) fn completes(
        &self,
        poster: Poster,
        is_receive: bool,
        cq: *const bindings::ib_cq,
    ) -> bool {
        let Completes {
            send_cq,
            recv_cq,
            receives,
        } = &self.notice.completes;
        let own = Poster(self.notice.poster.load(Relaxed));
        match is_receive {
            false => poster == own && ptr::eq(*send_cq, cq),
            true => poster == receives.unwrap_or(own) && ptr::eq(*recv_cq, cq),
        }
    }
}

impl<T: Named<Notice = InUse>> Entry<T> {
    /// Whether the object's user may be told of events.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.in_use.load(Relaxed)
    }
}

impl Entry<bindings::ib_cq> {
    /// Whether the queue's user may be told of asynchronous events: those of the kernel may if
    /// there are queue pairs.
    pub(crate) fn is_in_use(&self) -> bool {
        self.notice.of_process || self.notice.queue_pairs.load(Relaxed) != 0
    }
}

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

/// How far the life of an object has gone.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    /// It is used, or about to be.
    Alive,
    /// The hardware is told to forget it, and may give its number away.
    Ending,
    /// No handler runs for it, nor will.
    Ended,
    /// Its number may be that of another.
    Gone,
}

/// What a table has of an object.
#[pin_data]
pub(crate) struct Entry<T: Named> {
    number: u32,
    object: Pointer<T>,
    notice: T::Notice,
    /// Whether events find it no more, though it has its number. Changed under the lock of the
    /// table.
    hidden: Atomic<bool>,
    /// Completion handlers that run for it. Changed under the lock of the table.
    running: Atomic<u32>,
    /// Held while a handler of asynchronous events runs.
    #[pin]
    phase: Mutex<Phase>,
    /// The phase is [`Phase::Gone`].
    #[pin]
    gone: CondVar,
}

impl<T: Named> Entry<T> {
    /// The object, which is there as long as the entry is in its table.
    pub(crate) fn object(&self) -> NonNull<T> {
        self.object.0
    }

    /// Runs `handler`, which may sleep, unless the object is gone.
    pub(crate) fn with(&self, handler: impl FnOnce(NonNull<T>)) -> bool {
        let phase = self.phase.lock();
        let is_there = matches!(*phase, Phase::Alive | Phase::Ending);
        if is_there {
            handler(self.object.0);
        }
        is_there
    }

    /// Waits until an object is gone of which the hardware has given the number away. `EIO` if
    /// nobody told it to forget the object.
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

/// Memory for an object's place in a table, taken before the object is created.
pub(crate) struct Room<T: Named> {
    table: Arc<Table<T>>,
    entry: UniqueArc<MaybeUninit<Entry<T>>>,
    node: RBTreeNodeReservation<u32, Arc<Entry<T>>>,
}

impl<T: Named> Room<T> {
    pub(crate) fn new(table: &Arc<Table<T>>) -> Result<Self> {
        Ok(Self {
            table: table.clone(),
            entry: UniqueArc::new_uninit(GFP_KERNEL)?,
            node: RBTreeNodeReservation::new(GFP_KERNEL)?,
        })
    }

    /// Makes the place of `object`, to which the hardware gave `number`. No event finds it before
    /// it is [listed](Listing::publish).
    pub(crate) fn assign(
        self,
        number: u32,
        object: NonNull<T>,
        notice: T::Notice,
    ) -> (Place<T>, Listing<T>) {
        // One for all types, as is the lock class: lockdep knows names by address.
        static PHASE: &CStr = c"rdma::place::Entry::phase";
        static GONE: &CStr = c"rdma::place::Entry::gone";

        let entry = self.entry.pin_init_with(pin_init!(Entry {
            number,
            object: Pointer(object),
            notice,
            hidden: Atomic::new(false),
            running: Atomic::new(0),
            phase <- Mutex::new(Phase::Alive, PHASE, static_lock_class!()),
            gone <- CondVar::new(GONE, static_lock_class!()),
        }));
        let entry: Result<_, core::convert::Infallible> = entry;
        let entry: Arc<Entry<T>> = match entry {
            Ok(entry) => entry.into(),
            Err(never) => match never {},
        };
        let listing = Listing {
            table: self.table.clone(),
            number,
            node: self.node.into_node(number, entry.clone()),
        };
        let table = self.table;
        (Place { table, entry }, listing)
    }
}

/// A place that no event finds yet.
pub(crate) struct Listing<T: Named> {
    table: Arc<Table<T>>,
    number: u32,
    node: RBTreeNode<u32, Arc<Entry<T>>>,
}

impl<T: Named> Listing<T> {
    /// Lets events find the object from now on. Sleeps.
    ///
    /// The hardware may have given it the number of an object that is just being destroyed: this
    /// waits until that is gone, and all events with it. `EIO` if the number is that of an object
    /// which is not.
    pub(crate) fn publish(self) -> Result {
        loop {
            let mut tree = self.table.tree.lock();
            let Some(occupant) = tree.get(&self.number).cloned() else {
                tree.insert(self.node);
                return Ok(());
            };
            drop(tree);
            occupant.wait_for_end()?;
        }
    }
}

/// An object's place in a table, which it gives up when this is dropped. Whoever drops it waits for
/// the handlers that run for the object. Sleeps.
pub(crate) struct Place<T: Named> {
    table: Arc<Table<T>>,
    entry: Arc<Entry<T>>,
}

impl<T: Named> Place<T> {
    /// Number of the object.
    pub(crate) fn number(&self) -> u32 {
        self.entry.number
    }

    /// The hardware is going to be told to forget the object.
    pub(crate) fn begin_end(&self) {
        *self.entry.phase.lock() = Phase::Ending;
    }
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

impl<T: Named> Drop for Place<T> {
    fn drop(&mut self) {
        let number = self.entry.number;
        let mut tree = self.table.tree.lock();
        self.entry.hidden.store(true, Relaxed);
        self.table.wait_for_handlers(&mut tree, &self.entry);
        drop(tree);
        // Waits for the handler of an asynchronous event.
        *self.entry.phase.lock() = Phase::Ended;

        // Only now may another have the number.
        let mut tree = self.table.tree.lock();
        let node = match tree.get(&number) {
            Some(entry) if Arc::ptr_eq(entry, &self.entry) => tree.remove_node(&number),
            _ => None,
        };
        drop(tree);
        // Freed only here, without the lock.
        drop(node);
        *self.entry.phase.lock() = Phase::Gone;
        self.entry.gone.notify_all();
    }
}

/// The entries of a table.
type Tree<T> = RBTree<u32, Arc<Entry<T>>>;

/// Objects by their numbers.
#[pin_data]
pub(crate) struct Table<T: Named> {
    #[pin]
    tree: SpinLockIrq<Tree<T>>,
    /// The last handler of an entry has returned.
    #[pin]
    idle: CondVar,
}

impl<T: Named> Table<T> {
    /// An empty table.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // One for all types, as is the lock class: lockdep knows names by address.
        static TREE: &CStr = c"rdma::place::Table::tree";
        static IDLE: &CStr = c"rdma::place::Table::idle";

        Arc::pin_init(
            pin_init!(Self {
                tree <- SpinLockIrq::new(RBTree::new(), TREE, static_lock_class!()),
                idle <- CondVar::new(IDLE, static_lock_class!()),
            }),
            GFP_KERNEL,
        )
    }

    /// Finds an object. May be called in any context.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Entry<T>>> {
        let tree = self.tree.lock();
        let entry = tree.get(&number)?;
        (!entry.hidden.load(Relaxed)).then(|| entry.clone())
    }

    /// The first object whose number is not less than that.
    fn next(&self, number: u32) -> Option<Arc<Entry<T>>> {
        let tree = self.tree.lock();
        let cursor = tree.cursor_lower_bound(&number)?;
        Some(cursor.current().1.clone())
    }

    /// Calls `f` for each object. The table is not locked meanwhile, so there may be others after
    /// it, and some may be gone.
    pub(crate) fn each(&self, f: impl Fn(&Entry<T>)) {
        let mut next = Some(0);

        while let Some(entry) = next.and_then(|number| self.next(number)) {
            next = entry.number.checked_add(1);
            f(&entry);
        }
    }

    /// Waits until no completion handler runs for an entry for which none is begun any more.
    fn wait_for_handlers(&self, tree: &mut SpinLockIrqGuard<'_, Tree<T>>, entry: &Entry<T>) {
        while entry.running.load(Relaxed) != 0 {
            self.idle.wait(tree);
        }
    }
}

impl Entry<bindings::ib_cq> {
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
