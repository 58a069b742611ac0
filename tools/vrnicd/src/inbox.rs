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
//! **Memory of letters.** The receiver gives the memory of letters that it has read back through the inbox, as a stack
//! that it puts there when there is none. A sender without [`Blanks`] takes that stack as a whole. So while letters go
//! to an inbox, in whatever direction others go, nothing is allocated.
//!
//! **Memory order.** A sender writes a letter before its exchange, a release. The receiver's, an acquire, reads
//! what the last sender wrote. All changes of the top of the stack are read-modify-write operations, so each continues
//! the release sequences of all earlier ones, and the receiver's exchange synchronizes with every sender whose letter
//! it takes. It is the same with the stack that is given back: the receiver releases it, and a sender acquires it.
//!
//! **Provenance.** An address that comes back is that of another allocation, and a sender may have linked its letter
//! to the address before. So links are addresses, whose provenance is exposed.
//!
//! **Bounded turns.** A stack has any length, so a call of [`Unread::next`] turns at most [`TURNED_AT_ONCE`] letters
//! around. Until all are turned around, the oldest one is not known, and there is no letter yet.
//!
//! `tests/model.rs` explores all orders in which threads can run this.

use std::marker::PhantomData;
use std::ptr;

use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// Largest number of letters that the receiver turns around in one call, which takes some microseconds.
pub const TURNED_AT_ONCE: usize = 256;
/// Largest number of letters whose memory a receiver keeps until it can give it back.
pub const MAX_SPENT: usize = 512;

/// A letter with a link to the next one of its chain; without the letter, a blank.
struct Sheet<L> {
    letter: Option<L>,
    /// Address of the next sheet, or 0.
    next: usize,
}

/// Makes an address of a sheet, which belongs to whoever knows that it is the owner.
fn address_of<L>(sheet: Box<Sheet<L>>) -> usize {
    Box::into_raw(sheet).expose_provenance()
}

/// Makes a sheet of its address.
///
/// # Safety
///
/// The address comes from [`address_of`], and belongs to the caller.
#[expect(
    clippy::unnecessary_box_returns,
    reason = "the sheet was boxed when its address was made"
)]
unsafe fn sheet_at<L>(address: usize) -> Box<Sheet<L>> {
    // SAFETY: guaranteed by the caller.
    unsafe { Box::from_raw(ptr::with_exposed_provenance_mut(address)) }
}

/// A chain of sheets, which it owns.
///
/// Invariant: `first`, and `next` of each sheet of the chain, is 0 or comes from [`address_of`]. Nobody else uses that
/// sheet.
struct Chain<L> {
    first: usize,
    owned: PhantomData<Box<L>>,
}

impl<L> Chain<L> {
    const fn new() -> Self {
        Self::from(0)
    }

    /// Makes a chain of the address of its first sheet, which must keep the invariant.
    const fn from(first: usize) -> Self {
        Self {
            first,
            owned: PhantomData,
        }
    }

    fn is_empty(&self) -> bool {
        self.first == 0
    }

    fn push(&mut self, mut sheet: Box<Sheet<L>>) {
        sheet.next = self.first;
        self.first = address_of(sheet);
    }

    fn pop(&mut self) -> Option<Box<Sheet<L>>> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: by the invariant. The chain goes on with the next sheet.
        let sheet = unsafe { sheet_at(self.first) };
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
    newest: AtomicUsize,
    /// The chain of sheets that the receiver gives back.
    spent: AtomicUsize,
    /// May be shared between threads if letters may go from thread to thread.
    letters: PhantomData<std::sync::Mutex<L>>,
}

impl<L> Inbox<L> {
    /// Creates an empty inbox.
    pub fn new() -> Self {
        Self {
            newest: AtomicUsize::new(0),
            spent: AtomicUsize::new(0),
            letters: PhantomData,
        }
    }

    /// Puts a letter into the inbox, on one of the sender's blanks if it has any.
    pub fn put(&self, letter: L, blanks: &mut Blanks<L>) {
        let mut sheet = blanks.write(letter, self);
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            sheet.next = newest;
            let own = address_of(sheet);
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
                    // SAFETY: the exchange failed, so nobody else knows of the sheet.
                    sheet = unsafe { sheet_at(own) };
                }
            }
        }
    }

    /// Returns whether there are letters.
    pub fn has_letters(&self) -> bool {
        self.newest.load(Ordering::Acquire) != 0
    }

    /// Takes all letters, oldest first. For inboxes whose senders limit their length: this turns all of them around.
    /// Only the receiver may call this.
    pub fn take(&self) -> impl Iterator<Item = L> + use<'_, L> {
        let mut unread = Unread::new();
        let mut unturned = self.take_all();
        while let Some(sheet) = unturned.pop() {
            unread.turned.push(sheet);
        }
        std::iter::from_fn(move || unread.read(self))
    }

    /// Takes everything, the newest letter first.
    fn take_all(&self) -> Chain<L> {
        // Whoever takes the letters off owns them.
        Chain::from(self.newest.swap(0, Ordering::Acquire))
    }

    /// Puts down the chain of sheets for senders, unless there is one already.
    fn give_back(&self, spent: &mut Chain<L>) -> bool {
        let (first, success, failure) = (spent.first, Ordering::Release, Ordering::Relaxed);
        let given = self.spent.compare_exchange(0, first, success, failure);
        if given.is_ok() {
            // They belong to the next sender that takes them.
            spent.first = 0;
        }
        given.is_ok()
    }

    /// Takes the sheets that the receiver gave back.
    fn take_spent(&self) -> Chain<L> {
        if self.spent.load(Ordering::Relaxed) == 0 {
            return Chain::new();
        }
        Chain::from(self.spent.swap(0, Ordering::Acquire))
    }
}

impl<L> Drop for Inbox<L> {
    fn drop(&mut self) {
        drop((self.take_all(), self.take_spent()));
    }
}

/// The receiver's part: letters that it has taken from its inbox and not read yet.
pub struct Unread<L> {
    /// Oldest first.
    turned: Chain<L>,
    /// Newer than the others, newest first. While there are any, `turned` does not begin with the oldest letter.
    unturned: Chain<L>,
    /// Sheets of letters that were read.
    spent: Chain<L>,
    /// Their number.
    count: usize,
}

impl<L> Unread<L> {
    /// Starts without letters.
    pub fn new() -> Self {
        Self {
            turned: Chain::new(),
            unturned: Chain::new(),
            spent: Chain::new(),
            count: 0,
        }
    }

    /// Returns whether letters have been taken from the inbox and not read.
    pub fn is_empty(&self) -> bool {
        self.turned.is_empty() && self.unturned.is_empty()
    }

    /// Returns the oldest letter. Returns none if there is no letter, or if so many came that the oldest one has not
    /// been found yet, which takes more calls.
    pub fn next(&mut self, inbox: &Inbox<L>) -> Option<L> {
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
        self.read(inbox)
    }

    /// Returns the oldest letter of those that are turned around.
    fn read(&mut self, inbox: &Inbox<L>) -> Option<L> {
        let mut sheet = self.turned.pop()?;
        let letter = sheet.letter.take();
        if self.count < MAX_SPENT {
            self.spent.push(sheet);
            self.count += 1;
        }
        // Not with each letter, because senders keep changing the inbox.
        if self.turned.is_empty() && inbox.give_back(&mut self.spent) {
            self.count = 0;
        }
        letter
    }
}

/// Blanks of one sender: memory for letters that it will send.
pub struct Blanks<L> {
    sheets: Chain<L>,
}

impl<L> Blanks<L> {
    /// Starts without blanks.
    pub fn new() -> Self {
        Self {
            sheets: Chain::new(),
        }
    }

    /// Returns their number.
    #[cfg(test)]
    pub fn count(&mut self) -> usize {
        let mut sheets = Chain::new();
        let mut count = 0;
        while let Some(sheet) = self.sheets.pop() {
            sheets.push(sheet);
            count += 1;
        }
        self.sheets = sheets;
        count
    }

    #[expect(
        clippy::unnecessary_box_returns,
        reason = "a sheet stays where it is from one letter to the next"
    )]
    fn write(&mut self, letter: L, inbox: &Inbox<L>) -> Box<Sheet<L>> {
        if self.sheets.is_empty() {
            self.sheets = inbox.take_spent();
        }
        let Some(mut sheet) = self.sheets.pop() else {
            return Box::new(Sheet {
                letter: Some(letter),
                next: 0,
            });
        };
        sheet.letter = Some(letter);
        sheet
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
