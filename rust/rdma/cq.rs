// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use kernel::{
    bits::bit_u32,
    impl_flags,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

use crate::{
    bindings,
    device::{
        Call,
        Device,
        Operations, //
    },
    event::{
        NewPlace,
        Notice,
        Place, //
    },
    object::{
        core_object,
        Sole,
        Vacant, //
    },
    restrack::Details,
    udata::{
        Request,
        Response,
        User, //
    },
    umem::{
        Buffer,
        BufferOf, //
    },
    verb::Verb,
    wc::Completions, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

impl_flags!(
    /// Properties of a completion queue (`enum ib_uverbs_ex_create_cq_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct CqFlags(u32);

    /// A property of a completion queue.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CqFlag {
        /// Completions have timestamps.
        Timestamps = bit_u32(0),
        /// The user makes sure that the queue does not overrun; the device need not check.
        IgnoreOverrun = bit_u32(1),
    }
);

impl CqFlags {
    /// Converts C flags. Flags without a name here are rejected with `EOPNOTSUPP`, because the core
    /// passes on whatever a process sets.
    fn from_raw(raw: u32) -> Result<Self> {
        if raw & !0b11 != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Self(raw))
    }
}

/// Attributes that the user of a new completion queue asks for (`struct ib_cq_init_attr`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CqInitAttr {
    /// Minimum number of entries, at least 1.
    pub entries: u32,
    /// Completion vector, less than the device's number of vectors.
    pub vector: u32,
    /// Properties of the queue.
    pub flags: CqFlags,
}

/// A new completion queue.
pub struct NewCq<I, R> {
    /// Initialiser of the queue.
    pub init: I,
    /// Response to the provider; `()` for queues of the kernel.
    pub response: R,
    /// Number by which events refer to the queue.
    pub number: u32,
    /// Actual number of entries, at least as many as requested.
    pub entries: u32,
}

/// A completion queue (`struct ib_cq`).
#[vtable]
pub trait CompletionQueue: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<CompletionQueue = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;
    /// The driver's part of the request that resizes a queue.
    type ResizeRequest: Request;

    /// Creates a completion queue for a process.
    fn create_user(
        call: &Call<'_, Self::Driver>,
        attributes: &CqInitAttr,
        user: User<'_, Self::Driver, Self::Request, Buffer<'_>>,
    ) -> Result<NewCq<impl PinInit<Self>, Self::Response>>;

    /// Creates a completion queue for the kernel.
    fn create(
        _call: &Call<'_, Self::Driver>,
        _attributes: &CqInitAttr,
    ) -> Result<NewCq<impl PinInit<Self>, ()>> {
        Err::<NewCq<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Removes the queue, which no queue pair uses any more, from the hardware; then it is dropped.
    ///
    /// This cannot fail: `ib_free_cq` frees the memory in any case. If the hardware refuses, the
    /// driver must stop it.
    fn destroy(cq: &Cq<Self>, call: &Call<'_, Self::Driver>);

    /// Resizes a queue of a process to at least `entries` completions, and reports the actual
    /// number through [`Cq::set_entries`]. Completions that were not polled yet are kept.
    fn resize(
        _cq: &Cq<Self>,
        _call: &Call<'_, Self::Driver>,
        _entries: u32,
        _user: User<'_, Self::Driver, Self::ResizeRequest>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Delays events until there are `count` completions, but for at most `period` microseconds.
    fn moderate(
        _cq: &Cq<Self>,
        _call: &Call<'_, Self::Driver>,
        _count: u16,
        _period: u16,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Takes completions from a queue of the kernel, oldest first, until the queue is empty or
    /// `out` is full. Must not sleep.
    fn poll(_cq: &Cq<Self>, _call: &Call<'_, Self::Driver>, _out: &mut Completions<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Requests one event: for the next completion or, if `solicited_only`, for the next completion
    /// that is solicited or failed. Must not sleep.
    ///
    /// Returns whether completions may have arrived before, for which there will be no event.
    fn request_notify(
        _cq: &Cq<Self>,
        _call: &Call<'_, Self::Driver>,
        _solicited_only: bool,
    ) -> Result<bool> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Adds driver-specific details to the dump of a queue (`rdma resource show -dd`).
    fn fill_details(_cq: &Cq<Self>, _details: &mut Details<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

core_object! {
    /// A completion queue: `struct ib_cq` and the driver's part.
    Cq<CompletionQueue>, ib_cq, Place<bindings::ib_cq>
}

impl<T: CompletionQueue> Cq<T> {
    /// Returns the number by which events refer to the queue.
    #[inline]
    pub fn number(&self) -> u32 {
        self.place.number()
    }

    /// Returns the queue's place in the event table.
    pub(crate) fn place(&self) -> &Place<bindings::ib_cq> {
        &self.place
    }

    /// Returns the completion vector on which the queue's events arrive.
    #[inline]
    pub fn vector(&self) -> u32 {
        // SAFETY: The C structure is valid; the vector does not change.
        unsafe { (*self.as_raw()).comp_vector }
    }

    /// Returns the number of entries in the C structure, which the queue's user sees.
    fn told_entries(&self) -> &Atomic<c_int> {
        // SAFETY: The C structure is valid. Others only read the field, which may change at any
        // time.
        unsafe { Atomic::from_ptr(&raw mut (*self.as_raw()).cqe) }
    }

    /// Returns the number of completions that the queue can hold.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.told_entries().load(Relaxed).unsigned_abs()
    }

    /// Sets the number of completions that the queue can hold.
    pub fn set_entries(&self, entries: u32) {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        self.told_entries().store(entries, Relaxed);
    }
}

/// Converts the attributes of a new queue from C.
fn attributes(
    attr: &bindings::ib_cq_init_attr,
    device: &Device<impl Operations>,
) -> Result<CqInitAttr> {
    if attr.cqe == 0 || attr.comp_vector >= device.completion_vectors() {
        return Err(EINVAL);
    }
    Ok(CqInitAttr {
        entries: attr.cqe,
        vector: attr.comp_vector,
        flags: CqFlags::from_raw(attr.flags)?,
    })
}

/// Completes the creation of a queue: responds to the caller, and makes events find the queue.
fn finish<T: Operations, R: Response>(
    verb: &Verb<'_, T>,
    call: &Call<'_, T>,
    vacant: Vacant<'_, Cq<T::CompletionQueue>>,
    attributes: &CqInitAttr,
    new_place: NewPlace<bindings::ib_cq>,
    new: NewCq<impl PinInit<T::CompletionQueue>, R>,
) -> Result {
    let notice = Notice::new(verb.has_udata());
    let (place, unpublished) = new_place.assign(new.number, vacant.as_raw(), notice);
    let cq = vacant.construct(place, new.init);
    // SAFETY: The queue is valid, and nobody else has it yet.
    unsafe { (*cq.as_raw()).comp_vector = attributes.vector };
    cq.set_entries(new.entries);

    (new.entries >= attributes.entries)
        .then_some(())
        .ok_or(EIO)
        .and_then(|()| verb.respond(&new.response))
        .and_then(|()| unpublished.publish())
        .inspect_err(|_| end(cq, call))
}

/// Removes a queue from the hardware and drops it.
fn end<T: Operations>(cq: Sole<'_, Cq<T::CompletionQueue>>, call: &Call<'_, T>) {
    cq.place().begin_end();
    T::CompletionQueue::destroy(&cq, call);
    cq.end();
}

/// # Safety
///
/// `cq` must be a new queue of a device of `T`; `attr` and `attrs` those of the call.
pub(crate) unsafe extern "C" fn create_user_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the queue. The bundle is that of this verb, which
    // processes call, and contains the udata.
    let verb = unsafe {
        let udata = &raw mut (*attrs).__bindgen_anon_1.__bindgen_anon_1.driver_udata;
        Verb::<T>::by_caller((*cq).device, udata)
    };
    // SAFETY: The attributes are valid during the call.
    let attributes = attributes(unsafe { &*attr }, verb.device());
    // SAFETY: The queue is that of this verb, which creates it.
    let vacant = unsafe { Vacant::new(cq) };

    verb.run(|call| {
        let attributes = attributes?;
        let new_place = call.dispatcher().new_cq_place(attributes.vector)?;
        // SAFETY: This verb creates a completion queue.
        let user = unsafe { verb.user_with_buffer(call, BufferOf::CompletionQueue) }?;
        let user = user.ok_or(EINVAL)?;
        let new = T::CompletionQueue::create_user(call, &attributes, user)?;

        finish(&verb, call, vacant, &attributes, new_place, new)
    })
}

/// # Safety
///
/// `cq` must be a new queue of a device of `T`, and `attr` the attributes of the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*cq).device) };
    // SAFETY: The attributes are valid during the call.
    let attributes = attributes(unsafe { &*attr }, verb.device());
    // SAFETY: The queue is that of this verb, which creates it.
    let vacant = unsafe { Vacant::new(cq) };

    verb.run(|call| {
        let attributes = attributes?;
        let new_place = call.dispatcher().new_cq_place(attributes.vector)?;
        let new = T::CompletionQueue::create(call, &attributes)?;

        finish(&verb, call, vacant, &attributes, new_place, new)
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T` that is no longer in use, and `udata` the
/// udata of the call.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*cq).device, udata) };
    // SAFETY: The queue is that of this verb, which succeeds if it ends the queue.
    let cq = unsafe { Sole::<Cq<T::CompletionQueue>>::new(cq) };

    verb.run(|call| {
        verb.no_io()?;
        end(cq, call);
        Ok(())
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a process on a device of `T`, and `udata` the udata of the
/// call.
pub(crate) unsafe extern "C" fn resize_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    entries: c_uint,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the queue; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*cq).device, udata) };
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let cq = unsafe { Cq::<T::CompletionQueue>::from_raw(cq) };

    verb.run(|call| {
        let user = verb.user()?.ok_or(EINVAL)?;
        T::CompletionQueue::resize(cq, call, entries, user)?;
        verb.respond(&())
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`.
pub(crate) unsafe extern "C" fn modify_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    count: u16,
    period: u16,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*cq).device) };
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let cq = unsafe { Cq::<T::CompletionQueue>::from_raw(cq) };

    verb.run(|call| T::CompletionQueue::moderate(cq, call, count, period))
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`, and `wc` have room for `count` completions.
pub(crate) unsafe extern "C" fn poll_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    count: c_int,
    wc: *mut bindings::ib_wc,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*cq).device) };
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let cq = unsafe { Cq::<T::CompletionQueue>::from_raw(cq) };

    verb.number(|call| {
        // The owner of a process's queue may destroy queue pairs while the queue is polled, so such
        // queues cannot be polled here.
        if cq.place().is_of_process() {
            return Err(EOPNOTSUPP);
        }
        let room = usize::try_from(count)?;
        // SAFETY: `wc` has room for `count`, and the owner of the queue keeps the queue pairs.
        let mut out = unsafe { Completions::new(call.dispatcher(), cq.as_raw(), wc, room) };
        T::CompletionQueue::poll(cq, call, &mut out)?;
        // CAST: Not more than `count`.
        Ok(out.len() as c_int)
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`.
pub(crate) unsafe extern "C" fn request_notify_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let verb = unsafe { Verb::<T>::new((*cq).device) };
    // SAFETY: The queue is constructed, and is not destroyed during the call.
    let cq = unsafe { Cq::<T::CompletionQueue>::from_raw(cq) };
    let solicited_only = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
        == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
    let report_missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;

    verb.number(|call| {
        cq.place().arm();
        let missed = T::CompletionQueue::request_notify(cq, call, solicited_only)?;
        Ok(c_int::from(missed && report_missed))
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`, and `message` a netlink message being
/// written.
pub(crate) unsafe extern "C" fn fill_callback<T: Operations>(
    message: *mut bindings::sk_buff,
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let cq = unsafe { Cq::<T::CompletionQueue>::from_raw(cq) };
    // SAFETY: Guaranteed by the caller.
    unsafe {
        Details::write(message, |details| {
            T::CompletionQueue::fill_details(cq, details)
        })
    }
}
