// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use kernel::{
    impl_flags,
    prelude::*, //
};

use crate::{
    bindings,
    cq::Cq,
    device::{
        Call,
        Operations, //
    },
    event::{
        Completes,
        InUse,
        Place, //
    },
    gid::Gid,
    object::{
        blank,
        core_object,
        optional,
        Sole,
        Vacant, //
    },
    pd::Pd,
    restrack::Details,
    srq::Srq,
    udata::{
        caller,
        Caller,
        Request,
        Response,
        User, //
    },
    umem::{
        Buffer,
        BufferOf, //
    },
    verb::Verb,
    wq::{
        self,
        RwqTable, //
    },
    wr::{
        ReceiveRequests,
        SendRequests, //
    },
    xrc::{
        self,
        Xrcd, //
    },
};

mod attr;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use attr::{
    modify_is_ok,
    AlternatePath,
    Attribute,
    AttributeMask,
    Migration,
    QpAttr,
    State, //
};

c_enum! {
    /// Transport service of a queue pair, if it is one that the verbs define (`enum ib_qp_type`).
    pub enum Type: bindings::ib_qp_type {
        /// Subnet management interface, QP0.
        Smi = bindings::ib_qp_type_IB_QPT_SMI,
        /// General service interface, QP1.
        Gsi = bindings::ib_qp_type_IB_QPT_GSI,
        /// Reliable connection.
        ReliableConnection = bindings::ib_qp_type_IB_QPT_RC,
        /// Unreliable connection.
        UnreliableConnection = bindings::ib_qp_type_IB_QPT_UC,
        /// Unreliable datagram.
        UnreliableDatagram = bindings::ib_qp_type_IB_QPT_UD,
        /// Raw packets: whole Ethernet frames. Only processes that may send any packet have such
        /// queue pairs.
        RawPacket = bindings::ib_qp_type_IB_QPT_RAW_PACKET,
        /// Extended reliable connection, initiator side. Only processes have such queue pairs.
        XrcInitiator = bindings::ib_qp_type_IB_QPT_XRC_INI,
        /// Extended reliable connection, target side, which
        /// [`XrcDomain::create_target`](crate::XrcDomain::create_target) creates.
        XrcTarget = bindings::ib_qp_type_IB_QPT_XRC_TGT,
    }
}

impl Type {
    /// Returns whether each send carries its destination.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Smi | Self::Gsi | Self::UnreliableDatagram)
    }
}

/// Queue pair types that a driver defines itself (`IB_QPT_DRIVER`), in addition to those of the
/// verbs ([`Type`]). `R` is the driver's part of the request that creates a queue pair
/// ([`QueuePair::Request`]), which contains the type.
///
/// Only processes have such queue pairs. They post to them without the kernel.
pub trait DriverType<R>: Copy + Send + Sync + Sized + 'static {
    /// Whether the driver has such types; `false` only for [`NoDriverType`].
    const IS_SUPPORTED: bool = true;

    /// Returns the type that a process asks for; by convention `EOPNOTSUPP` if there is no such
    /// type.
    fn from_request(request: &R) -> Result<Self>;
}

/// For drivers without queue pair types of their own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NoDriverType {}

impl<R> DriverType<R> for NoDriverType {
    const IS_SUPPORTED: bool = false;

    fn from_request(_request: &R) -> Result<Self> {
        Err(EOPNOTSUPP)
    }
}

/// Type of a queue pair. `D` are the driver's own types.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Service<D> {
    /// One of the verbs' types.
    Standard(Type),
    /// One of the driver's own types.
    Driver(D),
}

impl Service<NoDriverType> {
    /// Returns the type, which is one of the verbs.
    pub const fn ty(self) -> Type {
        match self {
            Self::Standard(ty) => ty,
            Self::Driver(never) => match never {},
        }
    }
}

/// Sizes of a queue pair (`struct ib_qp_cap`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Maximum number of outstanding sends.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receives.
    pub max_recv_wr: u32,
    /// Maximum scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Maximum scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Maximum inline data of a send in bytes.
    pub max_inline_data: u32,
}

impl QpCap {
    /// Returns whether these sizes satisfy `asked`. Receives count only if the queue pair
    /// `receives` through a queue of its own, and inline data only if it has a send queue.
    fn holds(&self, asked: &Self, receives: bool) -> bool {
        self.max_send_wr >= asked.max_send_wr
            && self.max_send_sge >= asked.max_send_sge
            && (asked.max_send_wr == 0 || self.max_inline_data >= asked.max_inline_data)
            && (!receives
                || self.max_recv_wr >= asked.max_recv_wr && self.max_recv_sge >= asked.max_recv_sge)
    }

    /// Converts the sizes from C.
    fn from_raw(raw: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    /// Writes the sizes; other members of the C structure stay unchanged.
    pub(crate) fn write(&self, raw: &mut bindings::ib_qp_cap) {
        raw.max_send_wr = self.max_send_wr;
        raw.max_recv_wr = self.max_recv_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_inline_data = self.max_inline_data;
    }
}

/// A multicast group.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// GID of the group.
    pub gid: Gid,
    /// LID of the group; meaningful only on InfiniBand ports.
    pub lid: u16,
}

/// Description of a queue pair (`struct ib_qp_attr` and `struct ib_qp_init_attr`).
pub struct Description<P> {
    /// Attributes that can be changed.
    pub attributes: QpAttr<P>,
    /// Sizes of the queue pair.
    pub capabilities: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
}

impl_flags!(
    /// Creation flags of a queue pair (`enum ib_qp_create_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct CreationFlags(u32);

    /// A creation flag of a queue pair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CreationFlag {
        /// The queue pair registers [regions for integrity](crate::integrity). Only for queue pairs
        /// of the kernel of type [`ReliableConnection`](Type::ReliableConnection).
        Integrity = bindings::ib_qp_create_flags_IB_QP_CREATE_INTEGRITY_EN.unsigned_abs(),
        /// A queue pair of IP over InfiniBand that sends in [segments](crate::wr::Segments). Only
        /// for queue pairs of the kernel of type [`UnreliableDatagram`](Type::UnreliableDatagram).
        Segments = bindings::ib_qp_create_flags_IB_QP_CREATE_IPOIB_UD_LSO.unsigned_abs(),
        /// The queue pair does not get its own datagrams to multicast groups. Only for the type
        /// [`UnreliableDatagram`](Type::UnreliableDatagram).
        BlockOwnMulticast =
            bindings::ib_qp_create_flags_IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK.unsigned_abs(),
        /// Frames are received with their frame check sequence. Only for the type
        /// [`RawPacket`](Type::RawPacket).
        ScatterFcs = bindings::ib_qp_create_flags_IB_QP_CREATE_SCATTER_FCS.unsigned_abs(),
        /// Frames are received without their VLAN tag, which the completion contains. Only for the
        /// type [`RawPacket`](Type::RawPacket).
        StripVlan = bindings::ib_qp_create_flags_IB_QP_CREATE_CVLAN_STRIPPING.unsigned_abs(),
    }
);

impl CreationFlags {
    /// Converts the flags of a new queue pair of type `raw_type`. `EOPNOTSUPP` for one that has no
    /// name here, that is not for the type, or that is not in `known`.
    fn from_raw(
        raw: u32,
        raw_type: bindings::ib_qp_type,
        is_of_process: bool,
        known: &[CreationFlag],
    ) -> Result<Self> {
        let of_type = known.iter().filter(|flag| match flag {
            CreationFlag::Integrity => !is_of_process && raw_type == bindings::ib_qp_type_IB_QPT_RC,
            CreationFlag::Segments => !is_of_process && raw_type == bindings::ib_qp_type_IB_QPT_UD,
            CreationFlag::BlockOwnMulticast => raw_type == bindings::ib_qp_type_IB_QPT_UD,
            CreationFlag::ScatterFcs | CreationFlag::StripVlan => {
                raw_type == bindings::ib_qp_type_IB_QPT_RAW_PACKET
            }
        });
        let allowed = of_type.fold(Self::empty(), |all, flag| all | *flag);
        match raw & !allowed.0 {
            0 => Ok(Self(raw)),
            _ => Err(EOPNOTSUPP),
        }
    }
}

/// Attributes that the user of a new queue pair asks for (`struct ib_qp_init_attr`).
pub struct QpInitAttr<'a, T: Operations> {
    /// Type of the queue pair, one that the driver has.
    pub service: Service<<T::QueuePair as QueuePair>::DriverType>,
    /// Minimum sizes of the queue pair.
    pub capabilities: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Completion queue for the sends.
    pub send_cq: &'a Cq<T::CompletionQueue>,
    /// Completion queue for the receives. Only a queue pair of type
    /// [`XrcInitiator`](Type::XrcInitiator) has none.
    pub recv_cq: Option<&'a Cq<T::CompletionQueue>>,
    /// Shared receive queue, if the queue pair has no receive queue of its own.
    pub srq: Option<&'a Srq<T::SharedReceiveQueue>>,
    /// Creation flags, which the driver [knows](QueuePair::CREATION_FLAGS) and which are for the
    /// type.
    pub flags: CreationFlags,
}

/// A new queue pair.
pub struct NewQp<I, R> {
    /// Initialiser of the queue pair.
    pub init: I,
    /// Response to the provider.
    pub response: R,
    /// Number of the queue pair, 24 bits. A queue pair with a larger number is destroyed again, and
    /// its creation fails with `EIO`.
    pub number: u32,
    /// Actual sizes, at least as large as requested.
    pub capabilities: QpCap,
}

/// A queue pair (`struct ib_qp`).
#[vtable]
pub trait QueuePair: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<QueuePair = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;
    /// The driver's part of a request to modify a queue pair; `()` if there is none.
    type ModifyRequest: Request;
    /// The driver's own queue pair types; [`NoDriverType`] if there are none.
    type DriverType: DriverType<Self::Request>;

    /// The verbs' types that the driver supports, except [`XrcTarget`](Type::XrcTarget), which
    /// comes with [`XrcDomain`](crate::XrcDomain). Others are rejected with `EOPNOTSUPP` before the
    /// driver is called.
    const TYPES: &'static [Type];

    /// The creation flags that queue pairs can have on some devices, which report it in their
    /// [attributes](crate::device::DeviceAttr). A request with another flag is rejected with
    /// `EOPNOTSUPP` before the driver is called. One with such a flag must be rejected by the
    /// driver on other devices.
    const CREATION_FLAGS: &'static [CreationFlag] = &[];

    /// Creates a queue pair in the reset state.
    fn create(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        attributes: &QpInitAttr<'_, Self::Driver>,
        user: Caller<Self::Driver, User<'_, Self::Driver, Self::Request, Buffer<'_>>>,
    ) -> Result<NewQp<impl PinInit<Self>, Self::Response>>;

    /// Changes the attributes in `mask`. A request of the kernel is all zeroes.
    fn modify(
        qp: &Qp<Self>,
        call: &Call<'_, Self::Driver>,
        mask: AttributeMask,
        attributes: &QpAttr<<Self::Driver as Operations>::Path>,
        request: &Self::ModifyRequest,
    ) -> Result;

    /// Returns the current attributes.
    fn query(
        _qp: &Qp<Self>,
        _call: &Call<'_, Self::Driver>,
    ) -> Result<Description<<Self::Driver as Operations>::Path>> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Removes the queue pair from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(qp: &Qp<Self>, call: &Call<'_, Self::Driver>);

    /// Attaches a queue pair, of type [`UnreliableDatagram`](Type::UnreliableDatagram), to a
    /// multicast group whose GID the core has checked. If the network needs to know, the user that
    /// joins the group announces it.
    ///
    /// Must fail if the queue pair is already attached: the core counts successful calls, and
    /// detaches as often.
    fn attach_multicast(
        _qp: &Qp<Self>,
        _call: &Call<'_, Self::Driver>,
        _group: &MulticastGroup,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Detaches a queue pair from a multicast group. Must fail if it is not attached.
    fn detach_multicast(
        _qp: &Qp<Self>,
        _call: &Call<'_, Self::Driver>,
        _group: &MulticastGroup,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Posts sends in the order in which `requests` yields them. Must not sleep for a queue pair of
    /// the kernel.
    ///
    /// A request is posted by [`post`](crate::wr::SendRequest::post). Requests that were not posted
    /// are rejected: the user gets the error that this returns, or `EIO` for `Ok`. Processes can
    /// call this as well (verb POST_SEND), even without any request. For them it may sleep, and
    /// their requests have no [inline data](crate::wr::SendRequest::inline_data).
    fn post_send(
        _qp: &Qp<Self>,
        _call: &Call<'_, Self::Driver>,
        _requests: &mut SendRequests<'_, Self::Driver>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Posts receives in the order in which `requests` yields them. Must not sleep for a queue pair
    /// of the kernel.
    ///
    /// The driver reports what it posted in the same way as for [sends](Self::post_send). Processes
    /// can call this as well (verb POST_RECV), even without any request. For them it may sleep.
    fn post_recv(
        _qp: &Qp<Self>,
        _call: &Call<'_, Self::Driver>,
        _requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Adds driver-specific details to the dump of a queue pair (`rdma resource show -dd`).
    fn fill_details(_qp: &Qp<Self>, _details: &mut Details<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

core_object! {
    /// A queue pair: `struct ib_qp` and the driver's part.
    Qp<QueuePair>, ib_qp, Place<bindings::ib_qp>
}

impl<T: QueuePair> Qp<T> {
    /// Returns the number of the queue pair, 24 bits.
    #[inline]
    pub fn number(&self) -> u32 {
        self.place.number()
    }

    /// Returns the completion queue for the sends, unless the queue pair has none.
    #[inline]
    pub fn send_cq(&self) -> Option<&Cq<<T::Driver as Operations>::CompletionQueue>> {
        // SAFETY: Set when the queue pair was created, which holds a reference to the completion
        // queue.
        unsafe { optional((*self.as_raw()).send_cq) }
    }

    /// Returns the completion queue for the receives, unless the queue pair has none.
    #[inline]
    pub fn recv_cq(&self) -> Option<&Cq<<T::Driver as Operations>::CompletionQueue>> {
        // SAFETY: Set when the queue pair was created, which holds a reference to the completion
        // queue.
        unsafe { optional((*self.as_raw()).recv_cq) }
    }
}

/// Checks whether a queue pair can have that number.
pub(crate) fn check_number(number: u32) -> Result {
    // The core uses the upper bits for other purposes.
    match number >> 24 {
        0 => Ok(()),
        _ => Err(EIO),
    }
}

/// Returns the verbs' type for a new queue pair, or `None` for one of the driver's own types.
/// `EOPNOTSUPP` if the driver does not have the type.
fn standard_type<T: Operations>(
    raw: bindings::ib_qp_type,
    is_of_user: bool,
) -> Result<Option<Type>> {
    if raw == bindings::ib_qp_type_IB_QPT_DRIVER {
        return match <T::QueuePair as QueuePair>::DriverType::IS_SUPPORTED && is_of_user {
            true => Ok(None),
            false => Err(EOPNOTSUPP),
        };
    }
    let ty = Type::try_from(raw).map_err(|_| EOPNOTSUPP)?;
    let may_have = is_of_user || !matches!(ty, Type::XrcInitiator | Type::RawPacket);
    match may_have && T::QueuePair::TYPES.contains(&ty) {
        true => Ok(Some(ty)),
        false => Err(EOPNOTSUPP),
    }
}

/// Objects that a new queue pair refers to.
struct Related<'a, T: Operations> {
    pd: Option<&'a Pd<T::ProtectionDomain>>,
    send_cq: Option<&'a Cq<T::CompletionQueue>>,
    recv_cq: Option<&'a Cq<T::CompletionQueue>>,
    srq: Option<&'a Srq<T::SharedReceiveQueue>>,
    xrcd: Option<&'a Xrcd<T::XrcDomain>>,
    table: Option<&'a RwqTable<T::IndirectionTable>>,
}

impl<T: Operations> Related<'_, T> {
    /// # Safety
    ///
    /// `qp` must be the new queue pair of a create verb, and `attr` its attributes. The verb must
    /// not return during the lifetime of the result.
    unsafe fn from_raw(qp: *const bindings::ib_qp, attr: &bindings::ib_qp_init_attr) -> Self {
        // SAFETY: The core set the domain of the queue pair. During the verb, it holds references
        // to everything that is not null, which is of the same device.
        unsafe {
            Self {
                pd: optional((*qp).pd),
                send_cq: optional(attr.send_cq),
                recv_cq: optional(attr.recv_cq),
                srq: optional(attr.srq),
                xrcd: optional(attr.xrcd),
                table: optional(attr.rwq_ind_tbl),
            }
        }
    }
}

/// Constructs a queue pair with the number that the hardware gave it.
pub(crate) fn construct<'a, T: QueuePair>(
    vacant: Vacant<'a, Qp<T>>,
    place: Place<bindings::ib_qp>,
    number: u32,
    init: impl PinInit<T>,
) -> Sole<'a, Qp<T>> {
    let qp = vacant.construct(place, init);
    // SAFETY: The queue pair is valid, and nobody else has it yet.
    unsafe { (*qp.as_raw()).qp_num = number };
    qp
}

/// # Safety
///
/// `qp` must be a new queue pair of a device of `T`, `attr` its attributes and `udata` the udata of
/// the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue pair; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*qp).device, udata) };
    // SAFETY: The attributes belong to this call, which may change them.
    let attr = unsafe { &mut *attr };
    // SAFETY: The queue pair and the attributes are those of this verb, which creates it.
    let related = unsafe { Related::<T>::from_raw(qp, attr) };
    // SAFETY: The queue pair is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Qp<T::QueuePair>>::new(qp) };

    verb.run(|call| create(&verb, call, vacant, attr, &related))
}

/// Creates a queue pair.
fn create<T: Operations>(
    verb: &Verb<'_, T>,
    call: &Call<'_, T>,
    vacant: Vacant<'_, Qp<T::QueuePair>>,
    attr: &mut bindings::ib_qp_init_attr,
    related: &Related<'_, T>,
) -> Result {
    let is_of_process = verb.has_udata();
    // What distributes frames does not receive any.
    let known: &[CreationFlag] = match related.table {
        Some(_) => &[],
        None => T::QueuePair::CREATION_FLAGS,
    };
    let flags = CreationFlags::from_raw(attr.create_flags, attr.qp_type, is_of_process, known)?;
    if let Some(table) = related.table {
        return wq::create_queue_pair(verb, call, vacant, attr, related.pd, table);
    }
    if attr.qp_type == bindings::ib_qp_type_IB_QPT_XRC_TGT {
        return xrc::create_target(vacant, attr, related.xrcd, call);
    }
    let receives = attr.qp_type != bindings::ib_qp_type_IB_QPT_XRC_INI;
    let send_cq = related.send_cq.ok_or(EINVAL)?;
    if related.recv_cq.is_some() != receives {
        return Err(EINVAL);
    }
    let kernel_can_post = T::QueuePair::HAS_POST_SEND && T::QueuePair::HAS_POST_RECV;
    if !is_of_process && !kernel_can_post {
        return Err(EOPNOTSUPP);
    }
    let standard = standard_type::<T>(attr.qp_type, is_of_process)?;
    let new_place = call.dispatcher().new_qp_place()?;
    // SAFETY: This verb creates a queue pair.
    let user = unsafe { verb.user_with_buffer(call, BufferOf::QueuePair) }?;
    let service = match (standard, &user) {
        (Some(ty), _) => Service::Standard(ty),
        (None, Some(user)) => Service::Driver(DriverType::from_request(&user.request)?),
        (None, None) => return Err(EOPNOTSUPP),
    };
    let attributes = QpInitAttr {
        service,
        capabilities: QpCap::from_raw(&attr.cap),
        signal_all: attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
        send_cq,
        recv_cq: related.recv_cq,
        srq: related.srq,
        flags,
    };
    let pd = related.pd.ok_or(EINVAL)?;
    let new = T::QueuePair::create(call, pd, &attributes, caller::<T, _>(user)?)?;
    let completes = Completes {
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        receives: attributes.srq.map(|srq| srq.place().poster()),
    };
    let in_use = InUse::of_queue_pair(is_of_process, completes);
    let (place, unpublished) = new_place.assign(new.number, vacant.as_raw(), in_use);

    // Management queue pairs have a port from the start.
    place.set_port(attr.port_num);
    let qp = construct(vacant, place, new.number, new.init);
    new.capabilities.write(&mut attr.cap);
    for cq in [Some(attributes.send_cq), attributes.recv_cq]
        .into_iter()
        .flatten()
    {
        cq.place().add_queue_pair();
    }
    if let Some(srq) = attributes.srq {
        srq.place().begin_use();
    }
    let receives = receives && attributes.srq.is_none();
    let holds = new.capabilities.holds(&attributes.capabilities, receives);
    check_number(new.number)
        .and_then(|()| holds.then_some(()).ok_or(EIO))
        .and_then(|()| verb.respond(&new.response))
        .and_then(|()| unpublished.publish())
        .inspect_err(|_| end(qp, call))
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, `attr` valid, and `udata` the udata of
/// the call.
pub(crate) unsafe extern "C" fn modify_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    mask: c_int,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue pair; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*qp).device, udata) };
    // SAFETY: The attributes are valid during the call.
    let attr = unsafe { &*attr };
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.run(|call| {
        let request = verb.request()?;
        verb.respond(&())?;
        let mask = AttributeMask::from_raw(mask)?;
        let attributes = QpAttr::<T::Path>::from_raw(attr, mask)?;

        qp.place.begin_use();
        T::QueuePair::modify(qp, call, mask, &attributes, &request)?;
        if mask.contains(Attribute::Port) {
            qp.place.set_port(attributes.port.number());
        }
        if mask.contains(Attribute::State) && attributes.state == State::Reset {
            qp.place.reset();
        }
        Ok(())
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`; `attr` and `init` valid for writes.
pub(crate) unsafe extern "C" fn query_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_attr,
    _mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    // SAFETY: The core set the device of the queue pair.
    let verb = unsafe { Verb::<T>::new((*qp).device) };
    // SAFETY: The attributes belong to this call.
    let (attr, init) = unsafe { (blank(attr), blank(init)) };
    // SAFETY: The core set these members before the queue pair was used; they do not change.
    unsafe {
        init.event_handler = (*qp).registered_event_handler;
        init.qp_context = (*qp).qp_context;
        init.qp_type = (*qp).qp_type;
        init.send_cq = (*qp).send_cq;
        init.recv_cq = (*qp).recv_cq;
        init.srq = (*qp).srq;
        init.port_num = (*qp).port;
    }
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.run(|call| {
        let description = T::QueuePair::query(qp, call)?;
        description.attributes.write(attr);
        description.capabilities.write(&mut attr.cap);
        description.capabilities.write(&mut init.cap);
        init.sq_sig_type = if description.signal_all {
            bindings::ib_sig_type_IB_SIGNAL_ALL_WR
        } else {
            bindings::ib_sig_type_IB_SIGNAL_REQ_WR
        };
        Ok(())
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T` that is no longer in use, and `udata`
/// the udata of the call.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue pair; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*qp).device, udata) };
    // SAFETY: The queue pair is that of this verb, which succeeds if it ends the queue pair.
    let qp = unsafe { Sole::<Qp<T::QueuePair>>::new(qp) };

    verb.run(|call| {
        verb.no_io()?;
        end(qp, call);
        Ok(())
    })
}

/// Removes a queue pair from the hardware and drops it.
pub(crate) fn end<T: Operations>(qp: Sole<'_, Qp<T::QueuePair>>, call: &Call<'_, T>) {
    qp.place.begin_end();
    T::QueuePair::destroy(&qp, call);
    for cq in [qp.send_cq(), qp.recv_cq()].into_iter().flatten() {
        cq.place().remove_queue_pair();
    }
    qp.end();
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, and `gid` valid.
pub(crate) unsafe extern "C" fn attach_mcast_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    lid: u16,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    unsafe { with_group::<T>(qp, gid, lid, T::QueuePair::attach_multicast) }
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, and `gid` valid.
pub(crate) unsafe extern "C" fn detach_mcast_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    lid: u16,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    unsafe { with_group::<T>(qp, gid, lid, T::QueuePair::detach_multicast) }
}

/// Calls `act` for a queue pair and a multicast group.
///
/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, and `gid` valid.
unsafe fn with_group<T: Operations>(
    qp: *mut bindings::ib_qp,
    gid: *const bindings::ib_gid,
    lid: u16,
    act: fn(&Qp<T::QueuePair>, &Call<'_, T>, &MulticastGroup) -> Result,
) -> c_int {
    // SAFETY: The core set the device of the queue pair.
    let verb = unsafe { Verb::<T>::new((*qp).device) };
    // SAFETY: The GID is valid.
    let gid = Gid::from_raw(unsafe { &*gid });
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.run(|call| act(qp, call, &MulticastGroup { gid, lid }))
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, `wr` a list of requests for it, and
/// `bad` valid for writes.
pub(crate) unsafe extern "C" fn post_send_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    wr: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: The core set the device of the queue pair.
    let verb = unsafe { Verb::<T>::new((*qp).device) };
    // SAFETY: The core set the type and the owner, which do not change.
    let (ty, of_process) = unsafe { ((*qp).qp_type, !(*qp).uobject.is_null()) };
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.number(|call| {
        // Processes post to queue pairs of the driver's own types without the kernel.
        let ty = Type::try_from(ty).map_err(|_| {
            // SAFETY: `bad` is valid for writes.
            unsafe { *bad = wr };
            EOPNOTSUPP
        })?;
        let queue = qp.place.send_queue();
        // SAFETY: The list is for a queue pair of this type, and unchanged during the call until it
        // is posted. So is the kernel memory that a user in the kernel sends inline. The core does
        // not check the flags and elements of a process.
        let mut requests = unsafe { SendRequests::new(wr, ty, queue, !of_process) };
        let result = T::QueuePair::post_send(qp, call, &mut requests);
        // SAFETY: `bad` is valid for writes.
        unsafe { requests.answer(result, bad) }
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, `wr` a list of requests for it, and
/// `bad` valid for writes.
pub(crate) unsafe extern "C" fn post_recv_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    wr: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The core set the device of the queue pair.
    let verb = unsafe { Verb::<T>::new((*qp).device) };
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.number(|call| {
        // SAFETY: The list is for this queue pair, and unchanged during the call until it is
        // posted.
        let mut requests = unsafe { ReceiveRequests::new(wr, qp.place.recv_queue()) };
        let result = T::QueuePair::post_recv(qp, call, &mut requests);
        // SAFETY: `bad` is valid for writes.
        unsafe { requests.answer(result, bad) }
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, and `message` a netlink message being
/// written.
pub(crate) unsafe extern "C" fn fill_callback<T: Operations>(
    message: *mut bindings::sk_buff,
    qp: *mut bindings::ib_qp,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let qp = unsafe { Qp::<T::QueuePair>::from_raw(qp) };
    // SAFETY: Guaranteed by the caller.
    unsafe { Details::write(message, |details| T::QueuePair::fill_details(qp, details)) }
}
