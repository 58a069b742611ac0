// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use kernel::prelude::*;

use crate::{
    bindings,
    cq::Cq,
    device::{
        Call,
        Operations, //
    },
    event::{
        InUse,
        Place, //
    },
    object::{
        blank,
        core_object,
        Sole,
        Vacant, //
    },
    pd::Pd,
    restrack::Details,
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
    wr::ReceiveRequests,
    xrc::{
        XrcDomain,
        Xrcd, //
    }, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Attributes of a shared receive queue (`struct ib_srq_attr`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of outstanding receives.
    pub max_wr: u32,
    /// Maximum scatter/gather elements of a receive.
    pub max_sge: u32,
    /// An event is raised once fewer receives than this are left; 0 for no event.
    pub limit: u32,
}

impl SrqAttr {
    /// Converts the attributes from C.
    pub(crate) fn from_raw(raw: &bindings::ib_srq_attr) -> Self {
        Self {
            max_wr: raw.max_wr,
            max_sge: raw.max_sge,
            limit: raw.srq_limit,
        }
    }

    /// Writes all attributes, and with them the whole C structure.
    pub(crate) fn write(&self, raw: &mut bindings::ib_srq_attr) {
        raw.max_wr = self.max_wr;
        raw.max_sge = self.max_sge;
        raw.srq_limit = self.limit;
    }
}

/// Attributes of a shared receive queue that change (`enum ib_srq_attr_mask`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SrqChange {
    /// New maximum number of outstanding receives.
    pub(crate) max_wr: Option<u32>,
    /// New limit.
    pub(crate) limit: Option<u32>,
}

impl SrqChange {
    /// Returns the changes given by `mask`. `EINVAL` for unknown bits, or for a limit above the new
    /// maximum.
    pub(crate) fn from_raw(attributes: &SrqAttr, mask: bindings::ib_srq_attr_mask) -> Result<Self> {
        const MAX_WR: bindings::ib_srq_attr_mask = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: bindings::ib_srq_attr_mask = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;

        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(EINVAL);
        }
        let this = Self {
            max_wr: (mask & MAX_WR != 0).then_some(attributes.max_wr),
            limit: (mask & LIMIT != 0).then_some(attributes.limit),
        };
        match (this.max_wr, this.limit) {
            (Some(max_wr), Some(limit)) if limit > max_wr => Err(EINVAL),
            _ => Ok(this),
        }
    }
}

/// Further attributes of a queue of type `IB_SRQT_XRC`.
pub struct XrcSrq<'a, T: Operations> {
    /// XRC domain whose target queue pairs take receives from the queue.
    pub xrcd: &'a Xrcd<T::XrcDomain>,
    /// Completion queue for the receives.
    pub cq: &'a Cq<T::CompletionQueue>,
}

/// A new queue.
pub struct NewSrq<I, R> {
    /// Initialiser of the queue.
    pub init: I,
    /// Response to the provider.
    pub response: R,
    /// Number by which events refer to the queue.
    pub number: u32,
    /// Actual attributes, at least as large as requested.
    pub attributes: SrqAttr,
}

/// A shared receive queue (`struct ib_srq` of type `IB_SRQT_BASIC` or `IB_SRQT_XRC`). Its receives
/// serve any number of queue pairs.
#[vtable]
pub trait SharedReceiveQueue: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<SharedReceiveQueue = Self>;
    /// The driver's part of the request that creates a queue.
    type Request: Request;
    /// The driver's part of the response to that request.
    type Response: Response;
    /// The driver's part of the request that resizes a queue.
    type ResizeRequest: Request;

    /// Whether the driver has shared receive queues; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates a queue with a limit of 0. If `xrc` is given, the queue is for target queue pairs of
    /// extended reliable connections. Only processes create such queues, and only if the driver has
    /// [XRC domains](crate::XrcDomain).
    fn create(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        attributes: &SrqAttr,
        xrc: Option<XrcSrq<'_, Self::Driver>>,
        user: Caller<Self::Driver, User<'_, Self::Driver, Self::Request, Buffer<'_>>>,
    ) -> Result<NewSrq<impl PinInit<Self>, Self::Response>>;

    /// Resizes the queue to at least `max_wr` receives. Posted receives are kept.
    fn resize(
        _srq: &Srq<Self>,
        _call: &Call<'_, Self::Driver>,
        _max_wr: u32,
        _user: Caller<Self::Driver, User<'_, Self::Driver, Self::ResizeRequest>>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Requests an event once fewer than `limit` receives are left; 0 requests none.
    fn set_limit(_srq: &Srq<Self>, _call: &Call<'_, Self::Driver>, _limit: u32) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the current attributes.
    fn query(_srq: &Srq<Self>, _call: &Call<'_, Self::Driver>) -> Result<SrqAttr> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Removes the queue, which no queue pair uses any more, from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(srq: &Srq<Self>, call: &Call<'_, Self::Driver>);

    /// Posts receives in the order in which `requests` yields them. Must not sleep.
    ///
    /// The driver reports what it posted in the same way as for
    /// [sends](crate::QueuePair::post_send). Without this method the kernel cannot create shared
    /// receive queues.
    fn post_recv(
        _srq: &Srq<Self>,
        _call: &Call<'_, Self::Driver>,
        _requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Adds driver-specific details to the dump of a queue (`rdma resource show srq -dd`).
    fn fill_details(_srq: &Srq<Self>, _details: &mut Details<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

core_object! {
    /// A shared receive queue: `struct ib_srq` and the driver's part.
    Srq<SharedReceiveQueue>, ib_srq, Place<bindings::ib_srq>
}

impl<T: SharedReceiveQueue> Srq<T> {
    /// Returns the number by which events refer to the queue.
    #[inline]
    pub fn number(&self) -> u32 {
        self.place.number()
    }

    /// Returns the queue's place in the event table.
    pub(crate) fn place(&self) -> &Place<bindings::ib_srq> {
        &self.place
    }
}

/// # Safety
///
/// `srq` must be a new queue of a device of `T`, `attr` its attributes and `udata` the udata of the
/// call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    srq: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*srq).device, udata) };
    // SAFETY: The core set the domain, to which it holds a reference. The attributes belong to this
    // call, which may change them.
    let (pd, attr) = unsafe { (Pd::from_raw((*srq).pd), &mut *attr) };
    // SAFETY: The queue is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Srq<T::SharedReceiveQueue>>::new(srq) };

    verb.run(|call| {
        let may_post = T::SharedReceiveQueue::HAS_POST_RECV || verb.has_udata();
        let has_xrc = T::XrcDomain::IS_SUPPORTED && verb.has_udata();
        let xrc = match attr.srq_type {
            bindings::ib_srq_type_IB_SRQT_BASIC if may_post => None,
            bindings::ib_srq_type_IB_SRQT_XRC if has_xrc => {
                // SAFETY: The core holds references to the domain and the completion queue that a
                // queue of this type has. Both are of the same device.
                let xrc = unsafe {
                    let xrc = crate::compat::member(&attr.ext.__bindgen_anon_1.xrc);
                    XrcSrq {
                        xrcd: Xrcd::from_raw(xrc.xrcd),
                        cq: Cq::from_raw(attr.ext.cq),
                    }
                };
                Some(xrc)
            }
            _ => return Err(EOPNOTSUPP),
        };
        let is_xrc = xrc.is_some();
        let attributes = SrqAttr {
            limit: 0,
            ..SrqAttr::from_raw(&attr.attr)
        };
        let new_place = call.dispatcher().new_srq_place()?;
        // SAFETY: This verb creates a shared receive queue.
        let user = unsafe { verb.user_with_buffer(call, BufferOf::SharedReceiveQueue) }?;
        let user = caller::<T, _>(user)?;
        let new = T::SharedReceiveQueue::create(call, pd, &attributes, xrc, user)?;
        let in_use = InUse::new(verb.has_udata());
        let (place, unpublished) = new_place.assign(new.number, vacant.as_raw(), in_use);

        let srq = vacant.construct(place, new.init);
        new.attributes.write(&mut attr.attr);
        if is_xrc {
            // SAFETY: The queue is valid, has this type, and nobody else has it yet.
            unsafe {
                let xrc = &mut (*srq.as_raw()).ext.__bindgen_anon_1.xrc;
                crate::compat::member_mut(xrc).srq_num = new.number;
            }
        }
        let holds = new.attributes.max_wr >= attributes.max_wr
            && new.attributes.max_sge >= attributes.max_sge;
        holds
            .then_some(())
            .ok_or(EIO)
            .and_then(|()| verb.respond(&new.response))
            .and_then(|()| unpublished.publish())
            .inspect_err(|_| end(srq, call))
    })
}

/// # Safety
///
/// `srq` must be a constructed queue of a device of `T`, `attr` valid, and `udata` the udata of the
/// call.
pub(crate) unsafe extern "C" fn modify_callback<T: Operations>(
    srq: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*srq).device, udata) };
    // SAFETY: The attributes are valid during the call.
    let attributes = SrqAttr::from_raw(unsafe { &*attr });
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let srq = unsafe { Srq::<T::SharedReceiveQueue>::from_raw(srq) };

    verb.run(|call| {
        let change = SrqChange::from_raw(&attributes, mask)?;
        let can_resize = T::SharedReceiveQueue::HAS_RESIZE || change.max_wr.is_none();
        let has_limit = T::SharedReceiveQueue::HAS_SET_LIMIT || change.limit.is_none();
        if !can_resize || !has_limit {
            return Err(EOPNOTSUPP);
        }
        srq.place.begin_use();

        if let (true, Some(max_wr)) = (T::SharedReceiveQueue::HAS_RESIZE, change.max_wr) {
            let user = caller::<T, _>(verb.user()?)?;
            T::SharedReceiveQueue::resize(srq, call, max_wr, user)?;
            verb.respond(&())?;
        } else {
            verb.no_io()?;
        }
        if let (true, Some(limit)) = (T::SharedReceiveQueue::HAS_SET_LIMIT, change.limit) {
            T::SharedReceiveQueue::set_limit(srq, call, limit)?;
        }
        Ok(())
    })
}

/// # Safety
///
/// `srq` must be a constructed queue of a device of `T`, and `attr` valid for writes.
pub(crate) unsafe extern "C" fn query_callback<T: Operations>(
    srq: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*srq).device) };
    // SAFETY: The queue is constructed, and is not destroyed during the call; the attributes belong
    // to this call.
    let (srq, attr) = unsafe { (Srq::<T::SharedReceiveQueue>::from_raw(srq), blank(attr)) };

    verb.run(|call| {
        T::SharedReceiveQueue::query(srq, call)?.write(attr);
        Ok(())
    })
}

/// # Safety
///
/// `srq` must be a constructed queue of a device of `T` that is no longer in use, and `udata` the
/// udata of the call.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    srq: *mut bindings::ib_srq,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*srq).device, udata) };
    // SAFETY: The queue is that of this verb, which succeeds if it ends the queue.
    let srq = unsafe { Sole::<Srq<T::SharedReceiveQueue>>::new(srq) };

    verb.run(|call| {
        verb.no_io()?;
        end(srq, call);
        Ok(())
    })
}

/// Removes a queue from the hardware and drops it.
fn end<T: Operations>(srq: Sole<'_, Srq<T::SharedReceiveQueue>>, call: &Call<'_, T>) {
    srq.place().begin_end();
    T::SharedReceiveQueue::destroy(&srq, call);
    srq.end();
}

/// # Safety
///
/// `srq` must be a constructed queue of a device of `T`, `wr` a list of requests for it, and `bad`
/// valid for writes.
pub(crate) unsafe extern "C" fn post_recv_callback<T: Operations>(
    srq: *mut bindings::ib_srq,
    wr: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*srq).device) };
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let srq = unsafe { Srq::<T::SharedReceiveQueue>::from_raw(srq) };

    verb.number(|call| {
        // SAFETY: The list is for this queue, and unchanged during the call until it is posted.
        let mut requests = unsafe { ReceiveRequests::new(wr, srq.place().queue()) };
        srq.place().begin_use();
        let result = T::SharedReceiveQueue::post_recv(srq, call, &mut requests);
        // SAFETY: `bad` is valid for writes.
        unsafe { requests.answer(result, bad) }
    })
}

/// # Safety
///
/// `srq` must be a constructed queue of a device of `T`, and `message` a netlink message being
/// written.
pub(crate) unsafe extern "C" fn fill_callback<T: Operations>(
    message: *mut bindings::sk_buff,
    srq: *mut bindings::ib_srq,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let srq = unsafe { Srq::<T::SharedReceiveQueue>::from_raw(srq) };
    // SAFETY: Guaranteed by the caller.
    unsafe {
        Details::write(message, |details| {
            T::SharedReceiveQueue::fill_details(srq, details)
        })
    }
}
