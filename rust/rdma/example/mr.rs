// SPDX-License-Identifier: GPL-2.0

//! Memory regions, and the method by which processes query how a region is reached.

use kernel::prelude::*;
use rdma::{
    access::{
        Access,
        AccessFlags, //
    },
    mr::{
        NewMr,
        Range, //
    },
    uapi::{
        AttrBundle,
        AttrDef,
        Kind,
        Method, //
    },
    Dmah,
    MemoryRegion,
    Mr,
    Pd,
    Umem,
    Unsupported,
    User, //
};

use crate::{
    abi,
    Call,
    Domain,
    Efa,
    Object, //
};

/// A memory region.
pub(crate) struct Region {
    // Fields are dropped in declaration order: the device stops using the memory first.
    object: Object,
    _memory: Umem,
}

#[vtable]
impl MemoryRegion for Region {
    type Driver = Efa;
    type Request = ();
    type Response = ();

    fn register_user(
        call: &Call<'_>,
        pd: &Pd<Domain>,
        range: &Range,
        access: AccessFlags,
        _handle: Option<&Dmah<Unsupported<Efa>>>,
        _user: User<'_, Efa, ()>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        // Peers may read. A device that lets them write says so in its capabilities. Writes are
        // always ordered. Without a pager, on-demand regions do not get here.
        let known =
            Access::LocalWrite | Access::RemoteRead | Access::RelaxedOrdering | Access::OnDemand;
        if access.bits() & !known.bits() != 0 {
            return Err(EOPNOTSUPP);
        }
        let length = usize::try_from(range.length)?;
        let memory = Umem::get(call, range.start, length, access)?;
        // A real command would carry the domain, the pages of the memory, and its address for
        // requests.
        let _ = pd.0.number;
        let object = Object::create(call)?;
        let key = u32::from(object.number);

        Ok(NewMr {
            init: Self {
                object,
                _memory: memory,
            },
            response: (),
            lkey: key,
            rkey: key,
        })
    }

    fn deregister(mr: &Mr<Self>, _call: &Call<'_>) -> Result {
        mr.object.destroy();
        Ok(())
    }
}

/// Method `EFA_IB_METHOD_MR_QUERY`, which returns the device's interconnects to a region.
pub(crate) struct Query;

impl Query {
    const HANDLE: AttrDef = AttrDef::object::<Mr<Region>>(0);
    const VALIDITY: AttrDef = AttrDef::output::<abi::Validity>(1);
    const RECEIVE: AttrDef = AttrDef::output::<abi::InterconnectId>(2);
    const READ: AttrDef = AttrDef::output::<abi::InterconnectId>(3);
    const RECEIVE_READ: AttrDef = AttrDef::output::<abi::InterconnectId>(4);
}

impl Method for Query {
    type Driver = Efa;

    const OBJECT: Kind = Kind::MemoryRegion;
    const NUMBER: u16 = 0;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[
        &Self::HANDLE,
        &Self::VALIDITY,
        &Self::RECEIVE,
        &Self::READ,
        &Self::RECEIVE_READ,
    ];

    fn call(_call: &Call<'_>, attributes: &AttrBundle<'_, Efa>) -> Result {
        attributes
            .named::<Mr<Region>>(&Self::HANDLE)?
            .ok_or(EINVAL)?;
        // A device without interconnects has no identifiers to report.
        attributes.put(&Self::VALIDITY, &abi::Validity(0))?;
        for attribute in [Self::RECEIVE, Self::READ, Self::RECEIVE_READ] {
            attributes.put(&attribute, &abi::InterconnectId(0))?;
        }
        Ok(())
    }
}
