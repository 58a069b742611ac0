// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! State that one worker at a time uses, and an inbox for what other workers have for it.
//!
//! Nobody waits for the state to send it a letter: a letter goes to the [`Inbox`], where nobody waits for anybody. The
//! worker that has the state gives it something directly only while it has no letters. So what one sender has for the
//! state arrives in the order in which it was sent, whichever way it takes and whichever worker drives the sender,
//! provided that the sender's own state is held while its letters are put into inboxes.
//!
//! The lock of the state says who uses it. A worker in a turn only tries it, and goes on without the state if another
//! worker has it. Only a worker that has stopped all others, to answer a question or to sleep, waits for it.
//!
//! `tests/model.rs` explores all orders in which two threads can run this.

use std::ops::{Deref, DerefMut};

use crate::inbox::{Blanks, Inbox, Unread};
use crate::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// State of type `T` with an inbox for letters of type `L`.
pub struct Actor<T, L> {
    state: Mutex<(T, Unread<L>)>,
    inbox: Inbox<L>,
}

/// The state of an actor, which the owner of this value alone uses.
pub struct Held<'a, T, L> {
    state: MutexGuard<'a, (T, Unread<L>)>,
    inbox: &'a Inbox<L>,
}

impl<T, L> Actor<T, L> {
    /// Creates an actor whose inbox is empty.
    pub fn new(state: T) -> Self {
        Self {
            state: Mutex::new((state, Unread::new())),
            inbox: Inbox::new(),
        }
    }

    /// Takes the state, unless someone has it. A panic elsewhere does not matter: engines are contained, and any other
    /// panic ends the process.
    pub fn try_take(&self) -> Option<Held<'_, T, L>> {
        match self.state.try_lock() {
            Ok(state) => Some(self.held(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.held(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the state and takes it. The caller may not have the state of any other actor, except of those that
    /// all callers take before this one.
    pub fn take(&self) -> Held<'_, T, L> {
        self.held(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a letter into the inbox, on one of the sender's blanks if it has any.
    pub fn put(&self, letter: L, blanks: &mut Blanks<L>) {
        self.inbox.put(letter, blanks);
    }

    fn held<'a>(&'a self, state: MutexGuard<'a, (T, Unread<L>)>) -> Held<'a, T, L> {
        Held {
            state,
            inbox: &self.inbox,
        }
    }
}

impl<T, L> Held<'_, T, L> {
    /// Returns whether there are letters.
    pub fn has_letters(&self) -> bool {
        !self.state.1.is_empty() || self.inbox.has_letters()
    }

    /// Takes the oldest letter. Returns none if there are no letters, or if there are so many that it takes more calls
    /// to find the oldest one.
    pub fn take_letter(&mut self) -> Option<L> {
        self.state.1.next(self.inbox)
    }
}

impl<T, L> Deref for Held<'_, T, L> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.0
    }
}

impl<T, L> DerefMut for Held<'_, T, L> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state.0
    }
}
