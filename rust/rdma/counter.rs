// SPDX-License-Identifier: GPL-2.0

//! Counters of ports (`rdma statistic show`) and of selected queue pairs (`rdma statistic qp`).

use core::{
    ptr,
    slice, //
};

use kernel::prelude::*;

use crate::{
    bindings,
    device::Operations,
    qp::Qp,
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A counter (`struct rdma_stat_desc`).
#[repr(transparent)]
pub struct Counter(bindings::rdma_stat_desc);

impl Counter {
    /// Creates a counter with that name, which consists of lower-case words joined by underscores.
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

// SAFETY: A counter consists of pointers to constants, which any thread may read.
unsafe impl Send for Counter {}

/// Time in milliseconds for which values are cached (`RDMA_HW_STATS_DEFAULT_LIFESPAN`).
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

/// Reads the counters of a port. The first read must not fail: it happens during registration, and
/// on an error the core would leak what it has allocated for the counters (`setup_hw_port_stats()`
/// of Linux 7.3). If the driver fails then, the counters stay zero until the next read.
///
/// # Safety
///
/// Called by the core for a device of `T`, with the locked result of [`alloc_callback`].
pub(crate) unsafe extern "C" fn get_callback<T: Operations>(
    device: *mut bindings::ib_device,
    stats: *mut bindings::rdma_hw_stats,
    port: u32,
    _index: c_int,
) -> c_int {
    let count = T::PORT_COUNTERS.len();
    // SAFETY: Guaranteed by the caller.
    let verb = unsafe { Verb::<T>::new(device) };
    // SAFETY: The core has allocated the statistics for `count` values, zeroed, and locked: this
    // call has exclusive access. The core sets the timestamp after a successful read.
    let (is_first, values) = unsafe {
        (
            (*stats).timestamp == 0,
            slice::from_raw_parts_mut((*stats).value.as_mut_ptr(), count),
        )
    };

    verb.number(|call| {
        let port = verb.device().port(port)?;
        match T::port_counters(call, port, values) {
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
    // The core adds the values to those of the port, so the set of counters must be the same.
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
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: The queue pair is constructed, and is not destroyed during the call.
    let this = unsafe { Qp::<T::QueuePair>::from_raw(qp) };
    // SAFETY: The counter is valid. This member belongs to the driver while the counter is locked.
    let id = unsafe { &mut (*counter).id };

    verb.run(|call| {
        let port = verb.device().port(port)?;
        bind_in(
            id,
            || T::create_qp_counter(call, port),
            |number| T::bind_qp_counter(call, this, number),
            |number| T::destroy_qp_counter(call, number),
        )?;
        // SAFETY: The queue pair is valid. This member belongs to the driver while the counter is
        // locked.
        unsafe { (*qp).counter = counter };
        Ok(())
    })
}

/// Binds a queue pair to the counter set `id`. If `id` is 0, creates the counter set first, and
/// destroys it again if binding fails.
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
        // The counter set could never be destroyed.
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
    // SAFETY: The core set the device of the queue pair.
    let verb = unsafe { Verb::<T>::new((*qp).device) };
    // SAFETY: The core unbinds a queue pair before it destroys it.
    let this = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.run(|call| {
        T::unbind_qp_counter(call, this);
        // SAFETY: The queue pair is valid. This member belongs to the driver while the counter is
        // locked.
        unsafe { (*qp).counter = ptr::null_mut() };
        Ok(())
    })
}

/// # Safety
///
/// `counter` must be a locked counter of a device of `T`, with what [`counter_alloc_callback`]
/// returned.
pub(crate) unsafe extern "C" fn counter_update_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    let count = T::PORT_COUNTERS.len();
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: There are `count` values, which were zeroed when they were allocated. Access is
    // exclusive while the counter is locked.
    let (id, values) = unsafe {
        let values = (*(*counter).stats).value.as_mut_ptr();
        ((*counter).id, slice::from_raw_parts_mut(values, count))
    };

    verb.run(|call| T::read_qp_counter(call, id, values))
}

/// # Safety
///
/// `counter` must be a counter of a device of `T` to which no queue pair is bound any more.
pub(crate) unsafe extern "C" fn counter_dealloc_callback<T: Operations>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: The core set the device of the counter, and `counter_bind_callback` its number.
    let (verb, id) = unsafe { (Verb::<T>::new((*counter).device), (*counter).id) };

    verb.run(|call| {
        T::destroy_qp_counter(call, id);
        Ok(())
    })
}
