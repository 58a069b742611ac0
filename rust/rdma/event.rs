// SPDX-License-Identifier: GPL-2.0

//! Dispatch of events to the objects that they name.
//!
//! Hardware names objects by numbers, and events race with the objects' end. The dispatcher knows
//! exactly the objects that live:
//!
//! - Completion handlers run in interrupt context, under the lock of the table of their completion
//!   vector. Taking a queue out of the table therefore waits for its handler. Vectors do not share
//!   a lock.
//! - Handlers of asynchronous events may sleep. They run under a mutex of their object; destroying
//!   the object takes it out of the table, then takes the mutex to wait for the handler.

use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        new_spinlock_irq,
        static_lock_class,
        Arc,
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

impl<T> PartialEq for Pointer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

// SAFETY: The core's objects may be used by any thread; the tables see to it that they live.
unsafe impl<T> Send for Pointer<T> {}

// SAFETY: As above.
unsafe impl<T> Sync for Pointer<T> {}

/// An object that handlers of asynchronous events run for.
#[pin_data]
struct Live<T> {
    object: Pointer<T>,
    /// Whether the object still lives. Held while a handler runs.
    #[pin]
    alive: Mutex<bool>,
}

impl<T> Live<T> {
    /// Runs `handler` unless the object is gone.
    fn with(&self, handler: impl FnOnce(NonNull<T>)) -> bool {
        let alive = self.alive.lock();
        if *alive {
            handler(self.object.0);
        }
        *alive
    }
}

type Entry<T> = Arc<Live<T>>;

/// Memory for an object's place in a table, taken before the object is created.
pub(crate) struct Room<T> {
    live: UniqueArc<MaybeUninit<Live<T>>>,
    node: RBTreeNodeReservation<u32, Entry<T>>,
}

impl<T> Room<T> {
    /// Allocates.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            live: UniqueArc::new_uninit(GFP_KERNEL)?,
            node: RBTreeNodeReservation::new(GFP_KERNEL)?,
        })
    }
}

/// Objects by their numbers.
#[pin_data]
struct Table<T> {
    #[pin]
    tree: SpinLockIrq<RBTree<u32, Entry<T>>>,
}

impl<T> Table<T> {
    /// An empty table. Its lock is made by the caller, so that tables of different objects have
    /// locks of different classes: a completion handler polls, which looks for queue pairs.
    fn new(tree: impl PinInit<SpinLockIrq<RBTree<u32, Entry<T>>>>) -> impl PinInit<Self> {
        pin_init!(Self { tree <- tree })
    }

    /// Inserts an object. If the hardware gave its number to an object that is just going away,
    /// the new one takes its place.
    fn insert(&self, number: u32, object: NonNull<T>, room: Room<T>) {
        // One for all types, as is the lock class: lockdep knows names by address.
        static ALIVE: &CStr = c"rdma::event::Live";

        let live = room.live.pin_init_with(pin_init!(Live {
            object: Pointer(object),
            alive <- Mutex::new(true, ALIVE, static_lock_class!()),
        }));
        let live: Result<_, core::convert::Infallible> = live;
        let live = match live {
            Ok(live) => Arc::from(live),
            Err(never) => match never {},
        };
        let node = room.node.into_node(number, live);
        let old = self.tree.lock().insert(node);
        // Freed only here, without the lock.
        drop(old);
    }

    /// Takes an object out and waits for the handlers that run for it.
    fn remove(&self, number: u32, object: NonNull<T>) {
        let mut tree = self.tree.lock();
        let node = match tree.get(&number) {
            Some(live) if live.object.0 == object => tree.remove_node(&number),
            _ => None,
        };
        drop(tree);

        if let Some(node) = node {
            let (_, live) = node.to_key_value();
            *live.alive.lock() = false;
        }
    }

    /// Finds an object that asynchronous handlers shall run for.
    fn find(&self, number: u32) -> Option<Entry<T>> {
        self.tree.lock().get(&number).cloned()
    }

    /// Runs `f` for an object, which stays in the table meanwhile. May be called in any context.
    fn with_locked<R>(&self, number: u32, f: impl FnOnce(NonNull<T>) -> R) -> Option<R> {
        let tree = self.tree.lock();
        tree.get(&number).map(|live| f(live.object.0))
    }

    /// Runs `handler`, which may sleep, for each object that lives.
    fn each(&self, handler: impl Fn(NonNull<T>)) {
        let mut next = Some(0);

        while let Some(number) = next {
            let tree = self.tree.lock();
            let found = tree.cursor_lower_bound(&number).map(|cursor| {
                let (number, live) = cursor.current();
                (number.checked_add(1), live.clone())
            });
            drop(tree);

            next = found.and_then(|(next, live)| {
                live.with(&handler);
                next
            });
        }
    }

    /// Runs `f` for each object, one after the other, as [`with_locked`](Self::with_locked) does.
    fn each_locked(&self, f: impl Fn(NonNull<T>)) {
        let mut next = Some(0);

        while let Some(number) = next {
            // The lock is given back in between, since there may be thousands.
            let tree = self.tree.lock();
            next = tree.cursor_lower_bound(&number).and_then(|cursor| {
                let (number, live) = cursor.current();
                f(live.object.0);
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
    vectors: KVec<Pin<KBox<Table<bindings::ib_cq>>>>,
    #[pin]
    qps: Table<bindings::ib_qp>,
    #[pin]
    srqs: Table<bindings::ib_srq>,
    /// The device while it is registered.
    #[pin]
    device: SpinLockIrq<Option<Pointer<bindings::ib_device>>>,
}

impl Dispatcher {
    /// Creates the dispatcher of a device with `vectors` completion vectors.
    pub fn new(vectors: u32) -> Result<Arc<Self>> {
        let mut tables = KVec::new();
        for _ in 0..vectors {
            let table = Table::new(new_spinlock_irq!(RBTree::new()));
            tables.push(KBox::pin_init(table, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                vectors: tables,
                qps <- Table::new(new_spinlock_irq!(RBTree::new())),
                srqs <- Table::new(new_spinlock_irq!(RBTree::new())),
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

    fn vector(&self, vector: u32) -> Option<&Table<bindings::ib_cq>> {
        // CAST: `usize` has at least 32 bits.
        self.vectors.get(vector as usize).map(|table| &**table)
    }

    pub(crate) fn insert_cq(
        &self,
        vector: u32,
        number: u32,
        cq: NonNull<bindings::ib_cq>,
        room: Room<bindings::ib_cq>,
    ) {
        if let Some(table) = self.vector(vector) {
            table.insert(number, cq, room);
        }
    }

    pub(crate) fn remove_cq(&self, vector: u32, number: u32, cq: NonNull<bindings::ib_cq>) {
        if let Some(table) = self.vector(vector) {
            table.remove(number, cq);
        }
    }

    pub(crate) fn insert_qp(
        &self,
        number: u32,
        qp: NonNull<bindings::ib_qp>,
        room: Room<bindings::ib_qp>,
    ) {
        self.qps.insert(number, qp, room);
    }

    pub(crate) fn remove_qp(&self, number: u32, qp: NonNull<bindings::ib_qp>) {
        self.qps.remove(number, qp);
    }

    pub(crate) fn insert_srq(
        &self,
        number: u32,
        srq: NonNull<bindings::ib_srq>,
        room: Room<bindings::ib_srq>,
    ) {
        self.srqs.insert(number, srq, room);
    }

    pub(crate) fn remove_srq(&self, number: u32, srq: NonNull<bindings::ib_srq>) {
        self.srqs.remove(number, srq);
    }

    /// Finds the queue pair that a completion names. Its user keeps it as long as he wants
    /// completions of it. May be called in any context.
    pub(crate) fn find_qp(&self, number: u32) -> Option<NonNull<bindings::ib_qp>> {
        self.qps.with_locked(number, |qp| qp)
    }

    /// Lets events of ports and of the device through from now on, or, with `None`, no more.
    pub(crate) fn set_device(&self, device: Option<NonNull<bindings::ib_device>>) {
        *self.device.lock() = device.map(Pointer);
    }

    /// Runs the completion handler of queue `cqn`, whose vector is `vector`. Returns whether there
    /// is such a queue. May be called in any context.
    pub fn complete(&self, vector: u32, cqn: u32) -> bool {
        let Some(table) = self.vector(vector) else {
            return false;
        };
        // SAFETY: The queue is in the table, and that is locked.
        let handle = |cq| unsafe { Self::run_completion_handler(cq) };
        table.with_locked(cqn, handle).is_some()
    }

    /// Runs the completion handlers of all queues. Must not be called by such a handler.
    pub fn complete_all(&self) {
        for table in &self.vectors {
            // SAFETY: The queue is in the table, and that is locked.
            table.each_locked(|cq| unsafe { Self::run_completion_handler(cq) });
        }
    }

    /// # Safety
    ///
    /// `cq` must be in a table, whose lock is held: so it is constructed, and is not destroyed
    /// meanwhile.
    unsafe fn run_completion_handler(cq: NonNull<bindings::ib_cq>) {
        let cq = cq.as_ptr();
        // SAFETY: Guaranteed by the caller. The handler was set before the queue was inserted.
        unsafe {
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }

    /// Runs the event handler of queue `cqn`. Returns whether there is such a queue. May sleep.
    pub fn cq_event(&self, cqn: u32, event: CqEvent) -> bool {
        let Some(live) = self.vectors.iter().find_map(|table| table.find(cqn)) else {
            return false;
        };
        live.with(|cq| {
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
        let Some(live) = self.qps.find(qpn) else {
            return false;
        };
        // SAFETY: The queue pair lives, and is not destroyed before the handler returns.
        live.with(|qp| unsafe { Self::run_qp_handler(qp, event) })
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
        let Some(live) = self.srqs.find(srqn) else {
            return false;
        };
        live.with(|srq| {
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
