// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

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
    pd::Pd,
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
    /// Type of a memory window (`enum ib_mw_type`; IBTA volume 1, 10.6.7.2).
    pub enum Type: bindings::ib_mw_type {
        /// Can be rebound at any time, by queue pairs of its protection domain.
        Type1 = bindings::ib_mw_type_IB_MW_TYPE_1,
        /// Stays bound until its key is invalidated.
        Type2 = bindings::ib_mw_type_IB_MW_TYPE_2,
    }
}

/// A new window.
pub struct NewMw<I, R> {
    /// Initialiser of the window.
    pub init: I,
    /// Response to the provider.
    pub response: R,
    /// Key by which peers refer to the window.
    pub rkey: u32,
}

/// A memory window (`struct ib_mw`): access to a part of a memory region, which a process grants to
/// peers by work requests.
pub trait MemoryWindow: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<MemoryWindow = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// Whether the driver has memory windows; `false` only for [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Allocates an unbound window. `EOPNOTSUPP` if the device does not support windows of that
    /// type.
    fn alloc(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        ty: Type,
        user: User<'_, Self::Driver, Self::Request>,
    ) -> Result<NewMw<impl PinInit<Self>, Self::Response>>;

    /// Removes the window, bound or not, from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn dealloc(mw: &Mw<Self>, call: &Call<'_, Self::Driver>);
}

core_object! {
    /// A memory window: `struct ib_mw` and the driver's part.
    Mw<MemoryWindow>, ib_mw
}

/// # Safety
///
/// `mw` must be a new window of a device of `T`, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    mw: *mut bindings::ib_mw,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the window; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*mw).device, udata) };
    // SAFETY: The core set the type and the domain, to which it holds a reference.
    let (ty, pd) = unsafe { ((*mw).type_, Pd::from_raw((*mw).pd)) };
    // SAFETY: The window is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Mw<T::MemoryWindow>>::new(mw) };

    verb.run(|call| {
        let ty = Type::try_from(ty)?;
        // Only processes have windows.
        let user = verb.user()?.ok_or(EINVAL)?;
        let new = T::MemoryWindow::alloc(call, pd, ty, user)?;
        let mw = vacant.construct((), new.init);
        // SAFETY: The window is valid, and nobody else has it yet.
        unsafe { (*mw.as_raw()).rkey = new.rkey };
        verb.respond(&new.response).inspect_err(|_| end(mw, call))
    })
}

/// # Safety
///
/// `mw` must be a constructed window of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: The core set the device of the window.
    let verb = unsafe { Verb::<T>::new((*mw).device) };
    // SAFETY: The window is that of this verb, which succeeds.
    let mw = unsafe { Sole::<Mw<T::MemoryWindow>>::new(mw) };

    verb.run(|call| {
        end(mw, call);
        Ok(())
    })
}

/// Removes a window from the hardware and drops it.
fn end<T: Operations>(mw: Sole<'_, Mw<T::MemoryWindow>>, call: &Call<'_, T>) {
    T::MemoryWindow::dealloc(&mw, call);
    mw.end();
}
