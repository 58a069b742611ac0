// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Survives a VMM that takes the pages of a file of guest memory away.
//!
//! An access beyond the end of a file that shrank, or to a huge page when there are no more, raises SIGBUS. That would
//! end all devices because of one VMM. If the address belongs to a guarded mapping, the handler here replaces the whole
//! mapping with private zeros and marks it as lost. The current access goes on, and no other follows. So even a large
//! file then costs no memory, and no further mappings, of which the kernel grants a process few. That VM's device finds
//! its memory gone, and the others notice nothing. Any other SIGBUS ends the process as usual.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Ranges that can be guarded at a time: more than the kernel lets a process map unless it is told to.
const SLOTS: usize = 1 << 16;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Zeros have taken the place of the file.
    lost: AtomicBool,
}

impl Slot {
    /// The guarded range; empty if there is none, or if it changes just now, which one that is accessed does not.
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
/// The error of installing the handler, if it failed.
static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();

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
///
/// It takes the place of the one before and does not call it: that of Rust's runtime, which knows stacks only, would
/// take any other SIGBUS for the last one and uninstall whatever is installed.
pub fn install() -> io::Result<()> {
    let errno = *INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
        // SAFETY: all zeros is a valid `sigaction`: no flags, no signals blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: `handle` has the signature that SA_SIGINFO asks for. It reads atomics and makes a few system calls;
        // it takes no lock, allocates nothing and leaves errno alone.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => None,
            _ => io::Error::last_os_error().raw_os_error(),
        }
    });
    errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

extern "C" fn handle(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a valid `siginfo_t` over. For a SIGBUS that a process sent, what stands for the address
    // is other data, which is compared and never dereferenced.
    let (address, sent) = unsafe { ((*info).si_addr() as usize, (*info).si_code <= 0) };
    let replaced = RANGES.iter().any(|slot| {
        let range = slot.range();
        range.contains(&address) && replace(slot, &range)
    });
    if !replaced {
        // SAFETY: both are functions that a handler may call. The access at fault is made again, and ends the process.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            if sent {
                libc::raise(libc::SIGBUS);
            }
        }
    }
}

/// Puts zeros in place of a guarded range. Whether it worked.
fn replace(slot: &Slot, range: &Range<usize>) -> bool {
    // SAFETY: the range is a guarded mapping, which lives because it is being accessed; it stays mapped, and what its
    // contents are was never up to this process.
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
