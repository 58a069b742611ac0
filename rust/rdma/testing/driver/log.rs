// SPDX-License-Identifier: GPL-2.0

//! The driver's record of what it was asked for.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    Ordering::SeqCst, //
};

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use super::Object;
use crate::{
    access::AccessFlags,
    ah,
    comp_cntr,
    cq::{
        Cq,
        CqInitAttr, //
    },
    dm::DmRange,
    dmah::Hints,
    event::Dispatcher,
    flow,
    mmap::UserPages,
    mr,
    mw,
    port::{
        Port,
        PortChange, //
    },
    qp::{
        self,
        CreationFlags,
        QpAttr,
        QpCap, //
    },
    srq::{
        SrqAttr, //
    },
    wc,
    wq,
    wr::Continuation, //
};

/// A request to the driver, in the driver's terms.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Context(u64),
    Domain(Option<u64>),
    Handle(ah::Roce, ah::Context, Option<u64>),
    HandleEnd(ah::Context),
    Queue(CqInitAttr, Option<u64>),
    Resize(u32, u64),
    Moderate(u16, u16),
    Notify {
        solicited_only: bool,
    },
    QueuePair {
        ty: qp::Type,
        capabilities: QpCap,
        signal_all: bool,
        send_cq: u32,
        recv_cq: u32,
        srq: Option<u32>,
        flags: CreationFlags,
        request: Option<u64>,
    },
    Modify(qp::AttributeMask, QpAttr<ah::Roce>),
    Attach(qp::MulticastGroup),
    Detach(qp::MulticastGroup),
    ModifyPort(Port, PortChange),
    Mad(Port, Option<wc::Source>, bool),
    /// Number of requests taken, and the ID of the last one.
    Send(u32, u64),
    /// As for sends.
    Receive(u32, u64),
    SharedQueue(SrqAttr, Option<u64>),
    SharedResize(u32, Option<u64>),
    Limit(u32),
    /// With the number of the DMA handle.
    Region(mr::Range, AccessFlags, Option<u32>, u64),
    /// As above.
    DmaBuf(mr::DmaBufRange, AccessFlags, Option<u32>),
    DmaHandle(Hints),
    AllMemory(AccessFlags),
    Fast(u32),
    /// Numbers of pieces of data and metadata.
    Integrity(u32, u32),
    Change {
        range: Option<mr::Range>,
        access: Option<AccessFlags>,
        pd: Option<u32>,
    },
    /// The advice, the `wait` flag, and the number of pieces and the last of them.
    Advice(mr::Advice, bool, usize, (u64, u32, u32)),
    Window(mw::Type, u64),
    /// Length, and binary logarithm of the alignment.
    Dm(u64, u32),
    /// Number of the queue pair, priority, whether it continues, and the specifications.
    Flow(
        u32,
        flow::Type,
        u16,
        bool,
        [Option<(flow::Layer, flow::Spec)>; 3],
    ),
    /// A flow with a tag, or one that drops frames.
    FlowWithActions(u32, bool),
    /// Number of the counters of the last flow.
    FlowWithCounters(u32),
    CompletionCounter,
    /// Identified by the number of the completion counter.
    Count(u32, comp_cntr::Entry, comp_cntr::Change),
    /// Numbers of the queue pair and of the completion counter.
    AttachCounter(u32, u32, comp_cntr::CountedOperations),
    /// Identified by the number of the buffer.
    DmRegion(u32, DmRange, AccessFlags),
    XrcDomain,
    /// Identified by the number of the domain.
    XrcTarget(u32),
    /// Receives, elements, number of the completion queue, and the request.
    WorkQueue(u32, u32, u32, wq::CreationFlags, Option<u64>),
    ModifyQueue(u32, wq::State, wq::State),
    /// Number of queues, and the numbers of the first ones.
    Table(usize, [u32; 4]),
    /// Identified by the number of the table; with the request.
    Scaling(u32, u64),
    PortCounters(Port),
    CreateCounter(Port),
    BindCounter(u32, u32),
    UnbindCounter(u32),
    ReadCounter(u32),
    DestroyCounter(u32),
    /// Identified by the number of the object.
    Destroy(u32),
}

/// A port that followed its network device: whether that was active, and its MTU, if there was one.
pub(crate) type Followed = (Port, Option<(bool, u32)>);

/// State of the driver for its device.
#[pin_data]
pub(crate) struct Log {
    /// The last request to the driver.
    #[pin]
    pub(super) asked: SpinLock<Option<Asked>>,
    /// Number of constructed objects.
    pub(super) objects: AtomicU32,
    /// Number of the next object.
    pub(crate) next: AtomicU32,
    /// Whether to refuse requests, as if memory regions, queue pairs and counters were
    /// in use.
    pub(crate) keeps: AtomicBool,
    /// Whether the device fails as soon as the state of a port is queried.
    pub(crate) fails: AtomicBool,
    /// Whether to raise events of a completion queue at the worst times.
    pub(crate) raises: AtomicBool,
    /// The last state of a port that followed its network device.
    #[pin]
    pub(crate) followed: SpinLock<Option<Followed>>,
    /// The last state of the second port's network device.
    #[pin]
    pub(crate) second_followed: SpinLock<Option<(bool, u32)>>,
    /// Address and length of the buffer of the last process that created a queue.
    #[pin]
    pub(crate) buffer: SpinLock<Option<(u64, usize)>>,
    /// Whether the port is down because its network device is missing.
    pub(crate) is_down: AtomicBool,
    /// Dispatcher of events.
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Number of the queue pair for which to report completions.
    pub(crate) completing: AtomicU32,
    /// Whether to complete sends in reverse order.
    pub(crate) backwards: AtomicBool,
    /// Posted sends that have not completed.
    #[pin]
    pub(crate) posted: SpinLock<KVec<Continuation>>,
    /// Pages that the last process that may map memory shares with the device.
    #[pin]
    pub(super) shared: SpinLock<Option<Arc<UserPages>>>,
}

impl Log {
    /// Creates the state of a driver for a new device.
    pub(crate) fn new(dispatcher: Arc<Dispatcher>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                asked <- new_spinlock!(None),
                objects: AtomicU32::new(0),
                next: AtomicU32::new(300),
                keeps: AtomicBool::new(false),
                fails: AtomicBool::new(false),
                raises: AtomicBool::new(false),
                followed <- new_spinlock!(None),
                second_followed <- new_spinlock!(None),
                is_down: AtomicBool::new(false),
                buffer <- new_spinlock!(None),
                dispatcher,
                completing: AtomicU32::new(0),
                backwards: AtomicBool::new(false),
                posted <- new_spinlock!(KVec::with_capacity(8, GFP_KERNEL)?),
                shared <- new_spinlock!(None),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(super) fn note(&self, asked: Asked) {
        *self.asked.lock() = Some(asked);
    }

    /// Raises a completion event that was not requested.
    pub(super) fn raise(&self, cq: &Cq<Object>) {
        if self.raises.load(SeqCst) {
            self.dispatcher.complete(cq.vector(), cq.number());
        }
    }

    /// Returns the last request to the driver, if there was one since the last call.
    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked.lock().take()
    }

    /// Returns the pages that a process shares with the device, and gives them up.
    pub(crate) fn take_shared(&self) -> Result<Arc<UserPages>> {
        self.shared.lock().take().ok_or(ENOENT)
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> u32 {
        self.objects.load(SeqCst)
    }
}
