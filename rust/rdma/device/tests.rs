// SPDX-License-Identifier: GPL-2.0

//! Tests of devices.

use crate::testing::{
    device::DmaDevice,
    prelude::*, //
};

#[kunit_tests(rdma_device)]
mod cases {
    use super::*;
    use crate::device::{
        Operations,
        Registration, //
    };
    use kernel::sync::aref::ARef;

    #[test]
    fn a_device_is_what_its_driver_says() -> Result {
        with_device(|device, _| {
            // SAFETY: The device is registered.
            let raw = unsafe { &*device.as_raw() };
            assert_eq!(
                (raw.phys_port_cnt, raw.num_comp_vectors),
                (PORTS, VECTORS as c_int)
            );
            assert_eq!(
                raw.node_guid.to_ne_bytes(),
                PROPERTIES.node_guid.to_be_bytes()
            );
            assert_eq!(u32::from(raw.node_type), bindings::RDMA_NODE_IB_CA);
            assert_eq!(Some(raw.local_dma_lkey), PROPERTIES.local_dma_key);
            // SAFETY: The core requires the DMA device to have DMA parameters.
            let dma = unsafe { &*(*raw.dma_device).dma_parms };
            assert_eq!(dma.max_segment_size, u32::MAX);
            assert_eq!((raw.ops.driver_id, raw.ops.uverbs_abi_ver), (201, 202));
            assert_eq!(raw.ops.uverbs_robust_udata(), 1);
            let posts = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
                | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV;
            assert_eq!(raw.uverbs_cmd_mask & posts, posts);
            assert!(raw.ops.counter_bind_qp.is_some() && raw.ops.post_srq_recv.is_some());
            Ok(())
        })
    }

    #[test]
    fn a_failure_during_registration_is_reported_after_it() -> Result {
        let dma_device = DmaDevice::new()?;
        let objects = Objects::new(VECTORS)?;
        let log = Log::new(objects.dispatcher().clone())?;
        log.fails.store(true, SeqCst);
        let device = UnregisteredDevice::<TestDriver>::new(&PROPERTIES, objects)?;
        // SAFETY: Just allocated.
        let held = ARef::from(unsafe { device.raw.as_ref() });
        // Users may have the device before the registration has ended.
        // SAFETY: The device is not freed before `held` is dropped.
        let events = unsafe { DeviceEvents::new(held.as_raw()) };
        let events = KBox::pin_init(events, GFP_KERNEL)?;
        let (parent, data) = (dma_device.device(), log.clone());
        // SAFETY: The registration is dropped when the test ends.
        let _registration = unsafe { Registration::new(device, c"rdma-test%d", parent, data) }?;
        assert!(!log.fails.load(SeqCst));
        wait_until(|| events.fatal.load(SeqCst) == 1)
    }

    #[test]
    fn a_name_is_no_format() {
        for name in [c"rdma0", c"rdma%d", c"%d", c"a%d-rdma"] {
            assert!(crate::device::is_name(name));
        }
        for name in [c"%s", c"rdma%", c"rdma%d%d", c"rdma%%", c"%d%s", c"%5d"] {
            assert!(!crate::device::is_name(name));
        }
    }

    #[test]
    fn the_kernel_divides_by_limits() -> Result {
        with_device(|device, _| {
            // SAFETY: The device is registered.
            let attributes = unsafe { device.with(TestDriver::query_device) }?;
            assert!(attributes.serves_kernel());
            for change in [
                |attributes: &mut DeviceAttr| attributes.max_send_sge = 0,
                |attributes: &mut DeviceAttr| attributes.max_sge_rd = 0,
            ] {
                let mut other = attributes;
                change(&mut other);
                assert!(!other.serves_kernel());
            }
            // A device need not have fast registration, and users divide all the same.
            let mut other = attributes;
            other.max_fast_registration_pages = 0;
            assert!(other.serves_kernel());
            let mut raw = bindings::ib_device_attr::default();
            other.write(&mut raw);
            assert_eq!(raw.max_fast_reg_page_list_len, 1);
            Ok(())
        })
    }

    #[test]
    fn attributes_of_a_device_have_their_places() -> Result {
        with_device(|device, _| {
            // SAFETY: The device is registered, and its attributes do not change.
            let raw = unsafe { &(*device.as_raw()).attrs };
            assert_eq!(
                (raw.fw_ver, raw.max_mr_size, raw.page_size_cap),
                (0x1_0002_0003, 104, 105)
            );
            assert_eq!(raw.sys_image_guid.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(
                (raw.vendor_id, raw.vendor_part_id, raw.hw_ver),
                (101, 102, 103)
            );
            assert_eq!(raw.device_cap_flags, 1 << 12 | 1 << 40);
            assert_eq!((raw.max_qp, raw.max_qp_wr), (106, 107));
            assert_eq!(
                (raw.max_send_sge, raw.max_recv_sge, raw.max_sge_rd),
                (108, 109, 110)
            );
            assert_eq!((raw.max_cq, raw.max_cqe), (111, 112));
            assert_eq!(raw.cq_caps.max_cq_moderation_count, 113);
            assert_eq!(raw.cq_caps.max_cq_moderation_period, 114);
            assert_eq!(
                (raw.max_srq, raw.max_srq_wr, raw.max_srq_sge),
                (115, 116, 117)
            );
            assert_eq!((raw.max_mcast_grp, raw.max_mcast_qp_attach), (118, 119));
            assert_eq!((raw.max_total_mcast_qp_attach, raw.max_mr), (120, 121));
            assert_eq!((raw.max_fast_reg_page_list_len, raw.max_mw), (122, 123));
            assert_eq!((raw.max_pd, raw.max_ah), (124, 125));
            assert_eq!((raw.max_qp_rd_atom, raw.max_qp_init_rd_atom), (126, 127));
            assert_eq!((raw.max_res_rd_atom, raw.max_pkeys), (128, 129));
            assert_eq!(raw.atomic_cap, bindings::ib_atomic_cap_IB_ATOMIC_GLOB);
            assert_eq!((raw.local_ca_ack_delay, raw.timestamp_mask), (30, 131));
            assert_eq!(raw.hca_core_clock, 132);
            assert_eq!(raw.max_dm_size, 133);

            assert_eq!(raw.max_pi_fast_reg_page_list_len, 134);
            // All types of protection, and both guards.
            assert_eq!((raw.sig_prot_cap, raw.sig_guard_cap), (7, 3));

            let flags = bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY
                | bindings::ib_kernel_cap_flags_IBK_INTEGRITY_HANDOVER
                | bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING
                | bindings::ib_kernel_cap_flags_IBK_UD_TSO
                | bindings::ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK;
            assert_eq!(raw.kernel_cap_flags, u64::from(flags));
            assert_eq!(
                raw.raw_packet_caps,
                bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_CVLAN_STRIPPING
            );
            let paging = &raw.odp_caps;
            assert_eq!(
                paging.general_caps,
                u64::from(
                    bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT
                        | bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT
                )
            );
            assert_eq!(
                paging.per_transport_caps.rc_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND
                    | bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH
            );
            assert_eq!(
                paging.per_transport_caps.uc_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE
            );
            assert_eq!(
                paging.per_transport_caps.ud_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV
            );
            assert_eq!(
                paging.per_transport_caps.xrc_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ
            );
            Ok(())
        })
    }

    #[test]
    fn the_version_of_the_firmware_is_cut_off() -> Result {
        with_device(|device, _| {
            const ROOM: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;

            let mut text = [0xff_u8; ROOM + 1];
            // SAFETY: The buffer is long enough.
            unsafe {
                bindings::ib_get_device_fw_str(device.as_raw(), text.as_mut_ptr().cast());
            }
            assert_eq!(&text[..ROOM - 1], &FIRMWARE.as_bytes()[..ROOM - 1]);
            assert_eq!(text[ROOM - 1..], [0, 0xff]);
            Ok(())
        })
    }

    #[test]
    fn capabilities_are_numbered_as_in_c() {
        // CAST: bindgen chooses the type of the constants by their values.
        for (ours, theirs) in [
            (
                Capability::RcRnrNak,
                bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64,
            ),
            (
                Capability::MemoryWindow,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64,
            ),
            (
                Capability::UdIpChecksum,
                bindings::ib_device_cap_flags_IB_DEVICE_UD_IP_CSUM as u64,
            ),
            (
                Capability::RawIpChecksum,
                bindings::ib_device_cap_flags_IB_DEVICE_RAW_IP_CSUM as u64,
            ),
            (
                Capability::RawScatterFcs,
                bindings::ib_device_cap_flags_IB_DEVICE_RAW_SCATTER_FCS as u64,
            ),
            (
                Capability::MemoryExtensions,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64,
            ),
            (
                Capability::MemoryWindowType2B,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64,
            ),
        ] {
            assert_eq!(ours as u64, theirs);
        }
    }

    #[test]
    fn capabilities_for_raw_packets_are_in_both_places() {
        for (capability, expected) in [
            (
                Capability::RawIpChecksum,
                bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_IP_CSUM,
            ),
            (
                Capability::RawScatterFcs,
                bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_SCATTER_FCS,
            ),
            (Capability::UdIpChecksum, 0),
        ] {
            let mut raw = bindings::ib_device_attr::default();
            DeviceAttr {
                capabilities: capability.into(),
                strips_vlan: false,
                ..crate::testing::driver::attributes()
            }
            .write(&mut raw);
            assert_eq!(raw.device_cap_flags, capability as u64);
            assert_eq!(raw.raw_packet_caps, expected);
        }
    }

    #[test]
    fn a_device_need_not_page_nor_be_atomic() {
        for (atomicity, raw_atomicity) in [
            (Atomicity::None, bindings::ib_atomic_cap_IB_ATOMIC_NONE),
            (Atomicity::Device, bindings::ib_atomic_cap_IB_ATOMIC_HCA),
        ] {
            let mut raw = bindings::ib_device_attr::default();
            DeviceAttr {
                atomicity,
                on_demand_paging: OnDemandPaging::default(),
                ud_segmentation: false,
                blocks_own_multicast: false,
                strips_vlan: false,
                receive_scaling: Default::default(),
                max_integrity_pieces: 0,
                ..crate::testing::driver::attributes()
            }
            .write(&mut raw);
            assert_eq!(raw.atomic_cap, raw_atomicity);
            assert_eq!((raw.kernel_cap_flags, raw.odp_caps.general_caps), (0, 0));
            assert_eq!((raw.sig_prot_cap, raw.sig_guard_cap), (0, 0));
        }
    }

    /// Returns the node description.
    fn description(device: &Device<TestDriver>) -> Result<[u8; 64]> {
        // SAFETY: The device is valid, and its description does not change now.
        Ok(unsafe { (*device.as_raw()).node_desc })
    }

    #[test]
    fn ports_without_agents_are_not_asked() -> Result {
        for answers_management in [false, true] {
            let properties = Properties {
                answers_management,
                ..PROPERTIES
            };
            let device = UnregisteredDevice::<TestDriver>::new(&properties, Objects::new(1)?)?;
            // SAFETY: The device is valid, and its operations do not change.
            let ops = unsafe { &(*device.as_raw()).ops };
            // With it, `sysfs` has counters that somebody must answer for.
            assert_eq!(ops.process_mad.is_some(), answers_management);
        }
        Ok(())
    }

    #[test]
    fn a_node_may_be_described_anew() -> Result {
        with_device(|device, _| {
            let text = PROPERTIES.node_description.to_bytes();
            assert!(description(device)?.starts_with(text));

            let mut change = bindings::ib_device_modify::default();
            change.node_desc[0] = b'x' as c_char;
            let flag = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC as c_int;
            let guid = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_SYS_IMAGE_GUID as c_int;
            let modify = |mask, change: &mut _| -> Result<c_int> {
                Ok(verb!(device, modify_device(device.as_raw(), mask, change)))
            };
            assert_eq!(modify(flag | guid, &mut change)?, EOPNOTSUPP.to_errno());
            assert_eq!(modify(0, &mut change)?, 0);
            assert!(description(device)?.starts_with(text));
            assert_eq!(modify(flag, &mut change)?, 0);
            assert!(description(device)?.starts_with(b"x\0"));
            Ok(())
        })
    }

    #[test]
    fn a_device_and_its_ports_are_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let raw = device.as_raw();
            let mut call = UserCall::new(&ProcessMemory::new(1)?, 0, null_mut())?;
            let udata = call.udata();
            assert!(fills(|attr| to_result(verb!(
                device,
                query_device(raw, attr, udata)
            )))?);
            assert!(fills(|attr| to_result(verb!(
                device,
                query_port(raw, 1, attr)
            )))?);
            assert!(fills(|port| to_result(verb!(
                device,
                get_port_immutable(raw, 1, port)
            )))?);
            assert!(fills(|pkey| to_result(verb!(
                device,
                query_pkey(raw, 1, 0, pkey)
            )))?);
            Ok(())
        })
    }
}
