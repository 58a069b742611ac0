// SPDX-License-Identifier: GPL-2.0

//! Tests of XRC domains.

use crate::{
    testing::prelude::*,
    Xrcd, //
};

#[kunit_tests(rdma_xrc)]
mod cases {
    use super::*;

    #[test]
    fn a_domain_and_its_targets_go_one_by_one() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut xrcd = room!(device, ib_xrcd, Xrcd);
            to_result(verb!(device, alloc_xrcd(xrcd.as_raw(), null_mut())))?;
            assert_eq!(log.asked(), Some(Asked::XrcDomain));

            let mut qp = room!(device, ib_qp, Qp);
            let mut init = bindings::ib_qp_init_attr {
                qp_type: bindings::ib_qp_type_IB_QPT_XRC_TGT,
                ..Default::default()
            };
            let refused = verb!(device, create_qp(qp.as_raw(), &mut init, null_mut()));
            assert_eq!(to_result(refused), Err(EINVAL));
            init.xrcd = xrcd.as_raw();
            to_result(verb!(device, create_qp(qp.as_raw(), &mut init, null_mut())))?;
            // SAFETY: The domain was constructed.
            let number = unsafe { Xrcd::<Object>::from_raw(xrcd.as_raw()) }.number;
            assert_eq!(log.asked(), Some(Asked::XrcTarget(number)));
            assert_eq!(log.objects(), others + 2);

            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;
            assert_eq!(log.objects(), others + 1);
            to_result(verb!(device, dealloc_xrcd(xrcd.as_raw(), null_mut())))?;
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn a_target_has_no_completion_queues() -> Result {
        with_device(|device, log| {
            let mut cq = Queue::new(device, 1, 0)?;
            let mut xrcd = room!(device, ib_xrcd, Xrcd);
            to_result(verb!(device, alloc_xrcd(xrcd.as_raw(), null_mut())))?;
            let others = log.objects();
            let mut qp = room!(device, ib_qp, Qp);
            let set: [fn(&mut bindings::ib_qp_init_attr, *mut bindings::ib_cq); 2] =
                [|init, cq| init.send_cq = cq, |init, cq| init.recv_cq = cq];
            for set in set {
                let mut init = bindings::ib_qp_init_attr {
                    qp_type: bindings::ib_qp_type_IB_QPT_XRC_TGT,
                    xrcd: xrcd.as_raw(),
                    ..Default::default()
                };
                set(&mut init, cq.0.as_raw());
                let refused = verb!(device, create_qp(qp.as_raw(), &mut init, null_mut()));
                assert_eq!(to_result(refused), Err(EINVAL));
            }
            assert_eq!(log.objects(), others);
            to_result(verb!(device, dealloc_xrcd(xrcd.as_raw(), null_mut())))?;
            cq.end(device)
        })
    }

    #[test]
    fn queue_pairs_that_send_over_extended_connections_are_those_of_processes() -> Result {
        with_device(|device, _| {
            let (mut cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);
            let mut qp = room!(device, ib_qp, Qp);
            let mut init = bindings::ib_qp_init_attr {
                qp_type: bindings::ib_qp_type_IB_QPT_XRC_INI,
                send_cq: cq.0.as_raw(),
                ..Default::default()
            };
            // SAFETY: The structure is not shared.
            unsafe { (*qp.as_raw()).pd = pd.0 };
            let refused = verb!(device, create_qp(qp.as_raw(), &mut init, null_mut()));
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            cq.end(device)
        })
    }
}
