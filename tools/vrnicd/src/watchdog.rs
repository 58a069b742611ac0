// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Keeps a thread from being blocked by a VMM.
//!
//! A VMM and vrnicd share the file descriptions of eventfds. So a VMM can fill the counter of an eventfd, and clear the
//! `O_NONBLOCK` that vrnicd has set. The next write by vrnicd would then block for as long as the VMM likes, and in the
//! worker that would stop all devices. Writes to an eventfd have no flag against this. Therefore a timer signal
//! interrupts a thread that makes such writes every few milliseconds. This costs nothing in between, and a write that
//! was interrupted is one that had blocked.

use std::cell::{Cell, OnceCell};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, itimerspec, sigaction, sigevent, timespec};

/// Longest time that a thread is blocked, in nanoseconds.
const INTERVAL: libc::c_long = 10_000_000;

/// The timer of a thread.
struct Timer {
    id: libc::timer_t,
    runs: Cell<bool>,
}

impl Timer {
    /// Sets the timer to expire every `interval` nanoseconds, which is less than a second; stops the timer if
    /// `interval` is 0.
    fn set(&self, interval: libc::c_long) {
        let interval = timespec {
            tv_sec: 0,
            tv_nsec: interval,
        };
        let setting = itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: the timer exists until `self` is dropped; `setting` is valid, and the old setting is not requested.
        unsafe { libc::timer_settime(self.id, 0, &raw const setting, ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and nothing refers to it after this.
        unsafe { libc::timer_delete(self.id) };
    }
}

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// Does nothing: the signal's only purpose is to interrupt the system call.
extern "C" fn interrupt(_: c_int) {}

/// Gives the calling thread a timer for [`limit_wait`].
///
/// # Errors
/// The kernel cannot provide a timer.
pub fn start() -> io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction` (no flags, so that system calls are not restarted) and `sigevent`.
    let (mut action, mut event) = unsafe {
        (
            MaybeUninit::<sigaction>::zeroed().assume_init(),
            MaybeUninit::<sigevent>::zeroed().assume_init(),
        )
    };
    action.sa_sigaction = interrupt as extern "C" fn(c_int) as usize;
    // SAFETY: `action` is valid, its handler does nothing, and the old action is not requested.
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
    // SAFETY: `timer_create` succeeded, so it has written `id`.
    let id = unsafe { id.assume_init() };
    let timer = Timer {
        id,
        runs: Cell::new(false),
    };
    // A thread that already has a timer keeps it.
    TIMER.with(|there| drop(there.set(timer)));
    Ok(())
}

/// Limits how long the calling thread can block: until [`rest`] is called, a system call that blocks fails with `EINTR`
/// after at most the interval above. Does nothing if the thread has no timer.
pub fn limit_wait() {
    TIMER.with(|timer| {
        if let Some(timer) = timer.get()
            && !timer.runs.replace(true)
        {
            timer.set(INTERVAL);
        }
    });
}

/// Lets the calling thread block again.
pub fn rest() {
    TIMER.with(|timer| {
        if let Some(timer) = timer.get()
            && timer.runs.replace(false)
        {
            timer.set(0);
        }
    });
}
