// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of flows. The kernel reads all of them; a program chooses those that it wants, and the
//! places where it finds them.

use super::{allocate, fail, release};
use crate::ffi::driver::verbs_counters;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::spinlock::SpinLock;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::{mem, ptr, slice};

/// Number of counters that the kernel reads: packets and bytes, numbered like
/// `enum ibv_counter_description`.
const KINDS: usize = 2;

/// A counter that a program wants.
#[derive(Copy, Clone)]
struct Point {
    /// Which of the kernel's counters it is.
    kind: usize,
    /// Where the program finds it.
    index: usize,
}

/// What a program wants of counters, and how much it uses them.
struct Wanted {
    points: Vec<Point>,
    /// Number of flows that have the counters.
    flows: usize,
}

/// Counters of flows.
#[repr(C)]
pub(super) struct Counters {
    verbs: verbs_counters,
    wanted: SpinLock<Wanted>,
}

impl Counters {
    /// Gives the counters to one more flow. `EINVAL` if nothing was chosen, as with mlx5.
    pub(super) fn bind(&self) -> Result<(), c_int> {
        let mut wanted = self.wanted.lock();
        if wanted.points.is_empty() {
            return Err(libc::EINVAL);
        }
        wanted.flows += 1;
        Ok(())
    }

    /// Takes the counters from a flow.
    pub(super) fn unbind(&self) {
        self.wanted.lock().flows -= 1;
    }
}

/// Creates counters.
pub unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    // SAFETY: The verbs contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let counters = allocate(Counters {
        // SAFETY: Integers and pointers; libibverbs fills them in.
        verbs: unsafe { mem::zeroed() },
        wanted: SpinLock::new(Wanted {
            points: Vec::new(),
            flows: 0,
        }),
    });
    if counters.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the counters are new.
    unsafe {
        let error = ibv_cmd_create_counters(context, attr, counters.cast(), ptr::null_mut());
        if error != 0 {
            release(counters);
            return fail(error);
        }
    }
    counters.cast()
}

/// Destroys counters.
pub unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    // SAFETY: The verbs contract: counters of this provider, and their last use.
    unsafe {
        let error = ibv_cmd_destroy_counters(counters.cast());
        if error == 0 {
            release(counters.cast::<Counters>());
        }
        error
    }
}

/// Chooses a counter, and the place where a program finds it. As with mlx5, the counters belong to
/// the flows that are created with them, and not to one that there is already. `EBUSY` while there
/// are such flows.
pub unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    // SAFETY: The verbs contract: counters of this provider.
    let (counters, attr) = unsafe { (&*counters.cast::<Counters>(), &*attr) };
    let kind = attr.counter_desc as usize;
    if !flow.is_null() || attr.comp_mask != 0 || kind >= KINDS {
        return libc::EOPNOTSUPP;
    }
    let mut wanted = counters.wanted.lock();
    if wanted.flows > 0 {
        return libc::EBUSY;
    }
    if wanted.points.try_reserve(1).is_err() {
        return libc::ENOMEM;
    }
    wanted.points.push(Point {
        kind,
        index: attr.index as usize,
    });
    0
}

/// Reads the counters that were chosen. The other values become 0.
pub unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    // SAFETY: The verbs contract: counters of this provider.
    let this = unsafe { &*counters.cast::<Counters>() };
    let is_outside = |point: &Point| point.index >= count as usize;
    if count == 0 || this.wanted.lock().points.iter().any(is_outside) {
        return libc::EINVAL;
    }
    let mut read = [0; KINDS];
    // SAFETY: The verbs contract; the buffer has as many values as it says.
    let error = unsafe {
        ibv_cmd_read_counters(
            counters.cast(),
            read.as_mut_ptr(),
            KINDS as u32,
            flags,
            ptr::null_mut(),
        )
    };
    if error != 0 {
        return error;
    }
    // SAFETY: The verbs contract: an array of this length.
    let values = unsafe { slice::from_raw_parts_mut(values, count as usize) };
    values.fill(0);
    for point in &this.wanted.lock().points {
        // Others may have chosen more since then.
        if let Some(value) = values.get_mut(point.index) {
            *value = value.wrapping_add(read[point.kind]);
        }
    }
    0
}
