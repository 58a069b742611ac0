// SPDX-License-Identifier: GPL-2.0

//! Tests of protection domains.

use crate::testing::prelude::*;

#[kunit_tests(rdma_pd)]
mod cases {
    use super::*;

    #[test]
    fn a_domain_goes_when_it_is_deallocated() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let pd = Domain::new(device)?;
            assert_eq!(log.asked(), Some(Asked::Domain(None)));
            assert_eq!(log.objects(), others + 1);

            let number = pd.number();
            drop(pd);
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }
}
