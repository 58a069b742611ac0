// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Provider of the vrnic RDMA device for libibverbs.
//!
//! Queues live in memory that this process shares with the device; posting and polling make no
//! system call. `memory` is the only module that touches that memory by pointers, `ring` and
//! `doorbell` are the protocol, `verbs` is what libibverbs calls, `ffi` is the C interface and its
//! proof.
//!
//! The crate is built as a plain library for its tests and for programs that are driver and
//! application in one (`doorbell`, `memory` and `ring` are for them), and by `build.sh` once per
//! private ABI of libibverbs as the shared object that is loaded: feature `pabi34` or `pabi65`.

#![cfg_attr(not(test), no_std)]
// The names of C are many, and have their prefixes.
#![allow(clippy::struct_field_names, clippy::wildcard_imports)]
// C counts in int, the rings in 32 bits. What is cast is a size within an entry, or was compared
// with a limit before.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]
// Without a private ABI there is nobody who calls.
#![cfg_attr(not(any(feature = "pabi34", feature = "pabi65")), allow(dead_code))]

extern crate alloc;

#[cfg(test)]
mod cost;
pub mod doorbell;
mod ffi;
#[cfg(all(any(feature = "pabi34", feature = "pabi65"), not(test)))]
mod heap;
pub mod memory;
mod patience;
pub mod ring;
mod spinlock;
#[cfg(any(feature = "pabi34", feature = "pabi65"))]
mod verbs;

/// A panic is a bug of ours. It must not unwind into C: say where, and end the process.
#[cfg(all(any(feature = "pabi34", feature = "pabi65"), not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let (file, line) = match info.location() {
        Some(location) => (location.file(), location.line()),
        None => ("?", 0),
    };
    // SAFETY: The length limits what is read of the name, which has no NUL.
    unsafe {
        crate::ffi::dprintf(
            2,
            c"vrnic: bug at %.*s:%u\n".as_ptr(),
            file.len() as core::ffi::c_int,
            file.as_ptr(),
            line,
        );
        libc::abort()
    }
}
