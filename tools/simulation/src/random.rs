// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random numbers derived from a seed.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::time::Duration;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number less than `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// Returns a number from `first` to `last`.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Returns true with a probability of `parts` in 65536.
    pub fn hits(&mut self, parts: u32) -> bool {
        (self.number() & 0xffff) < u64::from(parts)
    }

    /// Returns true once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a number of at most `most`; all orders of magnitude are equally likely.
    pub fn magnitude(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros() as usize;
        let limit = 1 << self.between(0, bits.min(62));
        (self.number() % limit).min(most)
    }

    /// Returns a time of at most `most`; all orders of magnitude are equally likely.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.magnitude(most.as_nanos() as u64))
    }

    /// Returns a time of less than `limit`, uniformly distributed.
    pub fn time_below(&mut self, limit: Duration) -> Duration {
        let limit = (limit.as_nanos() as u64).max(1);
        Duration::from_nanos(self.number() % limit)
    }

    /// Returns a seed for a device.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.0.fill_bytes(&mut seed);
        seed
    }
}
