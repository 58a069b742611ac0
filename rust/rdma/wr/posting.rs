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

/// How far a list of requests has been posted: how many of them were, and the first that was not.
///
/// A request that was posted may complete at once, and whoever waits for that may free it. So
/// nothing looks at one that was posted, not even to find the next.
pub(crate) struct Posted<R>(pub(super) Cell<(usize, *const R)>);

impl<R> Posted<R> {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Cell::new((0, ptr::null())))
    }

    /// Request `index` is posted, and with it those before. `next` comes after it.
    fn advance(&self, index: usize, next: *const R) {
        if index >= self.0.get().0 {
            self.0.set((index + 1, next));
        }
    }

    /// What is left of a list.
    fn rest(&self, list: *const R) -> *const R {
        match self.0.get() {
            (0, _) => list,
            (_, next) => next,
        }
    }
}

/// Says that a request was posted.
pub(super) struct Posting<'a, R> {
    pub(super) continuation: Continuation,
    /// Where in the list the request is, and what comes after it.
    pub(super) index: usize,
    pub(super) next: *const R,
    pub(super) posted: &'a Posted<R>,
}

impl<R> Posting<'_, R> {
    pub(super) fn post(self) -> Continuation {
        self.posted.advance(self.index, self.next);
        self.continuation
    }
}

/// What to answer to who posts a list. Requests after the last that was posted are not.
///
/// # Safety
///
/// `bad` must be valid for writes.
pub(super) unsafe fn answer<R>(
    list: *const R,
    posted: &Posted<R>,
    result: Result,
    bad: *mut *const R,
) -> Result<c_int> {
    let refused = posted.rest(list);
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
