// SPDX-License-Identifier: GPL-2.0

//! Tests of completions, which the crate provides for all drivers.

use kernel::prelude::*;

use crate::compat::Completion;

#[kunit_tests(virtio)]
mod cases {
    use super::*;

    #[test]
    fn a_completion_times_out_or_is_seen() -> Result {
        let completion = KBox::pin_init(Completion::new(), GFP_KERNEL)?;
        assert!(!completion.wait_for_completion_timeout(1));
        completion.complete_all();
        assert!(completion.wait_for_completion_timeout(1));
        completion.wait_for_completion();
        Ok(())
    }
}
