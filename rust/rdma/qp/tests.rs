// SPDX-License-Identifier: GPL-2.0

//! Tests of queue pairs.

use super::{
    CreationFlag,
    CreationFlags, //
};
use crate::testing::prelude::*;

#[kunit_tests(rdma_qp)]
mod cases {
    use super::*;

    #[test]
    fn queue_pairs_get_what_was_asked_for() -> Result {
        with_device(|device, log| {
            let (mut send_cq, mut recv_cq) = (Queue::new(device, 1, 0)?, Queue::new(device, 1, 0)?);
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            init.qp_type = bindings::ib_qp_type_IB_QPT_UD;
            init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
            init.send_cq = send_cq.0.as_raw();
            init.recv_cq = recv_cq.0.as_raw();
            init.srq = srq.as_raw();
            init.cap = bindings::ib_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 2,
                max_send_sge: 3,
                max_recv_sge: 4,
                max_inline_data: 5,
                max_rdma_ctxs: 6,
            };
            let mut qp = room!(device, ib_qp, Qp);
            // SAFETY: The core sets these members, too.
            unsafe {
                (*qp.as_raw()).pd = pd.0;
                (*qp.as_raw()).send_cq = init.send_cq;
                (*qp.as_raw()).recv_cq = init.recv_cq;
            }
            let mut create = |init: *mut _| -> Result {
                to_result(verb!(device, create_qp(qp.as_raw(), init, null_mut())))
            };
            create(&raw mut *init)?;
            // SAFETY: The object was constructed.
            let srq_number = unsafe { Srq::<Object>::from_raw(srq.as_raw()) }.number;
            let expected = Asked::QueuePair {
                ty: qp::Type::UnreliableDatagram,
                capabilities: QpCap {
                    max_send_wr: 1,
                    max_recv_wr: 2,
                    max_send_sge: 3,
                    max_recv_sge: 4,
                    max_inline_data: 5,
                },
                signal_all: false,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                srq: Some(srq_number),
                flags: Default::default(),
                request: None,
            };
            assert_eq!(log.asked(), Some(expected));
            // The actual sizes are reported; other members stay unchanged.
            let told = &init.cap;
            assert_eq!((told.max_send_wr, told.max_recv_wr), (11, 12));
            assert_eq!((told.max_send_sge, told.max_recv_sge), (13, 14));
            assert_eq!((told.max_inline_data, told.max_rdma_ctxs), (15, 6));
            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;

            // The core has room for a number of 24 bits.
            let objects = log.objects();
            let next = log.next.swap(1 << 24, SeqCst);
            let raw = qp.as_raw();
            let create = |init: *mut _| -> Result {
                to_result(verb!(device, create_qp(raw, init, null_mut())))
            };
            assert_eq!(create(&raw mut *init), Err(EIO));
            assert_eq!(log.objects(), objects);
            log.next.store(next, SeqCst);

            // Users divide by the sizes that they asked for.
            let asked = init.cap.max_send_sge;
            init.cap.max_send_sge = CAPABILITIES.max_send_sge + 1;
            assert_eq!(create(&raw mut *init), Err(EIO));
            assert_eq!(log.objects(), objects);
            init.cap.max_send_sge = asked;
            let (asked, sends) = (init.cap.max_inline_data, init.cap.max_send_wr);
            init.cap.max_inline_data = CAPABILITIES.max_inline_data + 1;
            assert_eq!(create(&raw mut *init), Err(EIO));
            assert_eq!(log.objects(), objects);
            // Without sends, there is no inline data.
            init.cap.max_send_wr = 0;
            create(&raw mut *init)?;
            to_result(verb!(device, destroy_qp(raw, null_mut())))?;
            (init.cap.max_inline_data, init.cap.max_send_wr) = (asked, sends);

            // Flags without a name are rejected before the driver is called.
            log.asked();
            init.create_flags = bindings::ib_qp_create_flags_IB_QP_CREATE_NETDEV_USE.unsigned_abs();
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            // Segments are for datagrams, and no other flag is known.
            let segments = bindings::ib_qp_create_flags_IB_QP_CREATE_IPOIB_UD_LSO.unsigned_abs();
            init.create_flags |= segments;
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            init.create_flags = segments;
            init.qp_type = bindings::ib_qp_type_IB_QPT_RC;
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);
            init.qp_type = bindings::ib_qp_type_IB_QPT_UD;
            // Tags are for raw packets.
            init.create_flags = CreationFlag::StripVlan as u32;
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);
            init.create_flags = 0;
            init.qp_type = bindings::ib_qp_type_IB_QPT_RAW_PACKET;
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            init.qp_type = bindings::ib_qp_type_IB_QPT_UD;
            init.recv_cq = null_mut();
            assert_eq!(create(&raw mut *init), Err(EINVAL));
            assert_eq!(log.asked(), None);

            init.recv_cq = recv_cq.0.as_raw();
            let both = CreationFlag::Segments | CreationFlag::BlockOwnMulticast;
            init.create_flags = both.into();
            create(&raw mut *init)?;
            let Some(Asked::QueuePair { flags, .. }) = log.asked() else {
                return Err(EINVAL);
            };
            assert_eq!(flags, both);
            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;

            to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))?;
            send_cq.end(device)?;
            recv_cq.end(device)
        })
    }

    #[test]
    fn creation_flags_are_for_a_type_and_a_driver() {
        use CreationFlag::{
            BlockOwnMulticast,
            Integrity,
            ScatterFcs,
            Segments,
            StripVlan, //
        };

        let ud = bindings::ib_qp_type_IB_QPT_UD;
        let raw = bindings::ib_qp_type_IB_QPT_RAW_PACKET;
        let rc = bindings::ib_qp_type_IB_QPT_RC;
        let all = &[
            Integrity,
            Segments,
            BlockOwnMulticast,
            ScatterFcs,
            StripVlan,
        ];
        let of = |flag: CreationFlag, ty, of_process| {
            CreationFlags::from_raw(flag as u32, ty, of_process, all)
        };
        for (flag, ty, of_process, is_known) in [
            (Integrity, rc, false, true),
            (Integrity, rc, true, false),
            (Integrity, ud, false, false),
            (Segments, ud, false, true),
            (Segments, ud, true, false),
            (Segments, raw, false, false),
            (BlockOwnMulticast, ud, true, true),
            (BlockOwnMulticast, ud, false, true),
            (BlockOwnMulticast, raw, true, false),
            (BlockOwnMulticast, rc, true, false),
            (ScatterFcs, raw, true, true),
            (ScatterFcs, ud, true, false),
            (StripVlan, raw, true, true),
            (StripVlan, rc, true, false),
        ] {
            let expected = match is_known {
                true => Ok(flag.into()),
                false => Err(EOPNOTSUPP),
            };
            assert_eq!(of(flag, ty, of_process), expected);
        }
        let both = ScatterFcs as u32 | StripVlan as u32;
        let known = CreationFlags::from_raw(both, raw, true, all);
        assert_eq!(known, Ok(ScatterFcs | StripVlan));
        let one = CreationFlags::from_raw(both, raw, true, &[StripVlan]);
        assert_eq!(one, Err(EOPNOTSUPP));
        let padding = bindings::ib_qp_create_flags_IB_QP_CREATE_PCI_WRITE_END_PADDING;
        let unknown = CreationFlags::from_raw(padding.unsigned_abs(), raw, true, all);
        assert_eq!(unknown, Err(EOPNOTSUPP));
    }

    #[test]
    fn queue_pairs_change_and_are_asked() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut attr = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            attr.qp_state = bindings::ib_qp_state_IB_QPS_INIT;
            attr.port_num = 2;
            let mask = qp::Attribute::State | qp::Attribute::Port;
            let mut call = |mask: c_int| -> Result {
                to_result(verb!(
                    device,
                    modify_qp(raw, &raw mut *attr, mask, null_mut())
                ))
            };
            call(mask.bits() as c_int)?;
            let attributes = QpAttr {
                state: qp::State::Init,
                port: second_port()?,
                ..Default::default()
            };
            assert_eq!(log.asked(), Some(Asked::Modify(mask, attributes)));
            assert_eq!(call(1 << 22), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);

            to_result(verb!(
                device,
                query_qp(raw, &raw mut *attr, 0, &raw mut *init)
            ))?;
            assert_eq!(attr.dest_qp_num, qp.number());
            for told in [&attr.cap, &init.cap] {
                assert_eq!(told.max_send_wr, CAPABILITIES.max_send_wr);
                assert_eq!(told.max_inline_data, CAPABILITIES.max_inline_data);
            }
            assert_eq!(init.qp_type, bindings::ib_qp_type_IB_QPT_RC);
            assert_eq!(init.sq_sig_type, bindings::ib_sig_type_IB_SIGNAL_ALL_WR);
            // SAFETY: The queue pair is ours.
            let (send_cq, recv_cq) = unsafe { ((*raw).send_cq, (*raw).recv_cq) };
            assert_eq!((init.send_cq, init.recv_cq), (send_cq, recv_cq));
            assert_eq!((init.srq, init.port_num), (null_mut(), 2));

            let mut gid = bindings::ib_gid::default();
            // SAFETY: All members of the union are plain bytes.
            let bytes = unsafe { crate::compat::member_mut(&mut gid.raw) };
            bytes[15] = 5;
            let group = qp::MulticastGroup {
                gid: Gid::from_raw(&gid),
                lid: 0xc001,
            };
            to_result(verb!(device, attach_mcast(raw, &mut gid, 0xc001)))?;
            assert_eq!(log.asked(), Some(Asked::Attach(group)));
            to_result(verb!(device, detach_mcast(raw, &mut gid, 0xc001)))?;
            assert_eq!(log.asked(), Some(Asked::Detach(group)));
            qp.end(device)
        })
    }

    #[test]
    fn only_the_kernel_sends_memory_of_the_kernel() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let wr = bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                send_flags: bindings::ib_send_flags_IB_SEND_INLINE,
                ..Default::default()
            };
            let mut bad = ptr::null();
            let post =
                |qp: *mut bindings::ib_qp, bad: &mut *const bindings::ib_send_wr| -> Result {
                    to_result(verb!(device, post_send(qp, &raw const wr, bad)))
                };
            log.asked();
            post(raw, &mut bad)?;
            assert_eq!(log.asked(), Some(Asked::Send(1, 0)));
            // A queue pair of a process has the core's object of that process, which is not
            // accessed here.
            // SAFETY: The queue pair is ours.
            unsafe { (*raw).uobject = core::ptr::dangling_mut() };
            assert_eq!(post(raw, &mut bad), Err(EINVAL));
            assert_eq!(bad, &raw const wr);
            assert_eq!(log.asked(), None);
            // SAFETY: As above.
            unsafe { (*raw).uobject = null_mut() };
            qp.end(device)
        })
    }

    #[test]
    fn an_alternate_path_is_taken_over_and_told() -> Result {
        let path = ah::Roce {
            service_level: 3,
            dmac: [1, 2, 3, 4, 5, 6],
            ..Default::default()
        };
        let mut raw = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
        path.write(&mut raw.alt_ah_attr);
        (raw.alt_pkey_index, raw.alt_port_num, raw.alt_timeout) = (4, 2, 17);
        raw.path_mig_state = bindings::ib_mig_state_IB_MIG_REARM;
        let mask = qp::Attribute::AlternatePath | qp::Attribute::PathMigrationState;
        let attributes = QpAttr::from_raw(&raw, mask)?;
        let expected = QpAttr {
            alternate: Some(qp::AlternatePath {
                path,
                pkey_index: 4,
                port: second_port()?,
                timeout: 17,
            }),
            migration: qp::Migration::Rearm,
            ..Default::default()
        };
        assert_eq!(attributes, expected);

        let mut told = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
        attributes.write(&mut told);
        assert_eq!(ah::Roce::from_raw(&told.alt_ah_attr)?, path);
        assert_eq!((told.alt_pkey_index, told.alt_port_num), (4, 2));
        assert_eq!(told.alt_timeout, 17);
        assert_eq!(told.path_mig_state, bindings::ib_mig_state_IB_MIG_REARM);

        // What is not meant is not looked at, and what has no name is refused.
        raw.path_mig_state = bindings::ib_mig_state_IB_MIG_ARMED + 1;
        assert_eq!(QpAttr::<ah::Roce>::from_raw(&raw, mask), Err(EINVAL));
        raw.path_mig_state = bindings::ib_mig_state_IB_MIG_ARMED;
        raw.alt_port_num = 0;
        assert_eq!(QpAttr::<ah::Roce>::from_raw(&raw, mask), Err(EINVAL));
        let others = qp::Attribute::State | qp::Attribute::Qkey;
        let nothing = QpAttr::<ah::Roce>::from_raw(&raw, others)?;
        assert_eq!(nothing, QpAttr::default());
        let mut told = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
        nothing.write(&mut told);
        assert_eq!((told.alt_ah_attr.port_num, told.alt_port_num), (0, 0));
        Ok(())
    }

    #[test]
    fn attributes_of_a_queue_pair_survive_the_translation() -> Result {
        let attributes = QpAttr {
            state: State::ReadyToSend,
            current_state: State::ReadyToReceive,
            path_mtu: Mtu::Mtu4096,
            qkey: 0x1111_1111,
            rq_psn: 1,
            sq_psn: 2,
            dest_qpn: 3,
            access: Access::RemoteRead.into(),
            pkey_index: 0,
            port: Port::FIRST,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 5,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 6,
            drain_notify: true,
            draining: false,
            path: path(),
            alternate: Some(qp::AlternatePath {
                path: path(),
                pkey_index: 7,
                port: Port::FIRST,
                timeout: 15,
            }),
            migration: qp::Migration::Rearm,
            rate_limit: 1234,
        };
        // Too large for the stack, in addition to the rest of the test.
        let mut raw = boxed::<bindings::ib_qp_attr>()?;
        attributes.write(&mut raw);

        let all = mask(0x1f_ffff | Attribute::RateLimit as c_int)?;
        assert_eq!(QpAttr::<ah::Roce>::from_raw(&raw, all)?, attributes);

        // Attributes that are not in the mask are ignored.
        raw.qp_state = 77;
        raw.qkey = 99;
        let some = QpAttr::<ah::Roce>::from_raw(&raw, mask(1 << 20)?)?;
        assert_eq!((some.dest_qpn, some.qkey, some.state), (3, 0, State::Reset));
        assert_eq!(
            QpAttr::<ah::Roce>::from_raw(&raw, mask(1)?).err(),
            Some(EINVAL)
        );
        Ok(())
    }

    fn mask(raw: c_int) -> Result<AttributeMask> {
        AttributeMask::from_raw(raw)
    }

    #[test]
    fn masks_are_numbered_as_in_c() -> Result {
        assert_eq!(
            Attribute::State as u32,
            bindings::ib_qp_attr_mask_IB_QP_STATE
        );
        assert_eq!(Attribute::Path as u32, bindings::ib_qp_attr_mask_IB_QP_AV);
        assert_eq!(
            Attribute::SqPsn as u32,
            bindings::ib_qp_attr_mask_IB_QP_SQ_PSN
        );
        assert_eq!(
            Attribute::DestQpn as u32,
            bindings::ib_qp_attr_mask_IB_QP_DEST_QPN
        );
        assert_eq!(
            Attribute::RateLimit as u32,
            bindings::ib_qp_attr_mask_IB_QP_RATE_LIMIT
        );
        assert_eq!(mask(1 << 22).err(), Some(EOPNOTSUPP));
        assert_eq!(
            SendFlag::Fence as c_int,
            bindings::ib_send_flags_IB_SEND_FENCE
        );
        assert_eq!(
            SendFlag::Inline as c_int,
            bindings::ib_send_flags_IB_SEND_INLINE
        );
        Ok(())
    }

    #[test]
    fn the_core_judges_transitions() -> Result {
        let init = Attribute::State | Attribute::PkeyIndex | Attribute::Port | Attribute::Access;
        let rc = Type::ReliableConnection;
        assert!(qp::modify_is_ok(State::Reset, State::Init, rc, init));
        assert!(!qp::modify_is_ok(
            State::Reset,
            State::ReadyToSend,
            rc,
            init
        ));
        assert!(!qp::modify_is_ok(
            State::Reset,
            State::Init,
            Type::UnreliableDatagram,
            init
        ));
        assert!(qp::modify_is_ok(
            State::ReadyToSend,
            State::Error,
            rc,
            Attribute::State.into()
        ));
        Ok(())
    }

    #[test]
    fn a_queue_pair_is_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            let mut attr = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
            let (init, attr) = (&raw mut *init, &raw mut *attr);
            assert!(fills(|attr| to_result(verb!(
                device,
                query_qp(raw, attr, 0, init)
            )))?);
            assert!(fills(|init| to_result(verb!(
                device,
                query_qp(raw, attr, 0, init)
            )))?);
            qp.end(device)
        })
    }
}
