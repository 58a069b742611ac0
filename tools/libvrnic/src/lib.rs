// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! libibverbs provider for the vrnic RDMA device.
//!
//! Queues are in memory that this process shares with the device; posting and polling make no
//! system call. `memory` is the only module that accesses this memory through pointers. `ring` and
//! `doorbell` implement the protocol, `verbs` has the functions that libibverbs calls, and `ffi`
//! has the C interface and its checks.
//!
//! The crate is built as a plain library for its tests and for programs that are both driver and
//! application (for which `doorbell`, `memory` and `ring` are public). `build.sh` also builds it
//! once per private ABI of libibverbs, with a feature such as `pabi34`, as the shared object that
//! libibverbs loads.

#![cfg_attr(not(test), no_std)]
// C has many names, all with their prefixes.
#![allow(clippy::struct_field_names, clippy::wildcard_imports)]
// What posts and polls is inlined where the operation is known. `layout/check.sh --cost` counts the
// instructions.
#![allow(clippy::inline_always)]
// C counts in `int`, the rings in 32 bits. The values cast here are sizes within an entry or have
// been compared with a limit.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]
// Without a private ABI, nothing calls the verbs.
#![cfg_attr(not(feature = "pabi34"), allow(dead_code))]

extern crate alloc;

#[cfg(test)]
mod cost;
pub mod doorbell;
mod ffi;
#[cfg(all(feature = "pabi34", not(test)))]
mod heap;
pub mod memory;
mod patience;
pub mod ring;
mod spinlock;
#[cfg(feature = "pabi34")]
mod verbs;

/// Reports where a panic happened and aborts. A panic is a bug in the provider, and must not unwind
/// into C.
#[cfg(all(feature = "pabi34", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let (file, line) = match info.location() {
        Some(location) => (location.file(), location.line()),
        None => ("?", 0),
    };
    // SAFETY: The length limits how much of the file name is read, which has no NUL.
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
