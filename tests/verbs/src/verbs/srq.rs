// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Shared receive queues.

use std::ptr;
use std::sync::Arc;

use super::queue::post_receives;
use super::{Pd, PostError, Result, Sge, destroyed, object, status};
use crate::ffi::{
    ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr,
};

/// `IBV_SRQ_MAX_WR`
pub const SRQ_MAX_WR: i32 = 1;
/// `IBV_SRQ_LIMIT`
pub const SRQ_LIMIT: i32 = 2;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pub(super) raw: *mut ibv_srq,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates an SRQ for `max_wr` receives of `max_sge` elements.
    pub fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32) -> Result<Arc<Self>> {
        let mut attr = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the PD lives and `attr` is complete.
        let raw = object(unsafe { ibv_create_srq(pd.raw, &raw mut attr) })?;
        Ok(Arc::new(Srq {
            raw,
            pd: pd.clone(),
        }))
    }

    /// Its PD.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Name by which events tell of it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: the SRQ lives.
        unsafe { (*self.raw).handle }
    }

    /// Modifies the attributes in `mask`.
    pub fn modify(&self, attr: ibv_srq_attr, mask: i32) -> Result<()> {
        let mut attr = attr;
        // SAFETY: the SRQ lives and `attr` is complete.
        status(unsafe { ibv_modify_srq(self.raw, &raw mut attr, mask) })
    }

    /// Its attributes.
    pub fn query(&self) -> Result<ibv_srq_attr> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the SRQ lives and `attr` is writable.
        status(unsafe { ibv_query_srq(self.raw, &raw mut attr) })?;
        Ok(attr)
    }

    /// Posts receive requests in one call.
    pub fn post_recv(&self, wrs: &[(u64, &[Sge<'_>])]) -> std::result::Result<(), PostError> {
        post_receives(wrs, |list, bad| {
            // SAFETY: the SRQ lives; the list and its scatter/gather entries live across the call; the operation
            // belongs to the SRQ's context.
            unsafe {
                match (*self.pd.context.raw).ops.post_srq_recv {
                    Some(post) => post(self.raw, list, bad),
                    None => libc::EOPNOTSUPP,
                }
            }
        })
    }

    /// Tries to destroy the SRQ while others use it, which must fail.
    pub fn try_destroy(&self) -> Result<()> {
        // SAFETY: the SRQ lives; if it is destroyed after all the test has failed, and nobody uses it any more.
        status(unsafe { ibv_destroy_srq(self.raw) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the SRQ lives and is given up here.
        destroyed("SRQ", unsafe { ibv_destroy_srq(self.raw) });
    }
}
