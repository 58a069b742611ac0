// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Memory windows.

use std::ptr;
use std::sync::Arc;

use super::{Errno, Mr, Pd, Result, destroyed, object};
use crate::ffi::{ibv_mw, ibv_mw_bind_info};

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    pub(super) raw: *mut ibv_mw,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

impl Mw {
    /// Allocates a window of type `kind` (`MW_TYPE_1`, `MW_TYPE_2`), which is not bound.
    pub fn new(pd: &Arc<Pd>, kind: i32) -> Result<Self> {
        // SAFETY: the PD lives, and the operation belongs to its context.
        let raw = unsafe {
            let alloc = (*pd.context.raw).ops.alloc_mw;
            object(alloc.ok_or(Errno(libc::EOPNOTSUPP))?(pd.raw, kind))?
        };
        Ok(Mw {
            raw,
            pd: pd.clone(),
        })
    }

    /// Notes the key of a bind that was posted, where libibverbs leaves that to the application.
    pub fn set_rkey(&self, rkey: u32) {
        // SAFETY: the window is allocated, and the key is the application's to change.
        unsafe { (*self.raw).rkey = rkey };
    }

    /// The key that it has, or will have once the bind that was posted last is done.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is allocated.
        unsafe { (*self.raw).rkey }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: the window is allocated, and given up here; an operation that allocates has one that gives back.
        destroyed("MW", unsafe {
            (*self.pd.context.raw)
                .ops
                .dealloc_mw
                .map_or(libc::EOPNOTSUPP, |dealloc| dealloc(self.raw))
        });
    }
}

/// What a window is bound to: any range of a region, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bind<'a> {
    /// The region
    pub mr: Option<&'a Mr>,
    /// Address of the first byte
    pub addr: u64,
    /// Bytes
    pub len: u64,
    /// Rights of peers (the `ACCESS_` bits)
    pub access: i32,
}

impl Bind<'_> {
    pub(super) fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.map_or(ptr::null_mut(), |mr| mr.raw),
            addr: self.addr,
            length: self.len,
            mw_access_flags: self.access as u32,
        }
    }
}
