// SPDX-License-Identifier: GPL-2.0

//! Tests of shared receive queues.

use crate::testing::prelude::*;

#[kunit_tests(rdma_srq)]
mod cases {
    use super::*;

    #[test]
    fn shared_receive_queues_change_and_are_asked() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let asked = SrqAttr {
                max_wr: 30,
                max_sge: 3,
                limit: 0,
            };
            assert_eq!(log.asked(), Some(Asked::SharedQueue(asked, None)));
            let raw = srq.as_raw();
            let mut attr = bindings::ib_srq_attr {
                max_wr: 70,
                max_sge: 0,
                srq_limit: 8,
            };
            let modify = |attr: &mut bindings::ib_srq_attr, mask| -> Result {
                to_result(verb!(device, modify_srq(raw, attr, mask, null_mut())))
            };
            modify(&mut attr, bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR)?;
            assert_eq!(log.asked(), Some(Asked::SharedResize(70, None)));
            modify(&mut attr, bindings::ib_srq_attr_mask_IB_SRQ_LIMIT)?;
            assert_eq!(log.asked(), Some(Asked::Limit(8)));
            assert_eq!(modify(&mut attr, 1 << 2), Err(EINVAL));

            to_result(verb!(device, query_srq(raw, &mut attr)))?;
            // SAFETY: The object was constructed.
            let number = unsafe { Srq::<Object>::from_raw(raw) }.number;
            assert_eq!(
                (attr.max_wr, attr.max_sge, attr.srq_limit),
                (number, 21, 22)
            );

            let mut bad = ptr::null();
            let mut wr = bindings::ib_recv_wr::default();
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut wr.__bindgen_anon_1.wr_id) } = 71;
            to_result(verb!(device, post_srq_recv(raw, &raw const wr, &mut bad)))?;
            assert_eq!(log.asked(), Some(Asked::Receive(1, 71)));
            wr.num_sge = -1;
            assert!(verb!(device, post_srq_recv(raw, &raw const wr, &mut bad)) < 0);
            assert_eq!(bad, &raw const wr);

            to_result(verb!(device, destroy_srq(raw, null_mut())))?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            Ok(())
        })
    }

    #[test]
    fn changes_of_a_shared_receive_queue_are_checked() {
        const MAX_WR: u32 = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: u32 = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;

        let attributes = SrqAttr {
            max_wr: 5,
            max_sge: 2,
            limit: 6,
        };
        let mut raw = bindings::ib_srq_attr::default();
        attributes.write(&mut raw);
        assert_eq!(SrqAttr::from_raw(&raw), attributes);

        let change = |mask| SrqChange::from_raw(&attributes, mask);
        assert_eq!(change(0), Ok(SrqChange::default()));
        let limit = SrqChange {
            max_wr: None,
            limit: Some(6),
        };
        assert_eq!(change(LIMIT), Ok(limit));
        let max_wr = SrqChange {
            max_wr: Some(5),
            limit: None,
        };
        assert_eq!(change(MAX_WR), Ok(max_wr));
        assert_eq!(change(MAX_WR | LIMIT), Err(EINVAL));
        assert_eq!(change(1 << 2), Err(EINVAL));
    }

    #[test]
    fn a_shared_receive_queue_is_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let raw = srq.as_raw();
            assert!(fills(|attr| to_result(verb!(
                device,
                query_srq(raw, attr)
            )))?);
            to_result(verb!(device, destroy_srq(raw, null_mut())))
        })
    }
}
