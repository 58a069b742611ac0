// SPDX-License-Identifier: GPL-2.0

//! Tests of what drivers tell of their objects.

use super::common::*;

#[kunit_tests(rdma_restrack)]
mod cases {
    use super::*;

    #[test]
    fn objects_are_described_by_their_driver() -> Result {
        with_device(|device, _| {
            let mut qp = Pair::new(device)?;
            let mut srq = new_shared(device, &qp.pd, null_mut())?;
            let access = Access::LocalWrite as c_int;
            let mr = from_err_ptr(verb!(device, get_dma_mr(qp.pd.0, access)))?;
            let (qp_raw, cq_raw, srq_raw) = (qp.as_raw(), qp.queues[1].0.as_raw(), srq.as_raw());
            // SAFETY: They were constructed.
            let (srq_number, mr_number) = unsafe {
                let mr = &*mr.cast::<Mr<Object>>();
                (Srq::<Object>::from_raw(srq_raw).number, mr.number)
            };

            let messages = [
                Message::new()?,
                Message::new()?,
                Message::new()?,
                Message::new()?,
            ];
            let [of_qp, of_cq, of_srq, of_mr] = &messages;
            to_result(verb!(device, fill_res_qp_entry(of_qp.as_raw(), qp_raw)))?;
            to_result(verb!(device, fill_res_cq_entry(of_cq.as_raw(), cq_raw)))?;
            to_result(verb!(device, fill_res_srq_entry(of_srq.as_raw(), srq_raw)))?;
            to_result(verb!(device, fill_res_mr_entry(of_mr.as_raw(), mr)))?;
            let numbers = [qp.number(), qp.queues[1].number(), srq_number, mr_number];
            for (message, number) in messages.iter().zip(numbers) {
                // The number is the last thing that it says.
                assert!(message.bytes().ends_with(&number.to_ne_bytes()));
            }

            to_result(verb!(device, dereg_mr(mr, null_mut())))?;
            to_result(verb!(device, destroy_srq(srq_raw, null_mut())))?;
            qp.end(device)
        })
    }
}
