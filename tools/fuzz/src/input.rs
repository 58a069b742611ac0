// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a fuzzer gives, taken piece by piece.

use arbitrary::{Arbitrary, Unstructured};

/// Bytes of a fuzzer. Taking never fails: behind the end everything is 0.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Takes from the beginning of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Whether there is more.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// Operations as long as there is more, at most `limit` of them.
    pub fn operations(&mut self, limit: usize, mut operate: impl FnMut(&mut Self)) {
        for _ in 0..limit {
            if !self.has_more() {
                break;
            }
            operate(self);
        }
    }

    /// The next number, or other value of fixed size.
    pub fn take<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// A number below `limit`, of one byte; `limit` is 1 to 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.take::<u8>()) % limit
    }

    /// One of `choices`, of which there are 1 to 256.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// The next bytes, at most `limit` of them; a byte says how many.
    pub fn bytes(&mut self, limit: usize) -> &'a [u8] {
        let wanted = usize::from(self.take::<u8>()).min(limit);
        let length = wanted.min(self.0.len());
        self.0.bytes(length).unwrap_or_default()
    }
}
