// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Ways from many threads to one, on which nobody waits for anybody: an [`Inbox`] for letters, and a [`Latest`] for a
//! value of which only the last version matters.
//!
//! A sender of a letter pushes it onto a stack with one compare-and-exchange. Until then, nobody knows of the letter;
//! afterwards it is there. So a sender that loses its CPU at any point holds up neither the receiver nor other senders:
//! if a compare-and-exchange fails, another one has succeeded. Queues that hand out a place before it is filled
//! (`std::sync::mpsc`, `SegQueue` of `crossbeam-queue`) do not have this property, because their receiver waits for a
//! place to be filled.
//!
//! The receiver takes the whole stack with one exchange and turns it around. All letters of all senders have one order,
//! that of the successful exchanges, so the letters of one sender stay in order. Nobody takes a single letter off the
//! stack, so it does not matter if an address comes back (the ABA problem).
//!
//! **Memory order.** A sender writes a letter before its exchange, a release. The receiver's, an acquire, reads
//! what the last sender wrote. All changes of the top of the stack are read-modify-write operations, so each continues
//! the release sequences of all earlier ones, and the receiver's exchange synchronizes with every sender whose letter
//! it takes. The receiver gives nothing back to the senders.
//!
//! **Bounded turns.** A stack has any length, so a call of [`Unread::next`] turns at most [`TURNED_AT_ONCE`] letters
//! around. Until all are turned around, the oldest one is not known, and there is no letter yet.
//!
//! `tests/model.rs` explores all orders in which threads can run this.

use std::marker::PhantomData;
use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// Largest number of letters that the receiver turns around in one call, which takes some microseconds.
pub const TURNED_AT_ONCE: usize = 256;
/// Largest number of blanks kept.
pub const MAX_BLANKS: usize = 1024;

/// A letter with a link to the next one of its chain; without the letter, a blank.
struct Sheet<L> {
    letter: Option<L>,
    next: *mut Sheet<L>,
}

/// A chain of sheets, which it owns.
///
/// Invariant: `first`, and `next` of each sheet of the chain, is null or comes from `Box::into_raw`. Nobody else uses
/// that sheet.
struct Chain<L> {
    first: *mut Sheet<L>,
    owned: PhantomData<L>,
}

// SAFETY: a chain owns its sheets, as a `Vec` owns its elements; only letters go from thread to thread with it.
unsafe impl<L: Send> Send for Chain<L> {}

impl<L> Chain<L> {
    const fn new() -> Self {
        Self {
            first: ptr::null_mut(),
            owned: PhantomData,
        }
    }

    fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    fn push(&mut self, mut sheet: Box<Sheet<L>>) {
        sheet.next = self.first;
        self.first = Box::into_raw(sheet);
    }

    fn pop(&mut self) -> Option<Box<Sheet<L>>> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: by the invariant, `first` comes from `Box::into_raw`, and nobody else uses it. The chain goes on with
        // the next sheet.
        let sheet = unsafe { Box::from_raw(self.first) };
        self.first = sheet.next;
        Some(sheet)
    }
}

impl<L> Drop for Chain<L> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Letters from many senders to one receiver.
pub struct Inbox<L> {
    /// The newest letter, the first one of a chain.
    newest: AtomicPtr<Sheet<L>>,
    /// May be shared between threads if letters may go from thread to thread.
    letters: PhantomData<std::sync::Mutex<L>>,
}

impl<L> Inbox<L> {
    /// Creates an empty inbox.
    pub fn new() -> Self {
        Self {
            newest: AtomicPtr::new(ptr::null_mut()),
            letters: PhantomData,
        }
    }

    /// Puts a letter into the inbox, on one of the sender's blanks if it has any.
    pub fn put(&self, letter: L, blanks: &mut Blanks<L>) {
        let mut sheet = blanks.write(letter);
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            sheet.next = newest;
            let own = Box::into_raw(sheet);
            let put = self.newest.compare_exchange_weak(
                newest,
                own,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => return,
                Err(other) => {
                    newest = other;
                    // SAFETY: `own` comes from `Box::into_raw`, and the exchange failed, so nobody else knows of it.
                    sheet = unsafe { Box::from_raw(own) };
                }
            }
        }
    }

    /// Returns whether there are letters.
    pub fn has_letters(&self) -> bool {
        !self.newest.load(Ordering::Acquire).is_null()
    }

    /// Takes all letters, oldest first. For inboxes whose senders limit their length: this turns all of them around.
    pub fn take(&self) -> impl Iterator<Item = L> + use<L> {
        let (mut unturned, mut turned) = (self.take_all(), Chain::new());
        while let Some(sheet) = unturned.pop() {
            turned.push(sheet);
        }
        std::iter::from_fn(move || turned.pop()?.letter)
    }

    /// Takes everything, the newest letter first.
    fn take_all(&self) -> Chain<L> {
        Chain {
            // Whoever takes the letters off owns them.
            first: self.newest.swap(ptr::null_mut(), Ordering::Acquire),
            owned: PhantomData,
        }
    }
}

impl<L> Drop for Inbox<L> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

/// The receiver's part: letters that it has taken from its inbox and not read yet.
pub struct Unread<L> {
    /// Oldest first.
    turned: Chain<L>,
    /// Newer than the others, newest first. While there are any, `turned` does not begin with the oldest letter.
    unturned: Chain<L>,
}

impl<L> Unread<L> {
    /// Starts without letters.
    pub fn new() -> Self {
        Self {
            turned: Chain::new(),
            unturned: Chain::new(),
        }
    }

    /// Returns whether letters have been taken from the inbox and not read.
    pub fn is_empty(&self) -> bool {
        self.turned.is_empty() && self.unturned.is_empty()
    }

    /// Returns the oldest letter and keeps its blank. Returns none if there is no letter, or if so many came that the
    /// oldest one has not been found yet, which takes more calls.
    pub fn next(&mut self, inbox: &Inbox<L>, blanks: &mut Blanks<L>) -> Option<L> {
        if self.is_empty() && inbox.has_letters() {
            self.unturned = inbox.take_all();
        }
        for _ in 0..TURNED_AT_ONCE {
            match self.unturned.pop() {
                Some(sheet) => self.turned.push(sheet),
                None => break,
            }
        }
        if !self.unturned.is_empty() {
            return None;
        }
        let mut sheet = self.turned.pop()?;
        let letter = sheet.letter.take();
        blanks.keep(sheet);
        letter
    }
}

/// Blanks of one thread: memory of letters that it has read, for letters that it will send. So while letters go both
/// ways, nothing is allocated.
pub struct Blanks<L> {
    sheets: Chain<L>,
    count: usize,
}

impl<L> Blanks<L> {
    /// Starts without blanks.
    pub fn new() -> Self {
        Self {
            sheets: Chain::new(),
            count: 0,
        }
    }

    /// Returns their number.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }

    #[expect(
        clippy::unnecessary_box_returns,
        reason = "a sheet stays where it is from one letter to the next"
    )]
    fn write(&mut self, letter: L) -> Box<Sheet<L>> {
        let Some(mut sheet) = self.sheets.pop() else {
            return Box::new(Sheet {
                letter: Some(letter),
                next: ptr::null_mut(),
            });
        };
        self.count -= 1;
        sheet.letter = Some(letter);
        sheet
    }

    fn keep(&mut self, sheet: Box<Sheet<L>>) {
        if self.count < MAX_BLANKS {
            self.count += 1;
            self.sheets.push(sheet);
        }
    }
}

/// The latest version of a value, from any thread to one that looks for it now and then.
///
/// Both sides exchange the whole value: what was not taken is dropped by the next [`put`](Self::put).
pub struct Latest<T> {
    /// Null, or from `Box::into_raw`. Whoever exchanges it owns it.
    value: AtomicPtr<T>,
    /// May be shared between threads if values may go from thread to thread.
    values: PhantomData<std::sync::Mutex<T>>,
}

impl<T> Latest<T> {
    /// Starts without a value.
    pub fn new() -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
            values: PhantomData,
        }
    }

    /// Replaces the value.
    pub fn put(&self, value: T) {
        self.exchange(Box::into_raw(Box::new(value)));
    }

    /// Takes the value if there is one that was not taken before.
    pub fn take(&self) -> Option<T> {
        if self.value.load(Ordering::Acquire).is_null() {
            return None;
        }
        self.exchange(ptr::null_mut())
    }

    /// Returns the value, and leaves `new` in its place.
    fn exchange(&self, new: *mut T) -> Option<T> {
        let old = self.value.swap(new, Ordering::AcqRel);
        // SAFETY: all values come from `Box::into_raw`, and whoever takes one out of its place is the only one who has
        // it.
        (!old.is_null()).then(|| *unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        self.take();
    }
}
