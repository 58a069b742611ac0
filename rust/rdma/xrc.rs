// SPDX-License-Identifier: GPL-2.0

//! XRC domains, and the receiving ends of extended reliable connections (IBTA volume 1, annex A14).

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

/// An XRC domain (`struct ib_xrcd`): what a queue pair receives for any of its shared receive
/// queues, which may be those of several processes.
///
/// Only processes have such domains. A domain belongs to none of them: any process can open it that
/// can open the file which it is connected with.
pub trait XrcDomain: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<XrcDomain = Self>;

    /// Whether there are XRC domains: as [`Unsupported`](crate::Unsupported) says, not here.
    const IS_SUPPORTED: bool = true;

    /// Creates a domain.
    fn alloc(call: &Call<'_, Self::Driver>) -> Result<impl PinInit<Self>>;

    /// Makes the hardware forget the domain, which no object is in any more; then it is dropped.
    ///
    /// This cannot fail: hardware that refuses is to be stopped.
    fn dealloc(xrcd: &Xrcd<Self>, call: &Call<'_, Self::Driver>);

    /// Creates a queue pair of type [`XrcTarget`](qp::Type::XrcTarget) in the reset state. It has
    /// neither work queues, nor completion queues, nor a protection domain, and lives on when the
    /// process ends that asked for it, as long as another one has it open.
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
    // SAFETY: The core set the device of the domain; the call is not over before we return.
    let (device, udata) = unsafe {
        (
            Device::<T>::from_raw((*xrcd).device),
            Udata::from_raw(udata),
        )
    };

    // SAFETY:
    // - Verbs run only while the device is registered.
    // - The core allocated room for the data, which is constructed here and reachable by nobody
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
/// `xrcd` must be a constructed domain of a device of `T` that nobody uses any more, and `udata`
/// the udata of the call.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    xrcd: *mut bindings::ib_xrcd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the domain; the call is not over before we return.
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
    // SAFETY: The core refers to the domain, which is of the same device.
    let xrcd = unsafe { Xrcd::from_raw(attr.xrcd) };
    let new = T::XrcDomain::create_target(call, xrcd)?;
    // The core is not ready for events before the queue pair is modified: what it tells its users
    // by comes after this.
    let in_use = InUse::of_queue_pair(false, Completes::NOWHERE);
    // SAFETY: The core allocated room for the queue pair, which is constructed once and reachable
    // by nobody but the dispatcher before the call returns.
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
