// SPDX-License-Identifier: GPL-2.0

//! XRC domains, and the target side of extended reliable connections (IBTA volume 1, annex A14).

use kernel::prelude::*;

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    event::{
        Completes,
        InUse, //
    },
    object::{
        core_object,
        Sole,
        Vacant, //
    },
    qp::{
        self,
        NewQp,
        Qp, //
    },
    verb::Verb, //
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
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*xrcd).device, udata) };
    // SAFETY: The domain is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Xrcd<T::XrcDomain>>::new(xrcd) };

    verb.run(|call| {
        verb.no_io()?;
        let init = T::XrcDomain::alloc(call)?;
        vacant.construct((), init);
        Ok(())
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
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*xrcd).device, udata) };
    // SAFETY: The domain is that of this verb, which succeeds if it ends the domain.
    let xrcd = unsafe { Sole::<Xrcd<T::XrcDomain>>::new(xrcd) };

    verb.run(|call| {
        verb.no_io()?;
        T::XrcDomain::dealloc(&xrcd, call);
        xrcd.end();
        Ok(())
    })
}

/// Creates a queue pair of type XRC_TGT in a domain.
pub(crate) fn create_target<T: Operations>(
    vacant: Vacant<'_, Qp<T::QueuePair>>,
    attr: &mut bindings::ib_qp_init_attr,
    xrcd: Option<&Xrcd<T::XrcDomain>>,
    call: &Call<'_, T>,
) -> Result {
    if !T::XrcDomain::IS_SUPPORTED {
        return Err(EOPNOTSUPP);
    }
    // It sends nothing, and names the queues for its receives in each request.
    if !attr.send_cq.is_null() || !attr.recv_cq.is_null() || !attr.srq.is_null() {
        return Err(EINVAL);
    }
    let xrcd = xrcd.ok_or(EINVAL)?;
    let new_place = call.dispatcher().new_qp_place()?;
    let new = T::XrcDomain::create_target(call, xrcd)?;
    // The core is not ready to pass on events before the queue pair is modified: it sets up its
    // event handler after this function.
    let in_use = InUse::of_queue_pair(false, Completes::NOWHERE);
    let (place, unpublished) = new_place.assign(new.number, vacant.as_raw(), in_use);
    new.capabilities.write(&mut attr.cap);
    let qp = qp::construct(vacant, place, new.number, new.init);
    qp::check_number(new.number)
        .and_then(|()| unpublished.publish())
        .inspect_err(|_| qp::end(qp, call))
}
