// SPDX-License-Identifier: GPL-2.0

//! Requests to receive.

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

/// A request to receive (`struct ib_recv_wr`).
///
/// As with a [request to send](super::SendRequest), what is known of it goes when it is posted.
pub struct ReceiveRequest<'a> {
    posting: Posting<'a, bindings::ib_recv_wr>,
    elements: &'a [Sge],
}

impl ReceiveRequest<'_> {
    /// Where the payload goes.
    #[inline]
    pub fn elements(&self) -> &[Sge] {
        self.elements
    }

    /// The request is posted: its user waits for it to complete.
    ///
    /// To be called in the order of the queue, with what keeps others from posting to it.
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of requests to receive.
pub struct ReceiveRequests<'a>(List<'a, bindings::ib_recv_wr>);

impl<'a> ReceiveRequests<'a> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests to `queue` that stay as they are during `'a`, each
    /// until it is posted.
    pub(crate) unsafe fn new(list: *const bindings::ib_recv_wr, queue: WorkQueue<'a>) -> Self {
        // SAFETY: Guaranteed by the caller.
        Self(unsafe { List::new(list, queue) })
    }

    /// What to answer to who posts, to whom the driver says `result`.
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

    /// Takes the next request. It has to be posted before there is another. `EINVAL` if it has a
    /// number of elements that cannot be.
    pub fn take(&mut self) -> Option<Result<ReceiveRequest<'_>>> {
        Some(self.0.take()?.map(|taken| ReceiveRequest {
            posting: taken.posting,
            elements: taken.elements,
        }))
    }

    /// Calls `post` with one request after the other, until an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(ReceiveRequest<'_>) -> Result) -> Result {
        while let Some(request) = self.take() {
            post(request?)?;
        }
        Ok(())
    }
}
