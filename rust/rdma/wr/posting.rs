// SPDX-License-Identifier: GPL-2.0

//! How far a list of requests has been posted, and what is left of a request that was.

use core::{
    cell::Cell,
    ptr, //
};

use kernel::prelude::*;

use crate::event::Poster;

/// A request that was posted, until it is [completed](crate::wc::Completions::push).
///
/// The user's name for a request is, in the kernel, the address of what to call when it is complete
/// (`struct ib_cqe`). So nobody can make one of these up, nor use it twice: it comes from a
/// request, and goes with its completion.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Continuation {
    pub(crate) wr_id: u64,
    pub(crate) poster: Poster,
    pub(crate) is_receive: bool,
}

/// How far a list of requests has been posted: how many of them were, and the last of these.
pub(crate) struct Posted<R>(pub(super) Cell<(usize, *const R)>);

impl<R> Posted<R> {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Cell::new((0, ptr::null())))
    }

    /// Request `index`, which is `this`, is posted, and with it those before.
    fn advance(&self, index: usize, this: *const R) {
        if index >= self.0.get().0 {
            self.0.set((index + 1, this));
        }
    }

    /// The last that was posted.
    pub(super) fn last(&self) -> *const R {
        self.0.get().1
    }
}

/// Says that a request was posted.
pub(super) struct Posting<'a, R> {
    pub(super) continuation: Continuation,
    /// The request, and where in the list it is.
    pub(super) this: *const R,
    pub(super) index: usize,
    pub(super) posted: &'a Posted<R>,
}

impl<R> Posting<'_, R> {
    pub(super) fn post(self) -> Continuation {
        self.posted.advance(self.index, self.this);
        self.continuation
    }
}

/// What to answer to who posts a list. Requests after the last that was posted are not.
///
/// # Safety
///
/// `posted` must be null or a request of the list, `list` null or its first, and `bad` valid for
/// writes; `next` must find the one after a request.
pub(super) unsafe fn answer<R>(
    list: *const R,
    posted: *const R,
    next: impl FnOnce(&R) -> *const R,
    result: Result,
    bad: *mut *const R,
) -> Result<c_int> {
    // SAFETY: Null or valid, as the caller guarantees.
    let refused = unsafe { posted.as_ref() }.map_or(list, next);
    match result {
        // There is nothing that could be refused.
        Err(_) if refused.is_null() && !list.is_null() => Ok(0),
        Err(error) => {
            // SAFETY: Valid, as the caller guarantees.
            unsafe { *bad = refused };
            Err(error)
        }
        Ok(()) => Ok(0),
    }
}

/// Where nothing is posted.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
pub(crate) struct Nowhere(pub(crate) Posted<crate::bindings::ib_send_wr>);

// SAFETY: Tests only look at what requests want, and post none.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
unsafe impl Sync for Nowhere {}

/// For tests that only look at what requests want.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
pub(crate) static NOWHERE: Nowhere = Nowhere(Posted::new());
