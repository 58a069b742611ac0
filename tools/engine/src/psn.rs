// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packet sequence numbers.

use serde::{Deserialize, Serialize};
use vrnic_wire::qp::MAX_PSN;

/// A packet sequence number: 24 bits that wrap around (IBTA volume 1, 9.7.2).
///
/// There is no order of sequence numbers as such; [`distance_from`](Psn::distance_from) tells which
/// of two is ahead, provided they are less than 2^23 apart.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// The sequence number with the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & MAX_PSN)
    }

    /// The 24 bits.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The number `packets` ahead.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Packets from `earlier`, which is not ahead of this number, to this number.
    pub const fn packets_since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MAX_PSN
    }

    /// How far this number is ahead of `other`; negative if it is behind. From -2^23 to 2^23 - 1.
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
