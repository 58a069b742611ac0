// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Survives a VMM that takes the pages of a file of guest memory away.
//!
//! An access beyond the end of a file that shrank, or to a huge page when there are no more, raises SIGBUS, which would
//! end all devices for the fault of one VMM. If the address belongs to a guarded mapping, the handler here puts private
//! zeros in place of all of it and marks it as lost: the access at hand goes on, and there is no other. So however large
//! the file was, it costs neither memory nor mappings, of which the kernel grants a process few. That VM's device finds
//! its memory gone, the others notice nothing. Any other SIGBUS ends the process as usual.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::siginfo_t;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Ranges that can be guarded at a time: more than the kernel lets a process map unless it is told to.
const SLOTS: usize = 1 << 16;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Zeros have taken the place of the file.
    lost: AtomicBool,
}

static RANGES: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; SLOTS];
static INSTALLED: OnceLock<()> = OnceLock::new();

/// Keeps an address range guarded while it lives.
#[derive(Debug)]
pub struct Guard(usize);

impl Guard {
    /// Guards `len` bytes from `start`, which must be a mapping that outlives the guard. `None` if too many are guarded
    /// already.
    pub(super) fn new(start: usize, len: usize) -> Option<Self> {
        let index = RANGES.iter().position(|slot| {
            slot.start.load(Ordering::Relaxed) == 0
                && slot
                    .start
                    .compare_exchange(0, start, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
        })?;
        let slot = &RANGES[index];
        slot.lost.store(false, Ordering::SeqCst);
        slot.end.store(start + len, Ordering::SeqCst);
        Some(Self(index))
    }

    /// Whether zeros have taken the place of the range.
    pub(super) fn is_lost(&self) -> bool {
        RANGES[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let slot = &RANGES[self.0];
        slot.end.store(0, Ordering::SeqCst);
        slot.start.store(0, Ordering::SeqCst);
    }
}

/// Installs the handler, once per process.
pub fn install() -> std::io::Result<()> {
    if INSTALLED.set(()).is_err() {
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
    let range_of = |slot: &Slot| {
        let start = slot.start.load(Ordering::SeqCst);
        start..slot.end.load(Ordering::SeqCst)
    };
    let found = RANGES.iter().find(|slot| range_of(slot).contains(&address));
    let replaced = found.is_some_and(|slot| {
        let range = range_of(slot);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range is a guarded mapping, which lives; it stays mapped, and what its contents are was never up
        // to this process.
        let zeros = unsafe {
            mmap_anonymous(
                ptr::without_provenance_mut(range.start),
                range.len(),
                protection,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        slot.lost.store(zeros.is_ok(), Ordering::SeqCst);
        zeros.is_ok()
    });
    if !replaced {
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGBUS);
    }
}
