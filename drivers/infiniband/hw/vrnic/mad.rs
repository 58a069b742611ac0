// SPDX-License-Identifier: GPL-2.0

//! Management datagrams for the agents of the device.

use kernel::prelude::*;
use rdma::{
    mad::{
        Incoming,
        Mad,
        Outcome, //
    },
    port::Port, //
};
use vrnic_wire::{
    command::{
        mad_flags,
        MadResult,
        ProcessMad, //
    },
    port::PERMISSIVE_LID, //
};

use crate::{
    device::Call,
    port::Link, //
};

/// Where a datagram says what it wants (IBTA volume 1, section 13.4.2).
const METHOD: usize = 3;

/// Bit of a method: the datagram is a response.
const RESPONSE: u8 = 0x80;

/// Gives the agents a datagram.
pub(crate) fn process(
    call: &Call<'_>,
    port: Port,
    incoming: &Incoming<'_>,
    answer: &mut Mad,
) -> Result<Outcome> {
    // Agents are not asked what was answered, and RoCE has none.
    if call.data().link == Link::Ethernet || is_response(incoming.mad) {
        return Ok(Outcome::Passed);
    }
    let source = incoming.source.as_ref();
    let reply = call.data().control.execute(&ProcessMad {
        port: port.number().into(),
        flags: match incoming.ignores_m_key {
            true => mad_flags::IGNORE_M_KEY,
            false => 0,
        }
        .into(),
        slid: source.map_or(PERMISSIVE_LID, |source| source.lid.0).into(),
        service_level: source.map_or(0, |source| source.service_level),
        reserved: [0; 5],
        mad: *incoming.mad,
    })?;
    match MadResult::try_from(reply.result.get()).map_err(|_| EIO)? {
        MadResult::Passed => Ok(Outcome::Passed),
        MadResult::Consumed => Ok(Outcome::Consumed),
        MadResult::Answered => {
            *answer = reply.mad;
            Ok(Outcome::Answered)
        }
    }
}

fn is_response(mad: &Mad) -> bool {
    mad[METHOD] & RESPONSE != 0
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_mad)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_known_by_their_method() {
        let mut mad = [0; rdma::mad::LENGTH];
        // Get, and its response.
        for (method, response) in [(0x01, false), (0x81, true)] {
            mad[METHOD] = method;
            assert_eq!(is_response(&mad), response);
        }
    }
}
