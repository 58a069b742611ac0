// SPDX-License-Identifier: GPL-2.0

//! Tests of all that the core of RDMA and a driver say to each other: verbs from the call to the
//! method of the driver and back, and the translations of types.
//!
//! [`driver`] is a driver without hardware, [`environment`] what tests need of the rest of the
//! kernel; the tests of a module of this crate are in the module of the same name here.

use crate::{
    bindings,
    place::Poster,
    wr::{
        Continuation,
        Operation,
        SendFlags,
        SendRequest, //
    },
    Operations,
    Qp,
    QueuePair, //
};

/// The driver's part of a queue pair, for tests of drivers.
///
/// # Safety
///
/// `qp` must be constructed, of a driver whose queue pairs are `T`, and not go away during `'a`.
pub unsafe fn qp_data<'a, T: QueuePair>(qp: *mut bindings::ib_qp) -> &'a T {
    // SAFETY: Guaranteed by the caller.
    unsafe { Qp::from_raw(qp) }
}

/// A continuation of a request that nobody posted, for tests of drivers.
pub fn continuation(wr_id: u64) -> Continuation {
    Continuation {
        wr_id,
        poster: Poster::new(),
        is_receive: false,
    }
}

/// A request to send that nobody made, for tests of drivers: it must not be posted.
pub fn send_request<T: Operations>(
    flags: SendFlags,
    operation: Operation<'static, T>,
) -> SendRequest<'static, T> {
    SendRequest::for_test(flags, operation)
}

/// What the poster of a request calls it.
pub fn wr_id(request: &Continuation) -> u64 {
    request.wr_id
}

#[macro_use]
mod common;

mod access;
mod ah;
mod answers;
mod buffer;
mod cq;
mod device;
pub(crate) mod driver;
pub mod environment;
mod event;
mod gid;
mod mr;
mod mw;
mod pages;
mod pd;
mod port;
mod qp;
mod restrack;
mod srq;
mod stats;
mod ucontext;
mod wr;
