// SPDX-License-Identifier: GPL-2.0

//! Management datagrams for the device's agents.

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

use crate::device::Call;

/// Offset of the management class of a datagram (IBTA volume 1, section 13.4.2).
const CLASS: usize = 1;

/// Offset of its method.
const METHOD: usize = 3;

/// Method bit for responses.
const RESPONSE: u8 = 0x80;

/// Classes of the device's agents: subnet management by LID and by a directed route, and
/// performance management (section 13.4.4).
const AGENTS: [u8; 3] = [0x01, 0x81, 0x04];

/// Passes a datagram to the device's agents.
pub(crate) fn process(
    call: &Call<'_>,
    port: Port,
    incoming: &Incoming<'_>,
    answer: &mut Mad,
) -> Result<Outcome> {
    // Each command takes time, and anybody may flood, say, the connection manager with requests.
    if !is_for_agents(incoming.mad) {
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

/// Returns whether a datagram is a request to an agent of the device.
fn is_for_agents(mad: &Mad) -> bool {
    AGENTS.contains(&mad[CLASS]) && mad[METHOD] & RESPONSE == 0
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_mad)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_to_agents_are_commands() {
        let mut mad = [0; rdma::mad::LENGTH];
        // A Get request, and its response.
        for (method, is_request) in [(0x01, true), (0x81, false)] {
            mad[METHOD] = method;
            for class in AGENTS {
                mad[CLASS] = class;
                assert_eq!(is_for_agents(&mad), is_request);
            }
            // Subnet administration, connection management, a vendor's.
            for class in [0x03, 0x07, 0x09] {
                mad[CLASS] = class;
                assert!(!is_for_agents(&mad));
            }
        }
    }
}
