// SPDX-License-Identifier: GPL-2.0

//! What the driver notes.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    Ordering::SeqCst, //
};

use kernel::{
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
    cq::{
        Cq,
        CqInitAttr, //
    },
    dm::DmRange,
    event::Dispatcher,
    mmap::UserPages,
    mr,
    mw,
    port::{
        self,
        Port, //
    },
    qp::{
        self,
        QpAttr,
        QpCap, //
    },
    srq::{
        SrqAttr, //
    },
    wc,
    wr::Continuation, //
};

/// What the driver was asked for, in its own words.
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
        request: Option<u64>,
    },
    Modify(qp::AttributeMask, QpAttr<ah::Roce>),
    Attach(qp::MulticastGroup),
    Detach(qp::MulticastGroup),
    ModifyPort(Port, port::Change),
    Mad(Port, Option<wc::Source>, bool),
    /// How many requests were taken, and the last of them.
    Send(u32, u64),
    /// As for sends.
    Receive(u32, u64),
    SharedQueue(SrqAttr, Option<u64>),
    SharedResize(u32, Option<u64>),
    Limit(u32),
    Region(mr::Range, AccessFlags, u64),
    DmaBuf(mr::DmaBufRange, AccessFlags),
    AllMemory(AccessFlags),
    Fast(u32),
    Change {
        range: Option<mr::Range>,
        access: Option<AccessFlags>,
        pd: Option<u32>,
    },
    /// The advice, and the last of the pieces.
    Advice(mr::Advice, bool, usize, (u64, u32, u32)),
    Window(mw::Type, u64),
    /// The length, and the binary logarithm of the alignment.
    Dm(u64, u32),
    /// By the number of the buffer.
    DmRegion(u32, DmRange, AccessFlags),
    XrcDomain,
    /// By the number of the domain.
    XrcTarget(u32),
    PortCounters(Port),
    CreateCounter(Port),
    BindCounter(u32, u32),
    UnbindCounter(u32),
    ReadCounter(u32),
    DestroyCounter(u32),
    /// By the number of the object.
    Destroy(u32),
}

/// A port that followed its network device, if it had one: whether that was active, and its MTU.
pub(crate) type Followed = (Port, Option<(bool, u32)>);

/// What the driver knows of its device.
#[pin_data]
pub(crate) struct Log {
    /// The last thing that it was asked for.
    #[pin]
    pub(super) asked: SpinLock<Option<Asked>>,
    /// Objects that are constructed.
    pub(super) objects: AtomicU32,
    /// Number of the next object.
    pub(crate) next: AtomicU32,
    /// Whether it refuses what it is asked, as memory regions, queue pairs and counters are in use.
    pub(crate) keeps: AtomicBool,
    /// Whether there is an event of a completion queue at the worst times.
    pub(crate) raises: AtomicBool,
    /// The port that followed its network device last.
    #[pin]
    pub(crate) followed: SpinLock<Option<Followed>>,
    /// The network device of the second port when that followed last.
    #[pin]
    pub(crate) second_followed: SpinLock<Option<(bool, u32)>>,
    /// The buffer of the last process that made a queue: its address and its bytes.
    #[pin]
    pub(crate) buffer: SpinLock<Option<(u64, usize)>>,
    /// Whether the port is down for want of its network device.
    pub(crate) is_down: AtomicBool,
    /// Who hands events out.
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Queue pair that it says its completions are of.
    pub(crate) completing: AtomicU32,
    /// Whether the last send that was posted completes first.
    pub(crate) backwards: AtomicBool,
    /// Sends that were posted and have not completed.
    #[pin]
    pub(crate) posted: SpinLock<KVec<Continuation>>,
    /// Pages that the last process that may map memory shares with the device.
    #[pin]
    pub(super) shared: SpinLock<Option<Arc<UserPages>>>,
}

impl Log {
    pub(super) fn note(&self, asked: Asked) {
        *self.asked.lock() = Some(asked);
    }

    /// There is a completion event, which nobody asked for.
    pub(super) fn raise(&self, cq: &Cq<Object>) {
        if self.raises.load(SeqCst) {
            self.dispatcher.complete(cq.vector(), cq.number());
        }
    }

    /// What the driver was asked for last, if it was since this was called.
    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked.lock().take()
    }

    /// Gives up the pages that a process shares with the device.
    pub(crate) fn take_shared(&self) -> Result<Arc<UserPages>> {
        self.shared.lock().take().ok_or(ENOENT)
    }

    /// How many objects there are.
    pub(crate) fn objects(&self) -> u32 {
        self.objects.load(SeqCst)
    }
}
