// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The heap of the process, for crate `alloc`: a provider has no `std`.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

struct Malloc;

#[global_allocator]
static MALLOC: Malloc = Malloc;

/// Alignment of what `malloc` returns, on every 64-bit system.
const ALIGN: usize = 16;

// SAFETY: `malloc`, `realloc` and `free` form an allocator for layouts up to their alignment.
// Layouts with a larger alignment get null, which reports a lack of memory.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGN {
            return ptr::null_mut();
        }
        // SAFETY: Any size is valid.
        unsafe { libc::malloc(layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: By contract allocated above and no longer used.
        unsafe { libc::free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, _layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: By contract allocated above, and `realloc` keeps the alignment of such memory.
        unsafe { libc::realloc(memory.cast(), size) }.cast()
    }
}
