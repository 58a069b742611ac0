// SPDX-License-Identifier: GPL-2.0

//! Address handles. The device does not know them; each send carries its destination.

use kernel::prelude::*;
use rdma::{
    ah::{
        Any,
        Context,
        GlobalRoute,
        InfiniBand,
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
    work::{
        lid_flags,
        AddressVector,
        LidAddress, //
    }, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    port::Link,
    udata::CreateAhResponse, //
};

/// An address handle.
#[pin_data]
pub(crate) struct Ah {
    address: AddressVector,
    link: Link,
}

impl Ah {
    /// Returns the destination in the format of send entries.
    pub(crate) fn address(&self) -> AddressVector {
        self.address
    }
}

/// Translates the route for the device.
fn route_to_wire(route: &GlobalRoute) -> AddressVector {
    AddressVector {
        dgid: route.dgid.0,
        sgid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label.into(),
        ..Default::default()
    }
}

/// Translates a path for the device.
pub(crate) fn to_wire(path: &Any) -> AddressVector {
    match path {
        Any::Roce(path) => AddressVector {
            dmac: path.dmac,
            service_level: path.service_level,
            ..route_to_wire(&path.route)
        },
        Any::InfiniBand(path) => {
            let lid = LidAddress {
                dlid: path.dlid.into(),
                path_bits: path.source_path_bits,
                static_rate: path.static_rate,
                flags: match path.route {
                    Some(_) => lid_flags::GRH,
                    None => 0,
                },
                reserved: 0,
            };
            AddressVector {
                dmac: lid.to_bytes(),
                service_level: path.service_level,
                ..route_to_wire(&path.route.unwrap_or_default())
            }
        }
    }
}

/// Translates a path from the device.
pub(crate) fn from_wire(address: &AddressVector, link: Link) -> Any {
    let route = GlobalRoute {
        dgid: Gid(address.dgid),
        sgid_index: address.sgid_index,
        hop_limit: address.hop_limit,
        traffic_class: address.traffic_class,
        flow_label: address.flow_label.get(),
    };
    match link {
        Link::Ethernet => Any::Roce(Roce {
            service_level: address.service_level,
            port: Port::FIRST,
            route,
            dmac: address.dmac,
        }),
        Link::InfiniBand => {
            let lid = LidAddress::from_bytes(address.dmac);
            Any::InfiniBand(InfiniBand {
                service_level: address.service_level,
                port: Port::FIRST,
                dlid: lid.dlid.get(),
                source_path_bits: lid.path_bits,
                static_rate: lid.static_rate,
                route: (lid.flags & lid_flags::GRH != 0).then_some(route),
            })
        }
    }
}

#[vtable]
impl AddressHandle for Ah {
    type Driver = Vrnic;
    type Request = ();
    type Response = CreateAhResponse;

    fn create(
        call: &Call<'_>,
        path: &Any,
        _context: Context,
        _user: Caller<Vrnic, User<'_, Vrnic, ()>>,
    ) -> Result<(impl PinInit<Self>, CreateAhResponse)> {
        let address = to_wire(path);
        let response = abi::CreateAhResponse {
            address,
            ..Default::default()
        };
        let link = call.data().link();
        Ok((
            pin_init!(Self { address, link }),
            CreateAhResponse(response),
        ))
    }

    fn query(ah: &rdma::Ah<Self>) -> Any {
        from_wire(&ah.address, ah.link)
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_ah)]
mod tests {
    use super::*;

    const ROUTE: GlobalRoute = GlobalRoute {
        dgid: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        sgid_index: 31,
        hop_limit: 32,
        traffic_class: 33,
        flow_label: 0xf_1234,
    };

    #[test]
    fn a_path_on_ethernet_survives_the_translation() {
        let path = Any::Roce(Roce {
            service_level: 7,
            port: Port::FIRST,
            route: ROUTE,
            dmac: [21, 22, 23, 24, 25, 26],
        });
        assert_eq!(from_wire(&to_wire(&path), Link::Ethernet), path);
    }

    #[test]
    fn a_path_on_infiniband_survives_the_translation() {
        for route in [None, Some(ROUTE)] {
            let path = Any::InfiniBand(InfiniBand {
                service_level: 7,
                port: Port::FIRST,
                dlid: 0x1234,
                source_path_bits: 5,
                static_rate: 6,
                route,
            });
            let wire = to_wire(&path);
            assert_eq!(wire.dmac[..2], [0x34, 0x12]);
            assert_eq!(from_wire(&wire, Link::InfiniBand), path);
        }
    }
}
