// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A set of small numbers to which any thread adds without waiting.
//!
//! `tests/model.rs` explores all orders in which threads can run this.

use crate::sync::{AtomicU64, Ordering};

/// A set of small numbers. Any thread may add to it; one thread empties it.
pub struct AtomicSet {
    words: Box<[AtomicU64]>,
    /// If bit `w` of summary word `s` is set, word `64 * s + w` may have bits set.
    summary: Box<[AtomicU64]>,
}

impl AtomicSet {
    /// Creates an empty set for numbers below `size`.
    pub fn new(size: usize) -> Self {
        let words = size.div_ceil(64);
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: zeros(words),
            summary: zeros(words.div_ceil(64)),
        }
    }

    /// Adds `number` if it is within the size of the set.
    pub fn insert(&self, number: usize) {
        let word = number / 64;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / 64)) {
            bits.fetch_or(1 << (number % 64), Ordering::SeqCst);
            summary.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    /// Removes all numbers and calls `visit` with each. A number that is added in the meantime is either visited or
    /// stays in the set.
    pub fn drain(&self, mut visit: impl FnMut(usize)) {
        for (index, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            each_bit(summary.swap(0, Ordering::SeqCst), |bit| {
                let word = index * 64 + bit;
                if let Some(bits) = self.words.get(word) {
                    each_bit(bits.swap(0, Ordering::SeqCst), |bit| visit(word * 64 + bit));
                }
            });
        }
    }

    /// Returns whether the set has a number.
    pub fn contains(&self, number: usize) -> bool {
        let word = self.words.get(number / 64);
        word.is_some_and(|bits| bits.load(Ordering::SeqCst) & 1 << (number % 64) != 0)
    }

    /// Returns whether the set has no numbers.
    pub fn is_empty(&self) -> bool {
        self.summary
            .iter()
            .all(|summary| summary.load(Ordering::SeqCst) == 0)
    }
}

fn each_bit(mut bits: u64, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}
