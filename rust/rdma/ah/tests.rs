// SPDX-License-Identifier: GPL-2.0

//! Tests of address handles and paths.

use crate::testing::prelude::*;

#[kunit_tests(rdma_ah)]
mod cases {
    use super::*;
    use crate::ah::Context;

    const CREATE_MAY_SLEEP: u32 = bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE;
    const DESTROY_MAY_SLEEP: u32 = bindings::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE;

    #[test]
    fn handles_are_paths() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let mut theirs = new_handle(device, log, Some(process.call(14)?))?;
            assert_eq!(process.memory.read()?, !14);
            to_result(verb!(
                device,
                destroy_ah(theirs.as_raw(), DESTROY_MAY_SLEEP)
            ))?;
            assert_eq!(log.asked(), Some(Asked::HandleEnd(Context::MaySleep)));
            process.end(device)?;

            let mut ah = new_handle(device, log, None)?;
            let mut raw = bindings::rdma_ah_attr::default();
            to_result(verb!(device, query_ah(ah.as_raw(), &mut raw)))?;
            // SAFETY: The object was constructed.
            let number = unsafe { Ah::<Object>::from_raw(ah.as_raw()) }.number;
            assert_eq!(ah::Roce::from_raw(&raw)?.route.flow_label, number);

            // Address handles are for sends.
            let mut wr = bindings::ib_ud_wr {
                ah: ah.as_raw(),
                remote_qpn: 0x12_3456,
                remote_qkey: 0x789a_bcde,
                pkey_index: 0x1234,
                port_num: 99,
                ..Default::default()
            };
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut wr.wr.ex.imm_data) } =
                u32::from_ne_bytes([1, 2, 3, 4]);
            // The P_Key index is uninitialised in requests from processes.
            for (ty, opcode, with, index) in [
                (
                    qp::Type::UnreliableDatagram,
                    bindings::ib_wr_opcode_IB_WR_SEND,
                    None,
                    0,
                ),
                (
                    qp::Type::Gsi,
                    bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
                    Some(0x0102_0304),
                    0x1234,
                ),
            ] {
                wr.wr.opcode = opcode;
                // SAFETY: The request satisfies its operation's requirements, and does not change.
                let mut list = unsafe {
                    SendRequests::<TestDriver>::new(
                        (&raw const wr).cast(),
                        ty,
                        WorkQueue::unordered(Poster::new()),
                        true,
                    )
                };
                let request = list.take().ok_or(ENOENT)??;
                let &Operation::Datagram {
                    ah: handle,
                    remote_qpn,
                    remote_qkey,
                    pkey_index,
                    immediate,
                    segments: None,
                } = request.operation()
                else {
                    return Err(EINVAL);
                };
                assert_eq!(handle.number, number);
                assert_eq!((remote_qpn, remote_qkey), (0x12_3456, 0x789a_bcde));
                assert_eq!((pkey_index, immediate), (index, with));
            }
            to_result(verb!(device, destroy_ah(ah.as_raw(), 0)))?;
            assert_eq!(log.asked(), Some(Asked::HandleEnd(Context::Atomic)));
            Ok(())
        })
    }

    /// Creates an address handle for the process that makes `call`, with the request 14, or for the
    /// kernel, which must not sleep.
    fn new_handle(
        device: &Device<TestDriver>,
        log: &Log,
        call: Option<UserCall>,
    ) -> Result<CoreMemory<bindings::ib_ah>> {
        let path = ah::Roce {
            port: second_port()?,
            route: ah::GlobalRoute {
                dgid: Gid([9; 16]),
                flow_label: 0x5_4321,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut raw = bindings::rdma_ah_attr::default();
        path.write(&mut raw);
        let (flags, context) = match call {
            Some(_) => (CREATE_MAY_SLEEP, Context::MaySleep),
            None => (0, Context::Atomic),
        };
        let mut init = bindings::rdma_ah_init_attr {
            ah_attr: &mut raw,
            flags,
            ..Default::default()
        };
        let mut ah = room!(device, ib_ah, Ah);
        let request = call.is_some().then_some(14);
        let created = match call {
            Some(mut call) => {
                verb!(device, create_user_ah(ah.as_raw(), &mut init, call.udata()))
            }
            None => verb!(device, create_ah(ah.as_raw(), &mut init, null_mut())),
        };
        to_result(created)?;
        if log.asked() != Some(Asked::Handle(path, context, request)) {
            return Err(EINVAL);
        }
        Ok(ah)
    }

    #[test]
    fn a_path_survives_the_translation() -> Result {
        let mut raw = bindings::rdma_ah_attr::default();
        path().write(&mut raw);
        assert_eq!(ah::Roce::from_raw(&raw)?, path());

        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
        assert_eq!(ah::Roce::from_raw(&raw).err(), Some(EINVAL));

        let mut raw = bindings::rdma_ah_attr::default();
        path().write(&mut raw);
        raw.ah_flags = 0;
        assert_eq!(ah::Roce::from_raw(&raw).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn a_path_of_infiniband_may_have_a_route() -> Result {
        for route in [None, Some(path().route)] {
            let path = ah::InfiniBand {
                service_level: 6,
                port: second_port()?,
                dlid: 0x1234,
                source_path_bits: 5,
                static_rate: 3,
                route,
            };
            let mut raw = bindings::rdma_ah_attr::default();
            path.write(&mut raw);
            // SAFETY: The type says that this member of the union is valid.
            let ib = unsafe { crate::compat::member(&raw.__bindgen_anon_1.ib) };
            assert_eq!((ib.dlid, ib.src_path_bits), (0x1234, 5));
            assert_eq!((raw.static_rate, raw.sl, raw.port_num), (3, 6, 2));
            let has_route = u32::from(raw.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0;
            assert_eq!(has_route, route.is_some());
            assert_eq!(ah::InfiniBand::from_raw(&raw)?, path);
            assert_eq!(ah::Any::from_raw(&raw)?, ah::Any::InfiniBand(path));
            assert_eq!(ah::Roce::from_raw(&raw).err(), Some(EINVAL));
            assert_eq!(ah::Unspecified::from_raw(&raw).err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn a_path_is_of_the_kind_that_ports_have() -> Result {
        let mut raw = bindings::rdma_ah_attr::default();
        ah::Any::Roce(path()).write(&mut raw);
        assert_eq!(ah::Any::from_raw(&raw)?, ah::Any::Roce(path()));
        assert_eq!(ah::InfiniBand::from_raw(&raw).err(), Some(EINVAL));

        let unspecified = ah::Unspecified {
            service_level: 1,
            port: second_port()?,
            route: path().route,
        };
        let mut raw = bindings::rdma_ah_attr::default();
        unspecified.write(&mut raw);
        assert_eq!(ah::Unspecified::from_raw(&raw)?, unspecified);
        assert_eq!(ah::Any::from_raw(&raw).err(), Some(EINVAL));
        raw.ah_flags = 0;
        assert_eq!(ah::Unspecified::from_raw(&raw).err(), Some(EINVAL));

        // Omni-Path is neither.
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_OPA;
        assert_eq!(ah::Any::from_raw(&raw).err(), Some(EINVAL));
        assert_eq!(ah::Unspecified::from_raw(&raw).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn a_handle_is_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let mut attributes = bindings::rdma_ah_attr::default();
            path().write(&mut attributes);
            let mut init = bindings::rdma_ah_init_attr {
                ah_attr: &mut attributes,
                ..Default::default()
            };
            let mut ah = room!(device, ib_ah, Ah);
            let raw = ah.as_raw();
            to_result(verb!(device, create_ah(raw, &mut init, null_mut())))?;
            assert!(fills(|attr| to_result(verb!(device, query_ah(raw, attr))))?);
            to_result(verb!(device, destroy_ah(raw, 0)))
        })
    }
}
