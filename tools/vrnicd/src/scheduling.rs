// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Asks the kernel's scheduler for short waits.
//!
//! A guest that polls a completion queue keeps its CPU busy. On a host with few CPUs, the worker has to preempt a
//! virtual CPU each time it is woken. By default it waits until the virtual CPU has used up its time slice, which takes
//! milliseconds. A thread that asks for a short slice gets its turn at once (since Linux 6.12), and its overall share
//! of CPU time stays the same. This needs no privilege.

use std::io;

/// Shortest slice that Linux grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of `sched_setattr(2)`, first version.
#[derive(Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Requests short waits for the calling thread. Kernels without support ignore the request.
pub fn prefer_short_waits() -> io::Result<()> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: the kernel writes at most `size` bytes to `attributes`, which is that large; thread 0 is the caller.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.size = size;
    attributes.flags = 0;
    attributes.runtime = SLICE_NS;
    // SAFETY: `attributes` is a valid structure of the size that it states; the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_granted_without_privileges() {
        super::prefer_short_waits().unwrap();
    }
}
