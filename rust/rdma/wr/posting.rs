// SPDX-License-Identifier: GPL-2.0

//! Lists of work requests and the progress of posting them, and what is kept of a posted request.

use core::{
    cell::Cell,
    ptr, //
};

use kernel::prelude::*;

use super::Sge;
use crate::{
    bindings,
    event::{
        Poster,
        WorkQueue, //
    }, //
};

/// A posted request, until it is [completed](crate::wc::Completions::push).
///
/// In the kernel, the ID of a request is the address of a structure with the function to call on
/// completion (`struct ib_cqe`). So a continuation cannot be created or used twice: it comes from a
/// request and is consumed by the completion. It also cannot be used once the user has seen the
/// completion of a later request, because the user may then have freed that structure.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Continuation {
    pub(crate) wr_id: u64,
    pub(crate) poster: Poster,
    pub(crate) is_receive: bool,
    /// Position in the queue, starting from 1; 0 in a queue without an order.
    pub(crate) position: u64,
    /// Total length of the scatter/gather elements in bytes.
    pub(crate) length: u64,
}

/// A C work request.
pub(super) trait Listed: Sized {
    /// Whether it is a receive request.
    const IS_RECEIVE: bool;

    /// Returns the next request in the list.
    fn next(&self) -> *const Self;

    /// Returns the ID of the request.
    fn wr_id(&self) -> u64;

    /// Returns the scatter/gather elements and their number.
    fn elements(&self) -> (*const bindings::ib_sge, c_int);
}

macro_rules! listed {
    ($($request:ident: $is_receive:literal,)*) => {
        $(
            impl Listed for bindings::$request {
                const IS_RECEIVE: bool = $is_receive;

                fn next(&self) -> *const Self {
                    self.next
                }

                fn wr_id(&self) -> u64 {
                    // SAFETY: All members of the union are plain words.
                    *unsafe { crate::compat::member(&self.__bindgen_anon_1.wr_id) }
                }

                fn elements(&self) -> (*const bindings::ib_sge, c_int) {
                    (self.sg_list, self.num_sge)
                }
            }
        )*
    };
}

listed! {
    ib_send_wr: false,
    ib_recv_wr: true,
}

/// A list of C work requests for one queue.
///
/// A posted request may complete at once, and its owner may then free it. So nothing accesses a
/// request after it was posted, not even to find the next one.
///
/// # Invariants
///
/// The [rest](Self::rest) is null or a list of requests. Each of them remains unchanged during `'a`
/// until it is posted.
pub(super) struct List<'a, R> {
    head: *const R,
    /// The first request that was not posted, if any request was.
    rest: Cell<Option<*const R>>,
    /// The request that was taken last.
    taken: *const R,
    queue: WorkQueue<'a>,
}

impl<'a, R: Listed> List<'a, R> {
    /// Wraps a list from which nothing was posted yet.
    ///
    /// # Safety
    ///
    /// `head` must be null or a list of requests for `queue`. Each of them must remain unchanged
    /// during `'a` until it is posted.
    pub(super) const unsafe fn new(head: *const R, queue: WorkQueue<'a>) -> Self {
        Self {
            head,
            rest: Cell::new(None),
            taken: ptr::null(),
            queue,
        }
    }

    /// Returns the list from the first request that was not posted.
    fn rest(&self) -> *const R {
        self.rest.get().unwrap_or(self.head)
    }

    /// Returns whether no requests are left to post.
    pub(super) fn is_empty(&self) -> bool {
        self.rest().is_null()
    }

    /// Takes the next request. Returns [`None`] if the request taken last was not posted.
    pub(super) fn take(&mut self) -> Option<Result<Taken<'_, R>>> {
        let rest = self.rest();
        if ptr::eq(rest, self.taken) {
            return None;
        }
        // SAFETY: Null or a request that was not posted, by the type invariant.
        let request = unsafe { rest.as_ref() }?;

        self.taken = rest;
        let (elements, count) = request.elements();
        // SAFETY: There are as many elements as the request says.
        let elements = match unsafe { Sge::slice(elements, count) } {
            Ok(elements) => elements,
            Err(error) => return Some(Err(error)),
        };
        let lengths = elements.iter().map(|element| u64::from(element.length()));
        Some(Ok(Taken {
            request,
            elements,
            posting: Posting {
                continuation: Continuation {
                    wr_id: request.wr_id(),
                    poster: self.queue.poster(),
                    is_receive: R::IS_RECEIVE,
                    position: 0,
                    // There are at most 2^31 elements of less than 2^32 bytes each, so the sum
                    // fits.
                    length: lengths.sum(),
                },
                next: request.next(),
                list: self,
            },
        }))
    }

    /// Returns the result for the caller of the post verb, given the driver's `result`. Requests
    /// that were not posted are rejected, with `EIO` if the driver returned no error.
    ///
    /// # Safety
    ///
    /// `bad` must be valid for writes.
    pub(super) unsafe fn answer(&self, result: Result, bad: *mut *const R) -> Result<c_int> {
        let refused = self.rest();
        let error = match (result, refused.is_null()) {
            (Ok(()), true) => return Ok(0),
            // All requests were posted, so there is none to reject.
            (Err(_), true) if !self.head.is_null() => return Ok(0),
            (Ok(()), false) => EIO,
            (Err(error), _) => error,
        };
        // SAFETY: Valid, as the caller guarantees.
        unsafe { *bad = refused };
        Err(error)
    }
}

/// A request that was taken from a list.
pub(super) struct Taken<'a, R> {
    pub(super) request: &'a R,
    pub(super) elements: &'a [Sge],
    pub(super) posting: Posting<'a, R>,
}

/// Marks a request as posted.
pub(super) struct Posting<'a, R> {
    continuation: Continuation,
    /// The next request in the list.
    next: *const R,
    list: &'a List<'a, R>,
}

impl<R> Posting<'_, R> {
    pub(super) fn post(self) -> Continuation {
        self.list.rest.set(Some(self.next));
        Continuation {
            position: self.list.queue.append(),
            ..self.continuation
        }
    }
}
