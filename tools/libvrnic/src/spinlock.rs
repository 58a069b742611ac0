// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A lock that costs one atomic exchange without contention.

use core::cell::UnsafeCell;
use core::mem;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of looks at a held lock before yielding the CPU: the holder may have been preempted, and
/// on a guest with one CPU it certainly has been.
const SPINS: u32 = 100;

/// A value and the lock that guards it.
#[derive(Debug)]
pub struct SpinLock<T> {
    held: AtomicBool,
    /// Whether the lock is needed at all.
    threaded: bool,
    value: UnsafeCell<T>,
}

// SAFETY: The value is accessed only by the thread that holds the lock, or by the only thread that
// uses it.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            threaded: true,
            value: UnsafeCell::new(value),
        }
    }

    /// Creates a lock that does nothing.
    ///
    /// # Safety
    ///
    /// No two threads use the value at the same time, as the application has promised.
    pub const unsafe fn without_lock(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            threaded: false,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock. Dropping the guard releases it.
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
                    // SAFETY: The call has no preconditions.
                    unsafe { libc::sched_yield() };
                }
            }
            if !self.held.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }

    /// Returns the value, for a thread that has taken the lock and forgotten the guard.
    ///
    /// # Safety
    ///
    /// The calling thread holds the lock and uses no other reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: By contract there is no other reference.
        unsafe { &mut *self.value.get() }
    }

    /// Releases the lock after its guard was forgotten.
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
        // SAFETY: The guard proves that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: As in `deref`, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: The guard proves that this thread holds the lock.
        unsafe { self.lock.unlock() }
    }
}

/// A [`SpinLock`] that a thread may keep between calls. Meanwhile, the same thread may take it
/// again.
#[derive(Debug)]
pub struct KeptLock<T> {
    lock: SpinLock<T>,
    /// The thread that keeps the lock and is not using the value at the moment, or 0. Only the
    /// thread itself writes its identifier here, so a thread that finds its own identifier keeps
    /// the lock.
    keeper: AtomicUsize,
}

/// Returns an identifier of the calling thread, which is never 0.
fn this_thread() -> usize {
    // SAFETY: The call has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

impl<T> KeptLock<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Self {
        Self {
            lock: SpinLock::new(value),
            keeper: AtomicUsize::new(0),
        }
    }

    /// Takes the lock, which the thread must not be keeping. Dropping the guard releases it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock.lock()
    }

    /// Keeps the lock until [`give_back`](Self::give_back).
    #[inline]
    pub fn keep(&self, guard: Guard<'_, T>) {
        self.keeper.store(this_thread(), Ordering::Relaxed);
        mem::forget(guard);
    }

    /// Uses the value. The calling thread may be keeping the lock, but need not.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let this = this_thread();
        if self.keeper.load(Ordering::Relaxed) != this {
            return work(&mut self.lock.lock());
        }
        self.keeper.store(0, Ordering::Relaxed);
        // SAFETY: This thread keeps the lock. If `work` called this function again, it would not
        // find its identifier in `keeper`: it would wait forever instead of getting a second
        // reference.
        let result = work(unsafe { self.lock.held() });
        self.keeper.store(this, Ordering::Relaxed);
        result
    }

    /// Returns the value, for the thread that keeps the lock.
    ///
    /// # Safety
    ///
    /// As for [`SpinLock::held`].
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: By contract.
        unsafe { self.lock.held() }
    }

    /// Releases a lock that was kept.
    ///
    /// # Safety
    ///
    /// The calling thread keeps the lock.
    #[inline]
    pub unsafe fn give_back(&self) {
        self.keeper.store(0, Ordering::Relaxed);
        // SAFETY: By contract.
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

    #[test]
    fn who_keeps_a_lock_may_take_it_again() {
        let lock = KeptLock::new(1);
        lock.with(|value| *value += 1);
        lock.keep(lock.lock());
        // Other threads wait until it is released.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.with(|value| *value *= 10));
            lock.with(|value| *value += 1);
            lock.with(|value| *value += 1);
            // SAFETY: This thread keeps the lock and has no other reference.
            unsafe {
                *lock.held() += 1;
                lock.give_back();
            }
            other.join().unwrap();
        });
        assert_eq!(*lock.lock(), 50);
    }
}
