// SPDX-License-Identifier: GPL-2.0

//! Counters of the port (`rdma statistic show`) and of selected queue pairs (`rdma statistic qp`).

use kernel::prelude::*;
use rdma::{
    counter,
    port::Port, //
};
use vrnic_wire::{
    command::{
        BindCounterSet,
        Command,
        Counters,
        CreateCounterSet,
        DestroyCounterSet,
        Empty,
        QueryCounterSet,
        QueryCounters, //
    },
    counter::Counter, //
};

use crate::device::Call;

/// The counters, in the order of the device's reply.
pub(crate) static COUNTERS: [counter::Counter; Counter::NAMES.len()] = {
    let mut counters = [const { counter::Counter::new(c"") }; Counter::NAMES.len()];
    let mut i = 0;
    while i < counters.len() {
        counters[i] = counter::Counter::new(Counter::NAMES[i]);
        i += 1;
    }
    counters
};

/// Copies the values from a reply.
fn take(reply: &Counters, values: &mut [u64]) {
    for (value, counter) in values.iter_mut().zip(&reply.values) {
        *value = counter.get();
    }
}

/// Reads all counters of the port.
pub(crate) fn read(call: &Call<'_>, port: Port, values: &mut [u64]) -> Result {
    let reply = call.data().control.execute(&QueryCounters {
        port: port.number().into(),
        ..Default::default()
    })?;
    take(&reply, values);
    Ok(())
}

/// Creates a counter set, and returns its number.
pub(crate) fn create_set(call: &Call<'_>, port: Port) -> Result<u32> {
    let reply = call.data().control.execute(&CreateCounterSet {
        port: port.number().into(),
        ..Default::default()
    })?;
    Ok(reply.counter_set.get())
}

/// Makes a queue pair count in a counter set.
pub(crate) fn bind_set(call: &Call<'_>, qpn: u32, set: u32) -> Result {
    call.data().control.execute(&BindCounterSet {
        qpn: qpn.into(),
        counter_set: set.into(),
    })?;
    Ok(())
}

/// Makes a queue pair count for the port again.
pub(crate) fn unbind_set(call: &Call<'_>, qpn: u32) {
    let command = BindCounterSet {
        qpn: qpn.into(),
        counter_set: 0.into(),
    };
    release(call, &command);
}

/// Reads all counters of a set.
pub(crate) fn read_set(call: &Call<'_>, set: u32, values: &mut [u64]) -> Result {
    let reply = call.data().control.execute(&QueryCounterSet {
        counter_set: set.into(),
        ..Default::default()
    })?;
    take(&reply, values);
    Ok(())
}

/// Destroys a counter set.
pub(crate) fn destroy_set(call: &Call<'_>, set: u32) {
    let command = DestroyCounterSet {
        counter_set: set.into(),
        ..Default::default()
    };
    release(call, &command);
}

/// Executes a command that only a stopped device may reject. If another device does, the only
/// consequence is wrong counter values.
fn release<C: Command<Reply = Empty>>(call: &Call<'_>, command: &C) {
    let control = &call.data().control;
    if let Err(err) = control.execute_surely(command) {
        if !control.is_stopped() {
            dev_err!(
                control.health().dev(),
                "failed to release a counter set: {:?}\n",
                err
            );
        }
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_counters)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_places() {
        let mut reply = Counters {
            values: [0.into(); vrnic_wire::command::MAX_COUNTERS],
        };
        reply.values[1] = 7.into();
        let mut values = [9; 3];
        take(&reply, &mut values);
        assert_eq!(values, [0, 7, 0]);
    }
}
