// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Survives a VMM that shrinks a file of guest memory.
//!
//! An access beyond the end of a shrunken file raises SIGBUS, which would end all devices for the fault of one VMM. The
//! handler here puts a private page of zeros in place of the missing one if the address belongs to a guarded
//! mapping; that VM sees zeros, the others see nothing. Any other SIGBUS ends the process as usual.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::siginfo_t;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Ranges that can be guarded at a time; further ones go unguarded.
const SLOTS: usize = 1024;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
}

static RANGES: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; SLOTS];
static PAGE_SIZE: OnceLock<usize> = OnceLock::new();

/// Keeps an address range guarded while it lives.
#[derive(Debug)]
pub struct Guard(Option<usize>);

impl Guard {
    /// Guards `len` bytes from `start`, which must be a mapping that outlives the guard.
    pub(super) fn new(start: usize, len: usize) -> Self {
        let free = RANGES.iter().position(|slot| {
            slot.start
                .compare_exchange(0, start, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        });
        if let Some(index) = free {
            RANGES[index].end.store(start + len, Ordering::SeqCst);
        }
        Self(free)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            RANGES[index].end.store(0, Ordering::SeqCst);
            RANGES[index].start.store(0, Ordering::SeqCst);
        }
    }
}

/// Installs the handler, once per process.
pub fn install() -> std::io::Result<()> {
    if PAGE_SIZE.set(rustix::param::page_size()).is_err() {
        return Ok(());
    }
    // SAFETY: the handler reads atomics and makes one mmap system call; it takes no lock and allocates nothing.
    unsafe { signal_hook_registry::register_sigaction(signal_hook::consts::SIGBUS, handle) }
        .map(drop)
}

fn handle(info: &siginfo_t) {
    // SAFETY: the kernel fills in `si_addr` for every SIGBUS that a memory access raises; for a SIGBUS sent by a
    // process the field holds other data, which is compared and never dereferenced.
    let address = unsafe { info.si_addr() } as usize;
    let guarded = RANGES.iter().any(|slot| {
        (slot.start.load(Ordering::SeqCst)..slot.end.load(Ordering::SeqCst)).contains(&address)
    });
    let page = PAGE_SIZE.get().copied().unwrap_or(4096);
    let replaced = guarded && {
        let start = address & !(page - 1);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the page lies in a guarded mapping, which lives; only its contents, already lost, are replaced.
        unsafe {
            mmap_anonymous(
                ptr::without_provenance_mut(start),
                page,
                protection,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }
        .is_ok()
    };
    if !replaced {
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGBUS);
    }
}
