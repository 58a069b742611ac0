// SPDX-License-Identifier: GPL-2.0

//! Counters of ports (`rdma statistic show`), and of chosen queue pairs (`rdma statistic qp`).

use core::{
    ptr,
    slice, //
};

use kernel::{
    error::from_result,
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    qp::Qp, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A counter (`struct rdma_stat_desc`).
#[repr(transparent)]
pub struct Counter(bindings::rdma_stat_desc);

impl Counter {
    /// A counter of that name: lower case words, joined by underscores.
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

// SAFETY: A counter's description is never written.
unsafe impl Sync for Counter {}

// SAFETY: As above.
unsafe impl Send for Counter {}

/// Milliseconds for which values that were read are good enough
/// (`RDMA_HW_STATS_DEFAULT_LIFESPAN`).
const LIFESPAN: c_ulong = 10;

/// # Safety
///
/// Called by the core, for a device of `T`.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    let counters: &'static [Counter] = T::PORT_COUNTERS;

    // SAFETY: The descriptions are static; `Counter` is transparent. The core frees the result.
    // CAST: Far fewer counters than a `c_int` can count.
    unsafe {
        bindings::rdma_alloc_hw_stats_struct(
            counters.as_ptr().cast(),
            counters.len() as c_int,
            LIFESPAN,
        )
    }
}

/// The first read, while the device is registered, does not fail: the core would lose what it has
/// allocated for the counters (`setup_hw_port_stats()` of Linux 7.3). They stay zero until the
/// next.
///
/// # Safety
///
/// Called by the core, for a device of `T`, with what [`alloc_callback`] returned, locked.
pub(crate) unsafe extern "C" fn get_callback<T: Operations>(
    device: *mut bindings::ib_device,
    stats: *mut bindings::rdma_hw_stats,
    port: u32,
    _index: c_int,
) -> c_int {
    let count = T::PORT_COUNTERS.len();

    // SAFETY:
    // - Verbs run only while the device is registered.
    // - The statistics were allocated for `count` values, zeroed, and are locked: nobody else has
    //   them during the call.
    from_result(|| unsafe {
        let device = Device::<T>::from_raw(device);
        let port = device.port(port)?;
        // The core sets it when a read has succeeded.
        let is_first = (*stats).timestamp == 0;
        let values = (*stats).value.as_mut_ptr();
        let values = slice::from_raw_parts_mut(values, count);

        match device.with(|call| T::port_counters(call, port, values)) {
            Err(_) if is_first => values.fill(0),
            read => read?,
        }
        // CAST: Far fewer counters than a `c_int` can count.
        Ok(count as c_int)
    })
}

/// # Safety
///
/// None: there is nothing to initialise.
pub(crate) unsafe extern "C" fn counter_init_callback(_counter: *mut bindings::rdma_counter) {}

/// # Safety
///
/// `counter` must be a counter of a device of `T`.
pub(crate) unsafe extern "C" fn counter_alloc_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
) -> *mut bindings::rdma_hw_stats {
    // The core adds the values to those of the port, so they are the same ones.
    // SAFETY: The counter is valid, as the caller guarantees.
    unsafe { alloc_callback::<T>((*counter).device, (*counter).port) }
}

/// # Safety
///
/// `counter` must be a locked counter and `qp` a queue pair that has none, both of a device of `T`.
pub(crate) unsafe extern "C" fn counter_bind_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
    qp: *mut bindings::ib_qp,
    port: u32,
) -> c_int {
    // SAFETY: Verbs run only while the device is registered; the arguments are valid, and what is
    // written belongs to the driver while the counter is locked.
    from_result(|| unsafe {
        let device = Device::<T>::from_raw((*counter).device);
        let port = device.port(port)?;
        device.with(|call| {
            bind_in(
                &mut (*counter).id,
                || T::create_qp_counter(call, port),
                |number| T::bind_qp_counter(call, Qp::from_raw(qp), number),
                |number| T::destroy_qp_counter(call, number),
            )
        })?;
        (*qp).counter = counter;
        Ok(0)
    })
}

/// Binds something to the counters of number `id`, which are created if they have none yet (0), and
/// in that case destroyed again if they are not wanted.
pub(crate) fn bind_in(
    id: &mut u32,
    create: impl FnOnce() -> Result<u32>,
    bind: impl FnOnce(u32) -> Result,
    destroy: impl FnOnce(u32),
) -> Result {
    if *id != 0 {
        return bind(*id);
    }
    let number = create()?;
    if number == 0 {
        // Then nobody could ever destroy them.
        return Err(EIO);
    }
    bind(number).inspect_err(|_| destroy(number))?;
    *id = number;
    Ok(())
}

/// # Safety
///
/// `qp` must be a queue pair of a device of `T` that has a counter, which is locked.
pub(crate) unsafe extern "C" fn counter_unbind_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    // SAFETY: As above. A queue pair that is destroyed is unbound before.
    unsafe {
        Device::<T>::from_raw((*qp).device)
            .with(|call| T::unbind_qp_counter(call, Qp::from_raw(qp)));
        (*qp).counter = ptr::null_mut();
    }
    0
}

/// # Safety
///
/// `counter` must be a locked counter of a device of `T`, with what [`counter_alloc_callback`]
/// returned.
pub(crate) unsafe extern "C" fn counter_update_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    let count = T::PORT_COUNTERS.len();

    // SAFETY: Verbs run only while the device is registered; there are `count` values, zeroed when
    // they were allocated, which nobody else has while the counter is locked.
    from_result(|| unsafe {
        let values = (*(*counter).stats).value.as_mut_ptr();
        let values = slice::from_raw_parts_mut(values, count);

        Device::<T>::from_raw((*counter).device)
            .with(|call| T::read_qp_counter(call, (*counter).id, values))?;
        Ok(0)
    })
}

/// # Safety
///
/// `counter` must be a counter of a device of `T` that no queue pair has any more.
pub(crate) unsafe extern "C" fn counter_dealloc_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: Verbs run only while the device is registered.
    unsafe {
        Device::<T>::from_raw((*counter).device)
            .with(|call| T::destroy_qp_counter(call, (*counter).id));
    }
    0
}
