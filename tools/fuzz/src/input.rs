// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The fuzzer's bytes, taken piece by piece.

use arbitrary::{Arbitrary, Unstructured};

/// The fuzzer's bytes. Taking never fails: after the end, everything is 0.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Creates an input from `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Returns whether there are more bytes.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// Calls `operate` as long as there are more bytes, at most `limit` times.
    pub fn operations(&mut self, limit: usize, mut operate: impl FnMut(&mut Self)) {
        for _ in 0..limit {
            if !self.has_more() {
                break;
            }
            operate(self);
        }
    }

    /// Takes a number or another value of fixed size.
    pub fn take<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// Takes a number below `limit`, which is 1 to 256, from one byte.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.take::<u8>()) % limit
    }

    /// Takes one of `choices`, of which there are 1 to 256.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Takes at most `limit` bytes; one byte of the input decides how many.
    pub fn bytes(&mut self, limit: usize) -> &'a [u8] {
        let wanted = usize::from(self.take::<u8>()).min(limit);
        let length = wanted.min(self.0.len());
        self.0.bytes(length).unwrap_or_default()
    }
}
