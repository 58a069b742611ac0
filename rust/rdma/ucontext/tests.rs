// SPDX-License-Identifier: GPL-2.0

//! Tests of contexts.

use crate::testing::prelude::*;

#[kunit_tests(rdma_ucontext)]
mod cases {
    use super::*;

    #[test]
    fn processes_are_answered() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut process = Process::new(device)?;
            assert_eq!(log.asked(), Some(Asked::Context(7)));
            assert_eq!(process.memory.read()?, !7);

            let mut pd = room!(device, ib_pd, Pd);
            let mut call = process.call(8)?;
            to_result(verb!(device, alloc_pd(pd.as_raw(), call.udata())))?;
            assert_eq!(log.asked(), Some(Asked::Domain(Some(8))));
            assert_eq!(process.memory.read()?, !8);
            assert_eq!(log.objects(), others + 2);

            let mut bare = process.bare_call()?;
            to_result(verb!(device, dealloc_pd(pd.as_raw(), bare.udata())))?;
            process.end(device)?;
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn a_context_that_fails_leaves_nothing_to_map() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let refused = Process::open(device, MAPPABLE_BUT_REFUSED, true);
            assert_eq!(refused.err(), Some(EBUSY));
            assert!(Arc::into_unique_or_drop(log.take_shared()?).is_some());
            let unanswered = Process::open(device, MAPPABLE, false);
            assert_eq!(unanswered.err(), Some(EFAULT));
            assert!(Arc::into_unique_or_drop(log.take_shared()?).is_some());
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }
}
