// SPDX-License-Identifier: GPL-2.0

//! Verbs as the core calls them.
//!
//! A callback first turns the core's pointers into values with types, in small `unsafe` blocks that
//! each prove what they rely on. Then it runs the driver's method in a [`Verb`], as safe code.

use kernel::{
    error::{
        from_result,
        Error, //
    },
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Call,
        Device,
        Operations, //
    },
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
};

/// A call of a verb.
///
/// # Invariants
///
/// During `'a`, the device is registered, or is being registered and has its data. The udata is
/// that of the call, which does not create a context. If `is_of_process`, the current task is in
/// the system call by which a process calls the verb, and `'a` ends before it returns.
pub(crate) struct Verb<'a, T: Operations> {
    device: &'a Device<T>,
    udata: Option<Udata<'a>>,
    is_of_process: bool,
}

impl<'a, T: Operations> Verb<'a, T> {
    /// Starts a verb without udata, which does not use the memory of a process.
    ///
    /// # Safety
    ///
    /// `device` must be a device of `T` that calls a verb of its operations, which does not return
    /// before `'a` ends.
    #[inline]
    pub(crate) unsafe fn new(device: *mut bindings::ib_device) -> Self {
        // INVARIANT: Verbs run only while the device is registered, except for those by which the
        // core learns about a device that it is about to register.
        Self {
            // SAFETY: Guaranteed by the caller.
            device: unsafe { Device::from_raw(device) },
            udata: None,
            is_of_process: false,
        }
    }

    /// Starts a verb that does not use the memory of a process even if it has udata. Verbs that
    /// destroy objects are of this kind: they may run when the process has no memory any more.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), and `udata` must be the udata of the verb, which must not create
    /// a context.
    #[inline]
    pub(crate) unsafe fn with_udata(
        device: *mut bindings::ib_device,
        udata: *mut bindings::ib_udata,
    ) -> Self {
        // INVARIANT: As the caller guarantees.
        Self {
            // SAFETY: Guaranteed by the caller.
            udata: unsafe { Udata::from_raw(udata) },
            // SAFETY: Guaranteed by the caller.
            ..unsafe { Self::new(device) }
        }
    }

    /// Starts a verb that uses the memory of the calling process, if a process calls it.
    ///
    /// # Safety
    ///
    /// As for [`with_udata`](Self::with_udata), and the verb must have udata only in the system
    /// call by which a process calls it.
    #[inline]
    pub(crate) unsafe fn by_caller(
        device: *mut bindings::ib_device,
        udata: *mut bindings::ib_udata,
    ) -> Self {
        // INVARIANT: As the caller guarantees.
        Self {
            is_of_process: !udata.is_null(),
            // SAFETY: Guaranteed by the caller.
            ..unsafe { Self::with_udata(device, udata) }
        }
    }

    /// Starts a verb without udata that only processes call.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), and the current task must be in the system call by which a
    /// process calls the verb.
    #[inline]
    pub(crate) unsafe fn by_process(device: *mut bindings::ib_device) -> Self {
        // INVARIANT: As the caller guarantees.
        Self {
            is_of_process: true,
            // SAFETY: Guaranteed by the caller.
            ..unsafe { Self::new(device) }
        }
    }

    /// Returns the device.
    #[inline]
    pub(crate) fn device(&self) -> &'a Device<T> {
        self.device
    }

    /// Calls `f` in the context of the verb.
    #[inline]
    pub(crate) fn enter<R>(&self, f: impl for<'bound> FnOnce(&Call<'bound, T>) -> R) -> R {
        // SAFETY: By the type invariant.
        unsafe { self.device.with_caller(self.is_of_process, f) }
    }

    /// Calls `f` in the context of the verb, and returns its result to C: 0 or an error.
    #[inline]
    pub(crate) fn run(&self, f: impl for<'bound> FnOnce(&Call<'bound, T>) -> Result) -> c_int {
        self.number(|call| f(call).map(|()| 0))
    }

    /// Calls `f` in the context of the verb, and returns its result to C: a number that is not
    /// negative, or an error.
    #[inline]
    pub(crate) fn number(
        &self,
        f: impl for<'bound> FnOnce(&Call<'bound, T>) -> Result<c_int>,
    ) -> c_int {
        from_result(|| self.enter(f))
    }

    /// Calls `f` in the context of the verb, and returns its result to C: a pointer to an object,
    /// or an error.
    #[inline]
    pub(crate) fn pointer<P>(
        &self,
        f: impl for<'bound> FnOnce(&Call<'bound, T>) -> Result<*mut P>,
    ) -> *mut P {
        self.enter(f).unwrap_or_else(Error::to_ptr)
    }

    /// Returns whether a process calls the verb, with udata.
    #[inline]
    pub(crate) fn has_udata(&self) -> bool {
        self.udata.is_some()
    }

    /// Reads the driver's part of the request; all zeroes if the kernel calls the verb.
    pub(crate) fn request<R: Request>(&self) -> Result<R> {
        match &self.udata {
            Some(udata) => udata.request(),
            None => Ok(zerocopy::FromZeros::new_zeroed()),
        }
    }

    /// Handles a verb that has neither request nor response.
    pub(crate) fn no_io(&self) -> Result {
        Udata::no_io(self.udata.as_ref())
    }

    /// Returns the calling process with the driver's part of the request; [`None`] if the kernel
    /// calls the verb.
    pub(crate) fn user<R: Request>(&self) -> Result<Option<User<'a, T, R>>> {
        let Some(udata) = &self.udata else {
            return Ok(None);
        };
        // SAFETY: The device is one of `T`, and by the type invariant the verb creates no context.
        unsafe { udata.user() }.map(Some)
    }

    /// Like [`user`](Self::user), for a verb that creates a queue; also finds the source of the
    /// queue's buffer.
    ///
    /// # Safety
    ///
    /// The verb must create the kind of queue given by `of`.
    pub(crate) unsafe fn user_with_buffer<'b, R: Request>(
        &'b self,
        call: &'b Call<'_, T>,
        of: BufferOf,
    ) -> Result<Option<User<'b, T, R, Buffer<'b>>>> {
        let Some(udata) = &self.udata else {
            return Ok(None);
        };
        // SAFETY: As in `user`; the caller guarantees the rest.
        unsafe { udata.user_with_buffer(call, of) }.map(Some)
    }

    /// Writes the driver's part of the response, if a process calls the verb.
    pub(crate) fn respond<R: Response>(&self, response: &R) -> Result {
        match &self.udata {
            Some(udata) => udata.respond(response),
            None => Ok(()),
        }
    }
}
