// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! State whose users never wait for each other: who finds it in use leaves the work to the one who uses it.
//!
//! A user notes what is to be done, and then calls [`Attended::attend`]. This either gets the lock and does everything
//! that is noted, or finds the lock taken. In that case, whoever has it looks for notes once more after it has
//! unlocked. Between its note and its attempt, the user has a full fence; between unlocking and looking, the other one
//! has one, too. So either the attempt comes after the unlocking and succeeds, or the other one sees the note.
//!
//! The work is done under the lock. So once [`Attended::change`] has returned, nothing is done with the state from
//! before the change.
//!
//! `tests/model.rs` explores all orders in which two threads can run this.

use crate::sync::{Mutex, MutexGuard, Ordering, PoisonError, TryLockError, fence};

/// State of type `T`.
#[derive(Debug)]
pub struct Attended<T> {
    state: Mutex<T>,
}

impl<T> Attended<T> {
    /// Creates the state.
    pub fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
        }
    }

    /// Calls `work` as long as `is_due` says that something is noted, unless another thread has the state, which then
    /// does it. Never waits for the state.
    pub fn attend(&self, is_due: impl Fn() -> bool, mut work: impl FnMut(&mut T)) {
        loop {
            fence(Ordering::SeqCst);
            if !is_due() {
                return;
            }
            let Some(mut state) = self.try_lock() else {
                return;
            };
            work(&mut state);
        }
    }

    /// Waits for the state and changes it. The caller has to [attend](Self::attend) to what was noted meanwhile.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
