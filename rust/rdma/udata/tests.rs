// SPDX-License-Identifier: GPL-2.0

//! Tests of the driver's part of calls.

use super::*;

#[kunit_tests(rdma_udata)]
mod cases {
    use super::*;
    use crate::testing::process::{
        ProcessMemory,
        UserCall, //
    };

    /// A request or response whose first version had two words.
    type Words = [u32; 4];

    impl Request for Words {
        const MINIMUM: usize = 8;
    }

    impl Response for Words {}

    const WORDS: Words = [1, 2, 3, 4];

    /// Calls `verb` with a request and a response of these lengths.
    fn call<R>(
        process: &ProcessMemory,
        length: usize,
        verb: impl FnOnce(&Udata<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut user = UserCall::new(process, length, core::ptr::null_mut())?;
        // SAFETY: The udata is part of a bundle, which outlives the call.
        let udata = unsafe { Udata::from_raw(user.udata()) };
        verb(&udata.ok_or(EINVAL)?)
    }

    #[test]
    fn requests_may_be_longer_or_shorter() -> Result {
        let process = ProcessMemory::new(1)?;
        let mut writer = process.user(24).writer();
        for word in WORDS {
            writer.write(&word)?;
        }
        let request = |length| call(&process, length, |udata| udata.request::<Words>());
        assert_eq!(request(16)?, WORDS);
        assert_eq!(request(8)?, [1, 2, 0, 0]);
        assert_eq!(request(12)?, [1, 2, 3, 0]);
        assert_eq!(request(24)?, WORDS);
        Ok(())
    }

    #[test]
    fn responses_are_cut_or_filled_up() -> Result {
        let process = ProcessMemory::new(1)?;
        for (room, expected) in [
            (8, [1, 2, u32::MAX, u32::MAX, u32::MAX, u32::MAX]),
            (16, [1, 2, 3, 4, u32::MAX, u32::MAX]),
            (24, [1, 2, 3, 4, 0, 0]),
        ] {
            let mut writer = process.user(24).writer();
            for _ in 0..6 {
                writer.write(&u32::MAX)?;
            }
            call(&process, room, |udata| udata.respond(&WORDS))?;
            let mut reader = process.user(24).reader();
            for word in expected {
                assert_eq!(reader.read::<u32>()?, word);
            }
        }
        Ok(())
    }

    #[test]
    fn verbs_of_the_kernel_have_no_request() -> Result {
        // SAFETY: A null pointer is allowed.
        let udata = unsafe { Udata::from_raw(core::ptr::null_mut()) };
        Udata::no_io(udata.as_ref())
    }
}
