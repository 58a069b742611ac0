// SPDX-License-Identifier: GPL-2.0

//! Tests of device memory.

use crate::testing::prelude::*;

#[kunit_tests(rdma_dm)]
mod cases {
    use super::*;

    #[test]
    fn a_buffer_is_allocated_and_registered() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            let mut wanted = bindings::ib_dm_alloc_attr {
                length: 5000,
                alignment: 6,
                flags: 0,
            };
            let mut call = process.bare_call()?;
            let dm = from_err_ptr(verb!(
                device,
                alloc_dm(
                    device.as_raw(),
                    process.context.as_raw(),
                    &mut wanted,
                    call.attributes()
                )
            ))?;
            assert_eq!(log.asked(), Some(Asked::Dm(5000, 6)));
            // SAFETY: The buffer was just created.
            let number = unsafe { dm::Dm::<Object>::from_raw(dm) }.number;

            let access = Access::ZeroBased | Access::LocalWrite;
            let mut piece = bindings::ib_dm_mr_attr {
                length: 900,
                offset: 4096,
                access_flags: access.bits(),
            };
            let mr = from_err_ptr(verb!(
                device,
                reg_dm_mr(pd.0, dm, &mut piece, call.attributes())
            ))?;
            let range = dm::DmRange {
                offset: 4096,
                length: 900,
            };
            assert_eq!(log.asked(), Some(Asked::DmRegion(number, range, access)));
            // SAFETY: As above.
            assert_eq!(unsafe { ((*mr).device, (*mr).pd) }, (device.as_raw(), pd.0));
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;

            to_result(verb!(device, dealloc_dm(dm, call.attributes())))?;
            process.end(device)?;
            drop(pd);
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn a_buffer_that_there_is_no_room_for_is_refused() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let others = log.objects();
            let mut wanted = bindings::ib_dm_alloc_attr {
                length: u64::MAX,
                ..Default::default()
            };
            let mut call = process.bare_call()?;
            let refused = from_err_ptr(verb!(
                device,
                alloc_dm(
                    device.as_raw(),
                    process.context.as_raw(),
                    &mut wanted,
                    call.attributes()
                )
            ));
            assert_eq!(refused.err(), Some(ENOMEM));
            assert_eq!(log.objects(), others);
            process.end(device)
        })
    }
}
