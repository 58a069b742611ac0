// SPDX-License-Identifier: GPL-2.0

//! Tests of memory that devices and drivers share.

use core::sync::atomic::Ordering;

use kernel::prelude::*;

use super::SharedMemory;
use crate::testing::with_dma;

#[kunit_tests(virtio_memory)]
mod cases {
    use super::*;

    #[test]
    fn shared_memory_is_zeroed_pages_that_keep_what_is_written() -> Result {
        const PAGE: usize = SharedMemory::PAGE_SIZE;

        with_dma(|dma| {
            let memory = SharedMemory::new(dma, 2 * PAGE + 100)?;
            assert_eq!(memory.len(), 2 * PAGE + 100);
            assert_eq!(memory.dma_pages().len(), 3);
            assert!(memory.dma_pages().all(|page| page % PAGE as u64 == 0));

            // Crosses a page boundary, and starts and ends at odd offsets.
            let mut text = *b"?????????????????????????";
            memory.read(PAGE - 11, &mut text)?;
            assert_eq!(text, [0; 25]);
            memory.write(PAGE - 11, b"over the edge of the page")?;
            memory.read(PAGE - 11, &mut text)?;
            assert_eq!(&text, b"over the edge of the page");

            // The last byte is accessible, but nothing beyond.
            memory.write(2 * PAGE + 99, &[7])?;
            assert_eq!(memory.write(2 * PAGE + 99, &[7, 8]), Err(EINVAL));
            assert_eq!(memory.read(2 * PAGE + 100, &mut [0]), Err(EINVAL));
            assert_eq!(memory.read(usize::MAX, &mut [0, 0]), Err(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn shared_words_are_aligned_and_inside() -> Result {
        const PAGE: usize = SharedMemory::PAGE_SIZE;

        with_dma(|dma| {
            let memory = SharedMemory::new(dma, PAGE + 12)?;
            let word = memory.u64(PAGE)?;
            word.fetch_or(0x0102_0304_0506_0708u64.to_le(), Ordering::Relaxed);
            let mut bytes = [0; 8];
            memory.read(PAGE, &mut bytes)?;
            assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(
                u32::from_le(memory.u32(PAGE + 4)?.load(Ordering::Relaxed)),
                0x0102_0304
            );

            assert_eq!(memory.u32(2).err(), Some(EINVAL));
            assert_eq!(memory.u64(4).err(), Some(EINVAL));
            assert!(memory.u32(PAGE + 8).is_ok());
            assert_eq!(memory.u64(PAGE + 8).err(), Some(EINVAL));
            assert_eq!(memory.u32(PAGE + 12).err(), Some(EINVAL));
            assert_eq!(memory.u32(usize::MAX - 3).err(), Some(EINVAL));
            assert!(SharedMemory::new(dma, 0).is_err());
            Ok(())
        })
    }

    #[test]
    fn shared_memory_belongs_to_a_device_with_queues() -> Result {
        with_dma(|dma| {
            let too_late = SharedMemory::new(dma, 8)?;
            too_late.write(0, &[1, 2, 3, 4])?;
            let page = core::ptr::from_ref(too_late.u32(0)?);
            dma.close();
            assert_eq!(SharedMemory::new(dma, 8).err(), Some(ENODEV));
            drop(too_late);
            // SAFETY: The page was leaked, so it is still valid.
            let word = unsafe { page.read() };
            assert_eq!(word.into_inner().to_ne_bytes(), [1, 2, 3, 4]);
            Ok(())
        })
    }
}
