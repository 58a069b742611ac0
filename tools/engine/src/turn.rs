// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limits how much is done at a time.
//!
//! Devices take turns, and so do the queue pairs of a device. A turn is limited in units and in bytes, so that it is
//! short whatever the work is: neither tiny messages nor long ones keep a neighbour waiting.

use crate::rate::Traffic;

/// Largest number of units in a turn of a queue pair.
const QP_UNITS: u32 = 32;

/// Largest number of bytes in a turn of a queue pair.
const QP_BYTES: u64 = 512 * 1024;

/// An amount of work.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Number of segments to send or work requests to complete.
    pub units: u32,
    /// Payload bytes of these segments.
    pub bytes: u64,
}

impl Budget {
    /// Returns a budget of this number of units of any length.
    pub const fn units(units: u32) -> Self {
        Self {
            units,
            bytes: u64::MAX,
        }
    }

    /// Returns whether one of the two is used up.
    pub(crate) fn is_over(&self) -> bool {
        self.units == 0 || self.bytes == 0
    }

    /// Subtracts `spent` from the budget. Returns the number of bytes by which it was exceeded: the last segment may be
    /// longer than what is left.
    pub(crate) fn pay(&mut self, spent: Self) -> u64 {
        let overdrawn = spent.bytes.saturating_sub(self.bytes);
        self.units = self.units.saturating_sub(spent.units);
        self.bytes = self.bytes.saturating_sub(spent.bytes);
        overdrawn
    }
}

/// What a queue pair may do before others take their turns.
#[derive(Debug)]
pub(crate) struct Turn {
    left: Budget,
    spent: Budget,
    /// Whether a part of the turn was used up before the work was done.
    cut_short: bool,
    /// What the rate limit of the device allows.
    allowed: Traffic,
    /// What was sent.
    sent: Traffic,
    /// Whether the rate limit held something back.
    held_back: bool,
}

impl Turn {
    /// Creates a turn from the `budget` of the device, in which no more than `allowed` may be sent.
    pub(crate) fn new(budget: Budget, allowed: Traffic) -> Self {
        Self::with(
            Budget {
                units: budget.units.min(QP_UNITS),
                bytes: budget.bytes.min(QP_BYTES),
            },
            allowed,
        )
    }

    /// Creates a turn of this number of units of any length.
    pub(crate) fn of_units(units: u32) -> Self {
        Self::with(Budget::units(units), Traffic::ENDLESS)
    }

    fn with(left: Budget, allowed: Traffic) -> Self {
        Self {
            left,
            spent: Budget::default(),
            cut_short: false,
            allowed,
            sent: Traffic::default(),
            held_back: false,
        }
    }

    /// Pays for one unit of work with this number of bytes.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.pay(Budget { units: 1, bytes });
    }

    fn pay(&mut self, spent: Budget) {
        self.left.pay(spent);
        self.spent.units += spent.units;
        self.spent.bytes += spent.bytes;
    }

    /// Pays for sending one segment with this number of bytes.
    pub(crate) fn send(&mut self, bytes: u64) {
        self.sent.bytes += bytes;
        self.spend(bytes);
    }

    /// Pays for starting one request.
    pub(crate) fn begin(&mut self) {
        self.sent.requests += 1;
    }

    /// Returns whether the rate limit allows more to be sent. If not, there will be another turn when it does.
    pub(crate) fn may_send(&mut self) -> bool {
        let may = self.sent.bytes < self.allowed.bytes;
        self.held_back |= !may;
        may
    }

    /// Returns whether the rate limit is used up after a packet with this number of bytes.
    pub(crate) fn ends_with(&self, bytes: u32) -> bool {
        self.allowed.bytes - self.sent.bytes.min(self.allowed.bytes) <= bytes.into()
    }

    /// Returns whether the rate limit allows another request to be started. If not, there will be another turn when it
    /// does.
    pub(crate) fn may_begin(&mut self) -> bool {
        let may = self.sent.requests < self.allowed.requests;
        self.held_back |= !may;
        may
    }

    /// Returns what was sent.
    pub(crate) fn sent(&self) -> Traffic {
        self.sent
    }

    /// Returns whether the rate limit held something back.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Returns whether others have to take their turns.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_over()
    }

    /// Runs `work` with half of what is left.
    pub(crate) fn half(&mut self, work: impl FnOnce(&mut Self)) {
        let half = Budget {
            units: self.left.units.div_ceil(2),
            bytes: self.left.bytes.div_ceil(2),
        };
        let mut part = Self {
            sent: self.sent,
            ..Self::with(half, self.allowed)
        };
        work(&mut part);
        self.sent = part.sent;
        self.held_back |= part.held_back;
        self.pay(part.spent);
        self.cut_short |= part.is_over();
    }

    /// Returns whether there may be more to do in another turn.
    pub(crate) fn leaves_work(&self) -> bool {
        self.cut_short || self.is_over()
    }

    /// Returns the work that was done.
    pub(crate) fn spent(&self) -> Budget {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(units: u32, bytes: u64) -> Budget {
        Budget { units, bytes }
    }

    #[test]
    fn a_turn_is_over_by_units_and_by_bytes() {
        let mut short = Turn::new(budget(2, 1000), Traffic::ENDLESS);
        short.spend(1);
        assert!(!short.leaves_work());
        short.spend(1);
        assert!(short.leaves_work());
        let mut long = Turn::new(budget(20, 1000), Traffic::ENDLESS);
        long.spend(999);
        assert!(!long.is_over());
        long.spend(1);
        assert!(long.is_over());
        assert_eq!(long.spent(), budget(2, 1000));
    }

    #[test]
    fn a_queue_pair_has_no_more_than_its_share_of_a_large_budget() {
        let mut turn = Turn::new(Budget::units(u32::MAX), Traffic::ENDLESS);
        turn.spend(QP_BYTES - 1);
        assert!(!turn.is_over());
        (1..QP_UNITS).for_each(|_| turn.spend(0));
        assert!(turn.is_over());
    }

    #[test]
    fn half_a_turn_leaves_the_rest() {
        let mut turn = Turn::new(budget(8, 1000), Traffic::ENDLESS);
        turn.half(|part| {
            part.spend(900);
            assert!(part.is_over(), "a half is 500 bytes");
        });
        assert!(!turn.is_over());
        assert!(turn.leaves_work(), "what the half was too short for");
        turn.spend(100);
        assert!(turn.is_over());
        assert_eq!(turn.spent(), budget(2, 1000));
    }

    #[test]
    fn what_is_overdrawn_is_told() {
        let mut left = budget(3, 100);
        assert_eq!(left.pay(budget(1, 90)), 0);
        assert_eq!(left.pay(budget(1, 90)), 80);
        assert_eq!(left, budget(1, 0));
    }
}
