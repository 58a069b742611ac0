// SPDX-License-Identifier: GPL-2.0

//! XRC domains, and the target side of extended reliable connections (IBTA volume 1, annex A14).

use core::ptr::NonNull;

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
    event::{
        Completes,
        InUse, //
    },
    object::core_object,
    qp::{
        self,
        NewQp,
        Qp, //
    },
    udata::Udata,
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// An XRC domain (`struct ib_xrcd`). A target queue pair of the domain receives into any of the
/// domain's shared receive queues, which may belong to several processes.
///
/// Only processes use XRC domains. A domain does not belong to one process: every process that can
/// open the file associated with the domain can open the domain.
pub trait XrcDomain: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<XrcDomain = Self>;

    /// Whether the driver has XRC domains; `false` only for [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates a domain.
    fn alloc(call: &Call<'_, Self::Driver>) -> Result<impl PinInit<Self>>;

    /// Removes the domain, which has no objects any more, from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn dealloc(xrcd: &Xrcd<Self>, call: &Call<'_, Self::Driver>);

    /// Creates a queue pair of type [`XrcTarget`](qp::Type::XrcTarget) in the reset state. It has
    /// no work queues, no completion queues and no protection domain. It outlives the process that
    /// created it for as long as another process has it open.
    #[allow(clippy::type_complexity)]
    fn create_target(
        call: &Call<'_, Self::Driver>,
        xrcd: &Xrcd<Self>,
    ) -> Result<NewQp<impl PinInit<<Self::Driver as Operations>::QueuePair>, ()>>;
}

core_object! {
    /// An XRC domain: `struct ib_xrcd` and the driver's part.
    Xrcd<XrcDomain>, ib_xrcd
}

/// # Safety
///
/// `xrcd` must be a new domain of a device of `T`, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    xrcd: *mut bindings::ib_xrcd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe {
        (
            Device::<T>::from_raw((*xrcd).device),
            Udata::from_raw(udata),
        )
    };

    // SAFETY:
    // - Verbs run only while the device is registered.
    // - The core allocated room for the data, which is constructed here. Nobody else can reach it
    //   before the call returns.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            let init = T::XrcDomain::alloc(call)?;
            Xrcd::construct(xrcd, (), init);
            Ok(0)
        })
    })
}

/// # Safety
///
/// `xrcd` must be a constructed domain of a device of `T` that is no longer in use, and `udata` the
/// udata of the call.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    xrcd: *mut bindings::ib_xrcd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe {
        (
            Device::<T>::from_raw((*xrcd).device),
            Udata::from_raw(udata),
        )
    };

    // SAFETY: Verbs run only while the device is registered; the domain is constructed, and the
    // core frees it.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            T::XrcDomain::dealloc(Xrcd::from_raw(xrcd), call);
            Xrcd::<T::XrcDomain>::destruct(xrcd);
            Ok(0)
        })
    })
}

/// Creates a queue pair of type XRC_TGT.
///
/// # Safety
///
/// `qp` must be a new queue pair of the device of the call, and `attr` its attributes.
pub(crate) unsafe fn create_target<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: &mut bindings::ib_qp_init_attr,
    call: &Call<'_, T>,
) -> Result<c_int> {
    if !T::XrcDomain::IS_SUPPORTED {
        return Err(EOPNOTSUPP);
    }
    if attr.xrcd.is_null() {
        return Err(EINVAL);
    }
    let room = call.dispatcher().qp_room()?;
    // SAFETY: The core holds a reference to the domain, which is of the same device.
    let xrcd = unsafe { Xrcd::from_raw(attr.xrcd) };
    let new = T::XrcDomain::create_target(call, xrcd)?;
    // The core is not ready to pass on events before the queue pair is modified: it sets up its
    // event handler after this function.
    let in_use = InUse::of_queue_pair(false, Completes::NOWHERE);
    // SAFETY: The core allocated room for the queue pair, which is constructed once. Only the
    // dispatcher can reach it before the call returns.
    unsafe {
        let (place, listing) = room.assign(new.number, NonNull::new_unchecked(qp), in_use);
        Qp::construct(qp, place, new.init);
        (*qp).qp_num = new.number;
        new.capabilities.write(&mut attr.cap);
        qp::check_number(new.number)
            .and_then(|()| listing.publish())
            .inspect_err(|_| qp::end(qp, call))?;
    }
    Ok(0)
}
