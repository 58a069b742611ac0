// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tables of numbered objects.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of bits for the index of the object's slot. The other bits count how often the slot was used, so that the
/// number of a destroyed object does not refer to its successor.
const INDEX_BITS: u32 = 17;

/// Total number of bits.
const NUMBER_BITS: u32 = 24;

/// Number of slots that rest before they are used again.
const RESTING: usize = 1024;

/// A slot of a table.
#[derive(Debug, Serialize, Deserialize)]
struct Slot<T> {
    /// Number of the object, or of the next one in this slot.
    number: u32,
    /// The object.
    value: Option<T>,
}

/// Objects with 24-bit numbers that the table assigns. Slots are found in constant time, and memory grows with the
/// largest number of objects that ever existed, not with the limit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    first: u32,
    live: u32,
    limit: u32,
}

impl<T> Table<T> {
    /// Creates a table for up to `limit` objects whose numbers are never less than `first`.
    pub(crate) fn new(first: u32, limit: u32) -> Self {
        assert!(first + limit <= 1 << INDEX_BITS);
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            first,
            live: 0,
            limit,
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    /// Returns whether `limit` objects exist.
    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit
    }

    /// Returns the slot for an object with this number, dense from 0, whether the object exists or not.
    pub(crate) fn index(&self, number: u32) -> usize {
        (number & ((1 << INDEX_BITS) - 1)).wrapping_sub(self.first) as usize
    }

    /// Creates an object that knows its number. Returns `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<(u32, &mut T)> {
        if self.is_full() {
            return None;
        }
        let grow = self.slots.len() < self.limit as usize;
        let index = if grow && self.free.len() < RESTING {
            let index = u32::try_from(self.slots.len()).ok()?;
            self.slots.push(Slot {
                number: self.first + index,
                value: None,
            });
            index
        } else {
            self.free.pop_front()?
        };
        let slot = &mut self.slots[index as usize];
        self.live += 1;
        Some((slot.number, slot.value.insert(make(slot.number))))
    }

    /// Returns the object with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(self.index(number))?;
        (slot.number == number).then_some(slot.value.as_ref())?
    }

    /// Returns the object with this number.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        (slot.number == number).then_some(slot.value.as_mut())?
    }

    /// Removes and returns the object with this number.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        if slot.number != number {
            return None;
        }
        let value = slot.value.take()?;
        slot.number = number.wrapping_add(1 << INDEX_BITS) & ((1 << NUMBER_BITS) - 1);
        self.free.push_back(index as u32);
        self.live -= 1;
        Some(value)
    }

    /// Returns the objects in up to `limit` slots from slot `first` on, with their numbers; `None` if there are no such
    /// slots.
    pub(crate) fn page(
        &self,
        first: usize,
        limit: usize,
    ) -> Option<impl Iterator<Item = (u32, &T)>> {
        let end = self.slots.len().min(first.saturating_add(limit));
        let slots = self
            .slots
            .get(first..end)
            .filter(|slots| !slots.is_empty())?;
        Some(
            slots
                .iter()
                .filter_map(|slot| Some((slot.number, slot.value.as_ref()?))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_exactly_the_limit() {
        let mut table = Table::new(2, 3);
        let numbers: Vec<u32> = (0..3)
            .map(|i| table.insert_with(|_| i).expect("room").0)
            .collect();
        assert_eq!(numbers, [2, 3, 4]);
        assert!(table.insert_with(|_| 9).is_none());
        assert_eq!(table.remove(3), Some(1));
        assert!(table.insert_with(|_| 9).is_some());
        assert!(table.insert_with(|_| 9).is_none());
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn stale_numbers_name_nothing() {
        let mut table = Table::new(1, 1);
        let mut last = 0;
        for round in 0..300 {
            let number = table.insert_with(|_| round).expect("room").0;
            assert_ne!(number, last);
            assert!(number <= 0xff_ffff && number != 0);
            assert!(table.get(last).is_none());
            assert_eq!(table.get(number), Some(&round));
            assert_eq!(table.remove(number), Some(round));
            assert!(table.remove(number).is_none());
            last = number;
        }
    }

    #[test]
    fn any_number_can_be_asked_for() {
        let mut table = Table::new(2, 4);
        table.insert_with(|_| ()).expect("room");
        for number in [0, 1, 3, 0xff_ffff, u32::MAX, 1 << 17, (1 << 17) + 2] {
            assert!(table.get(number).is_none(), "{number}");
            assert!(table.get_mut(number).is_none());
            assert!(table.remove(number).is_none());
        }
    }
}
