// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use kernel::{
    error::from_result,
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Call,
        Device,
        Operations, //
    },
    object::{
        core_object,
        respond, //
    },
    udata::{
        caller,
        Caller,
        Request,
        Response,
        Udata,
        User, //
    },
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A protection domain (`struct ib_pd`). Objects of different domains cannot be used together.
pub trait ProtectionDomain: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<ProtectionDomain = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// Creates a protection domain.
    fn alloc(
        call: &Call<'_, Self::Driver>,
        user: Caller<Self::Driver, User<'_, Self::Driver, Self::Request>>,
    ) -> Result<(impl PinInit<Self>, Self::Response)>;

    /// Removes the domain, which has no objects any more, from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn dealloc(pd: &Pd<Self>, call: &Call<'_, Self::Driver>);
}

core_object! {
    /// A protection domain: `struct ib_pd` and the driver's part.
    Pd<ProtectionDomain>, ib_pd
}

/// # Safety
///
/// `pd` must be a new domain of a device of `T`, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*pd).device), Udata::from_raw(udata)) };

    // SAFETY:
    // - Verbs run only while the device is registered; its users have contexts, and only processes
    //   have udata.
    // - The core allocated room for the data, which is constructed here. Nobody else can reach it
    //   before the call returns.
    from_result(|| unsafe {
        device.with_caller(udata.is_some(), |call| {
            let user = udata
                .as_ref()
                .map(|udata| udata.user::<T, _>())
                .transpose()?;
            let (init, response) = T::ProtectionDomain::alloc(call, caller::<T, _>(user)?)?;

            Pd::construct(pd, (), init);
            respond(udata.as_ref(), &response).inspect_err(|_| end::<T>(pd, call))?;
            Ok(0)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T` that is no longer in use, and `udata` the
/// udata of the call.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*pd).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the domain is constructed, and the
    // core frees it.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            end(pd, call);
            Ok(0)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain that is no longer in use.
unsafe fn end<T: Operations>(pd: *mut bindings::ib_pd, call: &Call<'_, T>) {
    // SAFETY: Guaranteed by the caller.
    unsafe {
        T::ProtectionDomain::dealloc(Pd::from_raw(pd), call);
        Pd::<T::ProtectionDomain>::destruct(pd);
    }
}
