// SPDX-License-Identifier: GPL-2.0

//! What tests share: all that the core of RDMA and a driver say to each other goes through a
//! [`driver`] without hardware, as calls of a [process](process::Process) or of the kernel.
//!
//! The tests of a module are its `tests`.

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::{
    bindings,
    event::Poster,
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

pub mod device;
pub(crate) mod driver;
pub mod objects;
pub(crate) mod prelude;
pub mod process;

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
        position: 0,
        length: u64::MAX,
    }
}

/// Calls `test` with a request to send that nobody waits for, for tests of drivers.
pub fn with_send_request<T: Operations, R>(
    flags: SendFlags,
    operation: Operation<'_, T>,
    test: impl FnOnce(&SendRequest<'_, T>) -> R,
) -> Result<R> {
    SendRequest::with_test(flags, operation, test)
}

/// What the poster of a request calls it.
pub fn wr_id(request: &Continuation) -> u64 {
    request.wr_id
}

/// Waits until `condition` holds, for as long as somebody might take who has to do something for
/// that.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> Result {
    for _ in 0..3000 {
        if condition() {
            return Ok(());
        }
        fsleep(Delta::from_millis(10));
    }
    Err(ETIMEDOUT)
}
