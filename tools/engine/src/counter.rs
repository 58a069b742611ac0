// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of the port, and separate counters of selected queue pairs.

use crate::{state::wire, table::Table};
use serde::{Deserialize, Serialize};
use vrnic_wire::{command, counter::Counter};

/// The value of each counter, in the order of [`Counter::ALL`].
type Values = [u64; Counter::ALL.len()];

/// Counters of a set of queue pairs.
#[derive(Debug, Serialize, Deserialize)]
struct CounterSet {
    #[serde(with = "wire")]
    values: Values,
    /// Number of queue pairs that use it.
    users: u32,
}

/// Values of all counters.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// All counts.
    #[serde(with = "wire")]
    values: Values,
    /// Counts in counter sets, including sets that have been destroyed.
    #[serde(with = "wire")]
    elsewhere: Values,
    sets: Table<CounterSet>,
    /// Counter set of the queue pair for which the engine acts.
    current: Option<u32>,
}

impl Counters {
    /// Creates counters that are 0, with up to `limit` counter sets.
    pub(crate) fn new(limit: u32) -> Self {
        const NOTHING: Values = [0; Counter::ALL.len()];
        Self {
            values: NOTHING,
            elsewhere: NOTHING,
            sets: Table::new(1, limit),
            current: None,
        }
    }

    /// Adds 1.
    pub(crate) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount`.
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        let grow = |values: &mut Values| {
            let value = &mut values[counter as usize];
            *value = value.wrapping_add(amount);
        };
        grow(&mut self.values);
        if let Some(set) = self.current
            && let Some(set) = self.sets.get_mut(set)
        {
            grow(&mut set.values);
            grow(&mut self.elsewhere);
        }
    }

    /// Sets the counter set, if any, of the queue pair for which the engine acts from now on.
    pub(crate) fn act_for(&mut self, set: Option<u32>) {
        self.current = set;
    }

    /// Returns all values, for all queue pairs, in the order of [`Counter::ALL`].
    pub(crate) fn values(&self) -> &[u64] {
        &self.values
    }

    /// Returns the counters of the port as the device reports them: without the counts in counter sets.
    pub(crate) fn report(&self) -> command::Counters {
        let mut values = self.values;
        for (value, elsewhere) in values.iter_mut().zip(self.elsewhere) {
            *value = value.wrapping_sub(elsewhere);
        }
        reply(&values)
    }

    /// Creates a counter set and returns its number; `None` if the limit is reached.
    pub(crate) fn create_set(&mut self) -> Option<u32> {
        let set = |_| CounterSet {
            values: [0; Counter::ALL.len()],
            users: 0,
        };
        self.sets.insert_with(set).map(|(number, _)| number)
    }

    /// Returns the values of a counter set as the device reports them.
    pub(crate) fn report_set(&self, number: u32) -> Option<command::Counters> {
        self.sets.get(number).map(|set| reply(&set.values))
    }

    /// Returns the number of queue pairs that use a counter set, if it exists.
    pub(crate) fn users(&self, number: u32) -> Option<u32> {
        self.sets.get(number).map(|set| set.users)
    }

    /// Moves a queue pair from one counter set to another.
    pub(crate) fn rebind(&mut self, from: Option<u32>, to: Option<u32>) {
        if let Some(set) = from.and_then(|from| self.sets.get_mut(from)) {
            set.users -= 1;
        }
        if let Some(set) = to.and_then(|to| self.sets.get_mut(to)) {
            set.users += 1;
        }
    }

    /// Destroys a counter set that no queue pair uses.
    pub(crate) fn destroy_set(&mut self, number: u32) {
        self.sets.remove(number);
    }

    /// Returns the number of counter sets.
    pub(crate) fn sets(&self) -> u32 {
        self.sets.len()
    }
}

/// Converts values to the format in which the device reports them.
fn reply(from: &Values) -> command::Counters {
    let mut values = [0.into(); command::MAX_COUNTERS];
    for (place, value) in values.iter_mut().zip(from) {
        *place = (*value).into();
    }
    command::Counters { values }
}
