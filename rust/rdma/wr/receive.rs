// SPDX-License-Identifier: GPL-2.0

//! Receive requests.

use kernel::prelude::*;

use super::{
    posting::{
        Continuation,
        List,
        Posting, //
    },
    Sge, //
};
use crate::{
    bindings,
    event::WorkQueue, //
};

/// A receive request (`struct ib_recv_wr`).
///
/// As with a [send request](super::SendRequest), everything borrowed from it ends when it is
/// posted.
pub struct ReceiveRequest<'a> {
    posting: Posting<'a, bindings::ib_recv_wr>,
    elements: &'a [Sge],
}

impl ReceiveRequest<'_> {
    /// Returns the scatter/gather elements for the payload.
    #[inline]
    pub fn elements(&self) -> &[Sge] {
        self.elements
    }

    /// Marks the request as posted: its user then waits for the completion.
    ///
    /// Must be called in the order of the queue, while other posters are locked out.
    #[inline]
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of receive requests.
pub struct ReceiveRequests<'a>(List<'a, bindings::ib_recv_wr>);

impl<'a> ReceiveRequests<'a> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests for `queue`. Each of them must remain unchanged
    /// during `'a` until it is posted.
    pub(crate) unsafe fn new(list: *const bindings::ib_recv_wr, queue: WorkQueue<'a>) -> Self {
        // SAFETY: Guaranteed by the caller.
        Self(unsafe { List::new(list, queue) })
    }

    /// Returns the result for the caller of the post verb, given the driver's `result`.
    ///
    /// # Safety
    ///
    /// `bad` must be valid for writes.
    pub(crate) unsafe fn answer(
        &self,
        result: Result,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> Result<c_int> {
        // SAFETY: Guaranteed by the caller.
        unsafe { self.0.answer(result, bad) }
    }

    /// Returns whether no requests are left to post.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next request. The previous one must have been posted. `EINVAL` if the request has
    /// an invalid number of elements.
    pub fn take(&mut self) -> Option<Result<ReceiveRequest<'_>>> {
        Some(self.0.take()?.map(|taken| ReceiveRequest {
            posting: taken.posting,
            elements: taken.elements,
        }))
    }

    /// Calls `post` for each request until it returns an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(ReceiveRequest<'_>) -> Result) -> Result {
        while let Some(request) = self.take() {
            post(request?)?;
        }
        Ok(())
    }
}
