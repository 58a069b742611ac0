// SPDX-License-Identifier: GPL-2.0

//! Shared parts of the tests. Everything that the RDMA core and a driver exchange goes through a
//! [`driver`] without hardware, as calls from a [process](process::Process) or from the kernel.
//!
//! The tests of a module are in its `tests` submodule.

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

/// Returns the driver's data of a queue pair, for tests of drivers.
///
/// # Safety
///
/// `qp` must be constructed, must be of a driver whose queue pairs are `T`, and must not go away
/// during `'a`.
pub unsafe fn qp_data<'a, T: QueuePair>(qp: *mut bindings::ib_qp) -> &'a T {
    // SAFETY: Guaranteed by the caller.
    unsafe { Qp::from_raw(qp) }
}

/// Creates a continuation of a request that was never posted, for tests of drivers.
pub fn continuation(wr_id: u64) -> Continuation {
    Continuation {
        wr_id,
        poster: Poster::new(),
        is_receive: false,
        position: 0,
        length: u64::MAX,
    }
}

/// Calls `test` with a send request that has no real poster, for tests of drivers.
pub fn with_send_request<T: Operations, R>(
    flags: SendFlags,
    operation: Operation<'_, T>,
    test: impl FnOnce(&SendRequest<'_, T>) -> R,
) -> Result<R> {
    SendRequest::with_test(flags, operation, test)
}

/// Returns the ID of a request.
pub fn wr_id(request: &Continuation) -> u64 {
    request.wr_id
}

/// Waits until `condition` holds, with a timeout that is long enough for other threads to make it
/// true.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> Result {
    for _ in 0..3000 {
        if condition() {
            return Ok(());
        }
        fsleep(Delta::from_millis(10));
    }
    Err(ETIMEDOUT)
}
