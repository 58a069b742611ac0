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
    impl_flags,
    prelude::*,
    types::Opaque, //
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
    object::{
        core_object,
        optional,
        Sole,
        Vacant, //
    },
    pd::Pd,
    qp::{
        self,
        NewQp,
        Qp, //
    },
    udata::{
        Request,
        Response,
        User, //
    },
    verb::Verb, //
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

impl_flags!(
    /// Creation flags of a receive work queue (`enum ib_wq_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct CreationFlags(u32);

    /// A creation flag of a receive work queue.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CreationFlag {
        /// Frames are received without their VLAN tag, which the completion contains.
        StripVlan = bindings::ib_wq_flags_IB_WQ_FLAGS_CVLAN_STRIPPING,
        /// Frames are received with their frame check sequence.
        ScatterFcs = bindings::ib_wq_flags_IB_WQ_FLAGS_SCATTER_FCS,
    }
);

/// Attributes that the user of a new queue asks for (`struct ib_wq_init_attr`).
pub struct WqInitAttr<'a, T: Operations> {
    /// Minimum number of outstanding receives.
    pub max_wr: u32,
    /// Minimum number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// Completion queue for the receives.
    pub cq: &'a Cq<T::CompletionQueue>,
    /// Creation flags, which the driver [knows](ReceiveWorkQueue::CREATION_FLAGS).
    pub flags: CreationFlags,
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

    /// The creation flags that queues can have on some devices, which report it in their
    /// [attributes](crate::device::DeviceAttr). A request with another flag is rejected with
    /// `EOPNOTSUPP` before the driver is called. One with such a flag must be rejected by the
    /// driver on other devices.
    const CREATION_FLAGS: &'static [CreationFlag] = &[];

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
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*pd).device, udata) };
    // SAFETY: The core holds a reference to the domain. The attributes belong to this call, which
    // may change them.
    let (pd, attr) = unsafe { (Pd::from_raw(pd), &mut *attr) };
    // SAFETY: The core holds a reference to the completion queue, which is of the same device.
    let cq = unsafe { optional(attr.cq) };

    verb.pointer(|call| {
        let cq = cq.ok_or(EINVAL)?;
        if attr.wq_type != bindings::ib_wq_type_IB_WQT_RQ {
            return Err(EINVAL);
        }
        let known = T::ReceiveWorkQueue::CREATION_FLAGS;
        let known = known
            .iter()
            .fold(CreationFlags::empty(), |all, flag| all | *flag);
        if attr.create_flags & !known.0 != 0 {
            return Err(EOPNOTSUPP);
        }
        let user = verb.user()?.ok_or(EOPNOTSUPP)?;
        let attributes = WqInitAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            cq,
            flags: CreationFlags(attr.create_flags),
        };
        // Nothing may fail between the creation on the hardware and that of the object.
        let mut memory = KBox::<Wq<T::ReceiveWorkQueue>>::new_uninit(GFP_KERNEL)?;
        let object = NonNull::from(&mut *memory).cast::<bindings::ib_wq>();
        let new_place = call.dispatcher().new_wq_place()?;
        let new = T::ReceiveWorkQueue::create(call, pd, &attributes, user)?;
        // The core sets what its event handler needs only after this function has returned. The
        // user can modify the queue only after that.
        let (place, unpublished) = new_place.assign(new.number, object, InUse::new(false));
        let init = new.init;
        let raw = bindings::ib_wq {
            device: call.device().as_raw(),
            wq_num: new.number,
            state: State::Reset.raw(),
            event_handler: attr.event_handler,
            wq_context: attr.wq_context,
            ..pin_init::zeroed()
        };
        let init = pin_init!(Wq {
            raw: Opaque::new(raw),
            place,
            data <- init,
        });
        let queue = match memory.write_pin_init::<core::convert::Infallible>(init) {
            Ok(queue) => queue,
            Err(never) => match never {},
        };
        let holds = new.max_wr >= attr.max_wr && new.max_sge >= attr.max_sge;
        (attr.max_wr, attr.max_sge) = (new.max_wr, new.max_sge);
        qp::check_number(new.number)
            .and_then(|()| holds.then_some(()).ok_or(EIO))
            .and_then(|()| verb.respond(&new.response))
            .and_then(|()| unpublished.publish())
            .inspect_err(|_| end(&queue, call))?;
        // SAFETY: The core owns the queue from now on; it stays pinned.
        Ok(KBox::into_raw(unsafe { Pin::into_inner_unchecked(queue) }).cast())
    })
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
    // SAFETY: The device was set when the queue was created; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*wq).device, udata) };
    // SAFETY: The attributes are valid during the call.
    let attr = unsafe { &*attr };
    // SAFETY: The queue came from `create_callback`, and is not destroyed during the call.
    let this = unsafe { Wq::<T::ReceiveWorkQueue>::from_raw(wq) };

    verb.run(|call| {
        verb.no_io()?;
        let flags = bindings::ib_wq_attr_mask_IB_WQ_FLAGS;
        if mask & flags != 0 && attr.flags_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        // What the user believes to be the state changes nothing.
        if mask & bindings::ib_wq_attr_mask_IB_WQ_STATE == 0 {
            return Ok(());
        }
        this.place.begin_use();
        let (from, to) = (
            State::try_from(attr.curr_wq_state)?,
            State::try_from(attr.wq_state)?,
        );
        this.data.modify(call, from, to)?;
        // SAFETY: The queue is valid. The core reads its state without a lock, and tolerates that
        // it changes at the same time.
        unsafe { (&raw mut (*wq).state).write_volatile(to.raw()) };
        Ok(())
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
    // SAFETY: The device was set when the queue was created; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*wq).device, udata) };

    verb.run(|call| {
        verb.no_io()?;
        // SAFETY: The queue came from `create_callback`, has been pinned since then, and is not
        // used any more: this verb succeeds.
        let queue =
            unsafe { Pin::new_unchecked(KBox::<Wq<T::ReceiveWorkQueue>>::from_raw(wq.cast())) };
        end(&queue, call);
        Ok(())
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
    // SAFETY: The core set the device of the table; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*table).device, udata) };
    // SAFETY: The attributes are valid during the call.
    let attr = unsafe { &*attr };
    // SAFETY: The table is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<RwqTable<T::IndirectionTable>>::new(table) };

    verb.run(|call| {
        verb.no_io()?;
        let count = 1_usize.checked_shl(attr.log_ind_tbl_size).ok_or(EINVAL)?;
        // INVARIANT: The core counts references to the queues, which came from `create_callback`.
        let queues = Queues {
            // SAFETY: The core, which has limited their number, passes as many queues as it says.
            raw: unsafe { core::slice::from_raw_parts(attr.ind_tbl, count) },
            _driver: PhantomData,
        };
        let init = T::IndirectionTable::create(call, queues)?;
        vacant.construct((), init);
        Ok(())
    })
}

/// # Safety
///
/// `table` must be a constructed table of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn destroy_table_callback<T: Operations>(
    table: *mut bindings::ib_rwq_ind_table,
) -> c_int {
    // SAFETY: The core set the device of the table.
    let verb = unsafe { Verb::<T>::new((*table).device) };
    // SAFETY: The table is that of this verb, which succeeds.
    let table = unsafe { Sole::<RwqTable<T::IndirectionTable>>::new(table) };

    verb.run(|call| {
        T::IndirectionTable::destroy(&table, call);
        table.end();
        Ok(())
    })
}

/// Creates a queue pair with an indirection table. `EOPNOTSUPP` for the kernel; `EINVAL` for other
/// types than raw packets, or if it is to have work queues as well.
pub(crate) fn create_queue_pair<T: Operations>(
    verb: &Verb<'_, T>,
    call: &Call<'_, T>,
    vacant: Vacant<'_, Qp<T::QueuePair>>,
    attr: &mut bindings::ib_qp_init_attr,
    pd: Option<&Pd<T::ProtectionDomain>>,
    table: &RwqTable<T::IndirectionTable>,
) -> Result {
    if !T::IndirectionTable::IS_SUPPORTED || !verb.has_udata() {
        return Err(EOPNOTSUPP);
    }
    if attr.qp_type != bindings::ib_qp_type_IB_QPT_RAW_PACKET
        || !attr.send_cq.is_null()
        || !attr.recv_cq.is_null()
        || !attr.srq.is_null()
    {
        return Err(EINVAL);
    }
    let pd = pd.ok_or(EINVAL)?;
    let new_place = call.dispatcher().new_qp_place()?;
    let user = verb.user()?.ok_or(EOPNOTSUPP)?;
    let new = T::IndirectionTable::create_queue_pair(call, pd, table, user)?;
    // There are no events for it.
    let in_use = InUse::of_queue_pair(false, Completes::NOWHERE);
    let (place, unpublished) = new_place.assign(new.number, vacant.as_raw(), in_use);
    new.capabilities.write(&mut attr.cap);
    let qp = qp::construct(vacant, place, new.number, new.init);
    qp::check_number(new.number)
        .and_then(|()| verb.respond(&new.response))
        .and_then(|()| unpublished.publish())
        .inspect_err(|_| qp::end(qp, call))
}
