// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use core::ptr::NonNull;

use kernel::{
    bits::bit_u32,
    error::from_result,
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
        Notice,
        Place,
        Room, //
    },
    object::{
        core_object,
        respond, //
    },
    restrack::Details,
    udata::{
        Request,
        Response,
        Udata,
        User, //
    },
    umem::{
        Buffer,
        BufferOf, //
    },
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
///
/// # Safety
///
/// `attr` must be valid.
unsafe fn attributes(
    attr: *const bindings::ib_cq_init_attr,
    device: &Device<impl Operations>,
) -> Result<CqInitAttr> {
    // SAFETY: Guaranteed by the caller.
    let attr = unsafe { &*attr };

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
///
/// # Safety
///
/// `cq` must be a queue that the core allocated for a device of `T` and that is not reachable by
/// others yet.
unsafe fn finish<T: Operations, R: Response>(
    call: &Call<'_, T>,
    cq: *mut bindings::ib_cq,
    attributes: &CqInitAttr,
    room: Room<bindings::ib_cq>,
    new: NewCq<impl PinInit<T::CompletionQueue>, R>,
    udata: Option<&Udata<'_>>,
) -> Result {
    // SAFETY: Guaranteed by the caller; the queue is constructed once, and ended at most once.
    unsafe {
        let notice = Notice::new(udata.is_some());
        let (place, listing) = room.assign(new.number, NonNull::new_unchecked(cq), notice);
        Cq::construct(cq, place, new.init);
        (*cq).comp_vector = attributes.vector;
        (*cq).cqe = c_int::try_from(new.entries).unwrap_or(c_int::MAX);

        (new.entries >= attributes.entries)
            .then_some(())
            .ok_or(EIO)
            .and_then(|()| respond(udata, &new.response))
            .and_then(|()| listing.publish())
            .inspect_err(|_| end(cq, call))
    }
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T` that is no longer in use.
unsafe fn end<T: Operations>(cq: *mut bindings::ib_cq, call: &Call<'_, T>) {
    // SAFETY: Guaranteed by the caller.
    unsafe {
        let this = Cq::<T::CompletionQueue>::from_raw(cq);
        this.place().begin_end();
        T::CompletionQueue::destroy(this, call);
        Cq::<T::CompletionQueue>::destruct(cq);
    }
}

/// # Safety
///
/// `cq` must be a new queue of a device of `T`; `attr` and `attrs` those of the call.
pub(crate) unsafe extern "C" fn create_user_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the queue.
    let device = unsafe { Device::<T>::from_raw((*cq).device) };

    // SAFETY:
    // - Verbs run only while the device is registered; processes call this one, and have contexts.
    // - Attributes and udata are valid during the call.
    // - The core allocated the queue, which is not reachable by others before the call returns.
    from_result(|| unsafe {
        let attrs = NonNull::new(attrs).ok_or(EINVAL)?;
        let udata = &raw mut (*attrs.as_ptr())
            .__bindgen_anon_1
            .__bindgen_anon_1
            .driver_udata;
        let udata = Udata::from_raw(udata).ok_or(EINVAL)?;

        device.with_caller(true, |call| {
            let attributes = attributes(attr, device)?;
            let room = call.dispatcher().cq_room(attributes.vector)?;
            let user = udata.user_with_buffer::<T, _>(call, BufferOf::CompletionQueue)?;
            let new = T::CompletionQueue::create_user(call, &attributes, user)?;

            finish(call, cq, &attributes, room, new, Some(&udata))?;
            Ok(0)
        })
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
    let device = unsafe { Device::<T>::from_raw((*cq).device) };

    // SAFETY: As in `create_user_callback`, which handles calls from user space.
    from_result(|| unsafe {
        device.with(|call| {
            let attributes = attributes(attr, device)?;
            let room = call.dispatcher().cq_room(attributes.vector)?;
            let new = T::CompletionQueue::create(call, &attributes)?;

            finish(call, cq, &attributes, room, new, None)?;
            Ok(0)
        })
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
    // SAFETY: The core set the device of the queue; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*cq).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the queue is constructed, and the core
    // frees it.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            end(cq, call);
            Ok(0)
        })
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
    // SAFETY: Guaranteed by the caller; the call does not end before this function returns.
    let (device, cq, udata) = unsafe {
        (
            Device::<T>::from_raw((*cq).device),
            Cq::<T::CompletionQueue>::from_raw(cq),
            Udata::from_raw(udata),
        )
    };

    // SAFETY: Verbs run only while the device is registered; its users have contexts, and only
    // processes have udata.
    from_result(|| unsafe {
        device.with_caller(udata.is_some(), |call| {
            let udata = udata.ok_or(EINVAL)?;
            T::CompletionQueue::resize(cq, call, entries, udata.user::<T, _>()?)?;
            udata.respond(&())?;
            Ok(0)
        })
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
    // SAFETY: Guaranteed by the caller.
    let (device, cq) = unsafe { (Device::<T>::from_raw((*cq).device), Cq::from_raw(cq)) };

    // SAFETY: Verbs run only while the device is registered.
    from_result(|| unsafe {
        device.with(|call| {
            T::CompletionQueue::moderate(cq, call, count, period)?;
            Ok(0)
        })
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`, and `wc` have room for `count` completions.
pub(crate) unsafe extern "C" fn poll_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    count: c_int,
    wc: *mut bindings::ib_wc,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let (device, cq) = unsafe {
        (
            Device::<T>::from_raw((*cq).device),
            Cq::<T::CompletionQueue>::from_raw(cq),
        )
    };

    // SAFETY: Verbs run only while the device is registered; `wc` has room for `count`.
    from_result(|| unsafe {
        // The owner of a process's queue may destroy queue pairs while the queue is polled, so such
        // queues cannot be polled here.
        if cq.place().is_of_process() {
            return Err(EOPNOTSUPP);
        }
        device.with(|call| {
            let mut out =
                Completions::new(call.dispatcher(), cq.as_raw(), wc, usize::try_from(count)?);
            T::CompletionQueue::poll(cq, call, &mut out)?;
            // CAST: Not more than `count`.
            Ok(out.len() as c_int)
        })
    })
}

/// # Safety
///
/// `cq` must be a constructed queue of a device of `T`.
pub(crate) unsafe extern "C" fn request_notify_callback<T: Operations>(
    cq: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let (device, cq) = unsafe {
        (
            Device::<T>::from_raw((*cq).device),
            Cq::<T::CompletionQueue>::from_raw(cq),
        )
    };
    let solicited_only = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
        == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
    let report_missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;

    // SAFETY: Verbs run only while the device is registered.
    from_result(|| unsafe {
        device.with(|call| {
            cq.place().arm();
            let missed = T::CompletionQueue::request_notify(cq, call, solicited_only)?;
            Ok(c_int::from(missed && report_missed))
        })
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
    unsafe {
        Details::write(message, |details| {
            T::CompletionQueue::fill_details(Cq::from_raw(cq), details)
        })
    }
}
