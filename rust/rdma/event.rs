// SPDX-License-Identifier: GPL-2.0

//! Events, and their delivery to the objects that they are for.

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::{
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    },
};

use crate::{
    bindings,
    port::Port, //
};

mod completion;
mod poster;
mod table;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub(crate) use completion::Notice;
pub(crate) use poster::{
    Completes,
    InUse,
    Poster,
    WorkQueue, //
};
pub(crate) use table::{
    Entry,
    NewPlace,
    Place, //
};
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
pub(crate) use {
    poster::Order,
    table::Numbered, //
};

use table::{
    Pointer,
    Table, //
};

c_enum! {
    /// An event of a completion queue.
    pub enum CqEvent: bindings::ib_event_type {
        /// The queue overran or its memory failed.
        Error = bindings::ib_event_type_IB_EVENT_CQ_ERR,
    }
}

c_enum! {
    /// An event of a queue pair.
    pub enum QpEvent: bindings::ib_event_type {
        /// The queue pair failed.
        Fatal = bindings::ib_event_type_IB_EVENT_QP_FATAL,
        /// The peer sent an invalid request.
        RequestError = bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// The peer violated an access right.
        AccessError = bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// A packet arrived before the queue pair was ready to send.
        CommunicationEstablished = bindings::ib_event_type_IB_EVENT_COMM_EST,
        /// The send queue drained.
        SendQueueDrained = bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
        /// The connection migrated to its alternate path.
        PathMigrated = bindings::ib_event_type_IB_EVENT_PATH_MIG,
        /// The connection failed to migrate to its alternate path.
        PathMigrationError = bindings::ib_event_type_IB_EVENT_PATH_MIG_ERR,
        /// A queue pair in the error state took its last receive from the shared receive queue.
        LastWqeReached = bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}

c_enum! {
    /// An event of a shared receive queue.
    pub enum SrqEvent: bindings::ib_event_type {
        /// The queue failed.
        Error = bindings::ib_event_type_IB_EVENT_SRQ_ERR,
        /// Fewer receives are left than the limit.
        LimitReached = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

c_enum! {
    /// An event of a port.
    pub enum PortEvent: bindings::ib_event_type {
        /// The port became active.
        Active = bindings::ib_event_type_IB_EVENT_PORT_ACTIVE,
        /// The port went down.
        Error = bindings::ib_event_type_IB_EVENT_PORT_ERR,
        /// The LID changed.
        LidChange = bindings::ib_event_type_IB_EVENT_LID_CHANGE,
        /// The P_Key table changed.
        PkeyChange = bindings::ib_event_type_IB_EVENT_PKEY_CHANGE,
        /// The subnet manager changed.
        SmChange = bindings::ib_event_type_IB_EVENT_SM_CHANGE,
        /// The subnet manager lost the registrations of its clients.
        ClientReregister = bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER,
        /// The GID table changed.
        GidChange = bindings::ib_event_type_IB_EVENT_GID_CHANGE,
    }
}

/// The objects of a device for which there are events.
///
/// It is created before the device, so that interrupt handlers can use its
/// [`dispatcher`](Self::dispatcher). It then becomes part of one device
/// ([`UnregisteredDevice`](crate::UnregisteredDevice)), because object numbers are per device.
pub struct Objects(Arc<Dispatcher>);

impl Objects {
    /// Creates an empty collection for a device with `vectors` completion vectors. `EINVAL` if
    /// `vectors` is 0, because the core divides by it.
    pub fn new(vectors: u32) -> Result<Self> {
        if vectors == 0 {
            return Err(EINVAL);
        }
        let mut tables = KVec::new();
        for _ in 0..vectors {
            tables.push(Table::new()?, GFP_KERNEL)?;
        }
        let (qps, srqs, wqs) = (Table::new()?, Table::new()?, Table::new()?);
        let dispatcher = Arc::pin_init(
            pin_init!(Dispatcher {
                vectors: tables,
                qps,
                srqs,
                wqs,
                target <- new_spinlock_irq!(Target {
                    device: None,
                    has_failed: false,
                }),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(dispatcher))
    }

    /// Returns the dispatcher. It finds no objects once the device is gone.
    #[inline]
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.0
    }
}

/// The target of port and device events.
struct Target {
    /// The device, while it is registered.
    device: Option<Pointer<bindings::ib_device>>,
    /// Whether the device has failed.
    has_failed: bool,
}

impl Target {
    /// Notifies all users of the device. Returns whether the device is registered and has such a
    /// port.
    fn dispatch(&self, event: bindings::ib_event_type, port: u32) -> bool {
        let Some(Pointer(device)) = self.device else {
            return false;
        };
        // Users of the core use the port number as an index.
        // SAFETY: The device is valid, and its number of ports does not change.
        if port > unsafe { (*device.as_ptr()).phys_port_cnt } {
            return false;
        }
        let mut raw = bindings::ib_event {
            device: device.as_ptr(),
            event,
            ..bindings::ib_event::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut raw.element.port_num) } = port;
        // SAFETY: The device is registered, and stays so as long as it is in `self`. The core
        // copies the event, and flushes the events that it queued when the device is unregistered.
        unsafe { bindings::ib_dispatch_event(&raw) };
        true
    }

    /// Notifies all users that the device failed. Returns whether the device is registered.
    fn dispatch_fatal(&self) -> bool {
        self.dispatch(
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL,
            Port::FIRST.number(),
        )
    }
}

/// Dispatches events to the [`Objects`] of a device.
#[pin_data]
pub struct Dispatcher {
    /// Completion queues, in one table for each vector.
    vectors: KVec<Arc<Table<bindings::ib_cq>>>,
    qps: Arc<Table<bindings::ib_qp>>,
    srqs: Arc<Table<bindings::ib_srq>>,
    wqs: Arc<Table<bindings::ib_wq>>,
    #[pin]
    target: SpinLockIrq<Target>,
}

impl Dispatcher {
    /// Returns the number of completion vectors.
    #[inline]
    pub fn vectors(&self) -> u32 {
        // CAST: `Objects::new` was given a `u32`.
        self.vectors.len() as u32
    }

    fn vector(&self, vector: u32) -> Option<&Arc<Table<bindings::ib_cq>>> {
        // CAST: `usize` has at least 32 bits.
        self.vectors.get(vector as usize)
    }

    /// Allocates memory for the place of a completion queue. `EINVAL` if there is no such vector.
    pub(crate) fn new_cq_place(&self, vector: u32) -> Result<NewPlace<bindings::ib_cq>> {
        NewPlace::new(self.vector(vector).ok_or(EINVAL)?)
    }

    /// Allocates memory for the place of a queue pair.
    pub(crate) fn new_qp_place(&self) -> Result<NewPlace<bindings::ib_qp>> {
        NewPlace::new(&self.qps)
    }

    /// Allocates memory for the place of a shared receive queue.
    pub(crate) fn new_srq_place(&self) -> Result<NewPlace<bindings::ib_srq>> {
        NewPlace::new(&self.srqs)
    }

    /// Allocates memory for the place of a receive work queue.
    pub(crate) fn new_wq_place(&self) -> Result<NewPlace<bindings::ib_wq>> {
        NewPlace::new(&self.wqs)
    }

    /// Finds the queue pair of a completion. The owner of a queue pair keeps it for as long as it
    /// wants completions from it. May be called in any context.
    pub(crate) fn find_qp(&self, number: u32) -> Option<Arc<Entry<bindings::ib_qp>>> {
        self.qps.find(number)
    }

    /// Starts the dispatch of port and device events, or stops it with `None`. If the device has
    /// already failed, users that had it before this are notified now.
    ///
    /// The device must be registered as long as it is set.
    pub(crate) fn set_device(&self, device: Option<NonNull<bindings::ib_device>>) {
        let mut target = self.target.lock();
        target.device = device.map(Pointer);
        if target.has_failed {
            target.dispatch_fatal();
        }
    }

    /// Dispatches a completion event to queue `cqn` of vector `vector`: notifies the queue's user
    /// if it asked for that. Returns whether there is such a queue. May be called in any context.
    pub fn complete(&self, vector: u32, cqn: u32) -> bool {
        self.vector(vector).is_some_and(|table| table.complete(cqn))
    }

    /// Like [`complete`](Self::complete), for each queue.
    pub fn complete_all(&self) {
        for table in &self.vectors {
            table.complete_all();
        }
    }

    /// Like [`complete_all`](Self::complete_all), for the queues of the kernel. An event of a
    /// process's queue takes memory until the process gets it, so nothing that happens again and
    /// again may raise one that the process did not ask for.
    pub fn complete_kernel(&self) {
        for table in &self.vectors {
            table.complete_kernel();
        }
    }

    /// Runs the event handler of completion queue `cqn`. Returns whether there is such a queue and
    /// it is in use. May sleep.
    pub fn cq_event(&self, cqn: u32, event: CqEvent) -> bool {
        let Some(entry) = self.vectors.iter().find_map(|table| table.find(cqn)) else {
            return false;
        };
        if !entry.is_in_use() {
            return false;
        }
        entry.with(|cq| {
            // SAFETY: The queue is alive, and is not destroyed before the handler returns. Handler
            // and context were set before.
            unsafe {
                let cq = cq.as_ptr();
                let mut raw = bindings::ib_event {
                    device: (*cq).device,
                    event: event.raw(),
                    ..bindings::ib_event::default()
                };
                let element = crate::compat::member_mut(&mut raw.element.cq);
                *element = cq;
                if let Some(handler) = (*cq).event_handler {
                    handler(&mut raw, (*cq).cq_context);
                }
            }
        })
    }

    /// Runs the event handler of queue pair `qpn`. Returns whether there is such a queue pair and
    /// it is in use. May sleep.
    pub fn qp_event(&self, qpn: u32, event: QpEvent) -> bool {
        let Some(entry) = self.qps.find(qpn) else {
            return false;
        };
        if !entry.is_in_use() {
            return false;
        }
        // SAFETY: The queue pair is alive, and is not destroyed before the handler returns.
        entry.with(|qp| unsafe { Self::run_qp_handler(qp, event) })
    }

    /// Raises the event for the last receive at all queue pairs with a shared receive queue,
    /// because the hardware takes no receives any more. May sleep.
    pub fn last_receive_all(&self) {
        self.qps.each(|entry| {
            if !entry.is_in_use() {
                return;
            }
            // SAFETY: The queue pair is alive, and is not destroyed before the handler returns.
            entry.with(|qp| unsafe {
                if !(*qp.as_ptr()).srq.is_null() {
                    Self::run_qp_handler(qp, QpEvent::LastWqeReached);
                }
            });
        });
    }

    /// # Safety
    ///
    /// `qp` must be constructed, and must not be destroyed before this returns.
    unsafe fn run_qp_handler(qp: NonNull<bindings::ib_qp>, event: QpEvent) {
        let qp = qp.as_ptr();
        // SAFETY: Guaranteed by the caller. Handler and context were set before the queue pair was
        // added to the table.
        unsafe {
            let mut raw = bindings::ib_event {
                device: (*qp).device,
                event: event.raw(),
                ..bindings::ib_event::default()
            };
            let element = crate::compat::member_mut(&mut raw.element.qp);
            *element = qp;
            if let Some(handler) = (*qp).event_handler {
                handler(&mut raw, (*qp).qp_context);
            }
        }
    }

    /// Runs the event handler of shared receive queue `srqn`. Returns whether there is such a queue
    /// and it is in use. May sleep.
    pub fn srq_event(&self, srqn: u32, event: SrqEvent) -> bool {
        let Some(entry) = self.srqs.find(srqn) else {
            return false;
        };
        if !entry.is_in_use() {
            return false;
        }
        entry.with(|srq| {
            // SAFETY: The queue is alive, and is not destroyed before the handler returns. Handler
            // and context were set before.
            unsafe {
                let srq = srq.as_ptr();
                let mut raw = bindings::ib_event {
                    device: (*srq).device,
                    event: event.raw(),
                    ..bindings::ib_event::default()
                };
                let element = crate::compat::member_mut(&mut raw.element.srq);
                *element = srq;
                if let Some(handler) = (*srq).event_handler {
                    handler(&mut raw, (*srq).srq_context);
                }
            }
        })
    }

    /// Runs the event handler of receive work queue `wqn`, because the queue failed. Returns
    /// whether there is such a queue and it is in use. May sleep.
    pub fn wq_fatal(&self, wqn: u32) -> bool {
        let Some(entry) = self.wqs.find(wqn) else {
            return false;
        };
        if !entry.is_in_use() {
            return false;
        }
        entry.with(|wq| {
            // SAFETY: The queue is alive, and is not destroyed before the handler returns. Handler
            // and context were set before, and what the handler needs before the queue was used.
            unsafe {
                let wq = wq.as_ptr();
                let mut raw = bindings::ib_event {
                    device: (*wq).device,
                    event: bindings::ib_event_type_IB_EVENT_WQ_FATAL,
                    ..bindings::ib_event::default()
                };
                let element = crate::compat::member_mut(&mut raw.element.wq);
                *element = wq;
                if let Some(handler) = (*wq).event_handler {
                    handler(&mut raw, (*wq).wq_context);
                }
            }
        })
    }

    /// Notifies all users of a port event. Returns whether the device is registered and has such a
    /// port. May be called in any context.
    ///
    /// The core reads the state of the ports while the device is being registered. If it can change
    /// at that time, the driver must raise the event again afterwards.
    pub fn port_event(&self, port: Port, event: PortEvent) -> bool {
        self.target.lock().dispatch(event.raw(), port.number())
    }

    /// Notifies all users that the device failed: now if the device is registered, and otherwise
    /// when it has been registered. Returns whether the device is registered. May be called in any
    /// context.
    pub fn device_fatal(&self) -> bool {
        let mut target = self.target.lock();
        target.has_failed = true;
        target.dispatch_fatal()
    }
}
