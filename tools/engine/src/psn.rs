// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packet sequence numbers.

use serde::{Deserialize, Serialize};
use vrnic_wire::qp::MAX_PSN;

/// A packet sequence number: 24 bits that wrap around (IBTA volume 1, 9.7.2).
///
/// Sequence numbers as such have no order. [`distance_from`](Psn::distance_from) tells which of two is ahead, provided
/// they are less than 2^23 apart.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// Creates a sequence number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & MAX_PSN)
    }

    /// Returns the 24 bits.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the number that is `packets` ahead.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Returns the number of packets from `earlier`, which must not be ahead of this number, to this number.
    pub const fn packets_since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MAX_PSN
    }

    /// Returns how far this number is ahead of `other`, from -2^23 to 2^23 - 1; negative if it is behind.
    pub const fn distance_from(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        let last = Psn::new(MAX_PSN);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(3).distance_from(last), 4);
        assert_eq!(last.distance_from(Psn::new(3)), -4);
        assert_eq!(
            Psn::new(1 << 23).distance_from(Psn::new(0)),
            -(1 << 23),
            "half the circle counts as behind"
        );
        assert_eq!(
            Psn::new((1 << 23) - 1).distance_from(Psn::new(0)),
            (1 << 23) - 1
        );
    }
}
