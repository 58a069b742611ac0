// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use core::ptr::NonNull;

use kernel::{
    error::from_result,
    prelude::*, //
};

use crate::{
    bindings,
    cq::{
        CompletionQueue,
        Cq, //
    },
    device::{
        Call,
        Device,
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
        respond, //
    },
    pd::Pd,
    restrack::Details,
    srq::Srq,
    udata::{
        caller,
        Caller,
        Request,
        Response,
        Udata,
        User, //
    },
    umem::{
        Buffer,
        BufferOf, //
    },
    wq,
    wr::{
        ReceiveRequests,
        SendRequests, //
    },
    xrc,
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
    /// `receives` through a queue of its own.
    fn holds(&self, asked: &Self, receives: bool) -> bool {
        self.max_send_wr >= asked.max_send_wr
            && self.max_send_sge >= asked.max_send_sge
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

/// Attributes that the user of a new queue pair asks for (`struct ib_qp_init_attr`).
///
/// Creation flags are rejected before the driver is called, except the one for segments.
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
    /// Whether the queue pair is one of IP over InfiniBand that sends in
    /// [segments](crate::wr::Segments). Only if the driver [can](QueuePair::SENDS_SEGMENTS).
    pub segments: bool,
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

    /// Whether queue pairs of the kernel of type [`UnreliableDatagram`](Type::UnreliableDatagram)
    /// can send in [segments](crate::wr::Segments) on some devices, which report it
    /// ([`DeviceAttr::ud_segmentation`](crate::device::DeviceAttr::ud_segmentation)). If this is
    /// `false`, a request for such a queue pair is rejected with `EOPNOTSUPP` before the driver is
    /// called. If it is `true`, the driver must reject it on other devices.
    const SENDS_SEGMENTS: bool = false;

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
    /// call this as well (verb POST_SEND), even without any request. For them it may sleep.
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
        unsafe { cq_from_raw((*self.as_raw()).send_cq) }
    }

    /// Returns the completion queue for the receives, unless the queue pair has none.
    #[inline]
    pub fn recv_cq(&self) -> Option<&Cq<<T::Driver as Operations>::CompletionQueue>> {
        // SAFETY: As above.
        unsafe { cq_from_raw((*self.as_raw()).recv_cq) }
    }
}

/// Borrows a completion queue, unless the pointer is null.
///
/// # Safety
///
/// `ptr` must be null, or a constructed queue that does not go away during `'a`.
unsafe fn cq_from_raw<'a, T: CompletionQueue>(ptr: *mut bindings::ib_cq) -> Option<&'a Cq<T>> {
    // SAFETY: Guaranteed by the caller.
    (!ptr.is_null()).then(|| unsafe { Cq::from_raw(ptr) })
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

/// The creation flag for segments.
const SEGMENTS: u32 = bindings::ib_qp_create_flags_IB_QP_CREATE_IPOIB_UD_LSO.unsigned_abs();

/// # Safety
///
/// `qp` must be a new queue pair of a device of `T`, `attr` its attributes and `udata` the udata of
/// the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue pair; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*qp).device), Udata::from_raw(udata)) };

    // SAFETY:
    // - Verbs run only while the device is registered; its users have contexts, and only processes
    //   have udata.
    // - The attributes are valid during the call. The core holds references to the completion
    //   queues and the domain, which are of the same device.
    // - The core allocated room for the queue pair, which is constructed once. Only the dispatcher
    //   can reach it before the call returns.
    from_result(|| unsafe {
        device.with_caller(udata.is_some(), |call| {
            let attr = &mut *attr;
            let segments = T::QueuePair::SENDS_SEGMENTS
                && udata.is_none()
                && attr.qp_type == bindings::ib_qp_type_IB_QPT_UD
                && attr.create_flags == SEGMENTS;
            if attr.create_flags != 0 && !segments {
                return Err(EOPNOTSUPP);
            }
            if !attr.rwq_ind_tbl.is_null() {
                return wq::create_queue_pair(qp, attr, call, udata.as_ref());
            }
            if attr.qp_type == bindings::ib_qp_type_IB_QPT_XRC_TGT {
                return xrc::create_target(qp, attr, call);
            }
            let receives = attr.qp_type != bindings::ib_qp_type_IB_QPT_XRC_INI;
            if attr.send_cq.is_null() || attr.recv_cq.is_null() == receives {
                return Err(EINVAL);
            }
            if udata.is_none() && !(T::QueuePair::HAS_POST_SEND && T::QueuePair::HAS_POST_RECV) {
                return Err(EOPNOTSUPP);
            }
            let standard = standard_type::<T>(attr.qp_type, udata.is_some())?;
            let room = call.dispatcher().qp_room()?;
            let user = udata
                .as_ref()
                .map(|udata| udata.user_with_buffer::<T, _>(call, BufferOf::QueuePair))
                .transpose()?;
            let service = match (standard, &user) {
                (Some(ty), _) => Service::Standard(ty),
                (None, Some(user)) => Service::Driver(DriverType::from_request(&user.request)?),
                (None, None) => return Err(EOPNOTSUPP),
            };
            let attributes = QpInitAttr {
                service,
                capabilities: QpCap::from_raw(&attr.cap),
                signal_all: attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
                send_cq: Cq::from_raw(attr.send_cq),
                recv_cq: cq_from_raw(attr.recv_cq),
                srq: (!attr.srq.is_null()).then(|| Srq::from_raw(attr.srq)),
                segments,
            };
            let pd = Pd::from_raw((*qp).pd);
            let new = T::QueuePair::create(call, pd, &attributes, caller::<T, _>(user)?)?;
            let completes = Completes {
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                receives: attributes.srq.map(|srq| srq.place().poster()),
            };
            let in_use = InUse::of_queue_pair(udata.is_some(), completes);
            let (place, listing) = room.assign(new.number, NonNull::new_unchecked(qp), in_use);

            // Management queue pairs have a port from the start.
            place.set_port(attr.port_num);
            Qp::construct(qp, place, new.init);
            (*qp).qp_num = new.number;
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
                .and_then(|()| respond(udata.as_ref(), &new.response))
                .and_then(|()| listing.publish())
                .inspect_err(|_| end(qp, call))?;
            Ok(0)
        })
    })
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
    // SAFETY: The core set the device of the queue pair; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*qp).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the arguments are valid.
    from_result(|| unsafe {
        device.with(|call| {
            let request = match &udata {
                Some(udata) => udata.request()?,
                None => zerocopy::FromZeros::new_zeroed(),
            };
            respond(udata.as_ref(), &())?;
            let mask = AttributeMask::from_raw(mask)?;
            let attributes = QpAttr::<T::Path>::from_raw(&*attr, mask)?;

            let this = Qp::<T::QueuePair>::from_raw(qp);
            this.place.begin_use();
            T::QueuePair::modify(this, call, mask, &attributes, &request)?;
            if mask.contains(Attribute::Port) {
                this.place.set_port(attributes.port.number());
            }
            if mask.contains(Attribute::State) && attributes.state == State::Reset {
                this.place.reset();
            }
            Ok(0)
        })
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
    let device = unsafe { Device::<T>::from_raw((*qp).device) };

    // SAFETY: Verbs run only while the device is registered; the arguments are valid.
    from_result(|| unsafe {
        device.with(|call| {
            let description = T::QueuePair::query(Qp::from_raw(qp), call)?;
            let (attr, init) = (blank(attr), blank(init));

            description.attributes.write(attr);
            description.capabilities.write(&mut attr.cap);
            description.capabilities.write(&mut init.cap);
            init.sq_sig_type = if description.signal_all {
                bindings::ib_sig_type_IB_SIGNAL_ALL_WR
            } else {
                bindings::ib_sig_type_IB_SIGNAL_REQ_WR
            };
            init.event_handler = (*qp).registered_event_handler;
            init.qp_context = (*qp).qp_context;
            init.qp_type = (*qp).qp_type;
            init.send_cq = (*qp).send_cq;
            init.recv_cq = (*qp).recv_cq;
            init.srq = (*qp).srq;
            init.port_num = (*qp).port;
            Ok(0)
        })
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
    // SAFETY: The core set the device of the queue pair; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*qp).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the queue pair is constructed, and the
    // core frees it.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            end(qp, call);
            Ok(0)
        })
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T` that is no longer in use.
pub(crate) unsafe fn end<T: Operations>(qp: *mut bindings::ib_qp, call: &Call<'_, T>) {
    // SAFETY: Guaranteed by the caller; its completion queues outlive it.
    unsafe {
        let this = Qp::<T::QueuePair>::from_raw(qp);
        this.place.begin_end();
        T::QueuePair::destroy(this, call);
        for cq in [this.send_cq(), this.recv_cq()].into_iter().flatten() {
            cq.place().remove_queue_pair();
        }
        Qp::<T::QueuePair>::destruct(qp);
    }
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
    let device = unsafe { Device::<T>::from_raw((*qp).device) };

    // SAFETY: Verbs run only while the device is registered; the arguments are valid.
    from_result(|| unsafe {
        device.with(|call| {
            let gid = Gid::from_raw(&*gid);
            act(Qp::from_raw(qp), call, &MulticastGroup { gid, lid })?;
            Ok(0)
        })
    })
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
    // SAFETY: Guaranteed by the caller.
    let (device, this, ty) = unsafe {
        (
            Device::<T>::from_raw((*qp).device),
            Qp::<T::QueuePair>::from_raw(qp),
            (*qp).qp_type,
        )
    };

    // SAFETY: Verbs run only while the device is registered; the list is valid during the call.
    from_result(|| unsafe {
        device.with(|call| {
            // Processes post to queue pairs of the driver's own types without the kernel.
            let ty = Type::try_from(ty).map_err(|_| {
                *bad = wr;
                EOPNOTSUPP
            })?;
            let mut requests = SendRequests::new(wr, ty, this.place.send_queue());
            let result = T::QueuePair::post_send(this, call, &mut requests);
            requests.answer(result, bad)
        })
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
    // SAFETY: Guaranteed by the caller.
    let (device, this) = unsafe {
        (
            Device::<T>::from_raw((*qp).device),
            Qp::<T::QueuePair>::from_raw(qp),
        )
    };

    // SAFETY: Verbs run only while the device is registered; the list is valid during the call.
    from_result(|| unsafe {
        device.with(|call| {
            let mut requests = ReceiveRequests::new(wr, this.place.recv_queue());
            let result = T::QueuePair::post_recv(this, call, &mut requests);
            requests.answer(result, bad)
        })
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
    unsafe {
        Details::write(message, |details| {
            T::QueuePair::fill_details(Qp::from_raw(qp), details)
        })
    }
}
