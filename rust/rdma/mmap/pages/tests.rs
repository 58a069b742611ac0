// SPDX-License-Identifier: GPL-2.0

//! Tests of pages that processes and devices share.

use crate::testing::prelude::*;

#[kunit_tests(rdma_pages)]
mod cases {
    use super::*;

    use crate::testing::device::TestDevice;
    use kernel::page::PAGE_SIZE;

    #[test]
    fn pages_of_users_are_zeroed_words() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        assert!(UserPages::of(&mapper, 0).is_err());
        let pages = UserPages::of(&mapper, PAGE_SIZE + 1)?;
        assert_eq!(pages.len(), 2 * PAGE_SIZE);
        assert_eq!(pages.dma_pages().len(), 2);
        assert!(pages.dma_pages().all(|page| page % PAGE_SIZE as u64 == 0));

        let last = 2 * PAGE_SIZE - 4;
        assert_eq!(pages.with_u32(last, |word| word.swap(7, SeqCst)), Ok(0));
        assert_eq!(pages.with_u32(last, |word| word.load(SeqCst)), Ok(7));
        assert_eq!(
            pages.with_u32(PAGE_SIZE - 4, |word| word.load(SeqCst)),
            Ok(0)
        );
        for wrong in [last + 1, last + 4, usize::MAX - 3] {
            assert_eq!(pages.with_u32(wrong, |_| ()), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn pages_of_users_need_a_device_that_is_registered() -> Result {
        let mapper = TestDevice::new()?.mapper()?;
        mapper.close();
        assert_eq!(UserPages::of(&mapper, PAGE_SIZE).err(), Some(ENODEV));
        Ok(())
    }
}
