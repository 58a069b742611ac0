// SPDX-License-Identifier: GPL-2.0

//! Tests of on-demand paging.

use super::*;

#[kunit_tests(rdma_odp)]
mod cases {
    use super::*;

    use crate::compat::Completion;
    use crate::{
        dma::{
            bytes_of_machine,
            Watched, //
        },
        testing::{
            device::TestDevice,
            process::ProcessMemory, //
        }, //
    };
    use kernel::{
        bindings::flush_work,
        new_mutex,
        sync::Mutex,
        time::msecs_to_jiffies,
        workqueue, //
    };

    const PAGES: usize = 8;

    /// Records calls of the pager.
    #[pin_data]
    struct Log {
        #[pin]
        forgotten: Mutex<KVec<Range<usize>>>,
        #[pin]
        served: Mutex<usize>,
    }

    impl Log {
        fn forget(&self, pages: Range<usize>) {
            // The test reserved room.
            let _ = self.forgotten.lock().push_within_capacity(pages);
        }
    }

    fn new_log() -> Result<Arc<Log>> {
        Arc::pin_init(
            pin_init!(Log {
                forgotten <- new_mutex!(KVec::with_capacity(PAGES, GFP_KERNEL)?),
                served <- new_mutex!(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    impl Pager for Arc<Log> {
        fn forget(&self, pages: Range<usize>) {
            Log::forget(self, pages);
        }

        fn serve(&self, memory: &Memory<Self>) {
            *self.served.lock() += memory.pages();
        }
    }

    /// Calls `test` with watched memory of a process, and the log of its pager.
    fn with_memory(
        access: AccessFlags,
        test: impl FnOnce(&Memory<Arc<Log>>, &ProcessMemory, &Log, &Mapper) -> Result,
    ) -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(PAGES)?;
        let log = new_log()?;
        let pager = log.clone();
        // Only part of the first and of the last page.
        let (start, length) = (process.address() + 8, PAGES * PAGE_SIZE - 16);
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let memory =
            unsafe { Memory::watch(device.as_raw(), &mapper, start, length, access, pager) }?;
        let memory = OnDemand::keep(memory)?;
        test(&memory, &process, &log, &mapper)
    }

    /// Returns which pages are present, and whether they are writable.
    fn present(
        memory: &Memory<Arc<Log>>,
        pages: Range<usize>,
        write: bool,
        fault: bool,
    ) -> Result<KVec<Option<bool>>> {
        let mut found = KVec::with_capacity(PAGES, GFP_KERNEL)?;
        memory.map(pages, write, fault, |pages| {
            for page in pages {
                found.push_within_capacity(page?.map(|page| page.writable))?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn pages_come_when_they_are_asked_for() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, log, _| {
            assert_eq!((memory.pages(), memory.offset()), (PAGES, 8));
            assert_eq!(memory.len(), PAGES * PAGE_SIZE - 16);
            assert_eq!(*present(memory, 0..PAGES, true, false)?, [None; PAGES]);
            assert_eq!(*present(memory, 2..4, true, true)?, [Some(true); 2]);
            let there = present(memory, 1..5, false, false)?;
            assert_eq!(*there, [None, Some(true), Some(true), None]);
            for wrong in [0..0, 3..3, 0..PAGES + 1, PAGES..PAGES + 1] {
                assert_eq!(present(memory, wrong, false, true).err(), Some(EINVAL));
            }
            assert!(log.forgotten.lock().is_empty());
            Ok(())
        })
    }

    #[test]
    fn more_of_an_address_space_is_watched_later() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(PAGES)?;
        let access = Access::LocalWrite.into();
        // SAFETY: The device is valid, and the mapper its own.
        let space = unsafe { AddressSpace::of_current(device.as_raw(), &mapper, access) }?;
        let log = new_log()?;
        let start = process.address() + PAGE_SIZE as u64;
        let memory = space.watch(start, 3 * PAGE_SIZE, log.clone())?;
        assert_eq!((memory.pages(), memory.offset()), (3, 0));
        assert_eq!(*present(&memory, 1..3, true, true)?, [Some(true); 2]);
        process.unmap(2..3)?;
        let forgotten = log.forgotten.lock().pop();
        assert_eq!(forgotten, Some(1..2));
        assert!(present(&memory, 1..2, true, true).is_err());
        drop(memory);
        mapper.close();
        assert_eq!(space.watch(start, PAGE_SIZE, log).err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn what_is_watched_for_a_device_is_limited() -> Result {
        assert!(Watched::new().limit >= bytes_of_machine());
        let device = TestDevice::new()?;
        let mapper = device.mapper_with(Watched::with_limit(3 * PAGE_SIZE))?;
        let process = ProcessMemory::new(PAGES)?;
        let access = Access::LocalWrite.into();
        // SAFETY: The device is valid, and the mapper its own.
        let new_space = || unsafe { AddressSpace::of_current(device.as_raw(), &mapper, access) };
        let (space, other) = (new_space()?, new_space()?);
        let (log, start) = (new_log()?, process.address());
        let watch = |pages| space.watch(start, pages * PAGE_SIZE, log.clone());
        assert_eq!(watch(4).err(), Some(ENOMEM));
        let two = watch(2)?;
        assert_eq!(watch(2).err(), Some(ENOMEM));
        let one = watch(1)?;
        assert_eq!(watch(1).err(), Some(ENOMEM));
        // Ranges that are no longer watched, or never were, do not count.
        drop((one, two));
        assert!(space.watch(u64::MAX, PAGE_SIZE, log.clone()).is_err());
        drop(watch(3)?);

        // All address spaces share the limit, and regions outside of them count, too.
        let one = other.watch(start, PAGE_SIZE, log.clone())?;
        assert_eq!(watch(3).err(), Some(ENOMEM));
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let explicit = |pages: usize| unsafe {
            let length = pages * PAGE_SIZE;
            let log = log.clone();
            Memory::watch(device.as_raw(), &mapper, start, length, access, log)
                .and_then(OnDemand::keep)
        };
        assert_eq!(explicit(3).err(), Some(ENOMEM));
        assert_eq!(explicit(usize::MAX / PAGE_SIZE).err(), Some(EOVERFLOW));
        let two = explicit(2)?;
        assert_eq!(explicit(1).err(), Some(ENOMEM));
        assert_eq!(watch(1).err(), Some(ENOMEM));
        drop(one);
        let one = watch(1)?;
        drop((one, two));
        watch(3)?;
        Ok(())
    }

    #[test]
    fn pages_have_addresses_of_their_own() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, _, _| {
            memory.map(0..PAGES, true, true, |pages| {
                let mut last = None;
                for page in pages {
                    let address = page?.ok_or(EFAULT)?.address;
                    assert!(address % PAGE_SIZE as u64 == 0 && last != Some(address));
                    last = Some(address);
                }
                Ok(())
            })
        })
    }

    #[test]
    fn pages_that_may_only_be_read_are_not_writable() -> Result {
        with_memory(Access::RemoteRead.into(), |memory, _, _, _| {
            assert_eq!(*present(memory, 0..2, false, true)?, [Some(false); 2]);
            Ok(())
        })
    }

    #[test]
    fn what_the_process_unmaps_is_forgotten() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, process, log, _| {
            // Pages that the hardware never got need not be forgotten.
            process.unmap(7..8)?;
            assert!(log.forgotten.lock().is_empty());

            present(memory, 1..5, true, true)?;
            process.unmap(0..3)?;
            let forgotten = log.forgotten.lock();
            assert!(forgotten.len() == 1 && forgotten[0] == (1..3));
            drop(forgotten);
            let there = present(memory, 1..5, true, false);
            assert!(there.is_err() || there.is_ok_and(|there| there[..2] == [None; 2]));
            assert_eq!(present(memory, 1..2, true, true).err(), Some(EFAULT));
            assert_eq!(*present(memory, 3..5, true, true)?, [Some(true); 2]);
            Ok(())
        })
    }

    #[test]
    fn requests_are_served() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, log, _| {
            memory.request();
            // SAFETY: The work is initialised.
            unsafe { flush_work(memory.work.get()) };
            assert_eq!(*log.served.lock(), PAGES);
            Ok(())
        })
    }

    #[test]
    fn who_has_the_memory_cannot_wait_for_it() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, _, _| {
            let nested = || {
                assert_eq!(memory.exclusively(|| ()), Err(EDEADLK));
                assert_eq!(memory.map(0..1, true, true, |_| Ok(())), Err(EDEADLK));
            };
            memory.exclusively(nested)?;
            memory.map(0..1, true, true, |_| {
                nested();
                Ok(())
            })?;
            // It works after the closure has returned.
            memory.exclusively(|| ())
        })
    }

    /// A pager that waits for something when it is called to serve its memory.
    struct Stuck(Arc<Gates>);

    /// What [`Stuck`] and its test wait for.
    #[pin_data]
    struct Gates {
        #[pin]
        entered: Completion,
        #[pin]
        left: Completion,
        #[pin]
        others_done: Completion,
    }

    impl Pager for Stuck {
        fn forget(&self, _pages: Range<usize>) {}

        fn serve(&self, _memory: &Memory<Self>) {
            self.0.entered.complete_all();
            self.0.left.wait_for_completion();
        }
    }

    #[test]
    fn a_process_that_lets_its_pages_wait_holds_up_nobody_else() -> Result {
        // Long enough for a busy machine.
        let patience = msecs_to_jiffies(30_000);
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(PAGES)?;
        let gates = Arc::pin_init(
            pin_init!(Gates {
                entered <- Completion::new(),
                left <- Completion::new(),
                others_done <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let memory = unsafe {
            Memory::watch(
                device.as_raw(),
                &mapper,
                process.address(),
                PAGE_SIZE,
                Access::LocalWrite.into(),
                Stuck(gates.clone()),
            )
        }?;
        let memory = OnDemand::keep(memory)?;
        memory.request();
        let entered = gates.entered.wait_for_completion_timeout(patience);
        let others = gates.clone();
        let spawned = workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            // SAFETY: The workqueue always exists, and this is not its work.
            unsafe { bindings::__flush_workqueue(bindings::system_dfl_wq) };
            others.others_done.complete_all();
        });
        let done = gates.others_done.wait_for_completion_timeout(patience);
        gates.left.complete_all();
        spawned?;
        // The closure must not outlive the test.
        gates.others_done.wait_for_completion();
        assert!(entered && done);
        Ok(())
    }

    /// A pager that drops its own memory when it is called to serve it.
    struct Suicidal(Arc<Log>, Arc<Kept>);

    /// Reference to that memory.
    #[pin_data]
    struct Kept {
        #[pin]
        memory: Mutex<Option<OnDemand<Suicidal>>>,
    }

    impl Pager for Suicidal {
        fn forget(&self, pages: Range<usize>) {
            self.0.forget(pages);
            let memory = self.1.memory.lock().take();
            drop(memory);
        }

        fn serve(&self, memory: &Memory<Self>) {
            *self.0.served.lock() += memory.pages();
            let memory = self.1.memory.lock().take();
            drop(memory);
        }
    }

    #[test]
    fn a_pager_does_not_wait_for_itself() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(PAGES)?;
        for is_served in [true, false] {
            let log = new_log()?;
            let kept = Arc::pin_init(
                pin_init!(Kept {
                    memory <- new_mutex!(None),
                }),
                GFP_KERNEL,
            )?;
            // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
            let memory = unsafe {
                Memory::watch(
                    device.as_raw(),
                    &mapper,
                    process.address(),
                    PAGE_SIZE,
                    Access::LocalWrite.into(),
                    Suicidal(log.clone(), kept.clone()),
                )
            }?;
            *kept.memory.lock() = Some(OnDemand::keep(memory.clone())?);
            memory.map(0..1, true, true, |pages| {
                pages.for_each(drop);
                Ok(())
            })?;
            if is_served {
                memory.request();
                // SAFETY: The work is initialised.
                unsafe { flush_work(memory.work.get()) };
                assert_eq!(*log.served.lock(), 1);
            } else {
                process.unmap(0..1)?;
                assert_eq!(log.forgotten.lock().len(), 1);
            }
            assert!(kept.memory.lock().is_none());
        }
        // This ends what is left.
        mapper.close();
        Ok(())
    }

    /// A pager that drops other memory when its own pages are taken.
    struct Careless(Arc<Neighbour>);

    /// Reference to that memory.
    #[pin_data]
    struct Neighbour {
        #[pin]
        memory: Mutex<Option<OnDemand<Arc<Log>>>>,
    }

    impl Neighbour {
        fn drop_memory(&self) {
            let memory = self.memory.lock().take();
            drop(memory);
        }
    }

    impl Pager for Careless {
        fn forget(&self, _pages: Range<usize>) {
            self.0.drop_memory();
        }

        fn serve(&self, _memory: &Memory<Self>) {}
    }

    #[test]
    fn who_has_memory_does_not_wait_for_other_memory() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(PAGES)?;
        let access = Access::LocalWrite.into();
        for is_forgotten in [false, true] {
            let start = process.page(1).address();
            let log = new_log()?;
            // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
            let other =
                unsafe { Memory::watch(device.as_raw(), &mapper, start, PAGE_SIZE, access, log) }?;
            let kept = OnDemand::keep(other.clone())?;
            let neighbour = Arc::pin_init(
                pin_init!(Neighbour {
                    memory <- new_mutex!(Some(kept)),
                }),
                GFP_KERNEL,
            )?;
            let pager = Careless(neighbour.clone());
            let start = process.address();
            // SAFETY: As above.
            let memory = unsafe {
                Memory::watch(device.as_raw(), &mapper, start, PAGE_SIZE, access, pager)
            }?;
            let memory = OnDemand::keep(memory)?;
            if is_forgotten {
                memory.map(0..1, true, true, |pages| {
                    pages.for_each(drop);
                    Ok(())
                })?;
                process.unmap(0..1)?;
            } else {
                memory.exclusively(|| neighbour.drop_memory())?;
            }
            assert!(neighbour.memory.lock().is_none());
            assert!(!*other.released.lock());
        }
        // This ends what is left.
        mapper.close();
        Ok(())
    }

    #[test]
    fn nobody_is_told_of_pages_of_a_device_that_is_gone() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, process, log, mapper| {
            present(memory, 0..PAGES, true, true)?;
            mapper.close();
            // Even though there is still a reference to the memory.
            process.unmap(0..3)?;
            assert!(log.forgotten.lock().is_empty());
            memory.request();
            // SAFETY: The work is initialised.
            unsafe { flush_work(memory.work.get()) };
            assert_eq!(*log.served.lock(), 0);
            assert_eq!(present(memory, 3..4, true, true).err(), Some(ENODEV));
            assert_eq!(memory.exclusively(|| ()), Err(ENODEV));
            assert_eq!((memory.pages(), memory.offset()), (PAGES, 8));
            Ok(())
        })
    }

    /// A dma-buf, and its descriptor.
    struct TestDmaBuf {
        raw: *mut bindings::dma_buf,
        fd: c_int,
    }

    /// Where a dma-buf is, at first and later.
    const BASES: [u64; 2] = [0x10_0000_0000, 0x20_0000_0000];

    impl TestDmaBuf {
        fn new() -> Result<Self> {
            // SAFETY: A plain call.
            let raw = unsafe { bindings::test_dma_buf_new(PAGES * PAGE_SIZE, BASES[0]) };
            let raw = from_err_ptr(raw)?;
            // SAFETY: The dma-buf is valid. The descriptor owns it from now on.
            let fd = unsafe { bindings::dma_buf_fd(raw, 0) };
            if fd < 0 {
                // SAFETY: Nobody else owns it.
                unsafe { bindings::dma_buf_put(raw) };
            }
            to_result(fd)?;
            Ok(Self { raw, fd })
        }

        /// Moves it to that address, or takes it away if this is 0. `EBUSY` if someone still has it
        /// mapped where it was.
        fn relocate(&self, base: u64) -> Result {
            // SAFETY: The descriptor is open.
            match unsafe { bindings::test_dma_buf_move(self.raw, base) } {
                0 => Ok(()),
                _ => Err(EBUSY),
            }
        }
    }

    impl Drop for TestDmaBuf {
        fn drop(&mut self) {
            // CAST: A descriptor is not negative.
            // SAFETY: It is ours.
            unsafe { bindings::close_fd(self.fd as c_uint) };
        }
    }

    /// Offset of what is watched of a dma-buf, its length, and its pages.
    const PIECE: (usize, usize, usize) = (PAGE_SIZE + 8, (PAGES - 2) * PAGE_SIZE - 16, PAGES - 2);

    /// Watches a part of a dma-buf.
    fn watch_dma_buf<P: Pager>(
        device: &TestDevice,
        mapper: &Arc<Mapper>,
        buf: &TestDmaBuf,
        pager: P,
    ) -> Result<OnDemand<P>> {
        let access = Access::LocalWrite.into();
        let (offset, length, _) = PIECE;
        let fd = buf.fd;
        // SAFETY: The device is valid, and the mapper its own.
        let memory = unsafe {
            Memory::watch_dma_buf(device.as_raw(), mapper, fd, offset, length, access, pager)
        }?;
        OnDemand::keep(memory)
    }

    /// Calls `test` with watched memory of a dma-buf, and the log of its pager.
    fn with_dma_buf(
        test: impl FnOnce(&Memory<Arc<Log>>, &TestDmaBuf, &Log, &Mapper) -> Result,
    ) -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let buf = TestDmaBuf::new()?;
        let log = new_log()?;
        let memory = watch_dma_buf(&device, &mapper, &buf, log.clone())?;
        test(&memory, &buf, &log, &mapper)
    }

    /// Returns the addresses of pages of a dma-buf that are all present and writable.
    fn addresses(memory: &Memory<Arc<Log>>, pages: Range<usize>) -> Result<KVec<u64>> {
        let mut found = KVec::with_capacity(PAGES, GFP_KERNEL)?;
        memory.map(pages, true, true, |pages| {
            for page in pages {
                let page = page?.filter(|page| page.writable).ok_or(EFAULT)?;
                found.push_within_capacity(page.address)?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the address of a page of the piece, if the dma-buf begins at `base`.
    fn address(base: u64, page: usize) -> u64 {
        let index = page + 1;
        base + ((index / 3 * 16 + index % 3) * PAGE_SIZE) as u64
    }

    #[test]
    fn pages_of_a_dma_buf_come_when_they_are_asked_for() -> Result {
        with_dma_buf(|memory, _, log, _| {
            let (_, length, pages) = PIECE;
            assert!(memory.is_dma_buf());
            assert_eq!((memory.pages(), memory.offset()), (pages, 8));
            assert_eq!(memory.len(), length);
            assert_eq!(*present(memory, 0..pages, true, false)?, [None; 6]);
            for range in [0..pages, 0..1, 4..pages, 1..4, pages - 1..pages] {
                let found = addresses(memory, range.clone())?;
                assert_eq!(found.len(), range.len());
                assert!(range
                    .zip(found)
                    .all(|(page, at)| at == address(BASES[0], page)));
            }
            assert_eq!(*present(memory, 2..5, false, false)?, [Some(true); 3]);
            for wrong in [0..0, 0..pages + 1, pages..pages + 1] {
                assert_eq!(present(memory, wrong, false, true).err(), Some(EINVAL));
            }
            assert!(log.forgotten.lock().is_empty());
            Ok(())
        })
    }

    #[test]
    fn a_dma_buf_that_moves_is_forgotten_and_found_again() -> Result {
        with_dma_buf(|memory, buf, log, _| {
            // Pages that the hardware never got need not be forgotten.
            buf.relocate(BASES[1])?;
            assert!(log.forgotten.lock().is_empty());
            assert_eq!(*addresses(memory, 5..6)?, [address(BASES[1], 5)]);
            buf.relocate(BASES[0])?;
            assert_eq!(log.forgotten.lock().pop(), Some(0..6));
            buf.relocate(BASES[1])?;
            assert!(log.forgotten.lock().is_empty());
            assert_eq!(*present(memory, 0..2, false, false)?, [None; 2]);
            assert_eq!(*addresses(memory, 0..1)?, [address(BASES[1], 0)]);
            Ok(())
        })
    }

    #[test]
    fn a_dma_buf_that_is_gone_has_no_pages() -> Result {
        with_dma_buf(|memory, buf, log, _| {
            addresses(memory, 0..6)?;
            buf.relocate(0)?;
            assert_eq!(log.forgotten.lock().pop(), Some(0..6));
            assert_eq!(addresses(memory, 0..1).err(), Some(ENODEV));
            assert_eq!(*present(memory, 0..2, false, false)?, [None; 2]);
            Ok(())
        })
    }

    #[test]
    fn the_descriptor_of_a_dma_buf_is_not_needed() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let buf = TestDmaBuf::new()?;
        let memory = watch_dma_buf(&device, &mapper, &buf, new_log()?)?;
        drop(buf);
        assert_eq!(*addresses(&memory, 3..4)?, [address(BASES[0], 3)]);
        Ok(())
    }

    #[test]
    fn what_is_watched_of_dma_bufs_is_limited_and_must_be_there() -> Result {
        let device = TestDevice::new()?;
        let (_, length, _) = PIECE;
        let mapper = device.mapper_with(Watched::with_limit(2 * length - 1))?;
        let buf = TestDmaBuf::new()?;
        let watch = || watch_dma_buf(&device, &mapper, &buf, new_log()?).map(Some);
        let mut first = watch()?;
        assert_eq!(watch().err(), Some(ENOMEM));
        first.take();
        watch()?;
        let at = |fd, offset, length| {
            let (raw, access) = (device.as_raw(), Access::LocalWrite.into());
            // SAFETY: The device is valid, and the mapper its own.
            unsafe { Memory::watch_dma_buf(raw, &mapper, fd, offset, length, access, new_log()?) }
                .and_then(OnDemand::keep)
                .map(drop)
        };
        assert_eq!(at(-1, 0, PAGE_SIZE), Err(EBADF));
        assert_eq!(at(buf.fd, 0, 0), Err(EINVAL));
        assert_eq!(at(buf.fd, PAGES * PAGE_SIZE, 1), Err(EINVAL));
        assert_eq!(at(buf.fd, usize::MAX, 2), Err(EINVAL));
        at(buf.fd, PAGES * PAGE_SIZE - 1, 1)
    }

    #[test]
    fn who_has_a_part_of_a_dma_buf_does_not_wait_for_another() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let buf = TestDmaBuf::new()?;
        let memory = watch_dma_buf(&device, &mapper, &buf, new_log()?)?;
        let other = watch_dma_buf(&device, &mapper, &buf, new_log()?)?;
        // The lock of a process's memory is another one, but nobody may take both.
        let process = ProcessMemory::new(PAGES)?;
        let access = Access::LocalWrite.into();
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let of_process = || unsafe {
            let (raw, log) = (device.as_raw(), new_log()?);
            Memory::watch(raw, &mapper, process.address(), PAGE_SIZE, access, log)
                .and_then(OnDemand::keep)
        };
        let nested = || {
            assert_eq!(other.exclusively(|| ()), Err(EDEADLK));
            assert_eq!(addresses(&other, 0..1).err(), Some(EDEADLK));
            let new = watch_dma_buf(&device, &mapper, &buf, new_log()?);
            assert_eq!(new.err(), Some(EDEADLK));
            assert_eq!(of_process().err(), Some(EDEADLK));
            Ok::<_, Error>(())
        };
        memory.exclusively(nested)??;
        memory.map(0..1, true, true, |_| nested())?;
        other.exclusively(|| ())?;
        drop(of_process()?);

        let released = other.memory.clone();
        memory.exclusively(|| drop(other))?;
        assert!(!*released.released.lock());
        // This ends what is left.
        mapper.close();
        Ok(())
    }

    #[test]
    fn nobody_is_told_of_a_dma_buf_of_a_device_that_is_gone() -> Result {
        with_dma_buf(|memory, buf, log, mapper| {
            addresses(memory, 0..6)?;
            mapper.close();
            buf.relocate(BASES[1])?;
            assert!(log.forgotten.lock().is_empty());
            assert_eq!(addresses(memory, 0..1).err(), Some(ENODEV));
            assert_eq!(memory.exclusively(|| ()), Err(ENODEV));
            Ok(())
        })
    }

    #[test]
    fn a_forgotten_dma_buf_is_revoked_with_its_device() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let buf = TestDmaBuf::new()?;
        let log = new_log()?;
        let memory = watch_dma_buf(&device, &mapper, &buf, log.clone())?;
        addresses(&memory, 0..6)?;
        core::mem::forget(memory);
        mapper.close();
        buf.relocate(BASES[1])?;
        assert!(log.forgotten.lock().is_empty());
        Ok(())
    }

    #[test]
    fn pages_are_counted_from_the_first() {
        let base = 16 * PAGE_SIZE;
        assert_eq!(page_numbers(base, base, base), 0..1);
        assert_eq!(page_numbers(base, base + 1, base + PAGE_SIZE - 1), 0..1);
        assert_eq!(
            page_numbers(base, base + PAGE_SIZE, base + 2 * PAGE_SIZE),
            1..3
        );
    }
}
