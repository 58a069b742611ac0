// SPDX-License-Identifier: GPL-2.0

//! The counters of the port (`rdma statistic show`).

use kernel::prelude::*;
use rdma::{
    port::Port,
    stats, //
};
use vrnic_wire::{
    command::QueryCounters,
    counter::Counter, //
};

use crate::device::Call;

/// The counters, in the order of their places in the device's answer.
pub(crate) static COUNTERS: [stats::Counter; Counter::NAMES.len()] = {
    let mut counters = [const { stats::Counter::new(c"") }; Counter::NAMES.len()];
    let mut i = 0;
    while i < counters.len() {
        counters[i] = stats::Counter::new(Counter::NAMES[i]);
        i += 1;
    }
    counters
};

/// Reads all counters.
pub(crate) fn read(call: &Call<'_>, port: Port, values: &mut [u64]) -> Result {
    let reply = call.data.control.execute(&QueryCounters {
        port: port.number().into(),
        ..Default::default()
    })?;
    for (value, counter) in values.iter_mut().zip(&reply.values) {
        *value = counter.get();
    }
    Ok(())
}
