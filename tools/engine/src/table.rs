// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbered objects.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bits of a number that say where its object stands; the others count how often the place was
/// used, so that the number of a destroyed object does not name its successor.
const INDEX_BITS: u32 = 17;

/// Bits of a number.
const NUMBER_BITS: u32 = 24;

/// Places that stay unused for a while before one is used again.
const RESTING: usize = 1024;

/// A place in a table.
#[derive(Debug, Serialize, Deserialize)]
struct Slot<T> {
    /// Number of the object, or of the next one to stand here.
    number: u32,
    /// The object.
    value: Option<T>,
}

/// Objects by 24-bit numbers that the table chooses. Places are found in constant time, and memory
/// grows with the most objects that there were, not with the limit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    first: u32,
    live: u32,
    limit: u32,
}

impl<T> Table<T> {
    /// A table for up to `limit` objects whose numbers are never less than `first`.
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

    /// Number of objects.
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    /// Whether `limit` objects exist.
    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit
    }

    /// Place of the object with that number, dense from 0, whether it exists or not.
    pub(crate) fn index(&self, number: u32) -> usize {
        (number & ((1 << INDEX_BITS) - 1)).wrapping_sub(self.first) as usize
    }

    /// Makes an object that knows its number; `None` if the table is full.
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

    /// The object with that number.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(self.index(number))?;
        (slot.number == number).then_some(slot.value.as_ref())?
    }

    /// The object with that number.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        (slot.number == number).then_some(slot.value.as_mut())?
    }

    /// Takes out the object with that number.
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

    /// The objects in up to `limit` places from place `first` on, with their numbers; `None` if there
    /// are no such places.
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
