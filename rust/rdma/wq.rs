// SPDX-License-Identifier: GPL-2.0

//! Receive work queues without queue pairs, and receive scaling: indirection tables of such queues,
//! and queue pairs that distribute what they receive among them.
//!
//! Only processes use them.

use core::{
    marker::PhantomData,
    mem::offset_of,
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_result,
        Error, //
    },
    prelude::*,
    types::Opaque, //
};

use crate::{
    bindings,
    cq::Cq,
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
    object::core_object,
    pd::Pd,
    qp::{
        self,
        NewQp,
        Qp, //
    },
    udata::{
        Request,
        Response,
        Udata,
        User, //
    },
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

c_enum! {
    /// State of a receive work queue (`enum ib_wq_state`).
    pub enum State: bindings::ib_wq_state {
        /// Nothing is received, and nothing may be posted.
        Reset = bindings::ib_wq_state_IB_WQS_RESET,
        /// The queue receives.
        Ready = bindings::ib_wq_state_IB_WQS_RDY,
        /// In error: everything posted is flushed.
        Error = bindings::ib_wq_state_IB_WQS_ERR,
    }
}

/// Attributes that the user of a new queue asks for (`struct ib_wq_init_attr`). Creation flags are
/// rejected before the driver is called.
pub struct WqInitAttr<'a, T: Operations> {
    /// Minimum number of outstanding receives.
    pub max_wr: u32,
    /// Minimum number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// Completion queue for the receives.
    pub cq: &'a Cq<T::CompletionQueue>,
}

/// A new queue.
pub struct NewWq<I, R> {
    /// Initialiser of the queue.
    pub init: I,
    /// Response to the provider.
    pub response: R,
    /// Number of the queue, by which events refer to it.
    pub number: u32,
    /// Actual number of outstanding receives, at least as large as requested.
    pub max_wr: u32,
    /// Actual number of scatter/gather elements of a receive, at least as large as requested.
    pub max_sge: u32,
}

/// A receive work queue (`struct ib_wq` of type `IB_WQT_RQ`).
pub trait ReceiveWorkQueue: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<ReceiveWorkQueue = Self>;
    /// The driver's part of the request that creates a queue.
    type Request: Request;
    /// The driver's part of the response to that request.
    type Response: Response;

    /// Whether the driver has receive work queues; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates a queue in the state [`Reset`](State::Reset).
    fn create(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        attributes: &WqInitAttr<'_, Self::Driver>,
        user: User<'_, Self::Driver, Self::Request>,
    ) -> Result<NewWq<impl PinInit<Self>, Self::Response>>;

    /// Moves a queue from the state `from`, in which its user believes it to be, to another state
    /// or the same.
    fn modify(&self, call: &Call<'_, Self::Driver>, from: State, to: State) -> Result;

    /// Removes the queue, which no indirection table contains any more, from the hardware; then it
    /// is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(&self, call: &Call<'_, Self::Driver>);
}

/// An indirection table (`struct ib_rwq_ind_table`): a hash of what arrives is its index.
pub trait IndirectionTable: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<IndirectionTable = Self>;
    /// The driver's part of the request that creates a queue pair with a table.
    type Request: Request;

    /// Whether the driver has indirection tables; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates a table of these queues, a power of two, which exist for at least as long as the
    /// table. The same one can be there several times.
    fn create(
        call: &Call<'_, Self::Driver>,
        queues: Queues<'_, Self::Driver>,
    ) -> Result<impl PinInit<Self>>;

    /// Removes the table, which no queue pair uses any more, from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(table: &RwqTable<Self>, call: &Call<'_, Self::Driver>);

    /// Creates a queue pair of type [`RawPacket`](qp::Type::RawPacket) that has no work queues and
    /// no completion queues of its own. What flows direct to it goes to the queues of the table,
    /// which exists for at least as long as the queue pair.
    #[allow(clippy::type_complexity)]
    fn create_queue_pair(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        table: &RwqTable<Self>,
        user: User<'_, Self::Driver, Self::Request>,
    ) -> Result<NewQp<impl PinInit<<Self::Driver as Operations>::QueuePair>, ()>>;
}

/// The queues of a new indirection table.
///
/// # Invariants
///
/// All pointers are those of constructed queues of a device of `T`.
pub struct Queues<'a, T: Operations> {
    raw: &'a [*mut bindings::ib_wq],
    _driver: PhantomData<T>,
}

impl<'a, T: Operations> Queues<'a, T> {
    /// Returns the number of queues, a power of two.
    #[inline]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Returns whether there are no queues. There always is one.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the queues in their order.
    pub fn iter(&self) -> impl Iterator<Item = &'a T::ReceiveWorkQueue> + '_ {
        // SAFETY: By the type invariant.
        let queue =
            |raw: &*mut bindings::ib_wq| unsafe { Wq::<T::ReceiveWorkQueue>::from_raw(*raw) };
        self.raw.iter().map(move |raw| &queue(raw).data)
    }
}

/// A receive work queue: `struct ib_wq` and the driver's part.
///
/// Unlike most other objects it is allocated by this crate and not by the core.
#[pin_data]
#[repr(C)]
struct Wq<T: ReceiveWorkQueue> {
    raw: Opaque<bindings::ib_wq>,
    /// Dropped before the data: events find the queue only as long as it has its place.
    place: Place<bindings::ib_wq>,
    #[pin]
    data: T,
}

impl<T: ReceiveWorkQueue> Wq<T> {
    /// Borrows a queue from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`create_callback`], and must not be destroyed during `'a`.
    unsafe fn from_raw<'a>(ptr: *mut bindings::ib_wq) -> &'a Self {
        const { assert!(offset_of!(Self, raw) == 0) };
        // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
        unsafe { &*ptr.cast() }
    }
}

core_object! {
    /// An indirection table: `struct ib_rwq_ind_table` and the driver's part.
    RwqTable<IndirectionTable>, ib_rwq_ind_table
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`, `attr` the attributes of a new queue and
/// `udata` the udata of the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    attr: *mut bindings::ib_wq_init_attr,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_wq {
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*pd).device), Udata::from_raw(udata)) };

    // SAFETY:
    // - Verbs run only while the device is registered; its users have contexts, and only processes
    //   have udata.
    // - The attributes are valid during the call. The core holds references to the completion queue
    //   and the domain, which are of the same device.
    let created = unsafe {
        device.with_caller(udata.is_some(), |call| {
            let udata = udata.as_ref().ok_or(EOPNOTSUPP)?;
            let attr = &mut *attr;
            if attr.wq_type != bindings::ib_wq_type_IB_WQT_RQ || attr.cq.is_null() {
                return Err(EINVAL);
            }
            if attr.create_flags != 0 {
                return Err(EOPNOTSUPP);
            }
            let user = udata.user::<T, _>()?;
            let attributes = WqInitAttr {
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                cq: Cq::from_raw(attr.cq),
            };
            // Nothing may fail between the creation on the hardware and that of the object.
            let mut memory = KBox::<Wq<T::ReceiveWorkQueue>>::new_uninit(GFP_KERNEL)?;
            let object = NonNull::from(&mut *memory).cast::<bindings::ib_wq>();
            let room = call.dispatcher().wq_room()?;
            let new = T::ReceiveWorkQueue::create(call, Pd::from_raw(pd), &attributes, user)?;
            // The core sets what its event handler needs only after this function has returned. The
            // user can modify the queue only after that.
            let (place, listing) = room.assign(new.number, object, InUse::new(false));
            let init = new.init;
            let init = pin_init!(Wq {
                raw: Opaque::zeroed(),
                place,
                data <- init,
            });
            let queue = match memory.write_pin_init::<core::convert::Infallible>(init) {
                Ok(queue) => queue,
                Err(never) => match never {},
            };
            let raw = object.as_ptr();
            (*raw).device = call.device().as_raw();
            (*raw).wq_num = new.number;
            (*raw).state = State::Reset.raw();
            (*raw).event_handler = attr.event_handler;
            (*raw).wq_context = attr.wq_context;
            let holds = new.max_wr >= attr.max_wr && new.max_sge >= attr.max_sge;
            (attr.max_wr, attr.max_sge) = (new.max_wr, new.max_sge);
            qp::check_number(new.number)
                .and_then(|()| holds.then_some(()).ok_or(EIO))
                .and_then(|()| udata.respond(&new.response))
                .and_then(|()| listing.publish())
                .inspect_err(|_| end(&queue, call))?;
            // The core owns the queue from now on; it stays pinned.
            Ok(KBox::into_raw(Pin::into_inner_unchecked(queue)).cast())
        })
    };
    created.unwrap_or_else(|err: Error| err.to_ptr())
}

/// Removes a queue from the hardware, before it is dropped.
fn end<T: Operations>(queue: &Wq<T::ReceiveWorkQueue>, call: &Call<'_, T>) {
    queue.place.begin_end();
    queue.data.destroy(call);
}

/// # Safety
///
/// `wq` must be a queue of a device of `T`, `attr` valid, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn modify_callback<T: Operations>(
    wq: *mut bindings::ib_wq,
    attr: *mut bindings::ib_wq_attr,
    mask: u32,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The device was set when the queue was created; the call does not end before this
    // function returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*wq).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the queue came from `create_callback`.
    // The core reads its state without a lock, and tolerates that it changes at the same time.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            let attr = &*attr;
            let flags = bindings::ib_wq_attr_mask_IB_WQ_FLAGS;
            if mask & flags != 0 && attr.flags_mask != 0 {
                return Err(EOPNOTSUPP);
            }
            // What the user believes to be the state changes nothing.
            if mask & bindings::ib_wq_attr_mask_IB_WQ_STATE == 0 {
                return Ok(0);
            }
            let this = Wq::<T::ReceiveWorkQueue>::from_raw(wq);
            this.place.begin_use();
            let (from, to) = (
                State::try_from(attr.curr_wq_state)?,
                State::try_from(attr.wq_state)?,
            );
            this.data.modify(call, from, to)?;
            (&raw mut (*wq).state).write_volatile(to.raw());
            Ok(0)
        })
    })
}

/// # Safety
///
/// `wq` must be a queue of a device of `T` that is no longer in use, and `udata` the udata of the
/// call.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    wq: *mut bindings::ib_wq,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The device was set when the queue was created; the call does not end before this
    // function returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*wq).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered. The queue came from `create_callback`,
    // has been pinned since then, and is not used any more.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            let queue = KBox::<Wq<T::ReceiveWorkQueue>>::from_raw(wq.cast());
            let queue = Pin::new_unchecked(queue);
            end(&queue, call);
            Ok(0)
        })
    })
}

/// # Safety
///
/// `table` must be a new table of a device of `T`, `attr` its attributes and `udata` the udata of
/// the call.
pub(crate) unsafe extern "C" fn create_table_callback<T: Operations>(
    table: *mut bindings::ib_rwq_ind_table,
    attr: *mut bindings::ib_rwq_ind_table_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the table; the call does not end before this function
    // returns.
    let (device, udata) = unsafe {
        (
            Device::<T>::from_raw((*table).device),
            Udata::from_raw(udata),
        )
    };

    // SAFETY:
    // - Verbs run only while the device is registered.
    // - The core counts references to the queues, as many as the attributes say, which came from
    //   `create_callback`, and has limited their number.
    // - The core allocated room for the data, which is constructed here. Nobody else can reach it
    //   before the call returns.
    from_result(|| unsafe {
        device.with_caller(udata.is_some(), |call| {
            Udata::no_io(udata.as_ref())?;
            let count = 1_usize
                .checked_shl((*attr).log_ind_tbl_size)
                .ok_or(EINVAL)?;
            let queues = Queues {
                raw: core::slice::from_raw_parts((*attr).ind_tbl, count),
                _driver: PhantomData,
            };
            let init = T::IndirectionTable::create(call, queues)?;
            RwqTable::construct(table, (), init);
            Ok(0)
        })
    })
}

/// # Safety
///
/// `table` must be a constructed table of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn destroy_table_callback<T: Operations>(
    table: *mut bindings::ib_rwq_ind_table,
) -> c_int {
    // SAFETY: The core set the device of the table.
    let device = unsafe { Device::<T>::from_raw((*table).device) };

    // SAFETY: Verbs run only while the device is registered; the table is constructed, and the core
    // frees it.
    from_result(|| unsafe {
        device.with(|call| {
            T::IndirectionTable::destroy(RwqTable::from_raw(table), call);
            RwqTable::<T::IndirectionTable>::destruct(table);
            Ok(0)
        })
    })
}

/// Creates a queue pair with an indirection table. `EOPNOTSUPP` for the kernel; `EINVAL` for other
/// types than raw packets, or if it is to have work queues as well.
///
/// # Safety
///
/// `qp` must be a new queue pair of the device of the call, `attr` its attributes, and `udata` the
/// udata of the call.
pub(crate) unsafe fn create_queue_pair<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: &mut bindings::ib_qp_init_attr,
    call: &Call<'_, T>,
    udata: Option<&Udata<'_>>,
) -> Result<c_int> {
    let (true, Some(udata)) = (T::IndirectionTable::IS_SUPPORTED, udata) else {
        return Err(EOPNOTSUPP);
    };
    if attr.qp_type != bindings::ib_qp_type_IB_QPT_RAW_PACKET
        || !attr.send_cq.is_null()
        || !attr.recv_cq.is_null()
        || !attr.srq.is_null()
    {
        return Err(EINVAL);
    }
    let room = call.dispatcher().qp_room()?;
    // SAFETY: The core holds references to the table and the domain, which are of the same device,
    // whose users have contexts.
    let new = unsafe {
        let table = RwqTable::<T::IndirectionTable>::from_raw(attr.rwq_ind_tbl);
        let user = udata.user::<T, _>()?;
        T::IndirectionTable::create_queue_pair(call, Pd::from_raw((*qp).pd), table, user)?
    };
    // There are no events for it.
    let in_use = InUse::of_queue_pair(false, Completes::NOWHERE);
    // SAFETY: The core allocated room for the queue pair, which is constructed once. Only the
    // dispatcher can reach it before the call returns.
    unsafe {
        let (place, listing) = room.assign(new.number, NonNull::new_unchecked(qp), in_use);
        Qp::construct(qp, place, new.init);
        (*qp).qp_num = new.number;
        new.capabilities.write(&mut attr.cap);
        qp::check_number(new.number)
            .and_then(|()| udata.respond(&new.response))
            .and_then(|()| listing.publish())
            .inspect_err(|_| qp::end(qp, call))?;
    }
    Ok(0)
}
