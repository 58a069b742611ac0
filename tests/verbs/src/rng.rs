// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A small reproducible generator (splitmix64): the same seed gives the same test on every machine.

/// Finalizer of splitmix64: a bijection on 64 bits that scatters neighbouring inputs.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream named by `words`; any change of a word gives an unrelated stream.
    #[must_use]
    pub fn new(words: &[u64]) -> Self {
        Rng(words.iter().fold(
            0x9e37_79b9_7f4a_7c15,
            |s, w| mix(s ^ mix(w.wrapping_add(1))),
        ))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the given values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A seed for a run that was given none.
#[must_use]
pub fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    mix(now ^ u64::from(std::process::id())) & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_and_streams_differ() {
        let mut rng = Rng::new(&[1, 2]);
        for _ in 0..10_000 {
            assert!(rng.below(7) < 7);
            assert!((3..=9).contains(&rng.range(3, 9)));
        }
        assert_eq!(rng.below(0), 0);
        assert_ne!(Rng::new(&[1, 2]).next_u64(), Rng::new(&[2, 1]).next_u64());
        assert_eq!(Rng::new(&[5]).next_u64(), Rng::new(&[5]).next_u64());
    }
}
