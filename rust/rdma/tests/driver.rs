// SPDX-License-Identifier: GPL-2.0

//! A driver without hardware, for tests: it says things that can be told apart, and notes what it
//! is asked for.

use core::{
    fmt,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU64,
        Ordering::SeqCst, //
    }, //
};

use kernel::{
    dma::DmaAddress,
    io::PhysAddr,
    new_spinlock,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::{
    access::AccessFlags,
    ah::{
        self,
        AddressHandle,
        Ah, //
    },
    bindings,
    cq::{
        self,
        CompletionQueue,
        Cq, //
    },
    device::{
        Atomicity,
        Attributes,
        Call,
        Capability,
        Device,
        NodeType,
        OnDemandOperation,
        OnDemandPaging,
        Operations,
        Properties,
        Registration,
        UnregisteredDevice, //
    },
    event::{
        Dispatcher,
        Objects, //
    },
    gid::{
        self,
        Gid, //
    },
    mr::{
        self,
        MemoryRegion,
        Mr, //
    },
    mw::{
        self,
        MemoryWindow,
        Mw, //
    },
    netdev::Netdev,
    pages::UserPages,
    pd::{
        Pd,
        ProtectionDomain, //
    },
    port::{
        self,
        LinkLayer,
        Mtu,
        Port, //
    },
    qp::{
        self,
        Qp,
        QueuePair, //
    },
    restrack::Details,
    srq::{
        self,
        SharedReceiveQueue,
        Srq, //
    },
    stats::Counter,
    tests::environment::DmaDevice,
    uapi::{
        self,
        Attribute, //
    },
    ucontext::{
        DeviceMemory,
        Mappings,
        Ucontext,
        UserContext, //
    },
    udata::{
        Caller,
        ProcessesAndKernel,
        Request,
        Response,
        User, //
    },
    umem::Buffer,
    wc,
    wr::{
        Continuation,
        ReceiveRequests,
        SendRequests,
        Sge, //
    },
};

/// Requests and responses are a number; a process is answered by its complement.
impl Request for u64 {}
impl Response for u64 {}

/// The driver.
pub(crate) struct TestDriver;

/// What the driver was asked for, in its own words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Context(u64),
    Domain(Option<u64>),
    Handle(ah::Roce, Option<u64>),
    Queue(cq::Attributes, Option<u64>),
    Resize(u32, u64),
    Moderate(u16, u16),
    Notify {
        solicited_only: bool,
    },
    QueuePair {
        ty: qp::Type,
        capabilities: qp::Capabilities,
        signal_all: bool,
        send_cq: u32,
        recv_cq: u32,
        srq: Option<u32>,
        request: Option<u64>,
    },
    Modify(qp::AttributeMask, qp::Attributes<ah::Roce>),
    Attach(Gid),
    Detach(Gid),
    /// How many requests were taken, and the last of them.
    Send(u32, u64),
    /// As for sends.
    Receive(u32, u64),
    SharedQueue(srq::Attributes, Option<u64>),
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
    asked: SpinLock<Option<Asked>>,
    /// Objects that are constructed.
    objects: AtomicU32,
    /// Number of the next object.
    pub(crate) next: AtomicU32,
    /// Whether memory regions and queue pairs are in use, so that it must refuse what it is asked.
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
    /// Sends that were posted and have not completed.
    #[pin]
    pub(crate) posted: SpinLock<KVec<Continuation>>,
    /// Pages that the last process that may map memory shares with the device.
    #[pin]
    shared: SpinLock<Option<Arc<UserPages>>>,
}

impl Log {
    fn note(&self, asked: Asked) {
        *self.asked.lock() = Some(asked);
    }

    /// There is a completion event, which nobody asked for.
    fn raise(&self, cq: &Cq<Object>) {
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

/// An object of any kind.
pub(crate) struct Object {
    log: Arc<Log>,
    /// No other object of the device has it.
    pub(crate) number: u32,
    /// Whether each send of a queue pair raises a completion.
    signal_all: AtomicBool,
    /// Pages for the next fast registration.
    pub(crate) pages: [AtomicU64; Self::PAGES],
}

impl Object {
    /// Pages of a fast registration.
    pub(crate) const PAGES: usize = 4;

    fn new(call: &Call<'_, TestDriver>) -> Self {
        call.data().objects.fetch_add(1, SeqCst);
        Self {
            log: call.data().clone(),
            number: call.data().next.fetch_add(1, SeqCst),
            signal_all: AtomicBool::new(false),
            pages: [const { AtomicU64::new(0) }; Self::PAGES],
        }
    }

    fn destroy(&self) {
        self.log.note(Asked::Destroy(self.number));
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        details.number(c"number", self.number)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.log.objects.fetch_sub(1, SeqCst);
    }
}

/// Pins the buffer of a process, 100 bytes if the call's attributes say nothing else, and notes
/// where it was. Its address is the request.
fn note_buffer(
    call: &Call<'_, TestDriver>,
    user: &User<'_, TestDriver, u64, Buffer<'_>>,
) -> Result {
    let memory = user.buffer.pin(user.request, 100, AccessFlags::default())?;
    *call.data().buffer.lock() = Some((memory.address(), memory.len()));
    Ok(())
}

/// The request of a process, and what it is answered.
fn dialogue<B>(user: Option<User<'_, TestDriver, u64, B>>) -> (Option<u64>, u64) {
    let request = user.map(|user| user.request);
    (request, !request.unwrap_or_default())
}

/// The keys of a region with that number.
pub(crate) const fn keys(number: u32) -> (u32, u32) {
    (number << 8 | 1, number << 8 | 2)
}

fn new_region<R>(call: &Call<'_, TestDriver>, response: R) -> mr::New<Object, R> {
    let object = Object::new(call);
    let (lkey, rkey) = keys(object.number);
    mr::New {
        init: object,
        response,
        lkey,
        rkey,
    }
}

/// The request of a process that may map memory. The response is [`Offsets`].
pub(crate) const MAPPABLE: u64 = 31;
/// The request of a process that is refused, when the memory that it might map is there.
pub(crate) const MAPPABLE_BUT_REFUSED: u64 = 32;

/// Memory of the device that a process may map: nobody reads or writes it. There is no RAM.
pub(crate) const DEVICE_MEMORY: PhysAddr = 1 << 38;
/// How much of it.
pub(crate) const DEVICE_PAGES: usize = 2;
/// Pages of the kernel that a process may map.
pub(crate) const SHARED_PAGES: usize = 3;

/// Where in its file a process may map the device's memory and the kernel's: whole pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) device: u64,
    pub(crate) shared: u64,
}

impl Offsets {
    fn to_response(&self) -> u64 {
        let page = PAGE_SIZE as u64;
        ((self.device / page) << 32) | (self.shared / page)
    }

    pub(crate) fn from_response(response: u64) -> Self {
        let page = PAGE_SIZE as u64;
        Self {
            device: (response >> 32) * page,
            shared: (response & u64::from(u32::MAX)) * page,
        }
    }
}

/// What a process that imports a context is told.
pub(crate) const ANSWER: Attribute = Attribute::output::<u64>(0);

/// A method of completion queues that nobody calls.
struct Nothing;

impl uapi::Method for Nothing {
    type Driver = TestDriver;

    const OBJECT: uapi::Kind = uapi::Kind::CompletionQueue;
    const NUMBER: u16 = 2;
    const ATTRIBUTES: &'static [&'static Attribute] = &[&Attribute::object::<Cq<Object>>(0)];

    fn call(
        _call: &Call<'_, TestDriver>,
        _attributes: &uapi::Attributes<'_, TestDriver>,
    ) -> Result {
        Ok(())
    }
}

#[vtable]
impl UserContext for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    const QUERY_ATTRIBUTES: &'static [&'static Attribute] = &[&ANSWER];

    fn alloc(
        call: &Call<'_, TestDriver>,
        mappings: &mut Mappings<'_>,
        request: u64,
    ) -> Result<(impl PinInit<Self>, u64)> {
        call.data().note(Asked::Context(request));
        if request != MAPPABLE && request != MAPPABLE_BUT_REFUSED {
            return Ok((Object::new(call), !request));
        }
        let pages = UserPages::new(call, SHARED_PAGES * PAGE_SIZE)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        *call.data().shared.lock() = Some(pages.clone());
        let length = DEVICE_PAGES * PAGE_SIZE;
        let mut bar = bindings::resource {
            start: DEVICE_MEMORY,
            end: DEVICE_MEMORY + length as PhysAddr - 1,
            flags: bindings::IORESOURCE_MEM as c_ulong,
            ..Default::default()
        };
        // SAFETY: It is valid.
        let bar = unsafe { crate::compat::resource_from_raw(&mut bar) };
        let device = DeviceMemory::new(bar, 0, length)?;
        let offsets = Offsets {
            device: mappings.insert(call, device)?,
            shared: mappings.insert_pages(&pages)?,
        };
        if request == MAPPABLE_BUT_REFUSED {
            return Err(EBUSY);
        }
        Ok((Object::new(call), offsets.to_response()))
    }

    fn query(
        context: &Ucontext<Self>,
        _call: &Call<'_, TestDriver>,
        attributes: &uapi::Attributes<'_, TestDriver>,
    ) -> Result {
        attributes.put(&ANSWER, &u64::from(context.number))
    }

    fn dealloc(context: &Ucontext<Self>, _call: &Call<'_, TestDriver>) {
        context.destroy();
    }
}

impl ProtectionDomain for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn alloc(
        call: &Call<'_, TestDriver>,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result<(impl PinInit<Self>, u64)> {
        let (request, response) = dialogue(user);
        call.data().note(Asked::Domain(request));
        Ok((Object::new(call), response))
    }

    fn dealloc(pd: &Pd<Self>, _call: &Call<'_, TestDriver>) {
        pd.destroy();
    }
}

#[vtable]
impl AddressHandle for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn create(
        call: &Call<'_, TestDriver>,
        path: &ah::Roce,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result<(impl PinInit<Self>, u64)> {
        let (request, response) = dialogue(user);
        call.data().note(Asked::Handle(*path, request));
        Ok((Object::new(call), response))
    }

    fn query(ah: &Ah<Self>) -> ah::Roce {
        ah::Roce {
            route: ah::GlobalRoute {
                flow_label: ah.number,
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

#[vtable]
impl CompletionQueue for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type ResizeRequest = u64;

    fn create_user(
        call: &Call<'_, TestDriver>,
        attributes: &cq::Attributes,
        user: User<'_, TestDriver, u64, Buffer<'_>>,
    ) -> Result<cq::New<impl PinInit<Self>, u64>> {
        note_buffer(call, &user)?;
        call.data()
            .note(Asked::Queue(*attributes, Some(user.request)));
        let object = Object::new(call);
        Ok(cq::New {
            number: object.number,
            init: object,
            response: !user.request,
            entries: attributes.entries + 1,
        })
    }

    fn create(
        call: &Call<'_, TestDriver>,
        attributes: &cq::Attributes,
    ) -> Result<cq::New<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Queue(*attributes, None));
        let object = Object::new(call);
        Ok(cq::New {
            number: object.number,
            init: object,
            response: (),
            entries: attributes.entries + 1,
        })
    }

    fn destroy(cq: &Cq<Self>, call: &Call<'_, TestDriver>) {
        call.data().raise(cq);
        Object::destroy(cq);
    }

    fn resize(
        cq: &Cq<Self>,
        call: &Call<'_, TestDriver>,
        entries: u32,
        user: User<'_, TestDriver, u64>,
    ) -> Result {
        call.data().note(Asked::Resize(entries, user.request));
        cq.set_entries(entries + 2);
        Ok(())
    }

    fn moderate(_cq: &Cq<Self>, call: &Call<'_, TestDriver>, count: u16, period: u16) -> Result {
        call.data().note(Asked::Moderate(count, period));
        Ok(())
    }

    fn poll(_cq: &Cq<Self>, call: &Call<'_, TestDriver>, out: &mut wc::Completions<'_>) -> Result {
        let completion = wc::Completion {
            qpn: call.data().completing.load(SeqCst),
            status: wc::Status::Success,
            opcode: wc::Opcode::Send,
            vendor_error: 0,
            byte_length: 0,
            extra: None,
            source: None,
        };
        let mut posted = call.data().posted.lock();
        while !posted.is_empty() && !out.is_full() {
            let request = posted.remove(0).map_err(|_| EINVAL)?;
            // What is not wanted is dropped.
            let _ = out.push(request, &completion);
        }
        Ok(())
    }

    fn request_notify(
        cq: &Cq<Self>,
        call: &Call<'_, TestDriver>,
        solicited_only: bool,
    ) -> Result<bool> {
        call.data().note(Asked::Notify { solicited_only });
        call.data().raise(cq);
        Ok(true)
    }

    fn fill_details(cq: &Cq<Self>, details: &mut Details<'_>) -> Result {
        cq.describe(details)
    }
}

/// What every queue pair says of itself.
pub(crate) const CAPABILITIES: qp::Capabilities = qp::Capabilities {
    max_send_wr: 11,
    max_recv_wr: 12,
    max_send_sge: 13,
    max_recv_sge: 14,
    max_inline_data: 15,
};

#[vtable]
impl QueuePair for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type DriverType = qp::NoDriverType;

    const TYPES: &'static [qp::Type] = &[
        qp::Type::Gsi,
        qp::Type::ReliableConnection,
        qp::Type::UnreliableConnection,
        qp::Type::UnreliableDatagram,
    ];

    fn create(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        attributes: &qp::InitAttributes<'_, TestDriver>,
        user: Caller<TestDriver, User<'_, TestDriver, u64, Buffer<'_>>>,
    ) -> Result<qp::New<impl PinInit<Self>, u64>> {
        user.as_ref()
            .map_or(Ok(()), |user| note_buffer(call, user))?;
        let (request, response) = dialogue(user);
        call.data().note(Asked::QueuePair {
            ty: attributes.service.ty(),
            capabilities: attributes.capabilities,
            signal_all: attributes.signal_all,
            send_cq: attributes.send_cq.number,
            recv_cq: attributes.recv_cq.number,
            srq: attributes.srq.map(|srq| srq.number),
            request,
        });
        let object = Object::new(call);
        object.signal_all.store(attributes.signal_all, SeqCst);
        Ok(qp::New {
            number: object.number,
            init: object,
            response,
            capabilities: CAPABILITIES,
        })
    }

    fn modify(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        mask: qp::AttributeMask,
        attributes: &qp::Attributes<ah::Roce>,
    ) -> Result {
        call.data().note(Asked::Modify(mask, *attributes));
        Ok(())
    }

    fn query(qp: &Qp<Self>, _call: &Call<'_, TestDriver>) -> Result<qp::Description<ah::Roce>> {
        Ok(qp::Description {
            attributes: qp::Attributes {
                dest_qpn: qp.number(),
                ..Default::default()
            },
            capabilities: CAPABILITIES,
            signal_all: qp.signal_all.load(SeqCst),
        })
    }

    fn destroy(qp: &Qp<Self>, _call: &Call<'_, TestDriver>) {
        Object::destroy(qp);
    }

    fn attach_multicast(_qp: &Qp<Self>, call: &Call<'_, TestDriver>, gid: &Gid) -> Result {
        call.data().note(Asked::Attach(*gid));
        Ok(())
    }

    fn detach_multicast(_qp: &Qp<Self>, call: &Call<'_, TestDriver>, gid: &Gid) -> Result {
        call.data().note(Asked::Detach(*gid));
        Ok(())
    }

    fn post_send(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut SendRequests<'_, TestDriver>,
    ) -> Result {
        let mut count = 0;
        for request in requests {
            let request = request?;
            count += 1;
            let request = request.post();
            call.data().note(Asked::Send(count, request.wr_id));
            call.data().posted.lock().push_within_capacity(request)?;
        }
        Ok(())
    }

    fn post_recv(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        receive(call, requests)
    }

    fn fill_details(qp: &Qp<Self>, details: &mut Details<'_>) -> Result {
        qp.describe(details)
    }
}

fn receive(call: &Call<'_, TestDriver>, requests: &mut ReceiveRequests<'_>) -> Result {
    let mut count = 0;
    for request in requests {
        let request = request?;
        count += 1;
        call.data()
            .note(Asked::Receive(count, request.post().wr_id));
    }
    Ok(())
}

#[vtable]
impl SharedReceiveQueue for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type ResizeRequest = u64;

    fn create(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        attributes: &srq::Attributes,
        user: Caller<TestDriver, User<'_, TestDriver, u64, Buffer<'_>>>,
    ) -> Result<srq::New<impl PinInit<Self>, u64>> {
        user.as_ref()
            .map_or(Ok(()), |user| note_buffer(call, user))?;
        let (request, response) = dialogue(user);
        call.data().note(Asked::SharedQueue(*attributes, request));
        let object = Object::new(call);
        Ok(srq::New {
            number: object.number,
            init: object,
            response,
            attributes: srq::Attributes {
                max_wr: attributes.max_wr + 1,
                max_sge: attributes.max_sge + 2,
                limit: 0,
            },
        })
    }

    fn resize(
        _srq: &Srq<Self>,
        call: &Call<'_, TestDriver>,
        max_wr: u32,
        user: Caller<TestDriver, User<'_, TestDriver, u64>>,
    ) -> Result {
        let (request, _) = dialogue(user);
        call.data().note(Asked::SharedResize(max_wr, request));
        Ok(())
    }

    fn set_limit(_srq: &Srq<Self>, call: &Call<'_, TestDriver>, limit: u32) -> Result {
        call.data().note(Asked::Limit(limit));
        Ok(())
    }

    fn query(srq: &Srq<Self>, _call: &Call<'_, TestDriver>) -> Result<srq::Attributes> {
        Ok(srq::Attributes {
            max_wr: srq.number(),
            max_sge: 21,
            limit: 22,
        })
    }

    fn destroy(srq: &Srq<Self>, _call: &Call<'_, TestDriver>) {
        Object::destroy(srq);
    }

    fn post_recv(
        _srq: &Srq<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        receive(call, requests)
    }

    fn fill_details(srq: &Srq<Self>, details: &mut Details<'_>) -> Result {
        srq.describe(details)
    }
}

#[vtable]
impl MemoryRegion for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn register_user(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        range: &mr::Range,
        access: AccessFlags,
        user: User<'_, TestDriver, u64>,
    ) -> Result<mr::New<impl PinInit<Self>, u64>> {
        call.data()
            .note(Asked::Region(*range, access, user.request));
        Ok(new_region(call, !user.request))
    }

    fn register_dma_buf(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        range: &mr::DmaBufRange,
        access: AccessFlags,
    ) -> Result<mr::New<impl PinInit<Self>, ()>> {
        call.data().note(Asked::DmaBuf(*range, access));
        Ok(new_region(call, ()))
    }

    fn register_dma(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        access: AccessFlags,
    ) -> Result<mr::New<impl PinInit<Self>, ()>> {
        call.data().note(Asked::AllMemory(access));
        Ok(new_region(call, ()))
    }

    fn allocate_fast(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        max_pages: u32,
    ) -> Result<mr::New<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Fast(max_pages));
        Ok(new_region(call, ()))
    }

    fn set_page(mr: &Mr<Self>, index: u32, address: DmaAddress) -> Result {
        let page = mr.pages.get(index as usize).ok_or(ENOMEM)?;
        page.store(address, SeqCst);
        Ok(())
    }

    fn reregister(
        mr: &Mr<Self>,
        call: &Call<'_, TestDriver>,
        change: &mr::Change<'_, Self>,
    ) -> Result<(u32, u32)> {
        call.data().note(Asked::Change {
            range: change.range,
            access: change.access,
            pd: change.pd.map(|pd| pd.number),
        });
        Ok(keys(mr.number + 1000))
    }

    fn advise(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        advice: mr::Advice,
        wait: bool,
        pieces: &[Sge],
    ) -> Result {
        let last = pieces.last().ok_or(ENOENT)?;
        let last = (last.address(), last.length(), last.lkey());
        call.data()
            .note(Asked::Advice(advice, wait, pieces.len(), last));
        Ok(())
    }

    fn deregister(mr: &Mr<Self>, call: &Call<'_, TestDriver>) -> Result {
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        mr.destroy();
        Ok(())
    }

    fn fill_details(mr: &Mr<Self>, details: &mut Details<'_>) -> Result {
        mr.describe(details)
    }
}

impl MemoryWindow for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn alloc(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        ty: mw::Type,
        user: User<'_, TestDriver, u64>,
    ) -> Result<mw::New<impl PinInit<Self>, u64>> {
        call.data().note(Asked::Window(ty, user.request));
        let object = Object::new(call);
        Ok(mw::New {
            rkey: keys(object.number).1,
            init: object,
            response: !user.request,
        })
    }

    fn dealloc(mw: &Mw<Self>, _call: &Call<'_, TestDriver>) {
        mw.destroy();
    }
}

/// What the driver says of the device: no number twice.
pub(crate) fn attributes() -> Attributes {
    Attributes {
        firmware_version: 0x1_0002_0003,
        system_image_guid: 0x0102_0304_0506_0708,
        vendor_id: 101,
        vendor_part_id: 102,
        hardware_version: 103,
        capabilities: Capability::RcRnrNak | Capability::AtomicWrite,
        max_mr_size: 104,
        page_sizes: 105,
        max_qp: 106,
        max_qp_wr: 107,
        max_send_sge: 108,
        max_recv_sge: 109,
        max_sge_rd: 110,
        max_cq: 111,
        max_cqe: 112,
        max_cq_moderation_count: 113,
        max_cq_moderation_period: 114,
        max_srq: 115,
        max_srq_wr: 116,
        max_srq_sge: 117,
        max_multicast_groups: 118,
        max_multicast_members: 119,
        max_multicast_attachments: 120,
        max_mr: 121,
        max_fast_registration_pages: 122,
        max_mw: 123,
        max_pd: 124,
        max_ah: 125,
        max_qp_rd_atomic: 126,
        max_qp_init_rd_atomic: 127,
        max_res_rd_atomic: 128,
        atomicity: Atomicity::Global,
        max_pkeys: 129,
        ack_delay: 30,
        on_demand_paging: OnDemandPaging {
            reliable: OnDemandOperation::Send | OnDemandOperation::Flush,
            unreliable: OnDemandOperation::Write.into(),
            datagram: OnDemandOperation::Receive.into(),
        },
        timestamp_mask: 131,
        clock_khz: 132,
    }
}

/// What the driver says of a port: no number twice, nor the same of two ports.
pub(crate) fn port_attributes(port: Port) -> port::Attributes {
    let port = port.number();
    port::Attributes {
        state: port::State::Active,
        max_mtu: Mtu::Mtu4096,
        active_mtu: Mtu::Mtu1024,
        // CAST: There are two ports.
        // 4 lanes of EDR, or 8 of HDR.
        active_width: 2 * port as u8,
        active_speed: 32 * port as u16,
        max_message_size: 14 * port,
        bad_pkey_count: 15 * port,
        qkey_violation_count: 16 * port,
        has_ip_gids: true,
        subnet: None,
    }
}

/// The link layer of a port, which is not the same for all.
pub(crate) fn port_link_layer(port: Port) -> LinkLayer {
    if port == Port::FIRST {
        LinkLayer::Ethernet
    } else {
        LinkLayer::Unspecified
    }
}

/// Entries of the P_Key table.
const PKEYS: u16 = 3;

/// Entries of the GID tables of the ports.
pub(crate) const GIDS: [u32; PORTS as usize] = [13, 17];

/// Ports of the device.
pub(crate) const PORTS: u32 = 2;

/// Completion vectors of the device.
pub(crate) const VECTORS: u32 = 3;

/// The version of the firmware, which is too long.
pub(crate) const FIRMWARE: &str = "0123456789-0123456789-0123456789-0123456789";

#[vtable]
impl Operations for TestDriver {
    type RegistrationData<'a> = Arc<Log>;
    type Users = ProcessesAndKernel;
    type Path = ah::Roce;
    type DeviceResponse = ();
    type UserContext = Object;
    type ProtectionDomain = Object;
    type CompletionQueue = Object;
    type QueuePair = Object;
    type SharedReceiveQueue = Object;
    type MemoryRegion = Object;
    type MemoryWindow = Object;
    type AddressHandle = Object;

    const DRIVER_ID: u32 = 201;
    const ABI_VERSION: u32 = 202;
    const USER_METHODS: &'static [uapi::Addition<Self>] = &[uapi::Addition::method::<Nothing>()];
    const PORT_COUNTERS: &'static [Counter] = &[
        Counter::new(c"first"),
        Counter::new(c"second"),
        Counter::new(c"third"),
    ];

    fn query_device(_call: &Call<'_, Self>) -> Result<Attributes> {
        Ok(attributes())
    }

    fn firmware_version(_call: &Call<'_, Self>, text: &mut dyn fmt::Write) {
        // What does not fit is cut off.
        let (first, rest) = FIRMWARE.split_at(10);
        let _ = text.write_str(first);
        let _ = text.write_str(rest);
    }

    fn link_layer(_call: &Call<'_, Self>, port: Port) -> LinkLayer {
        port_link_layer(port)
    }

    fn port_immutable(_call: &Call<'_, Self>, port: Port) -> Result<port::Immutable> {
        let protocol = port::Protocol::RoceV2;
        Ok(port::Immutable {
            protocol,
            pkey_table_length: PKEYS,
            // CAST: There are two ports.
            gid_table_length: GIDS[port.number() as usize - 1],
        })
    }

    fn query_port(call: &Call<'_, Self>, port: Port) -> Result<port::Attributes> {
        let mut attributes = port_attributes(port);
        if call.data().is_down.load(SeqCst) {
            attributes.state = port::State::Down;
        }
        Ok(attributes)
    }

    fn is_netdev_of(_call: &Call<'_, Self>, netdev: &Netdev, port: Port) -> bool {
        netdev.ethernet_address() == MACS.get(port.number() as usize - 1).copied()
    }

    fn follow_netdev(call: &Call<'_, Self>, port: Port) {
        let netdev = call.netdev(port);
        let netdev = netdev.map(|netdev| (netdev.is_active(), netdev.mtu()));
        if port != Port::FIRST {
            *call.data().second_followed.lock() = netdev;
            return;
        }
        let before = call.data().followed.lock().replace((port, netdev));
        // Without a network device the port is up, unless it had one.
        let is_down = match netdev {
            Some((is_active, _)) => !is_active,
            None => before.is_some_and(|(_, netdev)| netdev.is_some()),
        };
        call.data().is_down.store(is_down, SeqCst);
    }

    fn query_pkey(_call: &Call<'_, Self>, port: Port, index: u16) -> Result<u16> {
        // CAST: There are two ports.
        Ok(0x8000 | (port.number() as u16) << 8 | index)
    }

    fn add_gid(_call: &Call<'_, Self>, _gid: &gid::Attributes<'_>) -> Result {
        Ok(())
    }

    fn del_gid(_call: &Call<'_, Self>, _gid: &gid::Attributes<'_>) -> Result {
        Ok(())
    }

    fn port_counters(call: &Call<'_, Self>, port: Port, values: &mut [u64]) -> Result {
        call.data().note(Asked::PortCounters(port));
        count_from(100 * u64::from(port.number()), values);
        Ok(())
    }

    fn create_qp_counter(call: &Call<'_, Self>, port: Port) -> Result<u32> {
        call.data().note(Asked::CreateCounter(port));
        Ok(call.data().next.fetch_add(1, SeqCst))
    }

    fn bind_qp_counter(call: &Call<'_, Self>, qp: &Qp<Object>, number: u32) -> Result {
        call.data().note(Asked::BindCounter(qp.number(), number));
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        Ok(())
    }

    fn unbind_qp_counter(call: &Call<'_, Self>, qp: &Qp<Object>) {
        call.data().note(Asked::UnbindCounter(qp.number()));
    }

    fn read_qp_counter(call: &Call<'_, Self>, number: u32, values: &mut [u64]) -> Result {
        call.data().note(Asked::ReadCounter(number));
        count_from(1000 * u64::from(number), values);
        Ok(())
    }

    fn destroy_qp_counter(call: &Call<'_, Self>, number: u32) {
        call.data().note(Asked::DestroyCounter(number));
    }
}

fn count_from(first: u64, values: &mut [u64]) {
    for (value, number) in values.iter_mut().zip(first..) {
        *value = number;
    }
}

/// Permanent MAC address of the network device of the first port, which most tests do not have.
pub(crate) const MAC: [u8; 6] = MACS[0];

/// As [`MAC`], of all ports.
pub(crate) const MACS: [[u8; 6]; PORTS as usize] =
    [[2, 0, 0, 0x7e, 0x57, 1], [2, 0, 0, 0x7e, 0x57, 8]];

/// What the device says of itself before it is registered.
pub(crate) const PROPERTIES: Properties = Properties {
    ports: PORTS,
    node_type: NodeType::ChannelAdapter,
    node_guid: 0x1112_1314_1516_1718,
    node_description: c"a driver without hardware",
    user_posts_by_verb: true,
    counters_of_queue_pairs: true,
    local_dma_key: Some(0x2122_2324),
};

/// Calls `test` with a device that is registered, and checks that nothing is left of it.
///
/// The core makes objects of its own for each port. They are there before `test` runs.
pub(crate) fn with_device(test: impl FnOnce(&Device<TestDriver>, &Log) -> Result) -> Result {
    let dma_device = DmaDevice::new()?;
    let objects = Objects::new(VECTORS)?;
    let dispatcher = objects.dispatcher().clone();
    let events = dispatcher.clone();
    let log = Arc::pin_init(
        pin_init!(Log {
            asked <- new_spinlock!(None),
            objects: AtomicU32::new(0),
            next: AtomicU32::new(300),
            keeps: AtomicBool::new(false),
            raises: AtomicBool::new(false),
            followed <- new_spinlock!(None),
            second_followed <- new_spinlock!(None),
            is_down: AtomicBool::new(false),
            buffer <- new_spinlock!(None),
            dispatcher: events,
            completing: AtomicU32::new(0),
            posted <- new_spinlock!(KVec::with_capacity(8, GFP_KERNEL)?),
            shared <- new_spinlock!(None),
        }? Error),
        GFP_KERNEL,
    )?;
    let parent = dma_device.device();
    let device = UnregisteredDevice::new(&PROPERTIES, objects)?;
    // SAFETY: It is dropped below.
    let registration = unsafe { Registration::new(device, c"rdma-test%d", parent, log.clone()) }?;
    let told = dispatcher.port_event(Port::FIRST, crate::event::PortEvent::PkeyChange);
    log.asked();
    let result = test(registration.device(), &log);
    drop(registration);

    let told_later = dispatcher.port_event(Port::FIRST, crate::event::PortEvent::PkeyChange);
    if !told || told_later || log.objects() != 0 {
        pr_err!(
            "events: {} and {}, {} objects left\n",
            told,
            told_later,
            log.objects()
        );
        return Err(EBUSY);
    }
    result
}
