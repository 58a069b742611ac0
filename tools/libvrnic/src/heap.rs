// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The heap of the process, for `alloc`: there is no `std` in a provider.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

struct Malloc;

#[global_allocator]
static MALLOC: Malloc = Malloc;

/// Alignment of what `malloc` returns, on every 64-bit system.
const ALIGN: usize = 16;

// SAFETY: `malloc`, `realloc` and `free` are an allocator for layouts that ask for no more than
// their alignment; others get nothing, which is how an allocator says that it has no memory.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGN {
            return ptr::null_mut();
        }
        // SAFETY: Any size may be asked for.
        unsafe { libc::malloc(layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: By contract allocated above and not used any more.
        unsafe { libc::free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, _layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: By contract allocated above, so with an alignment that `realloc` keeps.
        unsafe { libc::realloc(memory.cast(), size) }.cast()
    }
}
