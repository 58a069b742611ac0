// SPDX-License-Identifier: GPL-2.0

//! Requests to receive.

use core::marker::PhantomData;

use kernel::prelude::*;

use super::{
    posting::{
        answer,
        Continuation,
        Posted,
        Posting, //
    },
    Sge, //
};
use crate::{
    bindings,
    event::Poster, //
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

    /// The request is posted, and with it those before: its user waits for it to complete.
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of requests to receive.
///
/// # Invariants
///
/// `next` is null or the rest of a list as [`new`](Self::new) demands it, none of it posted.
pub struct ReceiveRequests<'a> {
    next: *const bindings::ib_recv_wr,
    /// Where in the list that is.
    index: usize,
    list: *const bindings::ib_recv_wr,
    poster: Poster,
    posted: &'a Posted<bindings::ib_recv_wr>,
    _list: PhantomData<&'a ()>,
}

impl<'a> ReceiveRequests<'a> {
    /// Wraps a list. How much of it is posted will be in `posted`, where nothing is now.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests to `poster` that stay as they are during `'a`,
    /// each until it or one behind it is posted.
    pub(crate) unsafe fn new(
        list: *const bindings::ib_recv_wr,
        poster: Poster,
        posted: &'a Posted<bindings::ib_recv_wr>,
    ) -> Self {
        Self {
            next: list,
            index: 0,
            list,
            poster,
            posted,
            _list: PhantomData,
        }
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
        unsafe { answer(self.list, self.posted, result, bad) }
    }

    /// Takes the next request. There is only one at a time, because a request that is posted takes
    /// those before it with it. One that is wrong in itself is `EINVAL`.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<ReceiveRequest<'_>>> {
        // SAFETY: Null or valid, by the type invariant, until it is posted. That takes what is
        // returned here, and so does what comes after it.
        let wr = unsafe { self.next.as_ref() }?;

        let index = self.index;
        (self.next, self.index) = (wr.next, index + 1);
        // SAFETY: The list is as long as the request says.
        let elements = unsafe { Sge::slice(wr.sg_list, wr.num_sge) };
        Some(elements.map(|elements| ReceiveRequest {
            posting: Posting {
                continuation: Continuation {
                    // SAFETY: All members of the union are plain words.
                    wr_id: *unsafe { crate::compat::member(&wr.__bindgen_anon_1.wr_id) },
                    poster: self.poster,
                    is_receive: true,
                },
                index,
                next: wr.next,
                posted: self.posted,
            },
            elements,
        }))
    }
    /// Calls `post` with one request after the other, until an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(ReceiveRequest<'_>) -> Result) -> Result {
        while let Some(request) = self.next() {
            post(request?)?;
        }
        Ok(())
    }
}
