// SPDX-License-Identifier: GPL-2.0

//! Dispatch of events to the objects that they name.
//!
//! Hardware names objects by numbers, and events race with the objects' end. The dispatcher knows
//! exactly the objects that live:
//!
//! - Completion handlers run in interrupt context, under the lock of the table of their completion
//!   vector. Taking a queue out of the table therefore waits for its handler. Vectors do not share
//!   a lock. A queue of the kernel is told only what its user asked for (see [`Notice`]).
//! - Handlers of asynchronous events may sleep. They run under a mutex of their object; destroying
//!   the object takes it out of the table, then takes the mutex to wait for the handler.
//!
//! An object owns its [`Place`] in a table, and with it its number. Hardware may give a number away
//! as soon as it has forgotten the object; the next owner waits until the former one is gone, and
//! so cannot be told what was meant for that.

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
        new_spinlock_irq,
        static_lock_class,
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq,
        UniqueArc, //
    },
};

use crate::{
    bindings,
    port::Port, //
};

c_enum! {
    /// An event that names a completion queue.
    pub enum CqEvent: bindings::ib_event_type {
        /// The queue overran or its memory failed.
        Error = bindings::ib_event_type_IB_EVENT_CQ_ERR,
    }
}

c_enum! {
    /// An event that names a queue pair.
    pub enum QpEvent: bindings::ib_event_type {
        /// The queue pair failed.
        Fatal = bindings::ib_event_type_IB_EVENT_QP_FATAL,
        /// The peer sent an invalid request.
        RequestError = bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// The peer violated an access right.
        AccessError = bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// The first message came before the queue pair was ready to send.
        CommunicationEstablished = bindings::ib_event_type_IB_EVENT_COMM_EST,
        /// The send queue drained.
        SendQueueDrained = bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
        /// The last receive of a queue pair in error was taken from the shared queue.
        LastWqeReached = bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}

c_enum! {
    /// An event that names a shared receive queue.
    pub enum SrqEvent: bindings::ib_event_type {
        /// The queue failed.
        Error = bindings::ib_event_type_IB_EVENT_SRQ_ERR,
        /// Fewer receives are left than the limit says.
        LimitReached = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

c_enum! {
    /// An event that names a port.
    pub enum PortEvent: bindings::ib_event_type {
        /// The port became active.
        Active = bindings::ib_event_type_IB_EVENT_PORT_ACTIVE,
        /// The port went down.
        Error = bindings::ib_event_type_IB_EVENT_PORT_ERR,
        /// The P_Key table changed.
        PkeyChange = bindings::ib_event_type_IB_EVENT_PKEY_CHANGE,
        /// The GID table changed.
        GidChange = bindings::ib_event_type_IB_EVENT_GID_CHANGE,
    }
}

/// An object of C in a table.
struct Pointer<T>(NonNull<T>);

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
    type Notice = ();
}

impl Named for bindings::ib_srq {
    type Notice = ();
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
    /// Its memory may be freed: no handler runs for it.
    Gone,
}

/// What a table has of an object.
#[pin_data]
struct Entry<T: Named> {
    number: u32,
    object: Pointer<T>,
    notice: T::Notice,
    /// Held while a handler of asynchronous events runs.
    #[pin]
    phase: Mutex<Phase>,
    /// The phase is [`Phase::Gone`].
    #[pin]
    gone: CondVar,
}

impl<T: Named> Entry<T> {
    /// Runs `handler` unless the object is gone.
    fn with(&self, handler: impl FnOnce(NonNull<T>)) -> bool {
        let phase = self.phase.lock();
        let is_there = *phase != Phase::Gone;
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
                Phase::Ending => self.gone.wait(&mut phase),
                Phase::Gone => return Ok(()),
            }
        }
    }
}

impl Entry<bindings::ib_cq> {
    /// Runs the completion handler if the queue's user is to be told.
    ///
    /// # Safety
    ///
    /// The entry must be in its table, whose lock is held: so the queue is constructed, and is not
    /// destroyed meanwhile.
    unsafe fn complete(&self) {
        if self.notice.take() {
            // SAFETY: Guaranteed by the caller. The handler of a queue of a process was set before
            // the queue was created, and that of one of the kernel before it has queue pairs.
            unsafe {
                let cq = self.object.0.as_ptr();
                if let Some(handler) = (*cq).comp_handler {
                    handler(cq, (*cq).cq_context);
                }
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
    fn new(table: &Arc<Table<T>>) -> Result<Self> {
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
    /// The queue's user asks for an event. To be called before the hardware is asked. May be called
    /// in any context.
    pub(crate) fn arm(&self) {
        self.entry.notice.armed.store(true, Relaxed);
    }

    /// Sends or receives of one more queue pair complete here.
    pub(crate) fn add_queue_pair(&self) {
        let notice = &self.entry.notice;
        let _tree = self.table.tree.lock();
        notice.queue_pairs.fetch_add(1, Relaxed);
        if notice.held_back.xchg(false, Relaxed) {
            // SAFETY: The queue has its place as long as it is used, and the table is locked.
            unsafe { self.entry.complete() };
        }
    }

    /// Those of one queue pair do not any more. On return no handler runs for the last of them.
    pub(crate) fn remove_queue_pair(&self) {
        let _tree = self.table.tree.lock();
        self.entry.notice.queue_pairs.fetch_sub(1, Relaxed);
    }
}

impl<T: Named> Drop for Place<T> {
    fn drop(&mut self) {
        let number = self.entry.number;
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

/// Objects by their numbers.
#[pin_data]
struct Table<T: Named> {
    #[pin]
    tree: SpinLockIrq<RBTree<u32, Arc<Entry<T>>>>,
}

impl<T: Named> Table<T> {
    /// An empty table. Its lock is made by the caller, so that tables of different objects have
    /// locks of different classes: a completion handler polls, which looks for queue pairs.
    fn new(tree: impl PinInit<SpinLockIrq<RBTree<u32, Arc<Entry<T>>>>>) -> Result<Arc<Self>> {
        Arc::pin_init(pin_init!(Self { tree <- tree }), GFP_KERNEL)
    }

    /// Finds an object that asynchronous handlers shall run for.
    fn find(&self, number: u32) -> Option<Arc<Entry<T>>> {
        self.tree.lock().get(&number).cloned()
    }

    /// Runs `f` for an object, which stays in the table meanwhile. May be called in any context.
    fn with_locked<R>(&self, number: u32, f: impl FnOnce(&Entry<T>) -> R) -> Option<R> {
        let tree = self.tree.lock();
        tree.get(&number).map(|entry| f(entry))
    }

    /// Runs `handler`, which may sleep, for each object that lives.
    fn each(&self, handler: impl Fn(NonNull<T>)) {
        let mut next = Some(0);

        while let Some(number) = next {
            let tree = self.tree.lock();
            let found = tree.cursor_lower_bound(&number).map(|cursor| {
                let (number, entry) = cursor.current();
                (number.checked_add(1), entry.clone())
            });
            drop(tree);

            next = found.and_then(|(next, entry)| {
                entry.with(&handler);
                next
            });
        }
    }

    /// Runs `f` for each object, one after the other, as [`with_locked`](Self::with_locked) does.
    fn each_locked(&self, f: impl Fn(&Entry<T>)) {
        let mut next = Some(0);

        while let Some(number) = next {
            // The lock is given back in between, since there may be thousands.
            let tree = self.tree.lock();
            next = tree.cursor_lower_bound(&number).and_then(|cursor| {
                let (number, entry) = cursor.current();
                f(entry);
                number.checked_add(1)
            });
        }
    }
}

/// Hands events to the objects of a device.
///
/// Driver and device share it: it exists before the device is registered, so that interrupt
/// handlers can be given it, and finds nothing once the device is gone.
#[pin_data]
pub struct Dispatcher {
    /// Completion queues, by their vector.
    vectors: KVec<Arc<Table<bindings::ib_cq>>>,
    qps: Arc<Table<bindings::ib_qp>>,
    srqs: Arc<Table<bindings::ib_srq>>,
    /// The device while it is registered.
    #[pin]
    device: SpinLockIrq<Option<Pointer<bindings::ib_device>>>,
}

impl Dispatcher {
    /// Creates the dispatcher of a device with `vectors` completion vectors.
    pub fn new(vectors: u32) -> Result<Arc<Self>> {
        let mut tables = KVec::new();
        for _ in 0..vectors {
            let table = Table::new(new_spinlock_irq!(RBTree::new()))?;
            tables.push(table, GFP_KERNEL)?;
        }
        let qps = Table::new(new_spinlock_irq!(RBTree::new()))?;
        let srqs = Table::new(new_spinlock_irq!(RBTree::new()))?;
        Arc::pin_init(
            pin_init!(Self {
                vectors: tables,
                qps,
                srqs,
                device <- new_spinlock_irq!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Number of completion vectors.
    pub fn vectors(&self) -> u32 {
        // CAST: `new` was given a `u32`.
        self.vectors.len() as u32
    }

    fn vector(&self, vector: u32) -> Option<&Arc<Table<bindings::ib_cq>>> {
        // CAST: `usize` has at least 32 bits.
        self.vectors.get(vector as usize)
    }

    /// Memory for the place of a completion queue. `EINVAL` if there is no such vector.
    pub(crate) fn cq_room(&self, vector: u32) -> Result<Room<bindings::ib_cq>> {
        Room::new(self.vector(vector).ok_or(EINVAL)?)
    }

    /// Memory for the place of a queue pair.
    pub(crate) fn qp_room(&self) -> Result<Room<bindings::ib_qp>> {
        Room::new(&self.qps)
    }

    /// Memory for the place of a shared receive queue.
    pub(crate) fn srq_room(&self) -> Result<Room<bindings::ib_srq>> {
        Room::new(&self.srqs)
    }

    /// Finds the queue pair that a completion names. Its user keeps it as long as he wants
    /// completions of it. May be called in any context.
    pub(crate) fn find_qp(&self, number: u32) -> Option<NonNull<bindings::ib_qp>> {
        self.qps.with_locked(number, |qp| qp.object.0)
    }

    /// Lets events of ports and of the device through from now on, or, with `None`, no more.
    pub(crate) fn set_device(&self, device: Option<NonNull<bindings::ib_device>>) {
        *self.device.lock() = device.map(Pointer);
    }

    /// There was a completion event for queue `cqn`, whose vector is `vector`: has its user told,
    /// if he asked for that. Returns whether there is such a queue. May be called in any context.
    pub fn complete(&self, vector: u32, cqn: u32) -> bool {
        let Some(table) = self.vector(vector) else {
            return false;
        };
        // SAFETY: The queue is in the table, and that is locked.
        let complete = |cq: &Entry<_>| unsafe { cq.complete() };
        table.with_locked(cqn, complete).is_some()
    }

    /// As [`complete`](Self::complete) for each queue. Must not be called by a handler.
    pub fn complete_all(&self) {
        for table in &self.vectors {
            // SAFETY: The queue is in the table, and that is locked.
            table.each_locked(|cq| unsafe { cq.complete() });
        }
    }

    /// Runs the event handler of queue `cqn`. Returns whether there is such a queue. May sleep.
    pub fn cq_event(&self, cqn: u32, event: CqEvent) -> bool {
        let Some(entry) = self.vectors.iter().find_map(|table| table.find(cqn)) else {
            return false;
        };
        entry.with(|cq| {
            // SAFETY: The queue lives, and is not destroyed before the handler returns. Handler and
            // context were set before.
            unsafe {
                let cq = cq.as_ptr();
                let mut raw = bindings::ib_event {
                    device: (*cq).device,
                    event: event.raw(),
                    ..bindings::ib_event::default()
                };
                *raw.element.cq.as_mut() = cq;
                if let Some(handler) = (*cq).event_handler {
                    handler(&mut raw, (*cq).cq_context);
                }
            }
        })
    }

    /// Runs the event handler of queue pair `qpn`. Returns whether there is such a queue pair. May
    /// sleep.
    pub fn qp_event(&self, qpn: u32, event: QpEvent) -> bool {
        let Some(entry) = self.qps.find(qpn) else {
            return false;
        };
        // SAFETY: The queue pair lives, and is not destroyed before the handler returns.
        entry.with(|qp| unsafe { Self::run_qp_handler(qp, event) })
    }

    /// The hardware takes no receives any more: has everybody know whose queue pairs had theirs
    /// from a shared receive queue. May sleep.
    pub fn last_receive_all(&self) {
        // SAFETY: The queue pair lives, and is not destroyed before the handler returns.
        self.qps.each(|qp| unsafe {
            if !(*qp.as_ptr()).srq.is_null() {
                Self::run_qp_handler(qp, QpEvent::LastWqeReached);
            }
        });
    }

    /// # Safety
    ///
    /// `qp` must be constructed, and must not be destroyed meanwhile.
    unsafe fn run_qp_handler(qp: NonNull<bindings::ib_qp>, event: QpEvent) {
        let qp = qp.as_ptr();
        // SAFETY: Guaranteed by the caller. Handler and context were set before the queue pair came
        // into the table.
        unsafe {
            let mut raw = bindings::ib_event {
                device: (*qp).device,
                event: event.raw(),
                ..bindings::ib_event::default()
            };
            *raw.element.qp.as_mut() = qp;
            if let Some(handler) = (*qp).event_handler {
                handler(&mut raw, (*qp).qp_context);
            }
        }
    }

    /// Runs the event handler of shared receive queue `srqn`. Returns whether there is such a
    /// queue. May sleep.
    pub fn srq_event(&self, srqn: u32, event: SrqEvent) -> bool {
        let Some(entry) = self.srqs.find(srqn) else {
            return false;
        };
        entry.with(|srq| {
            // SAFETY: The queue lives, and is not destroyed before the handler returns. Handler and
            // context were set before.
            unsafe {
                let srq = srq.as_ptr();
                let mut raw = bindings::ib_event {
                    device: (*srq).device,
                    event: event.raw(),
                    ..bindings::ib_event::default()
                };
                *raw.element.srq.as_mut() = srq;
                if let Some(handler) = (*srq).event_handler {
                    handler(&mut raw, (*srq).srq_context);
                }
            }
        })
    }

    /// Tells everybody of an event of a port. Returns whether the device is registered. May be
    /// called in any context.
    pub fn port_event(&self, port: Port, event: PortEvent) -> bool {
        self.device_event(event.raw(), port.number())
    }

    /// Tells everybody that the device failed. Returns whether it is registered. May be called in
    /// any context.
    pub fn device_fatal(&self) -> bool {
        self.device_event(
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL,
            Port::FIRST.number(),
        )
    }

    fn device_event(&self, event: bindings::ib_event_type, port: u32) -> bool {
        let device = self.device.lock();
        let Some(Pointer(device)) = *device else {
            return false;
        };
        let mut raw = bindings::ib_event {
            device: device.as_ptr(),
            event,
            ..bindings::ib_event::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { raw.element.port_num.as_mut() } = port;
        // SAFETY: The device is registered, and stays so while the lock is held. The core copies
        // the event, and flushes what it queued when the device is unregistered.
        unsafe { bindings::ib_dispatch_event(&raw) };
        true
    }
}
