// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Copes with a VMM that removes pages from a file of guest memory.
//!
//! An access beyond the end of a file that has shrunk, or to a huge page when none are left, raises SIGBUS. By default,
//! one VMM could end all devices that way. If the address belongs to a guarded mapping, the handler here replaces the
//! whole mapping with private zeros and marks it as lost. The current access completes, and no others follow. So even a
//! large file then costs no memory and no additional mappings, of which the kernel allows a process only a limited
//! number. The device of that VM finds its memory gone; other devices are unaffected. Any other SIGBUS ends the process
//! as usual.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Largest number of ranges guarded at a time: more than the number of mappings that the kernel allows a process by
/// default.
const SLOTS: usize = 1 << 16;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether the file has been replaced by zeros.
    lost: AtomicBool,
}

impl Slot {
    /// Returns the guarded range. It is empty if there is none or if the slot is changing at the moment, which cannot
    /// happen to a range that is being accessed.
    fn range(&self) -> Range<usize> {
        let start = self.start.load(Ordering::SeqCst);
        let end = self.end.load(Ordering::SeqCst);
        if self.start.load(Ordering::SeqCst) == start {
            start..end
        } else {
            0..0
        }
    }
}

static RANGES: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; SLOTS];
/// The error from installing the handler, if that failed.
static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();

/// Keeps an address range guarded as long as it lives.
#[derive(Debug)]
pub struct Guard(usize);

impl Guard {
    /// Guards `len` bytes from `start`, which must be a mapping that outlives the guard. Returns `None` if too many
    /// ranges are guarded already.
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

    /// Returns whether the range has been replaced by zeros.
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
///
/// Replaces the previous handler and does not call it. That of Rust's runtime only knows stacks: for any other SIGBUS
/// it would restore the default action, removing whatever handler is installed.
pub fn install() -> io::Result<()> {
    let errno = *INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
        // SAFETY: all zeros is a valid `sigaction`: no flags, no signals blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: `handle` has the signature that SA_SIGINFO requires. It reads atomics and makes a few system calls;
        // it takes no lock, allocates nothing and does not change errno.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => None,
            _ => io::Error::last_os_error().raw_os_error(),
        }
    });
    errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

extern "C" fn handle(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. If a process sent the SIGBUS, the address field contains other
    // data, but it is only compared and never dereferenced.
    let (address, sent) = unsafe { ((*info).si_addr() as usize, (*info).si_code <= 0) };
    let replaced = RANGES.iter().any(|slot| {
        let range = slot.range();
        range.contains(&address) && replace(slot, &range)
    });
    if !replaced {
        // SAFETY: a signal handler may call both functions. The faulting access is repeated after the return and ends
        // the process.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            if sent {
                libc::raise(libc::SIGBUS);
            }
        }
    }
}

/// Replaces a guarded range with zeros. Returns whether that worked.
fn replace(slot: &Slot, range: &Range<usize>) -> bool {
    // SAFETY: the range is a guarded mapping, which lives because it is being accessed. It stays mapped, and this
    // process could never rely on its contents.
    let zeros = unsafe {
        mmap_anonymous(
            ptr::without_provenance_mut(range.start),
            range.len(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
        )
    };
    slot.lost.store(zeros.is_ok(), Ordering::SeqCst);
    zeros.is_ok()
}
