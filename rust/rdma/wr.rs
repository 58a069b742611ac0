// SPDX-License-Identifier: GPL-2.0

//! Work requests that the kernel posts.

use core::slice;

use kernel::prelude::*;

use crate::bindings;

mod posting;
mod receive;
mod send;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use posting::Continuation;
pub use receive::{
    ReceiveRequest,
    ReceiveRequests, //
};
pub use send::{
    Operation,
    Remote,
    Segments,
    SendFlag,
    SendFlags,
    SendRequest,
    SendRequests, //
};

/// A scatter/gather element: a range of a memory region (`struct ib_sge`).
#[repr(transparent)]
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// Returns the address of the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Returns the lkey of the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Returns the memory of an element with inline data.
    ///
    /// # Safety
    ///
    /// The element must be empty, or its address that of kernel memory as long as the element,
    /// which does not change during the lifetime of the result.
    unsafe fn memory(&self) -> &[u8] {
        if self.0.length == 0 {
            return &[];
        }
        // CAST: An address of the kernel, as the caller guarantees.
        let (start, length) = (self.0.addr as usize as *const u8, self.0.length as usize);
        // SAFETY: Guaranteed by the caller.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// Wraps the elements of a request.
    ///
    /// # Safety
    ///
    /// `list` must have `count` elements that do not change during `'a`.
    pub(crate) unsafe fn slice<'a>(
        list: *const bindings::ib_sge,
        count: c_int,
    ) -> Result<&'a [Self]> {
        let count = usize::try_from(count)?;
        if count == 0 {
            return Ok(&[]);
        }
        if list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: Not null, and as long as the caller guarantees; `Sge` is transparent.
        Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
    }
}
