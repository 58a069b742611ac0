// SPDX-License-Identifier: GPL-2.0

//! Tests of flows.

use core::mem::offset_of;

use crate::{
    flow::{
        Counters,
        Ethernet,
        Fields,
        Gre,
        Ipv4,
        Ipv6,
        Layer,
        Ports,
        Spec,
        Type, //
    },
    testing::prelude::*, //
};

/// A flow with room for specifications behind it.
#[repr(C, align(8))]
struct Request {
    bytes: [u8; 256],
    length: usize,
}

impl Request {
    fn new(ty: bindings::ib_flow_attr_type, flags: u32) -> Self {
        let mut request = Self {
            bytes: [0; 256],
            length: size_of::<bindings::ib_flow_attr>(),
        };
        request.put(offset_of!(bindings::ib_flow_attr, type_), &ty.to_ne_bytes());
        request.put(
            offset_of!(bindings::ib_flow_attr, priority),
            &7u16.to_ne_bytes(),
        );
        request.put(
            offset_of!(bindings::ib_flow_attr, flags),
            &flags.to_ne_bytes(),
        );
        request.put(
            offset_of!(bindings::ib_flow_attr, port),
            &1u32.to_ne_bytes(),
        );
        request.finish()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds a specification: its type, and value and mask, which start at this offset.
    fn spec(mut self, ty: u32, at: usize, fields: [&[u8]; 2], size: usize) -> Self {
        let start = self.length;
        self.put(start, &ty.to_ne_bytes());
        // CAST: Small constants.
        self.put(start + 4, &(size as u16).to_ne_bytes());
        self.put(start + at, fields[0]);
        self.put(start + at + fields[0].len(), fields[1]);
        self.length += size;
        self.bytes[offset_of!(bindings::ib_flow_attr, num_of_specs)] += 1;
        self.finish()
    }

    fn finish(mut self) -> Self {
        // CAST: At most 256.
        let length = (self.length as u16).to_ne_bytes();
        self.put(offset_of!(bindings::ib_flow_attr, size), &length);
        self
    }

    fn as_raw(&mut self) -> *mut bindings::ib_flow_attr {
        self.bytes.as_mut_ptr().cast()
    }
}

const ETH: u32 = bindings::ib_flow_spec_type_IB_FLOW_SPEC_ETH;
const ETH_AT: usize = offset_of!(bindings::ib_flow_spec_eth, val);
const ETH_SIZE: usize = size_of::<bindings::ib_flow_spec_eth>();

#[kunit_tests(rdma_flow)]
mod cases {
    use super::*;

    #[test]
    fn a_flow_has_specifications_and_an_end() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut pair = Pair::new(device)?;
            let number = pair.number();
            let eth = [
                1u8, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x00, 0x60, 0x05,
            ];
            let eth_mask = [0xff; 16];
            let four = [10u8, 0, 0, 1, 10, 0, 0, 2, 17, 3, 4, 0];
            let four_mask = [0xffu8, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
            let ports = [0x12u8, 0xb7, 0x00, 0x50];
            let normal = bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL;
            let mut request = Request::new(normal, 0)
                .spec(ETH, ETH_AT, [&eth, &eth_mask], ETH_SIZE)
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV4,
                    offset_of!(bindings::ib_flow_spec_ipv4, val),
                    [&four, &four_mask],
                    size_of::<bindings::ib_flow_spec_ipv4>(),
                )
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_UDP,
                    offset_of!(bindings::ib_flow_spec_tcp_udp, val),
                    [&ports, &[0xff; 4]],
                    size_of::<bindings::ib_flow_spec_tcp_udp>(),
                );
            let flow = from_err_ptr(verb!(
                device,
                create_flow(pair.as_raw(), request.as_raw(), null_mut())
            ))?;
            let ethernet = Fields {
                value: Ethernet {
                    destination: [1, 2, 3, 4, 5, 6],
                    source: [7, 8, 9, 10, 11, 12],
                    ether_type: 0x800,
                    vlan_tag: 0x6005,
                },
                mask: Ethernet {
                    destination: [0xff; 6],
                    source: [0xff; 6],
                    ether_type: 0xffff,
                    vlan_tag: 0xffff,
                },
            };
            let ipv4 = Fields {
                value: Ipv4 {
                    source: [10, 0, 0, 1],
                    destination: [10, 0, 0, 2],
                    protocol: 17,
                    tos: 3,
                    ttl: 4,
                    flags: 0,
                },
                mask: Ipv4 {
                    source: [0xff, 0xff, 0xff, 0],
                    destination: [0xff; 4],
                    protocol: 0xff,
                    ..Default::default()
                },
            };
            let udp = Fields {
                value: Ports {
                    source: 80,
                    destination: 4791,
                },
                mask: Ports {
                    source: 0xffff,
                    destination: 0xffff,
                },
            };
            let specs = [
                Some((Layer::Outer, Spec::Ethernet(ethernet))),
                Some((Layer::Outer, Spec::Ipv4(ipv4))),
                Some((Layer::Outer, Spec::Udp(udp))),
            ];
            assert_eq!(
                log.asked(),
                Some(Asked::Flow(number, Type::Normal, 7, false, specs))
            );
            // SAFETY: The flow was just created.
            unsafe {
                assert!((*flow).device == device.as_raw() && (*flow).qp == pair.as_raw());
            }
            to_result(verb!(device, destroy_flow(flow)))?;
            pair.end(device)?;
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn a_flow_can_look_into_tunnels() -> Result {
        with_device(|device, log| {
            let mut pair = Pair::new(device)?;
            let number = pair.number();
            let normal = bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL;
            let inner = bindings::ib_flow_spec_type_IB_FLOW_SPEC_INNER;
            let create = |request: &mut Request, pair: &mut Pair| -> Result<_> {
                from_err_ptr(verb!(
                    device,
                    create_flow(pair.as_raw(), request.as_raw(), null_mut())
                ))
            };
            let gre = [0x20u8, 0, 0x88, 0x47, 0, 0, 0, 7];
            let gre_mask = [0u8, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
            let mut request = Request::new(normal, 0)
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_GRE,
                    offset_of!(bindings::ib_flow_spec_gre, val),
                    [&gre, &gre_mask],
                    size_of::<bindings::ib_flow_spec_gre>(),
                )
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_MPLS,
                    offset_of!(bindings::ib_flow_spec_mpls, val),
                    [&[0, 1, 0x01, 64], &[0xff, 0xff, 0xf0, 0]],
                    size_of::<bindings::ib_flow_spec_mpls>(),
                )
                .spec(
                    inner | bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP,
                    offset_of!(bindings::ib_flow_spec_tcp_udp, val),
                    [&[0, 80, 0, 0], &[0xff, 0xff, 0, 0]],
                    size_of::<bindings::ib_flow_spec_tcp_udp>(),
                );
            let flow = create(&mut request, &mut pair)?;
            let gre = Spec::Gre(Fields {
                value: Gre {
                    flags: 0x2000,
                    protocol: 0x8847,
                    key: 7,
                },
                mask: Gre {
                    flags: 0,
                    protocol: 0xffff,
                    key: 0xffff_ffff,
                },
            });
            let mpls = Spec::Mpls(Fields {
                value: 0x0001_0140,
                mask: 0xffff_f000,
            });
            let tcp = Spec::Tcp(Fields {
                value: Ports {
                    source: 0,
                    destination: 80,
                },
                mask: Ports {
                    source: 0,
                    destination: 0xffff,
                },
            });
            let specs = [
                Some((Layer::Outer, gre)),
                Some((Layer::Outer, mpls)),
                Some((Layer::Inner, tcp)),
            ];
            assert_eq!(
                log.asked(),
                Some(Asked::Flow(number, Type::Normal, 7, false, specs))
            );
            to_result(verb!(device, destroy_flow(flow)))?;

            // The last tag counts, and actions are no headers.
            let tag = |request: Request, tag: u32| {
                request.spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_TAG,
                    offset_of!(bindings::ib_flow_spec_action_tag, tag_id),
                    [&tag.to_ne_bytes(), &[]],
                    size_of::<bindings::ib_flow_spec_action_tag>(),
                )
            };
            let mut request = tag(tag(Request::new(normal, 0), 5), 9)
                .spec(inner | ETH, ETH_AT, [&[0; 16], &[0; 16]], ETH_SIZE)
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_VXLAN_TUNNEL,
                    offset_of!(bindings::ib_flow_spec_tunnel, val),
                    [&[0, 1, 2, 3], &[0, 0xff, 0xff, 0xff]],
                    size_of::<bindings::ib_flow_spec_tunnel>(),
                );
            let flow = create(&mut request, &mut pair)?;
            assert_eq!(log.asked(), Some(Asked::FlowWithActions(9, false)));
            to_result(verb!(device, destroy_flow(flow)))?;
            let mut request = tag(Request::new(normal, 0), 3).spec(
                bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_DROP,
                0,
                [&[], &[]],
                size_of::<bindings::ib_flow_spec_action_drop>(),
            );
            let flow = create(&mut request, &mut pair)?;
            assert_eq!(log.asked(), Some(Asked::FlowWithActions(3, true)));
            to_result(verb!(device, destroy_flow(flow)))?;
            pair.end(device)
        })
    }

    #[test]
    fn a_flow_can_have_counters() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut pair = Pair::new(device)?;
            let before = log.objects();
            let mut memory = room!(device, ib_counters, Counters);
            let counters = memory.as_raw();
            to_result(verb!(device, create_counters(counters, null_mut())))?;
            // SAFETY: The counters were constructed.
            let number = unsafe { Counters::<Object>::from_raw(counters) }.number;
            let normal = bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL;
            let count = bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_COUNT;
            let at = offset_of!(bindings::ib_flow_spec_action_count, counters);
            let size = size_of::<bindings::ib_flow_spec_action_count>();
            let pointer = (counters as usize).to_ne_bytes();
            let with = |request: Request| request.spec(count, at, [&pointer, &[]], size);
            // An action is not a specification for the driver, wherever it is.
            let eth: [&[u8]; 2] = [&[0; 16], &[0; 16]];
            let mut request = with(Request::new(normal, 0)).spec(ETH, ETH_AT, eth, ETH_SIZE);
            let flow = from_err_ptr(verb!(
                device,
                create_flow(pair.as_raw(), request.as_raw(), null_mut())
            ))?;
            assert_eq!(log.asked(), Some(Asked::FlowWithCounters(number)));
            to_result(verb!(device, destroy_flow(flow)))?;
            // Nobody has several.
            let mut twice = with(with(Request::new(normal, 0)));
            let refused = from_err_ptr(verb!(
                device,
                create_flow(pair.as_raw(), twice.as_raw(), null_mut())
            ));
            assert_eq!(refused.err(), Some(EINVAL));

            let mut values = [0u64; 3];
            let mut read = bindings::ib_counters_read_attr {
                counters_buff: values.as_mut_ptr(),
                ncounters: 2,
                flags: 0,
            };
            to_result(verb!(
                device,
                read_counters(counters, &raw mut read, null_mut())
            ))?;
            let first = 100 * u64::from(number);
            assert_eq!(values, [first, first + 1, 0]);
            read.ncounters = 0;
            let nothing = verb!(device, read_counters(counters, &raw mut read, null_mut()));
            assert_eq!(to_result(nothing), Err(EINVAL));
            to_result(verb!(device, destroy_counters(counters)))?;
            assert_eq!(log.objects(), before);
            pair.end(device)?;
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn addresses_of_six_and_the_default_are_read() -> Result {
        with_device(|device, log| {
            let mut pair = Pair::new(device)?;
            let number = pair.number();
            let mut six = [0u8; 39];
            (six[0], six[31], six[34], six[36]) = (0xfe, 1, 0x12, 6);
            let all = bindings::ib_flow_attr_type_IB_FLOW_ATTR_ALL_DEFAULT;
            let continues = bindings::ib_flow_flags_IB_FLOW_ATTR_FLAGS_DONT_TRAP;
            // The second specification is not aligned to more than 4 bytes.
            let mut request = Request::new(all, continues)
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV6,
                    offset_of!(bindings::ib_flow_spec_ipv6, val),
                    [&six, &[0; 39]],
                    size_of::<bindings::ib_flow_spec_ipv6>(),
                )
                .spec(
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP,
                    offset_of!(bindings::ib_flow_spec_tcp_udp, val),
                    [&[0, 80, 0, 0], &[0; 4]],
                    size_of::<bindings::ib_flow_spec_tcp_udp>(),
                );
            let flow = from_err_ptr(verb!(
                device,
                create_flow(pair.as_raw(), request.as_raw(), null_mut())
            ))?;
            let mut value = Ipv6 {
                flow_label: 0x1200,
                next_header: 6,
                ..Default::default()
            };
            (value.source[0], value.destination[15]) = (0xfe, 1);
            let tcp = Ports {
                source: 0,
                destination: 80,
            };
            let six = Spec::Ipv6(Fields {
                value,
                mask: Ipv6::default(),
            });
            let tcp = Spec::Tcp(Fields {
                value: tcp,
                mask: Ports::default(),
            });
            let specs = [Some((Layer::Outer, six)), Some((Layer::Outer, tcp)), None];
            assert_eq!(
                log.asked(),
                Some(Asked::Flow(number, Type::AllDefault, 7, true, specs))
            );
            to_result(verb!(device, destroy_flow(flow)))?;
            pair.end(device)
        })
    }

    #[test]
    fn what_makes_no_sense_never_reaches_the_driver() -> Result {
        with_device(|device, log| {
            let mut pair = Pair::new(device)?;
            let others = log.objects();
            log.asked();
            let normal = bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL;
            let egress = bindings::ib_flow_flags_IB_FLOW_ATTR_FLAGS_EGRESS;
            let none: [&[u8]; 2] = [&[], &[]];
            let mut wrong_port = Request::new(normal, 0);
            wrong_port.put(
                offset_of!(bindings::ib_flow_attr, port),
                &9u32.to_ne_bytes(),
            );
            let cases = [
                (Request::new(9, 0), EINVAL),
                (Request::new(normal, egress), EOPNOTSUPP),
                (wrong_port, EINVAL),
                // A header of IPsec; an action of its own; a structure that is too short; one that
                // ends too early.
                (
                    Request::new(normal, 0).spec(
                        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ESP,
                        ETH_AT,
                        none,
                        24,
                    ),
                    EOPNOTSUPP,
                ),
                (
                    Request::new(normal, 0).spec(
                        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_HANDLE,
                        ETH_AT,
                        none,
                        16,
                    ),
                    EOPNOTSUPP,
                ),
                (
                    Request::new(normal, 0).spec(
                        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_TAG,
                        ETH_AT,
                        none,
                        8,
                    ),
                    EINVAL,
                ),
                (
                    Request::new(normal, 0).spec(
                        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_DROP,
                        ETH_AT,
                        none,
                        12,
                    ),
                    EINVAL,
                ),
                (
                    Request::new(normal, 0).spec(ETH, ETH_AT, none, ETH_SIZE - 4),
                    EINVAL,
                ),
                (Request::new(normal, 0).spec(ETH, ETH_AT, none, 0), EINVAL),
            ];
            for (mut request, expected) in cases {
                let flow = from_err_ptr(verb!(
                    device,
                    create_flow(pair.as_raw(), request.as_raw(), null_mut())
                ));
                assert_eq!(flow.err(), Some(expected));
            }
            assert!(log.asked().is_none());
            assert_eq!(log.objects(), others);
            pair.end(device)
        })
    }
}
