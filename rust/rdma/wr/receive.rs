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
pub struct ReceiveRequest<'a> {
    posting: Posting<'a, bindings::ib_recv_wr>,
    /// Where the payload goes.
    pub elements: &'a [Sge],
}

impl ReceiveRequest<'_> {
    /// The request is posted, and with it those before: its user waits for it to complete.
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of requests to receive.
///
/// # Invariants
///
/// `next` is null or the rest of a list that stays as it is during `'a`.
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
    /// `list` must be null or a list of requests to `poster` that stay as they are during `'a`.
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
}

impl<'a> Iterator for ReceiveRequests<'a> {
    type Item = Result<ReceiveRequest<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: Null or valid, by the type invariant.
        let wr = unsafe { self.next.as_ref::<'a>() }?;

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
}
