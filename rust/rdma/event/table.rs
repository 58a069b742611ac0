// SPDX-License-Identifier: GPL-2.0

//! Places of objects in the tables by which events find them.
//!
//! Hardware names objects by numbers, and events race with the objects' end. An object owns its
//! [`Place`] in a table, and with it its number. Whoever gives up a place waits for the handlers
//! that run for the object, and none is begun later. Hardware may give a number away as soon as it
//! has forgotten the object; the next owner waits until the former one is gone, and so cannot be
//! told what was meant for that.
//!
//! - Completion handlers run in interrupt context, without a lock: what runs is counted.
//! - Handlers of asynchronous events may sleep. They run under a mutex of their object.

use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        static_lock_class,
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq,
        SpinLockIrqGuard,
        UniqueArc, //
    }, //
};

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
    pub(super) number: u32,
    pub(super) object: Pointer<T>,
    pub(super) notice: T::Notice,
    /// Whether events find it no more, though it has its number. Changed under the lock of the
    /// table.
    pub(super) hidden: Atomic<bool>,
    /// Completion handlers that run for it. Changed under the lock of the table.
    pub(super) running: Atomic<u32>,
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
        static PHASE: &CStr = c"rdma::event::Entry::phase";
        static GONE: &CStr = c"rdma::event::Entry::gone";

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
    pub(super) table: Arc<Table<T>>,
    pub(super) entry: Arc<Entry<T>>,
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
pub(super) type Tree<T> = RBTree<u32, Arc<Entry<T>>>;

/// Objects by their numbers.
#[pin_data]
pub(crate) struct Table<T: Named> {
    #[pin]
    pub(super) tree: SpinLockIrq<Tree<T>>,
    /// The last handler of an entry has returned.
    #[pin]
    pub(super) idle: CondVar,
}

impl<T: Named> Table<T> {
    /// An empty table.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // One for all types, as is the lock class: lockdep knows names by address.
        static TREE: &CStr = c"rdma::event::Table::tree";
        static IDLE: &CStr = c"rdma::event::Table::idle";

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
    pub(super) fn wait_for_handlers(
        &self,
        tree: &mut SpinLockIrqGuard<'_, Tree<T>>,
        entry: &Entry<T>,
    ) {
        while entry.running.load(Relaxed) != 0 {
            self.idle.wait(tree);
        }
    }
}
