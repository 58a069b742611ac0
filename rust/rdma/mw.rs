// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

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
    object::core_object,
    pd::Pd,
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
    // SAFETY: The core set the device of the window; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*mw).device), Udata::from_raw(udata)) };

    // SAFETY:
    // - Verbs run only while the device is registered; only processes have windows, and they have
    //   contexts. The core set the domain and the type.
    // - The core allocated room for the data, which is constructed here. Nobody else can reach it
    //   before the call returns.
    from_result(|| unsafe {
        device.with_caller(udata.is_some(), |call| {
            let ty = Type::try_from((*mw).type_)?;
            let udata = udata.as_ref().ok_or(EINVAL)?;
            let user = udata.user::<T, _>()?;
            let new = T::MemoryWindow::alloc(call, Pd::from_raw((*mw).pd), ty, user)?;

            Mw::construct(mw, (), new.init);
            (*mw).rkey = new.rkey;
            (udata.respond(&new.response)).inspect_err(|_| end::<T>(mw, call))?;
            Ok(0)
        })
    })
}

/// # Safety
///
/// `mw` must be a constructed window of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: The core set the device of the window.
    let device = unsafe { Device::<T>::from_raw((*mw).device) };

    // SAFETY: Verbs run only while the device is registered; the window is constructed, and the
    // core frees it.
    unsafe { device.with(|call| end(mw, call)) };
    0
}

/// # Safety
///
/// `mw` must be a constructed window that is no longer in use.
unsafe fn end<T: Operations>(mw: *mut bindings::ib_mw, call: &Call<'_, T>) {
    // SAFETY: Guaranteed by the caller.
    unsafe {
        T::MemoryWindow::dealloc(Mw::from_raw(mw), call);
        Mw::<T::MemoryWindow>::destruct(mw);
    }
}
