// SPDX-License-Identifier: GPL-2.0

//! Tests of ports.

use crate::testing::prelude::*;

#[kunit_tests(rdma_port)]
mod cases {
    use super::*;

    #[test]
    fn ports_are_what_their_driver_says() -> Result {
        with_device(|device, _| {
            assert!(device.ports().eq([Port::FIRST, second_port()?]));
            for port in device.ports() {
                let expected = port_attributes(port);
                let gids = GIDS[port.number() as usize - 1] as c_int;
                let mut raw = bindings::ib_port_attr::default();
                // SAFETY: The device is registered, and `raw` is writable.
                to_result(unsafe {
                    bindings::ib_query_port(device.as_raw(), port.number(), &mut raw)
                })?;
                assert_eq!(raw.state, bindings::ib_port_state_IB_PORT_ACTIVE);
                assert_eq!(
                    u32::from(raw.phys_state),
                    bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP
                );
                assert_eq!(
                    (raw.max_mtu, raw.active_mtu),
                    (Mtu::Mtu4096.raw(), Mtu::Mtu1024.raw())
                );
                assert_eq!(raw.active_width, expected.active_width);
                assert_eq!(raw.active_speed, expected.active_speed);
                assert_eq!((raw.pkey_tbl_len, raw.gid_tbl_len), (3, gids));
                assert_eq!(raw.max_msg_sz, expected.max_message_size);
                assert_eq!(raw.bad_pkey_cntr, expected.bad_pkey_count);
                assert_eq!(raw.qkey_viol_cntr, expected.qkey_violation_count);
                assert_eq!((raw.max_vl_num, raw.ip_gids()), (1, 1));

                // SAFETY: As above; there is data for each port.
                let immutable = unsafe {
                    let ports = (*device.as_raw()).port_data;
                    &(*ports.add(port.number() as usize)).immutable
                };
                assert_eq!((immutable.pkey_tbl_len, immutable.gid_tbl_len), (3, gids));
                assert_eq!(
                    immutable.core_cap_flags,
                    bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP
                );
                assert_eq!(immutable.max_mad_size, bindings::IB_MGMT_MAD_SIZE);

                let mut pkey = 0;
                // SAFETY: As above.
                to_result(unsafe {
                    bindings::ib_query_pkey(device.as_raw(), port.number(), 2, &mut pkey)
                })?;
                assert_eq!(u32::from(pkey), 0x8002 | port.number() << 8);
                // SAFETY: As above.
                let layer =
                    unsafe { bindings::rdma_port_get_link_layer(device.as_raw(), port.number()) };
                assert_eq!(layer, port_link_layer(port).raw());
            }
            // Ports 0 and beyond the last one do not exist in any call.
            for number in [0, PORTS + 1, u32::MAX] {
                let mut raw = bindings::ib_port_attr::default();
                let query = verb!(device, query_port(device.as_raw(), number, &mut raw));
                assert_eq!(to_result(query), Err(EINVAL));
            }
            Ok(())
        })
    }

    #[test]
    fn ports_that_are_not_there_have_no_events() -> Result {
        with_device(|device, log| {
            let told = |port| log.dispatcher.port_event(port, PortEvent::PkeyChange);
            assert!(device.ports().all(told));
            assert!(!told(Port::try_from(PORTS + 1)?) && !told(Port::try_from(u32::MAX)?));
            Ok(())
        })
    }

    #[test]
    fn a_device_has_ports_and_vectors() -> Result {
        assert_eq!(Objects::new(0).err(), Some(EINVAL));
        for ports in [0, u32::MAX] {
            let properties = Properties {
                ports,
                ..PROPERTIES
            };
            let device = UnregisteredDevice::<TestDriver>::new(&properties, Objects::new(1)?);
            assert_eq!(device.err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn a_port_follows_its_network_device() -> Result {
        let (_others, netdev) = (Ethernet::new(&[2, 0, 0, 0, 0, 9])?, Ethernet::new(&MAC)?);
        with_device(|device, log| {
            let followed = |netdev| {
                let expected = Some((Port::FIRST, netdev));
                wait_until(|| *log.followed.lock() == expected)
            };
            // SAFETY: The device is registered until after this is dropped.
            let events = unsafe { DeviceEvents::new(device.as_raw()) };
            let events = KBox::pin_init(events, GFP_KERNEL)?;
            let told = |count| wait_until(|| events.count() == count);

            assert_eq!(
                *log.followed.lock(),
                Some((Port::FIRST, Some((false, 1500))))
            );
            netdev.set_mtu(1000)?;
            followed(Some((false, 1000)))?;
            netdev.open()?;
            followed(Some((true, 1000)))?;
            told((1, 0))?;
            netdev.set_mtu(1400)?;
            followed(Some((true, 1400)))?;
            netdev.lose_carrier();
            followed(Some((false, 1400)))?;
            told((1, 1))?;

            drop(netdev);
            followed(None)?;
            let netdev = Ethernet::new(&MAC)?;
            followed(Some((false, 1500)))?;
            assert_eq!(events.count(), (1, 1));
            netdev.open()?;
            told((2, 1))?;
            drop(netdev);
            followed(None)?;
            told((2, 2))
        })
    }

    #[test]
    fn each_port_has_a_network_device_of_its_own() -> Result {
        let [first, second] = MACS;
        let (first, second) = (Ethernet::new(&first)?, Ethernet::new(&second)?);
        with_device(|device, log| {
            let of = |port| {
                // SAFETY: The device is registered.
                let netdev = unsafe { Netdev::of_port(device.as_raw(), port) };
                netdev.map(|netdev| netdev.as_raw())
            };
            assert_eq!(of(Port::FIRST), Some(first.as_raw()));
            assert_eq!(of(second_port()?), Some(second.as_raw()));
            second.set_mtu(1234)?;
            wait_until(|| *log.second_followed.lock() == Some((false, 1234)))?;
            assert_eq!(
                *log.followed.lock(),
                Some((Port::FIRST, Some((false, 1500))))
            );
            drop(first);
            wait_until(|| *log.followed.lock() == Some((Port::FIRST, None)))?;
            assert_eq!(of(second_port()?), Some(second.as_raw()));
            Ok(())
        })
    }

    #[test]
    fn a_subnet_gives_a_port_its_lid() -> Result {
        let mut attributes = port_attributes(Port::FIRST);
        attributes.has_ip_gids = false;
        attributes.subnet = Some(port::Subnet {
            lid: 0x1122,
            lid_mask_count: 3,
            manager_lid: 0x3344,
            manager_service_level: 5,
            timeout: 18,
            capabilities: 0x0001_0002,
            physical_state: 5,
            virtual_lanes: 4,
            init_type_reply: 6,
        });
        let mut raw = bindings::ib_port_attr::default();
        attributes.write(&Default::default(), &mut raw)?;
        assert_eq!((raw.lid, raw.lmc), (0x1122, 3));
        assert_eq!((raw.sm_lid, raw.sm_sl), (0x3344, 5));
        assert_eq!((raw.subnet_timeout, raw.ip_gids()), (18, 0));
        assert_eq!((raw.port_cap_flags, raw.phys_state), (0x0001_0002, 5));
        assert_eq!((raw.max_vl_num, raw.init_type_reply), (4, 6));
        Ok(())
    }

    #[test]
    fn users_change_what_software_does() -> Result {
        const MANAGER: u32 = bindings::ib_port_capability_mask_bits_IB_PORT_SM;
        const CM: u32 = bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;
        const RESET: u32 = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR;
        const SHUTDOWN: u32 = bindings::ib_port_modify_flags_IB_PORT_SHUTDOWN;

        let mut raw = bindings::ib_port_modify {
            set_port_cap_mask: MANAGER,
            clr_port_cap_mask: CM,
            ..Default::default()
        };
        let change = |reset_qkey_violations| PortChange {
            set_capabilities: MANAGER,
            clear_capabilities: CM,
            reset_qkey_violations,
        };
        // CAST: A set of bits that C keeps in an `int`.
        let taken = |mask: u32| PortChange::from_raw(mask as c_int, &raw);
        assert_eq!(taken(0), Ok(change(false)));
        assert_eq!(taken(RESET), Ok(change(true)));
        assert_eq!(taken(RESET | SHUTDOWN), Err(EOPNOTSUPP));

        // An Ethernet port has a connection manager; the driver is not called.
        with_device(|device, log| {
            log.asked();
            let raw = &raw mut raw;
            let modify = |raw: *mut bindings::ib_port_modify, port| -> Result {
                to_result(verb!(device, modify_port(device.as_raw(), port, 0, raw)))
            };
            assert_eq!(modify(raw, 1), Err(EOPNOTSUPP));
            // SAFETY: The structure is ours.
            unsafe { (*raw).set_port_cap_mask = 0 };
            assert_eq!(modify(raw, 1), Ok(()));
            assert_eq!(modify(raw, 3), Err(EINVAL));
            assert_eq!(log.asked(), None);
            Ok(())
        })
    }

    #[test]
    fn a_network_device_is_that_of_its_port() -> Result {
        with_device(|device, _| {
            let of = |port| {
                // SAFETY: The device is registered.
                unsafe { Netdev::of_port(device.as_raw(), port) }
            };
            let bind = |netdev| {
                // SAFETY: The device is registered, and the network device never goes away.
                to_result(unsafe { bindings::ib_device_set_netdev(device.as_raw(), netdev, 2) })
            };
            // SAFETY: Set when the kernel booted.
            let loopback = unsafe { bindings::init_net.loopback_dev };
            assert!(of(Port::FIRST).is_none() && of(second_port()?).is_none());
            bind(loopback)?;
            assert!(of(Port::FIRST).is_none());
            let netdev = of(second_port()?).ok_or(ENOENT)?;
            assert_eq!(netdev.mtu(), 65536);
            bind(null_mut())?;
            assert!(of(second_port()?).is_none());
            // The network device exists as long as there is a reference.
            assert_eq!(netdev.mtu(), 65536);
            Ok(())
        })
    }

    #[test]
    fn a_port_is_of_one_protocol_or_of_two() -> Result {
        let mut raw = bindings::ib_port_immutable::default();
        let mut immutable = port::Immutable {
            protocol: Protocol::RoceV1AndV2,
            pkey_table_length: 2,
            gid_table_length: 3,
            raw_packets: false,
        };
        immutable.write(&mut raw)?;
        assert_eq!((raw.pkey_tbl_len, raw.gid_tbl_len), (2, 3));
        let v2 = bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
        assert_eq!(raw.core_cap_flags, bindings::RDMA_CORE_PORT_IBA_ROCE | v2);
        immutable.protocol = Protocol::RoceV2;
        immutable.write(&mut raw)?;
        assert_eq!(raw.core_cap_flags, v2);
        assert_eq!(raw.max_mad_size, bindings::IB_MGMT_MAD_SIZE);
        immutable.raw_packets = true;
        immutable.write(&mut raw)?;
        assert_eq!(raw.core_cap_flags, v2 | bindings::RDMA_CORE_PORT_RAW_PACKET);
        immutable.raw_packets = false;
        immutable.protocol = Protocol::InfiniBand;
        immutable.write(&mut raw)?;
        assert_eq!(raw.core_cap_flags, bindings::RDMA_CORE_PORT_IBA_IB);
        immutable.protocol = Protocol::Unspecified;
        immutable.write(&mut raw)?;
        assert_eq!((raw.core_cap_flags, raw.max_mad_size), (0, 0));
        // Kinds of ports other than those of the test driver.
        assert_eq!(
            LinkLayer::InfiniBand.raw(),
            bindings::rdma_link_layer_IB_LINK_LAYER_INFINIBAND
        );
        Ok(())
    }

    #[test]
    fn tables_have_room_in_sysfs() {
        let write = |gid_table_length, pkey_table_length| {
            let immutable = port::Immutable {
                protocol: Protocol::RoceV2,
                pkey_table_length,
                gid_table_length,
                raw_packets: false,
            };
            immutable.write(&mut Default::default())
        };
        for (gids, pkeys) in [(1 << 14, 1 << 14), (1, 0x7fff), (0, 0x8000)] {
            assert_eq!(write(gids, pkeys), Ok(()));
        }
        for (gids, pkeys) in [
            ((1 << 14) + 1, 0),
            (1, 0x8000),
            (0, u16::MAX),
            (u32::MAX, u16::MAX),
        ] {
            assert_eq!(write(gids, pkeys), Err(EINVAL));
        }
    }

    #[test]
    fn a_port_that_is_down_has_no_link() -> Result {
        let mut attributes = port_attributes(Port::FIRST);
        for (state, raw_state, physical) in [
            (
                port::State::Down,
                bindings::ib_port_state_IB_PORT_DOWN,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
            ),
            (
                port::State::Init,
                bindings::ib_port_state_IB_PORT_INIT,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
            ),
        ] {
            let mut raw = bindings::ib_port_attr::default();
            attributes.state = state;
            attributes.write(&Default::default(), &mut raw)?;
            assert_eq!(
                (raw.state, u32::from(raw.phys_state)),
                (raw_state, physical)
            );
        }
        Ok(())
    }

    #[test]
    fn what_no_subnet_manager_gives_is_refused() {
        let mut attributes = port_attributes(Port::FIRST);
        let mut write = |subnet| {
            attributes.subnet = Some(subnet);
            attributes.write(&Default::default(), &mut Default::default())
        };
        let most = port::Subnet {
            lid_mask_count: 7,
            manager_service_level: 15,
            timeout: 31,
            ..Default::default()
        };
        assert_eq!(write(most), Ok(()));
        for wrong in [
            port::Subnet {
                lid_mask_count: 8,
                ..most
            },
            port::Subnet {
                manager_service_level: 16,
                ..most
            },
            port::Subnet {
                timeout: 32,
                ..most
            },
        ] {
            assert_eq!(write(wrong), Err(EINVAL));
        }
    }

    #[test]
    fn ports_count_from_one() {
        assert_eq!(Port::try_from(0).err(), Some(EINVAL));
        assert_eq!(Port::try_from(1), Ok(Port::FIRST));
        assert!(Mtu::try_from(0).is_err() && Mtu::try_from(6).is_err());
    }

    #[test]
    fn the_speed_of_a_port_is_that_of_its_lanes() -> Result {
        with_device(|device, _| {
            let speed = |port: Port| -> Result<u64> {
                let mut speed = u64::MAX;
                let raw = device.as_raw();
                to_result(verb!(
                    device,
                    query_port_speed(raw, port.number(), &mut speed)
                ))?;
                Ok(speed)
            };
            // In units of 100 Mb/s.
            assert_eq!(speed(Port::FIRST)?, 1000);
            // Without a link the speed is 0.
            let netdev = Ethernet::new(&MAC)?;
            wait_until(|| speed(Port::FIRST) == Ok(0))?;
            netdev.open()?;
            wait_until(|| speed(Port::FIRST) == Ok(1000))?;
            Ok(())
        })
    }
}
