// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Device memory, which this process maps.

use super::mr::new_region;
use super::{allocate, fail, release};
use crate::ffi::driver::verbs_dm;
use crate::ffi::functions::*;
use crate::ffi::ioctl::*;
use crate::ffi::verbs::*;
use crate::memory::{Mapping, Shared};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::{mem, ptr};
use vrnic_wire::abi::{QueryDmResponse, ioctl};

/// Programs copy in words of this size, at multiples of it, as on other devices.
const WORD: usize = size_of::<u32>();

/// A buffer in device memory.
#[repr(C)]
struct Dm {
    verbs: verbs_dm,
    /// The buffer, at the beginning of the mapping. Set except during creation.
    mapping: Option<Mapping>,
    length: u64,
}

impl Dm {
    /// Allocates a buffer that is not mapped yet. If memory runs out, returns null and sets
    /// `errno`.
    fn new(context: *mut ibv_context) -> *mut Self {
        // SAFETY: Integers and pointers; zero means absent.
        let mut verbs = unsafe { mem::zeroed::<verbs_dm>() };
        verbs.dm.context = context;
        verbs.dm.memcpy_to_dm = Some(memcpy_to_dm);
        verbs.dm.memcpy_from_dm = Some(memcpy_from_dm);
        allocate(Self {
            verbs,
            mapping: None,
            length: 0,
        })
    }

    /// Asks the kernel where the buffer is and maps it. Returns an error number or 0.
    fn map(&mut self, fd: c_int) -> c_int {
        let mut answer = QueryDmResponse::default();
        let address = (&raw mut answer).expose_provenance() as u64;
        let mut query = Method::new(
            UVERBS_OBJECT_DM,
            DRIVER_NS + ioctl::METHOD_QUERY_DM,
            [
                attribute(
                    DRIVER_NS + ioctl::QUERY_DM_ATTR_HANDLE,
                    self.verbs.handle.into(),
                    0,
                ),
                attribute(
                    DRIVER_NS + ioctl::QUERY_DM_ATTR_RESP,
                    address,
                    size_of::<QueryDmResponse>() as u16,
                ),
            ],
        );
        // SAFETY: An open context; the method's attributes refer to memory of this function.
        let error = unsafe { execute_ioctl(self.verbs.dm.context, query.as_raw()) };
        if error != 0 {
            return error;
        }
        self.mapping = Mapping::memory(fd, answer.map_offset, answer.map_length as usize);
        self.length = answer.length;
        if self.mapping.is_none() {
            return libc::ENOMEM;
        }
        0
    }

    /// Checks access to `length` bytes at `offset` and returns the mapping. Fails with `EFAULT` if
    /// they are not all within the buffer, and with `EINVAL` if they are not whole words.
    fn words(&self, offset: u64, length: usize) -> Result<Shared, c_int> {
        let end = offset.checked_add(length as u64).ok_or(libc::EFAULT)?;
        let mapping = self.mapping.as_ref().ok_or(libc::EFAULT)?;
        if end > self.length {
            return Err(libc::EFAULT);
        }
        if !offset.is_multiple_of(WORD as u64) || !length.is_multiple_of(WORD) {
            return Err(libc::EINVAL);
        }
        // SAFETY: Used for a single copy, during which the application keeps the buffer.
        Ok(unsafe { mapping.shared() })
    }
}

/// Allocates a buffer in device memory. The buffer begins at a page.
pub unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: The verbs contract.
    let (comp_mask, fd) = unsafe { ((*attr).comp_mask, (*context).cmd_fd) };
    if comp_mask != 0 {
        return fail(libc::EINVAL);
    }
    let dm = Dm::new(context);
    if dm.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the buffer is new and not used elsewhere.
    unsafe {
        let verbs = &raw mut (*dm).verbs;
        let mut error = ibv_cmd_alloc_dm(context, attr, verbs, ptr::null_mut());
        if error == 0 {
            error = (*dm).map(fd);
            if error != 0 {
                ibv_cmd_free_dm(verbs);
            }
        }
        if error != 0 {
            release(dm);
            return fail(error);
        }
        (&raw mut (*verbs).dm).cast()
    }
}

/// Frees a buffer in device memory, unless memory regions still use it.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let dm = dm.cast::<Dm>();
    // SAFETY: The verbs contract: a buffer of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_free_dm(&raw mut (*dm).verbs);
        if error == 0 {
            release(dm);
        }
        error
    }
}

/// Imports a buffer that another process allocated; `handle` is its handle in the shared context.
pub unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let dm = Dm::new(context);
    if dm.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: The verbs contract; the buffer is new and not used elsewhere.
    unsafe {
        (*dm).verbs.handle = handle;
        (*dm).verbs.dm.handle = handle;
        (*dm).verbs.dm.comp_mask = IBV_DM_MASK_HANDLE;
        match (*dm).map((*context).cmd_fd) {
            0 => dm.cast(),
            error => {
                release(dm);
                fail(error)
            }
        }
    }
}

/// Releases an imported buffer. The buffer itself remains.
pub unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: The verbs contract: a buffer of this provider, and its last use here.
    unsafe { release(dm.cast::<Dm>()) };
}

/// Registers a part of a buffer. Its addresses start at 0.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: The verbs contract: a buffer of this provider. The command has no driver part.
    new_region(|mr| unsafe {
        let verbs = &raw mut (*dm.cast::<Dm>()).verbs;
        ibv_cmd_reg_dm_mr(pd, verbs, offset, length, access, mr, ptr::null_mut())
    })
}

/// Copies to device memory.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: The verbs contract: a buffer of this provider.
    let words = match unsafe { (*dm.cast::<Dm>()).words(offset, length) } {
        Ok(words) => words,
        Err(error) => return error,
    };
    let offset = offset as usize;
    for at in (0..length).step_by(WORD) {
        // SAFETY: The verbs contract: that many bytes, at any alignment.
        let word = unsafe { from.byte_add(at).cast::<u32>().read_unaligned() };
        words.word(offset + at).store(word, Relaxed);
    }
    0
}

/// Copies from device memory.
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: The verbs contract: a buffer of this provider.
    let words = match unsafe { (*dm.cast::<Dm>()).words(offset, length) } {
        Ok(words) => words,
        Err(error) => return error,
    };
    let offset = offset as usize;
    for at in (0..length).step_by(WORD) {
        let word = words.word(offset + at).load(Relaxed);
        // SAFETY: The verbs contract: room for that many bytes, at any alignment.
        unsafe { to.byte_add(at).cast::<u32>().write_unaligned(word) };
    }
    0
}
