// SPDX-License-Identifier: GPL-2.0

//! What a process needs that imports objects of another one (`include/uapi/rdma/vrnic-abi.h`).

use kernel::prelude::*;
use rdma::uapi::{
    AttrBundle,
    Attribute,
    Kind,
    Method, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    pd::Pd,
    udata::AllocContextResponse, //
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
