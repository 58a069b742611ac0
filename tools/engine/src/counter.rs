// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of the port.

use vrnic_wire::{command, counter::Counter};

/// Values of all counters.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    values: [u64; Counter::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: [0; Counter::ALL.len()],
        }
    }
}

impl Counters {
    /// Adds 1.
    pub(crate) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount`.
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.wrapping_add(amount);
    }

    /// All values, in the order of [`Counter::ALL`].
    pub(crate) fn values(&self) -> &[u64] {
        &self.values
    }

    /// The counters as the device reports them.
    pub(crate) fn report(&self) -> command::Counters {
        let mut values = [0.into(); command::MAX_COUNTERS];
        for (place, value) in values.iter_mut().zip(self.values) {
            *place = value.into();
        }
        command::Counters { values }
    }
}
