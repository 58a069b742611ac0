// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! State that one worker at a time uses, and an inbox for what other workers have for it.
//!
//! Nobody waits for the state to send it a letter: a letter goes into the inbox. The worker that has the state gives it
//! something directly only while the inbox is empty. So what one sender has for the state arrives in the order in which
//! it was sent, whichever way it takes and whichever worker drives the sender, provided that the sender's own state is
//! held while its letters are put into inboxes.
//!
//! `tests/model.rs` explores all orders in which two threads can run this.

use std::collections::VecDeque;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError, TryLockError};

/// State of type `T` with an inbox for letters of type `L`.
pub struct Actor<T, L> {
    state: Mutex<T>,
    inbox: Mutex<VecDeque<L>>,
    /// Whether the inbox contains letters. Changes only while the inbox is locked.
    any: AtomicBool,
}

impl<T, L> Actor<T, L> {
    /// Creates an actor whose inbox is empty.
    pub fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            inbox: Mutex::new(VecDeque::new()),
            any: AtomicBool::new(false),
        }
    }

    /// Takes the state, unless someone has it. A panic elsewhere does not matter: engines are contained, and any other
    /// panic ends the process.
    pub fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the state and takes it. The caller may not have the state of any other actor, except of those that
    /// all callers take before this one.
    pub fn take(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a letter into the inbox.
    pub fn put(&self, letter: L) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.push_back(letter);
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether there are letters.
    pub fn has_letters(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the oldest letter. The caller must have the state, so that nobody else takes letters at the same time and
    /// overtakes this one.
    pub fn take_letter(&self) -> Option<L> {
        if !self.has_letters() {
            return None;
        }
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let letter = inbox.pop_front();
        self.any.store(!inbox.is_empty(), Ordering::Release);
        letter
    }
}
