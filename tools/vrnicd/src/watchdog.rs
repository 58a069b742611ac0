// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Keeps a thread from waiting for a VMM.
//!
//! A VMM and vrnicd share the file descriptions of eventfds. So a VMM can fill the counter of one, and make it block
//! again that vrnicd has made non-blocking: the next write would wait for as long as the VMM likes, and with the worker
//! all devices. A write to an eventfd has no flag against that. So a signal interrupts the thread every now and
//! then, which costs nothing in between, and a write that was interrupted is one that waited.

use std::cell::{Cell, OnceCell};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, itimerspec, sigaction, sigevent, timespec};

/// How long a thread waits at most, in nanoseconds.
const INTERVAL: libc::c_long = 10_000_000;

/// The timer of a thread.
struct Timer {
    id: libc::timer_t,
    runs: Cell<bool>,
}

impl Timer {
    /// Lets it run out after every `interval` in nanoseconds, less than a second; never if that is 0.
    fn set(&self, interval: libc::c_long) {
        let interval = timespec {
            tv_sec: 0,
            tv_nsec: interval,
        };
        let setting = itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: the timer exists until `self` is dropped; `setting` is valid, and the former one is not asked for.
        unsafe { libc::timer_settime(self.id, 0, &raw const setting, ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and nobody can name it any more.
        unsafe { libc::timer_delete(self.id) };
    }
}

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// Nothing: what matters is that the system call ends.
extern "C" fn interrupt(_: c_int) {}

/// Gives the calling thread a timer, for [`limit_wait`].
///
/// # Errors
/// The kernel has none for it.
pub fn start() -> io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction` (no flags, so that system calls are not restarted) and `sigevent`.
    let (mut action, mut event) = unsafe {
        (
            MaybeUninit::<sigaction>::zeroed().assume_init(),
            MaybeUninit::<sigevent>::zeroed().assume_init(),
        )
    };
    action.sa_sigaction = interrupt as extern "C" fn(c_int) as usize;
    // SAFETY: `action` is valid, its handler does nothing, and the former one is not asked for.
    if unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGALRM;
    // SAFETY: the call has no preconditions.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut id = MaybeUninit::uninit();
    // SAFETY: `event` is valid, and `id` has room for what is written.
    let made =
        unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, id.as_mut_ptr()) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `timer_create` succeeded, so it is written.
    let id = unsafe { id.assume_init() };
    let timer = Timer {
        id,
        runs: Cell::new(false),
    };
    // A thread that has one already keeps it.
    TIMER.with(|there| drop(there.set(timer)));
    Ok(())
}

/// From now on, until [`rest`], whatever the calling thread waits for ends with `EINTR` after a while, if the thread
/// has been given a timer.
pub fn limit_wait() {
    TIMER.with(|timer| {
        if let Some(timer) = timer.get()
            && !timer.runs.replace(true)
        {
            timer.set(INTERVAL);
        }
    });
}

/// The calling thread may wait again.
pub fn rest() {
    TIMER.with(|timer| {
        if let Some(timer) = timer.get()
            && timer.runs.replace(false)
        {
            timer.set(0);
        }
    });
}
