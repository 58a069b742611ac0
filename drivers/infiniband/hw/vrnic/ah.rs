// SPDX-License-Identifier: GPL-2.0

//! Address handles: the device knows none, a send names its destination itself.

use kernel::prelude::*;
use rdma::{
    ah::{
        GlobalRoute,
        Roce, //
    },
    gid::Gid,
    port::Port,
    udata::Caller,
    AddressHandle,
    User, //
};
use vrnic_wire::{
    abi,
    work::AddressVector, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    udata::CreateAhResponse, //
};

/// An address handle.
#[pin_data]
pub(crate) struct Ah {
    address: AddressVector,
}

impl Ah {
    /// The destination, as sends name it.
    pub(crate) fn address(&self) -> AddressVector {
        self.address
    }
}

/// Translates a path for the device.
pub(crate) fn to_wire(path: &Roce) -> AddressVector {
    AddressVector {
        dgid: path.route.dgid.0,
        dmac: path.dmac,
        sgid_index: path.route.sgid_index,
        hop_limit: path.route.hop_limit,
        traffic_class: path.route.traffic_class,
        service_level: path.service_level,
        reserved: 0.into(),
        flow_label: path.route.flow_label.into(),
    }
}

/// Translates a path of the device.
pub(crate) fn from_wire(address: &AddressVector) -> Roce {
    Roce {
        service_level: address.service_level,
        port: Port::FIRST,
        route: GlobalRoute {
            dgid: Gid(address.dgid),
            sgid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
            flow_label: address.flow_label.get(),
        },
        dmac: address.dmac,
    }
}

#[vtable]
impl AddressHandle for Ah {
    type Driver = Vrnic;
    type Request = ();
    type Response = CreateAhResponse;

    fn create(
        _call: &Call<'_>,
        path: &Roce,
        _user: Caller<Vrnic, User<'_, Vrnic, ()>>,
    ) -> Result<(impl PinInit<Self>, CreateAhResponse)> {
        let address = to_wire(path);
        let response = abi::CreateAhResponse {
            address,
            ..Default::default()
        };
        Ok((pin_init!(Self { address }), CreateAhResponse(response)))
    }

    fn query(ah: &rdma::Ah<Self>) -> Roce {
        from_wire(&ah.address)
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_ah)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_translation() {
        let path = Roce {
            service_level: 7,
            port: Port::FIRST,
            route: GlobalRoute {
                dgid: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
                sgid_index: 31,
                hop_limit: 32,
                traffic_class: 33,
                flow_label: 0xf_1234,
            },
            dmac: [21, 22, 23, 24, 25, 26],
        };
        assert_eq!(from_wire(&to_wire(&path)), path);
    }
}
