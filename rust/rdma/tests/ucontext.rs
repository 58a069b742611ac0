// SPDX-License-Identifier: GPL-2.0

//! Tests of contexts, and of what they let processes map.

use super::common::*;

#[kunit_tests(rdma_contexts)]
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

    /// A process that may map memory, and where.
    fn open(device: &Device<TestDriver>) -> Result<(Process, Offsets)> {
        let process = Process::open(device, MAPPABLE, true)?;
        let offsets = Offsets::from_response(process.memory.read()?);
        Ok((process, offsets))
    }

    #[test]
    fn processes_share_pages_with_the_device() -> Result {
        with_device(|device, log| {
            let (process, offsets) = open(device)?;
            let shared = log.take_shared()?;
            let memory = process.file.map(SHARED_PAGES, offsets.shared)?;
            let again = process.file.map(SHARED_PAGES, offsets.shared)?;
            for page in 0..SHARED_PAGES {
                assert_eq!(memory.page(page).read()?, 0);
                let word = 0x100 + page as u32;
                memory
                    .page(page)
                    .write(u64::from(word) << 32 | u64::from(word))?;
                let seen = shared.with_u32(page * PAGE_SIZE, |seen| seen.swap(!word, SeqCst))?;
                assert_eq!(seen, word);
                let answer = again.page(page).read()?.to_ne_bytes();
                assert_eq!(answer[..4], (!word).to_ne_bytes());
            }
            process.end(device)
        })
    }

    #[test]
    fn device_memory_is_mapped_uncached() -> Result {
        with_device(|device, _| {
            let (process, offsets) = open(device)?;
            let memory = process.file.map(DEVICE_PAGES, offsets.device)?;
            for page in 0..DEVICE_PAGES {
                let address = DEVICE_MEMORY + (page * PAGE_SIZE) as PhysAddr;
                assert_eq!(memory.page(page).uncached(), Some(address));
            }
            memory.unmap(0..DEVICE_PAGES)?;
            process.end(device)
        })
    }

    #[test]
    fn memory_is_mapped_as_a_whole_and_shared() -> Result {
        with_device(|device, _| {
            let (process, offsets) = open(device)?;
            let page = PAGE_SIZE as u64;
            assert_ne!(offsets.device, offsets.shared);
            for (pages, offset) in [
                (DEVICE_PAGES - 1, offsets.device),
                (DEVICE_PAGES + 1, offsets.device),
                (DEVICE_PAGES - 1, offsets.device + page),
                (SHARED_PAGES - 1, offsets.shared),
                (SHARED_PAGES + 1, offsets.shared),
                (SHARED_PAGES - 1, offsets.shared + page),
                (SHARED_PAGES, 1000 * page),
            ] {
                assert_eq!(process.file.map(pages, offset).err(), Some(EINVAL));
            }
            for (pages, offset) in [
                (DEVICE_PAGES, offsets.device),
                (SHARED_PAGES, offsets.shared),
            ] {
                let private = process.file.map_private(pages, offset);
                assert_eq!(private.err(), Some(EINVAL));
            }
            process.end(device)
        })
    }

    #[test]
    fn pages_stay_mapped_when_their_context_is_gone() -> Result {
        with_device(|device, log| {
            let (process, offsets) = open(device)?;
            let memory = process.file.map(SHARED_PAGES, offsets.shared)?;
            process.end(device)?;
            // Nobody else has them but those who map them.
            let shared = Arc::into_unique_or_drop(log.take_shared()?).ok_or(EBUSY)?;
            shared.with_u32(PAGE_SIZE, |word| word.store(u32::MAX, SeqCst))?;
            drop(shared);
            let last = memory.page(1).read()?.to_ne_bytes();
            assert_eq!(last[..4], u32::MAX.to_ne_bytes());
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
