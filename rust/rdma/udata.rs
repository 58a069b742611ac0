// SPDX-License-Identifier: GPL-2.0

//! The driver's part of requests from and responses to user space.
//!
//! The rules are those of `struct ib_udata`. A request may be longer than the driver knows if the
//! excess is zero, and a shorter one is extended with zeroes. A response is truncated to the
//! caller's buffer, and any room that is left in the buffer is zeroed.

use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    ucontext::Ucontext,
    umem::{
        Buffer,
        BufferOf, //
    }, //
};

/// The driver's part of a request; `()` for verbs that take none.
pub trait Request: zerocopy::FromBytes + Sized {
    /// Length in bytes up to the end of the last member in the first version of the ABI. Shorter
    /// requests are rejected with `EINVAL`.
    const MINIMUM: usize = size_of::<Self>();

    /// Bits of [`comp_mask`](Self::comp_mask) that the driver knows.
    const COMP_MASK: u64 = 0;

    /// Returns the request's `comp_mask`. A request with unknown bits is rejected with
    /// `EOPNOTSUPP`.
    fn comp_mask(&self) -> u64 {
        0
    }

    /// Returns an error if reserved members of the request are not zero.
    fn check_reserved(&self) -> Result {
        Ok(())
    }
}

/// The driver's part of a response; `()` for verbs that return none.
pub trait Response: zerocopy::IntoBytes + zerocopy::Immutable {}

impl Request for () {}
impl Response for () {}

/// Rejects a request for features that the driver does not know.
pub(crate) fn check_request<R: Request>(request: &R) -> Result {
    if request.comp_mask() & !R::COMP_MASK != 0 {
        return Err(EOPNOTSUPP);
    }
    request.check_reserved()
}

/// `struct ib_udata` of a call from user space.
///
/// # Invariants
///
/// The pointer is valid during `'a`, and is `driver_udata` of a `struct uverbs_attr_bundle`.
pub(crate) struct Udata<'a>(NonNull<bindings::ib_udata>, PhantomData<&'a ()>);

impl<'a> Udata<'a> {
    /// Returns the udata of a verb; `None` if the kernel called the verb.
    ///
    /// # Safety
    ///
    /// `ptr` must be the udata argument of a verb that does not return before `'a` ends.
    pub(crate) unsafe fn from_raw(ptr: *mut bindings::ib_udata) -> Option<Self> {
        // INVARIANT: The core passes `driver_udata` of a bundle, or `NULL`.
        NonNull::new(ptr).map(|udata| Self(udata, PhantomData))
    }

    /// Reads and checks the request.
    pub(crate) fn request<R: Request>(&self) -> Result<R> {
        let mut request = MaybeUninit::<R>::zeroed();

        // SAFETY: The udata is valid by the type invariant; the buffer has `size_of::<R>()` bytes.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.0.as_ptr(),
                request.as_mut_ptr().cast(),
                size_of::<R>(),
                R::MINIMUM,
            )
        })?;
        // SAFETY: All bytes are initialised, by `zeroed`, and any bytes are an `R: FromBytes`.
        let request = unsafe { request.assume_init() };

        let mask = request.comp_mask();
        if mask & !R::COMP_MASK != 0 {
            // This function logs the unknown bits.
            // SAFETY: The udata is valid by the type invariant.
            return to_result(unsafe {
                bindings::_ib_copy_validate_udata_cm_fail(self.0.as_ptr(), mask, R::COMP_MASK)
            })
            .and(Err(EOPNOTSUPP));
        }
        check_request(&request)?;
        Ok(request)
    }

    /// Writes the response.
    pub(crate) fn respond<R: Response>(&self, response: &R) -> Result {
        // SAFETY: The udata is valid by the type invariant; `response` has no uninitialised bytes,
        // by `IntoBytes`.
        to_result(unsafe {
            bindings::_ib_respond_udata(
                self.0.as_ptr(),
                core::ptr::from_ref(response).cast(),
                size_of::<R>(),
            )
        })
    }

    /// Handles a verb that has neither request nor response (`ib_no_udata_io`).
    pub(crate) fn no_io(udata: Option<&Self>) -> Result {
        let Some(udata) = udata else {
            return Ok(());
        };
        udata.request::<()>()?;
        udata.respond(&())
    }

    /// Returns the context that the call was made in.
    ///
    /// # Safety
    ///
    /// The device of the call must be one of `T`, and the call must not be the one that creates the
    /// context.
    pub(crate) unsafe fn context<T: Operations>(&self) -> Result<&'a Ucontext<T::UserContext>> {
        // SAFETY: By the type invariant the udata is part of a bundle.
        let context = unsafe { bindings::ib_udata_ucontext(self.0.as_ptr()) };
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: A context that calls verbs is constructed, and the core keeps it during the call.
        Ok(unsafe { Ucontext::from_raw(context) })
    }

    /// Reads the request and the context of a call.
    ///
    /// # Safety
    ///
    /// As for [`context`](Self::context).
    pub(crate) unsafe fn user<T: Operations, R: Request>(&self) -> Result<User<'a, T, R>> {
        Ok(User {
            // SAFETY: Guaranteed by the caller.
            context: unsafe { self.context::<T>() }?,
            request: self.request()?,
            buffer: (),
        })
    }

    /// Reads the request and the context of a call that creates a queue, and finds the source of
    /// the queue's buffer.
    ///
    /// # Safety
    ///
    /// As for [`context`](Self::context), and the call must create the kind of queue given by `of`.
    pub(crate) unsafe fn user_with_buffer<'b, T: Operations, R: Request>(
        &'b self,
        call: &'b Call<'_, T>,
        of: BufferOf,
    ) -> Result<User<'b, T, R, Buffer<'b>>> {
        // SAFETY: Guaranteed by the caller.
        let user = unsafe { self.user::<T, R>() }?;
        // SAFETY: By the type invariant the udata is part of a bundle, that of the call.
        let buffer = unsafe {
            let attrs = bindings::rdma_udata_to_uverbs_attr_bundle(self.0.as_ptr());
            Buffer::new(call, attrs, of)
        }?;
        Ok(User {
            context: user.context,
            request: user.request,
            buffer,
        })
    }
}

/// The user-space caller of a verb, and the driver's part of the request.
pub struct User<'a, T: Operations, R, B = ()> {
    /// The context of the calling process.
    pub context: &'a Ucontext<T::UserContext>,
    /// The driver's part of the request, already checked against the rules of [`Request`].
    pub request: R,
    /// The process's buffer for a new queue ([`Buffer`]), for verbs that create one.
    pub buffer: B,
}

mod sealed {
    use kernel::error::Result;

    /// How a verb sees its caller.
    pub trait RawUsers {
        /// What a verb gets for its caller, given that it gets `U` for a process.
        type Caller<U>;

        /// Whether the kernel is among the users.
        const KERNEL: bool;

        /// Converts the caller of a verb; [`None`] is the kernel.
        fn caller<U>(process: Option<U>) -> Result<Self::Caller<U>>;
    }
}

pub(crate) use sealed::RawUsers;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// The users of a driver's devices ([`Operations::Users`]): [`Processes`] or
/// [`ProcessesAndKernel`].
pub trait Users: sealed::RawUsers {}

impl<T: sealed::RawUsers> Users for T {}

/// Only processes use the devices. The driver lacks verbs that users in the kernel need, and is
/// never called on their behalf.
pub struct Processes;

impl RawUsers for Processes {
    type Caller<U> = U;

    const KERNEL: bool = false;

    fn caller<U>(process: Option<U>) -> Result<U> {
        process.ok_or(EOPNOTSUPP)
    }
}

/// Processes and the kernel use the devices. The driver has all verbs that the kernel needs.
pub struct ProcessesAndKernel;

impl RawUsers for ProcessesAndKernel {
    type Caller<U> = Option<U>;

    const KERNEL: bool = true;

    fn caller<U>(process: Option<U>) -> Result<Option<U>> {
        Ok(process)
    }
}

/// The caller of a verb. With [`Processes`] this is always a `U`, which describes a process. With
/// [`ProcessesAndKernel`] it is an [`Option`], and [`None`] stands for the kernel.
pub type Caller<T, U> = <<T as Operations>::Users as sealed::RawUsers>::Caller<U>;

/// Converts the caller of a verb to the form that the driver expects; [`None`] is the kernel.
pub(crate) fn caller<T: Operations, U>(process: Option<U>) -> Result<Caller<T, U>> {
    T::Users::caller(process)
}
