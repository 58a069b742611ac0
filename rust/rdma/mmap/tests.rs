// SPDX-License-Identifier: GPL-2.0

//! Tests of memory that processes map.

use crate::testing::prelude::*;

#[kunit_tests(rdma_mmap)]
mod cases {
    use super::*;

    /// Creates a process that may map memory, and returns the offsets.
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
            // Only the mappings still hold references to the pages.
            let shared = Arc::into_unique_or_drop(log.take_shared()?).ok_or(EBUSY)?;
            shared.with_u32(PAGE_SIZE, |word| word.store(u32::MAX, SeqCst))?;
            drop(shared);
            let last = memory.page(1).read()?.to_ne_bytes();
            assert_eq!(last[..4], u32::MAX.to_ne_bytes());
            Ok(())
        })
    }
}

#[kunit_tests(rdma_device_memory)]
mod device_memory {
    use super::super::*;

    /// Makes a part of a C resource mappable.
    fn range(raw: &mut bindings::resource, offset: u64, length: u64) -> Result<PhysicalRange> {
        // SAFETY: The resource is valid. Nothing is mapped.
        let memory = unsafe {
            let resource = crate::compat::resource_from_raw(raw);
            DeviceMemory::new(resource, offset, length)
        };
        PhysicalRange::of(memory?)
    }

    const PAGE: u64 = PAGE_SIZE as u64;

    /// Returns a resource that is RAM.
    fn ram() -> Result<bindings::resource> {
        const RAM: c_ulong = bindings::IORESOURCE_SYSTEM_RAM as c_ulong;

        // SAFETY: The kernel's list of RAM does not change while no memory is unplugged.
        let mut next = unsafe { bindings::iomem_resource.child };
        // SAFETY: As above.
        while let Some(found) = unsafe { next.as_ref() } {
            if found.flags & RAM == RAM && found.end - found.start > 4 * PAGE_SIZE as PhysAddr {
                return Ok(bindings::resource {
                    start: found.start.next_multiple_of(PAGE_SIZE as PhysAddr),
                    end: found.end,
                    flags: found.flags,
                    ..Default::default()
                });
            }
            next = found.sibling;
        }
        Err(ENOENT)
    }

    #[test]
    fn ram_is_no_device_memory() -> Result {
        let mut ram = ram()?;
        assert_eq!(range(&mut ram, 0, PAGE), Err(EINVAL));
        // A range that starts in RAM and extends beyond it is rejected, too.
        let mut beyond = bindings::resource {
            start: (ram.end + 1) / PAGE * PAGE - PAGE,
            end: 1 << 50,
            flags: bindings::IORESOURCE_MEM as c_ulong,
            ..Default::default()
        };
        assert_eq!(range(&mut beyond, 0, 1 << 40), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn device_memory_is_whole_pages_of_a_resource() -> Result {
        // Above all existing addresses.
        const START: PhysAddr = 1 << 50;

        let mut raw = bindings::resource {
            start: START,
            end: START + 4 * PAGE - 1,
            flags: bindings::IORESOURCE_MEM as c_ulong,
            ..Default::default()
        };
        let two = range(&mut raw, PAGE, 2 * PAGE)?;
        assert_eq!((two.start, two.length), (START + PAGE, 2 * PAGE_SIZE));
        assert_eq!(Content::Device(two).length(), 2 * PAGE_SIZE);
        for (offset, length) in [
            (0, 0),
            (0, PAGE + 1),
            (8, PAGE),
            (3 * PAGE, 2 * PAGE),
            (u64::MAX - PAGE + 1, PAGE),
            (PAGE, u64::MAX),
        ] {
            assert_eq!(range(&mut raw, offset, length), Err(EINVAL));
        }
        raw.flags = bindings::IORESOURCE_IO as c_ulong;
        assert_eq!(range(&mut raw, 0, PAGE), Err(EINVAL));
        Ok(())
    }
}
