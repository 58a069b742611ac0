// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A lock that costs one atomic exchange when nobody contends for it.

use core::cell::UnsafeCell;
use core::mem;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// A [`SpinLock`] that a thread may keep, and the same thread take again meanwhile.
#[derive(Debug)]
pub struct KeptLock<T> {
    lock: SpinLock<T>,
    /// The thread that keeps the lock and does not use the value just now, or 0. A thread finds its
    /// own name here only if it wrote it.
    keeper: AtomicUsize,
}

/// What the calling thread is called; never 0.
fn this_thread() -> usize {
    // SAFETY: Has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

impl<T> KeptLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self {
            lock: SpinLock::new(value),
            keeper: AtomicUsize::new(0),
        }
    }

    /// Takes the lock, which the thread does not keep, and gives it back when the guard is dropped.
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

    /// Uses the value, whether the thread keeps the lock or not.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let this = this_thread();
        if self.keeper.load(Ordering::Relaxed) != this {
            return work(&mut self.lock.lock());
        }
        self.keeper.store(0, Ordering::Relaxed);
        // SAFETY: This thread keeps the lock; it would wait for itself, not find its name, if `work`
        // came here again.
        let result = work(unsafe { self.lock.held() });
        self.keeper.store(this, Ordering::Relaxed);
        result
    }

    /// The value, for who keeps the lock.
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

    /// Gives back the lock that was kept.
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
        // Others wait until it is given back.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.with(|value| *value *= 10));
            lock.with(|value| *value += 1);
            lock.with(|value| *value += 1);
            // SAFETY: This thread keeps the lock, and has no other reference.
            unsafe {
                *lock.held() += 1;
                lock.give_back();
            }
            other.join().unwrap();
        });
        assert_eq!(*lock.lock(), 50);
    }
}
