// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A lock that costs one atomic exchange when nobody contends for it.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Looks at a held lock before the processor is offered to somebody else: the holder may have
/// been preempted, on a guest with one processor for certain.
const SPINS: u32 = 100;

/// A value and the lock that guards it.
#[derive(Debug)]
pub struct SpinLock<T> {
    held: AtomicBool,
    /// Whether the lock is needed at all.
    threaded: bool,
    value: UnsafeCell<T>,
}

// SAFETY: The value is reached only by who holds the lock, or by the one thread that there is.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            threaded: true,
            value: UnsafeCell::new(value),
        }
    }

    /// A lock that does nothing.
    ///
    /// # Safety
    ///
    /// No two threads use the value at the same time: the application promised so.
    pub const unsafe fn without_lock(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            threaded: false,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock and gives it back when the guard is dropped.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.threaded && self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        loop {
            while self.held.load(Ordering::Relaxed) {
                spins += 1;
                if spins < SPINS {
                    core::hint::spin_loop();
                } else {
                    // SAFETY: Has no preconditions.
                    unsafe { libc::sched_yield() };
                }
            }
            if !self.held.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }

    /// The value, for who took the lock and kept it by forgetting the guard.
    ///
    /// # Safety
    ///
    /// The calling thread holds the lock and uses no other reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: By contract nobody else has a reference.
        unsafe { &mut *self.value.get() }
    }

    /// Gives back the lock that was kept by forgetting the guard.
    ///
    /// # Safety
    ///
    /// The calling thread holds the lock.
    #[inline]
    pub unsafe fn unlock(&self) {
        if self.threaded {
            self.held.store(false, Ordering::Release);
        }
    }
}

/// Proof that the lock is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: The guard is the proof that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: As in `deref`; borrowed exclusively from the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: The guard is the proof that this thread holds the lock.
        unsafe { self.lock.unlock() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = SpinLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        *value = core::hint::black_box(seen) + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }

    #[test]
    fn kept_locks_are_given_back() {
        let lock = SpinLock::new(1);
        core::mem::forget(lock.lock());
        // SAFETY: This thread holds the lock.
        unsafe {
            *lock.held() += 1;
            lock.unlock();
        }
        assert_eq!(*lock.lock(), 2);
    }
}
