// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Digests of what the engine does.

use super::format::{BYTEWISE, Put, digest_segment, put_range, put_segment};
use crate::{memory::HostRange, segment::Segment};

/// A digest of what the engine does: for all practical purposes, any difference results in a different digest.
#[derive(Debug)]
pub(crate) struct Digest {
    state: u64,
    /// Whether it is for a recording whose numbers are digested byte by byte.
    bytewise: bool,
}

impl Digest {
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    const MASK: u64 = 0xa5a5_1234_5678_9abc;

    /// Creates an empty digest, for a recording with this version of the format.
    pub(crate) fn new(version: u8) -> Self {
        Self {
            state: Self::START,
            bytewise: version <= BYTEWISE,
        }
    }

    /// Starts over.
    pub(crate) fn restart(&mut self) {
        self.state = Self::START;
    }

    /// Returns the value.
    pub(crate) fn value(&self) -> u64 {
        self.state
    }

    #[inline]
    fn fold(&mut self, one: u64, other: u64) {
        let product = u128::from(self.state ^ one) * u128::from(other);
        self.state = (product ^ product >> 64) as u64 ^ self.state.rotate_left(29);
    }

    /// Adds a number.
    #[inline]
    pub(crate) fn add(&mut self, value: u64) {
        self.fold(value ^ Self::MASK, Self::FACTOR);
    }

    /// Adds two numbers.
    #[inline]
    pub(crate) fn pair(&mut self, one: u64, other: u64) {
        if self.bytewise {
            self.add(one);
            self.add(other);
        } else {
            self.fold(one, other ^ Self::FACTOR);
        }
    }

    /// Adds a range of memory and the kind of access.
    #[inline]
    pub(crate) fn range(&mut self, kind: u8, range: &HostRange) {
        if self.bytewise {
            self.add(kind.into());
            put_range(self, range);
        } else {
            let place = u64::from(range.region.0) << 32 ^ range.length;
            self.pair(range.offset ^ u64::from(kind) << 56, place);
        }
    }

    /// Adds a segment without long payload.
    pub(crate) fn segment(&mut self, segment: &Segment<'_>) {
        if self.bytewise {
            put_segment(self, segment);
        } else {
            digest_segment(self, segment);
        }
    }
}

impl Put for Digest {
    #[inline]
    fn byte(&mut self, value: u8) {
        self.add(value.into());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        if self.bytewise {
            return bytes.chunks(8).for_each(|chunk| self.add(word(chunk)));
        }
        let (pairs, rest) = bytes.as_chunks::<16>();
        for pair in pairs {
            let pair = u128::from_le_bytes(*pair);
            self.pair(pair as u64, (pair >> 64) as u64);
        }
        rest.chunks(8).for_each(|chunk| self.add(word(chunk)));
    }

    #[inline]
    fn number(&mut self, mut value: u64) {
        while self.bytewise && value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.add(value);
    }
}
