// SPDX-License-Identifier: GPL-2.0

//! Counters of ports (`rdma statistic show`).

use core::slice;

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
    port::Port, //
};

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
    // - The statistics were allocated for `count` values and are locked.
    from_result(|| unsafe {
        let port = Port::try_from(port)?;
        let values = (*stats).value.as_mut_ptr();
        let values = slice::from_raw_parts_mut(values, count);

        Device::<T>::from_raw(device).with(|call| T::port_counters(call, port, values))?;
        // CAST: Far fewer counters than a `c_int` can count.
        Ok(count as c_int)
    })
}
