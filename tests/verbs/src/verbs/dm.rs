// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Device memory.

use std::ptr;
use std::sync::Arc;

use super::{Context, Errno, Mr, Pd, Result, destroyed, object, status};
use crate::ffi::{ibv_alloc_dm_attr, ibv_dm};
use crate::memory::Memory;

const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

/// A buffer in device memory.
#[derive(Debug)]
pub struct Dm {
    raw: *mut ibv_dm,
    context: Arc<Context>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Dm {}
// SAFETY: as above.
unsafe impl Sync for Dm {}

impl Dm {
    /// Allocates `len` bytes that begin at a multiple of 2 to the `alignment`.
    pub fn new(context: &Arc<Context>, len: usize, alignment: u32) -> Result<Self> {
        let extended = context.extended().ok_or(UNSUPPORTED)?;
        let mut attr = ibv_alloc_dm_attr {
            length: len,
            log_align_req: alignment,
            comp_mask: 0,
        };
        // SAFETY: the context is open, and the attributes are complete.
        let raw = unsafe {
            let alloc = (*extended).alloc_dm.ok_or(UNSUPPORTED)?;
            object(alloc(context.raw, &raw mut attr))?
        };
        Ok(Dm {
            raw,
            context: context.clone(),
        })
    }

    /// Copies there, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: the buffer is allocated, and its operations are those of its library; the bytes are there.
        status(unsafe {
            let copy = (*self.raw).memcpy_to_dm.ok_or(UNSUPPORTED)?;
            copy(self.raw, offset as u64, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Copies from there.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as above.
        status(unsafe {
            let copy = (*self.raw).memcpy_from_dm.ok_or(UNSUPPORTED)?;
            let to = bytes.as_mut_ptr().cast();
            copy(to, self.raw, offset as u64, bytes.len())
        })
    }

    /// Registers `len` bytes at `offset`, whose addresses count from 0. The region has no memory to speak of.
    pub fn region(&self, pd: &Arc<Pd>, offset: usize, len: usize, access: i32) -> Result<Mr> {
        let memory = Arc::new(Memory::new(1)?);
        let extended = self.context.extended().ok_or(UNSUPPORTED)?;
        // SAFETY: the buffer is allocated, and the PD one of its context.
        let raw = unsafe {
            let register = (*extended).reg_dm_mr.ok_or(UNSUPPORTED)?;
            object(register(
                pd.raw,
                self.raw,
                offset as u64,
                len,
                access.cast_unsigned(),
            ))?
        };
        Ok(Mr {
            raw,
            memory,
            pd: pd.clone(),
        })
    }

    /// Frees the buffer, or gives it back with the reason why not.
    pub fn try_free(self) -> std::result::Result<(), (Self, Errno)> {
        match status(self.free()) {
            Ok(()) => {
                let this = std::mem::ManuallyDrop::new(self);
                // SAFETY: read out once, of a value never used again.
                drop(unsafe { ptr::read(&raw const this.context) });
                Ok(())
            }
            Err(e) => Err((self, e)),
        }
    }

    fn free(&self) -> i32 {
        // SAFETY: the buffer is allocated; who calls this gives it up on success.
        self.context
            .extended()
            .map_or(libc::EOPNOTSUPP, |extended| unsafe {
                (*extended)
                    .free_dm
                    .map_or(libc::EOPNOTSUPP, |free| free(self.raw))
            })
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        destroyed("DM", self.free());
    }
}
