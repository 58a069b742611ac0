// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use kernel::prelude::*;

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    object::{
        core_object,
        Sole,
        Vacant, //
    },
    udata::{
        caller,
        Caller,
        Request,
        Response,
        User, //
    },
    verb::Verb, //
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
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*pd).device, udata) };
    // SAFETY: The domain is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Pd<T::ProtectionDomain>>::new(pd) };

    verb.run(|call| {
        let user = caller::<T, _>(verb.user()?)?;
        let (init, response) = T::ProtectionDomain::alloc(call, user)?;
        let pd = vacant.construct((), init);
        verb.respond(&response).inspect_err(|_| end(pd, call))
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
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*pd).device, udata) };
    // SAFETY: The domain is that of this verb, which succeeds if it ends the domain.
    let pd = unsafe { Sole::<Pd<T::ProtectionDomain>>::new(pd) };

    verb.run(|call| {
        verb.no_io()?;
        end(pd, call);
        Ok(())
    })
}

/// Removes a domain from the hardware and drops it.
fn end<T: Operations>(pd: Sole<'_, Pd<T::ProtectionDomain>>, call: &Call<'_, T>) {
    T::ProtectionDomain::dealloc(&pd, call);
    pd.end();
}
