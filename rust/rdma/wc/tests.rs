// SPDX-License-Identifier: GPL-2.0

//! Tests of completions.

use crate::testing::prelude::*;

#[kunit_tests(rdma_wc)]
mod cases {
    use super::*;

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
