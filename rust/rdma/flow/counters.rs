// SPDX-License-Identifier: GPL-2.0

//! Counters of what flows get.

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
    verb::Verb, //
};

core_object! {
    /// Counters of flows: `struct ib_counters` and the driver's part.
    Counters<FlowCounters>, ib_counters
}

/// Counters of flows (`struct ib_counters`). Several flows can have the same ones.
pub trait FlowCounters: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<FlowCounters = Self>;

    /// Whether the driver has counters of flows; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates counters that no flow has yet.
    fn create(call: &Call<'_, Self::Driver>) -> Result<impl PinInit<Self>>;

    /// Writes the counters to `values`, which are 0 and as many as the provider asks for. The
    /// driver and its provider agree on their meaning.
    fn read(counters: &Counters<Self>, call: &Call<'_, Self::Driver>, values: &mut [u64])
        -> Result;

    /// Removes the counters, which no flow has any more, from the hardware; then they are dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(counters: &Counters<Self>, call: &Call<'_, Self::Driver>);
}

/// # Safety
///
/// `counters` must be new counters of a device of `T`.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    counters: *mut bindings::ib_counters,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the counters.
    let verb = unsafe { Verb::<T>::new((*counters).device) };
    // SAFETY: The counters are those of this verb, which creates them.
    let vacant = unsafe { Vacant::<Counters<T::FlowCounters>>::new(counters) };

    verb.run(|call| {
        let init = T::FlowCounters::create(call)?;
        vacant.construct((), init);
        Ok(())
    })
}

/// # Safety
///
/// `counters` must be constructed counters of a device of `T`, and `attr` valid.
pub(crate) unsafe extern "C" fn read_callback<T: Operations>(
    counters: *mut bindings::ib_counters,
    attr: *mut bindings::ib_counters_read_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the counters.
    let verb = unsafe { Verb::<T>::new((*counters).device) };
    // SAFETY: The counters are constructed, and are not destroyed during the call.
    let this = unsafe { Counters::<T::FlowCounters>::from_raw(counters) };
    // SAFETY: The attributes are valid during the call.
    let (buffer, count) = unsafe { ((*attr).counters_buff, (*attr).ncounters) };

    verb.run(|call| {
        if count == 0 {
            return Err(EINVAL);
        }
        // SAFETY: The core allocated and zeroed that many values.
        let values = unsafe { core::slice::from_raw_parts_mut(buffer, count as usize) };
        T::FlowCounters::read(this, call, values)
    })
}

/// # Safety
///
/// `counters` must be constructed counters of a device of `T` that are no longer in use.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    counters: *mut bindings::ib_counters,
) -> c_int {
    // SAFETY: The core set the device of the counters.
    let verb = unsafe { Verb::<T>::new((*counters).device) };
    // SAFETY: The counters are those of this verb, which succeeds.
    let counters = unsafe { Sole::<Counters<T::FlowCounters>>::new(counters) };

    verb.run(|call| {
        T::FlowCounters::destroy(&counters, call);
        counters.end();
        Ok(())
    })
}
