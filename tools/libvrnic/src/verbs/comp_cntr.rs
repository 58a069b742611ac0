// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters. The device stores the counts to memory that this process maps, so that
//! reading one needs no system call.

use super::{allocate, fail, release};
use crate::ffi::driver::{ibv_comp_cntr, ibv_comp_cntr_init_attr, ibv_qp_attach_comp_cntr_attr};
use crate::ffi::functions::*;
use crate::ffi::ioctl::*;
use crate::ffi::verbs::*;
use crate::memory::Mapping;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::Ordering::Acquire;
use vrnic_wire::abi::{QueryCompCntrResponse, ioctl};
use vrnic_wire::command::{CompletionCounts, counted_operations};

/// `IBV_COMP_CNTR_TYPE_WRS`: the counter counts requests, and not bytes.
const TYPE_REQUESTS: c_int = 0;

/// A completion counter.
#[repr(C)]
struct CompCntr {
    verbs: ibv_comp_cntr,
    /// The counts, at the beginning of the mapping. Set except during creation.
    mapping: Option<Mapping>,
}

impl CompCntr {
    /// Asks the kernel where the counts are and maps them. Returns an error number or 0.
    fn map(&mut self, fd: c_int) -> c_int {
        let mut answer = QueryCompCntrResponse::default();
        let address = (&raw mut answer).expose_provenance() as u64;
        let mut query = Method::new(
            UVERBS_OBJECT_COMP_CNTR,
            DRIVER_NS + ioctl::METHOD_QUERY_COMP_CNTR,
            [
                attribute(
                    DRIVER_NS + ioctl::QUERY_COMP_CNTR_ATTR_HANDLE,
                    self.verbs.handle.into(),
                    0,
                ),
                attribute(
                    DRIVER_NS + ioctl::QUERY_COMP_CNTR_ATTR_RESP,
                    address,
                    size_of::<QueryCompCntrResponse>() as u16,
                ),
            ],
        );
        // SAFETY: An open context; the method's attributes refer to memory of this function.
        let error = unsafe { execute_ioctl(self.verbs.context, query.as_raw()) };
        if error != 0 {
            return error;
        }
        self.mapping = Mapping::memory(fd, answer.map_offset, answer.map_length as usize);
        if self.mapping.is_none() {
            return libc::ENOMEM;
        }
        0
    }

    /// Returns the count at `offset` in the mapping. What the device did before it counted is
    /// visible then.
    fn count(&self, offset: usize) -> u64 {
        let Some(mapping) = &self.mapping else {
            return 0;
        };
        // SAFETY: Used for a single load, during which the application keeps the counter.
        let counts = unsafe { mapping.shared() };
        u64::from_le(counts.long(offset).load(Acquire))
    }
}

/// Creates a completion counter.
pub unsafe extern "C" fn create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: The verbs contract.
    let (attr, fd) = unsafe { (&*attr, (*context).cmd_fd) };
    if attr.comp_mask != 0 || attr.flags != 0 || attr.counter_type != TYPE_REQUESTS {
        return fail(libc::EOPNOTSUPP);
    }
    let counter = allocate(CompCntr {
        verbs: ibv_comp_cntr { context, handle: 0 },
        mapping: None,
    });
    if counter.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the counter is new and not used elsewhere.
    unsafe {
        let verbs = &raw mut (*counter).verbs;
        let mut error = ibv_cmd_create_comp_cntr(context, verbs, ptr::null_mut());
        if error == 0 {
            error = (*counter).map(fd);
            if error != 0 {
                ibv_cmd_destroy_comp_cntr(verbs);
            }
        }
        if error != 0 {
            release(counter);
            return fail(error);
        }
    }
    counter.cast()
}

/// Destroys a completion counter, unless queue pairs still have it.
pub unsafe extern "C" fn destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: The verbs contract: a counter of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_destroy_comp_cntr(counter);
        if error == 0 {
            release(counter.cast::<CompCntr>());
        }
        error
    }
}

/// Reads the number of operations that succeeded.
pub unsafe extern "C" fn read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: The verbs contract: a counter of this provider.
    unsafe {
        let counter = &*counter.cast::<CompCntr>();
        value.write(counter.count(offset_of!(CompletionCounts, completions)));
    }
    0
}

/// Reads the number of operations that failed.
pub unsafe extern "C" fn read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: The verbs contract: a counter of this provider.
    unsafe {
        let counter = &*counter.cast::<CompCntr>();
        value.write(counter.count(offset_of!(CompletionCounts, errors)));
    }
    0
}

/// Makes a counter count operations of a queue pair. libibverbs does not pass on what it does not
/// know, so it is refused here.
pub unsafe extern "C" fn qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: The verbs contract.
    let wanted = unsafe { &*attr };
    if wanted.comp_mask != 0 || wanted.op_mask & !counted_operations::ALL != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_qp_attach_comp_cntr(qp, counter, attr) }
}
