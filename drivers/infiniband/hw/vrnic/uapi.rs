// SPDX-License-Identifier: GPL-2.0

//! Methods of uverbs that are the driver's own (`include/uapi/rdma/vrnic-abi.h`): what a process
//! needs that imports objects of another one, and the device's clock.

use kernel::prelude::*;
use rdma::uapi::{
    AttrBundle,
    Attribute,
    Kind,
    Method, //
};

use vrnic_wire::{
    abi,
    command, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    pd::Pd,
    udata::{
        AllocContextResponse,
        QueryClockResponse, //
    }, //
};

/// Attribute of QUERY_CONTEXT: what the driver answered when the context was created.
pub(crate) const CONTEXT_RESPONSE: Attribute = Attribute::output::<AllocContextResponse>(0);

/// A protection domain.
const PD_HANDLE: Attribute = Attribute::object::<rdma::Pd<Pd>>(0);

/// A method of protection domains that does nothing but fail if there is no such domain.
pub(crate) struct FindPd;

impl Method for FindPd {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::ProtectionDomain;
    const NUMBER: u16 = 0;
    const ATTRIBUTES: &'static [&'static Attribute] = &[&PD_HANDLE];

    fn call(_call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        match attributes.named::<rdma::Pd<Pd>>(&PD_HANDLE)? {
            Some(_) => Ok(()),
            None => Err(EINVAL),
        }
    }
}

/// What the clock of the device shows.
const CLOCK: Attribute = Attribute::output::<QueryClockResponse>(0);

/// A method of devices that says what the clock shows by which completions are stamped.
pub(crate) struct QueryClock;

impl Method for QueryClock {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::Device;
    const NUMBER: u16 = 0;
    const ATTRIBUTES: &'static [&'static Attribute] = &[&CLOCK];

    fn call(call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        // A device that does not tell refuses the command.
        let clock = call.data().control.execute(&command::QueryClock {})?;
        let response = abi::QueryClockResponse {
            time: clock.time.get(),
            ..Default::default()
        };
        attributes.put(&CLOCK, &QueryClockResponse(response))
    }
}
