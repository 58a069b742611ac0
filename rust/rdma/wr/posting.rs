// SPDX-License-Identifier: GPL-2.0

//! Lists of requests, how far they were posted, and what is left of a request that was.

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

/// A request that was posted, until it is [completed](crate::wc::Completions::push).
///
/// The user's name for a request is, in the kernel, the address of what to call when it is complete
/// (`struct ib_cqe`). So nobody can make one of these up, nor use it twice: it comes from a
/// request, and goes with its completion. Nor can one be used when its user has seen a later one
/// complete, and may have freed what is to be called.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Continuation {
    pub(crate) wr_id: u64,
    pub(crate) poster: Poster,
    pub(crate) is_receive: bool,
    /// Its position in its queue, from 1; 0 in a queue without an order.
    pub(crate) position: u64,
    /// Bytes of its elements.
    pub(crate) length: u64,
}

/// A request of C.
pub(super) trait Listed: Sized {
    /// Whether it is one to receive.
    const IS_RECEIVE: bool;

    /// The request behind it.
    fn next(&self) -> *const Self;

    /// What its user calls it.
    fn wr_id(&self) -> u64;

    /// Where its elements are, and how many.
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

/// A list of requests of C to one queue.
///
/// A request that was posted may complete at once, and whoever waits for that may free it. So
/// nothing looks at one that was posted, not even to find the next.
///
/// # Invariants
///
/// What is [left](Self::rest) is null or a list of requests that stay as they are during `'a`, each
/// until it is posted.
pub(super) struct List<'a, R> {
    head: *const R,
    /// The first request that was not posted, if one was.
    rest: Cell<Option<*const R>>,
    /// The last request that was taken.
    taken: *const R,
    queue: WorkQueue<'a>,
}

impl<'a, R: Listed> List<'a, R> {
    /// Wraps a list of which nothing is posted.
    ///
    /// # Safety
    ///
    /// `head` must be null or a list of requests to `queue` that stay as they are during `'a`, each
    /// until it is posted.
    pub(super) const unsafe fn new(head: *const R, queue: WorkQueue<'a>) -> Self {
        Self {
            head,
            rest: Cell::new(None),
            taken: ptr::null(),
            queue,
        }
    }

    /// The first request that was not posted, and those behind it.
    fn rest(&self) -> *const R {
        self.rest.get().unwrap_or(self.head)
    }

    /// Takes the next request; none if the last one that was taken was not posted.
    pub(super) fn take(&mut self) -> Option<Result<Taken<'_, R>>> {
        let rest = self.rest();
        if ptr::eq(rest, self.taken) {
            return None;
        }
        // SAFETY: Null or a request that was not posted, by the type invariant.
        let request = unsafe { rest.as_ref() }?;

        self.taken = rest;
        let (elements, count) = request.elements();
        // SAFETY: They are as many as the request says.
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
                    // Elements are at most 2^31, of less than 2^32 bytes.
                    length: lengths.sum(),
                },
                next: request.next(),
                list: self,
            },
        }))
    }

    /// What to answer to who posts, to whom the driver says `result`. Requests that were not posted
    /// are refused, with `EIO` if the driver has no reason.
    ///
    /// # Safety
    ///
    /// `bad` must be valid for writes.
    pub(super) unsafe fn answer(&self, result: Result, bad: *mut *const R) -> Result<c_int> {
        let refused = self.rest();
        let error = match (result, refused.is_null()) {
            (Ok(()), true) => return Ok(0),
            // There is nothing that could be refused.
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

/// Says that a request was posted.
pub(super) struct Posting<'a, R> {
    continuation: Continuation,
    /// What comes after it.
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
