// SPDX-License-Identifier: GPL-2.0

//! Tests of structures that verbs fill: as a whole, for the core does not zero them.

use super::common::*;

#[kunit_tests(rdma_answers)]
mod cases {
    use super::*;

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

    #[test]
    fn other_objects_are_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let raw = srq.as_raw();
            assert!(fills(|attr| to_result(verb!(
                device,
                query_srq(raw, attr)
            )))?);
            to_result(verb!(device, destroy_srq(raw, null_mut())))?;

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

    #[test]
    fn completions_are_written_as_a_whole() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            log.completing.store(qp.number(), SeqCst);
            for _ in 0..2 {
                qp.send(device, 1)?;
            }
            let cq = qp.send_cq();
            assert!(fills(|wc| match verb!(device, poll_cq(cq, 1, wc)) {
                1 => Ok(()),
                _ => Err(EIO),
            })?);
            qp.end(device)
        })
    }
}
