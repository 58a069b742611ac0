// SPDX-License-Identifier: GPL-2.0

//! The driver's own uverbs methods (`include/uapi/rdma/vrnic-abi.h`), for processes that import
//! objects of another process and for reading the device's clock.

use kernel::prelude::*;
use rdma::uapi::{
    AttrBundle,
    AttrDef,
    Kind,
    Method, //
};

use vrnic_wire::{
    abi::{
        self,
        ioctl, //
    },
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

/// Attribute of QUERY_CONTEXT: the response to the creation of the context.
pub(crate) const CONTEXT_RESPONSE: AttrDef =
    AttrDef::output::<AllocContextResponse>(ioctl::QUERY_CONTEXT_ATTR_RESP);

/// Handle of a protection domain.
const PD_HANDLE: AttrDef = AttrDef::object::<rdma::Pd<Pd>>(ioctl::FIND_PD_ATTR_HANDLE);

/// A method on protection domains that only checks that the domain exists.
pub(crate) struct FindPd;

impl Method for FindPd {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::ProtectionDomain;
    const NUMBER: u16 = ioctl::METHOD_FIND_PD;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[&PD_HANDLE];

    fn call(_call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        match attributes.named::<rdma::Pd<Pd>>(&PD_HANDLE)? {
            Some(_) => Ok(()),
            None => Err(EINVAL),
        }
    }
}

/// Response with the time of the device's clock.
const CLOCK: AttrDef = AttrDef::output::<QueryClockResponse>(ioctl::QUERY_CLOCK_ATTR_RESP);

/// A method on the device that reads the clock of completion timestamps.
pub(crate) struct QueryClock;

impl Method for QueryClock {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::Device;
    const NUMBER: u16 = ioctl::METHOD_QUERY_CLOCK;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[&CLOCK];

    fn call(call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        // A device without the feature rejects the command.
        let clock = call.data().control.execute(&command::QueryClock {})?;
        let response = abi::QueryClockResponse {
            time: clock.time.get(),
            ..Default::default()
        };
        attributes.put(&CLOCK, &QueryClockResponse(response))
    }
}
