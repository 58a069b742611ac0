// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Values that only the abstractions can make, because each says that something is true.

#![forbid(unsafe_code)]

use driver::{
    Driver,
    Object, //
};
use rdma::{
    wr::Continuation,
    Call,
    Qp,
    Unsupported, //
};
use virtio::Used;

/// Claims that a process calls, so that its memory can be pinned.
pub fn call<'a>(other: Call<'a, Driver>) -> Call<'a, Driver> {
    #[cfg(refused)]
    let other = Call {
        is_of_process: true, //~ E0451
        ..other              //~ E0451
    };
    other
}

/// Invents a request that nobody posted. The kernel calls a function at the address in it.
pub fn continuation(other: Continuation) -> Continuation {
    #[cfg(refused)]
    let other = Continuation {
        wr_id: 0, //~ E0451
        ..other   //~ E0451
    };
    other
}

/// Invents an object of a kind that the device lacks, and for which it has no code.
pub fn unsupported(other: Unsupported<Driver>) -> Unsupported<Driver> {
    #[cfg(refused)]
    let other = Unsupported {
        never: panic!(), //~ E0451
        ..other          //~ E0451
    };
    other
}

/// Invents an object that the core does not know.
pub fn object(data: Object, other: Qp<Object>) -> Qp<Object> {
    #[cfg(refused)]
    let other = Qp {
        data,    //~ E0451
        ..other  //~ E0451
    };
    other
}

/// Claims that the device wrote more than the buffer holds.
pub fn used(other: Used<u32>) -> Used<u32> {
    #[cfg(refused)]
    let other = Used {
        written: usize::MAX, //~ E0451
        ..other              //~ E0451
    };
    other
}
