// SPDX-License-Identifier: GPL-2.0

//! Tests of memory regions.

use crate::testing::prelude::*;

#[kunit_tests(rdma_mr)]
mod cases {
    use super::*;

    /// Returns the keys of a region, and the number of the driver's object.
    ///
    /// # Safety
    ///
    /// `mr` must be a region of the driver.
    unsafe fn region(mr: *mut bindings::ib_mr) -> ((u32, u32), u32) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = &*mr.cast::<Mr<Object>>();
            (((*mr).lkey, (*mr).rkey), this.number)
        }
    }

    #[test]
    fn regions_of_processes_have_ranges_and_rights() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            let access = Access::RemoteRead | Access::LocalWrite;
            let (start, length, iova) = (0x1111_0000_0000, 0x2222_0000_0000, 0x3333_0000_0000);

            let mut call = process.call(10)?;
            let mr = from_err_ptr(verb!(
                device,
                reg_user_mr(
                    pd.0,
                    start,
                    length,
                    iova,
                    access.bits() as c_int,
                    null_mut(),
                    call.udata()
                )
            ))?;
            let range = mr::Range {
                start,
                length,
                iova,
            };
            assert_eq!(log.asked(), Some(Asked::Region(range, access, None, 10)));
            assert_eq!(process.memory.read()?, !10);
            // SAFETY: The region was just created.
            let (both, number) = unsafe { region(mr) };
            assert_eq!(both, keys(number));
            // SAFETY: As above.
            assert_eq!(unsafe { ((*mr).device, (*mr).pd) }, (device.as_raw(), pd.0));

            change(device, &mut process, mr, log)?;

            log.keeps.store(true, SeqCst);
            assert_eq!(
                to_result(verb!(device, dereg_mr(mr, null_mut()))),
                Err(EBUSY)
            );
            log.keeps.store(false, SeqCst);
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            process.end(device)
        })
    }

    /// Changes a region in each possible way.
    fn change(
        device: &Device<TestDriver>,
        process: &mut Process,
        mr: *mut bindings::ib_mr,
        log: &Log,
    ) -> Result {
        const TRANS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS;
        const PD: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_PD;
        const ACCESS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS;

        let other = Domain::new(device)?;
        let new_range = mr::Range {
            start: 0x4444,
            length: 0x5555,
            iova: 0x6666,
        };
        for flags in [TRANS, PD, ACCESS, TRANS | PD | ACCESS] {
            let has = |flag| flags & flag != 0;
            let mut call = process.bare_call()?;
            let result = from_err_ptr(verb!(
                device,
                rereg_user_mr(
                    mr,
                    flags as c_int,
                    new_range.start,
                    new_range.length,
                    new_range.iova,
                    Access::RemoteWrite as c_int,
                    if has(PD) { other.0 } else { null_mut() },
                    call.udata()
                )
            ))?;
            let expected = Asked::Change {
                range: has(TRANS).then_some(new_range),
                access: has(ACCESS).then_some(Access::RemoteWrite.into()),
                pd: has(PD).then_some(other.number()),
            };
            // SAFETY: The region still exists.
            let (both, number) = unsafe { region(mr) };
            if !result.is_null() || log.asked() != Some(expected) || both != keys(number + 1000) {
                pr_err!("change {}: keys {:?} of region {}\n", flags, both, number);
                return Err(EINVAL);
            }
        }
        Ok(())
    }

    #[test]
    fn regions_of_other_kinds_have_what_they_need() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let access = Access::LocalWrite | Access::RemoteAtomic;
            let raw = access.bits() as c_int;

            let mr = from_err_ptr(verb!(
                device,
                reg_user_mr_dmabuf(pd.0, 0x111, 0x222, 0x333, 44, raw, null_mut(), null_mut())
            ))?;
            let range = mr::DmaBufRange {
                fd: 44,
                offset: 0x111,
                length: 0x222,
                iova: 0x333,
            };
            assert_eq!(log.asked(), Some(Asked::DmaBuf(range, access, None)));
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;

            let mr = from_err_ptr(verb!(device, get_dma_mr(pd.0, raw)))?;
            assert_eq!(log.asked(), Some(Asked::AllMemory(access)));
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;

            log.asked();
            let mr = from_err_ptr(verb!(device, get_dma_mr(pd.0, 1 << 15)));
            assert_eq!((mr.err(), log.asked()), (Some(EOPNOTSUPP), None));
            let mr = from_err_ptr(verb!(
                device,
                alloc_mr(pd.0, bindings::ib_mr_type_IB_MR_TYPE_SG_GAPS, 1)
            ));
            assert_eq!((mr.err(), log.asked()), (Some(EOPNOTSUPP), None));
            Ok(())
        })
    }

    #[test]
    fn advice_is_understood() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let mut list = [1, 2].map(|i| bindings::ib_sge {
                addr: 0x1_0000_0000 * i,
                length: 77,
                lkey: 88,
            });
            let mut advise = |advice, flags, count| -> Result {
                to_result(verb!(
                    device,
                    advise_mr(pd.0, advice, flags, list.as_mut_ptr(), count, null_mut())
                ))
            };
            for (i, advice) in [
                mr::Advice::Prefetch,
                mr::Advice::PrefetchWrite,
                mr::Advice::PrefetchNoFault,
            ]
            .into_iter()
            .enumerate()
            {
                // CAST: Small constants, with the values of the user ABI.
                advise(i as u32, 0, 1)?;
                let piece = (0x1_0000_0000, 77, 88);
                assert_eq!(log.asked(), Some(Asked::Advice(advice, false, 1, piece)));
                advise(i as u32, 1, 2)?;
                let piece = (0x2_0000_0000, 77, 88);
                assert_eq!(log.asked(), Some(Asked::Advice(advice, true, 2, piece)));
            }
            assert_eq!(advise(3, 0, 1), Err(EOPNOTSUPP));
            assert_eq!(advise(0, 2, 1), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);
            Ok(())
        })
    }

    #[test]
    fn a_registration_has_the_pages_of_its_list() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            // SAFETY: The domain is valid.
            let mr = from_err_ptr(unsafe {
                bindings::ib_alloc_mr(pd.0, bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, 4)
            })?;
            assert_eq!(log.asked(), Some(Asked::Fast(4)));
            let mut wr = bindings::ib_reg_wr {
                mr,
                key: 0x1234_5678,
                access: (Access::RemoteRead | Access::LocalWrite).bits() as c_int,
                ..Default::default()
            };
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
            let take = |wr: &bindings::ib_reg_wr| {
                let queue = WorkQueue::unordered(Poster::new());
                let ty = qp::Type::ReliableConnection;
                // SAFETY: The request satisfies its operation's requirements, and does not change
                // while it is used.
                let mut list = unsafe {
                    SendRequests::<TestDriver>::new(ptr::from_ref(wr).cast(), ty, queue, true)
                };
                match list.take().ok_or(ENOENT)??.operation() {
                    Operation::Register {
                        mr,
                        mapping,
                        key,
                        access,
                    } => Ok((mr.number, *mapping, *key, *access)),
                    _ => Err(EINVAL),
                }
            };
            // The region has not been mapped.
            assert_eq!(take(&wr).err(), Some(EINVAL));

            // Two and a half pages, starting in the middle of the first one. The addresses are not
            // those of memory, and are not accessed.
            let mut list = [bindings::scatterlist::default(); 2];
            (list[0].dma_address, list[0].dma_length) = (0x7_0000_0800, 0x800);
            (list[1].dma_address, list[1].dma_length) = (0x9_0000_0000, 0x1800);
            // The end of the list.
            list[1].page_link = 2;
            // SAFETY: The list has two elements, and the region is not used concurrently.
            let mapped =
                unsafe { bindings::ib_map_mr_sg(mr, list.as_mut_ptr(), 2, null_mut(), 0x1000) };
            assert_eq!(mapped, 2);
            // SAFETY: The region exists.
            let object = unsafe { &*mr.cast::<Mr<Object>>() };
            let pages = object.pages.each_ref().map(|page| page.load(SeqCst));
            assert_eq!(pages, [0x7_0000_0000, 0x9_0000_0000, 0x9_0000_1000, 0]);

            let (number, mapping, key, access) = take(&wr)?;
            assert_eq!((number, key), (object.number, 0x1234_5678));
            assert_eq!(access, Access::RemoteRead | Access::LocalWrite);
            let expected = mr::Mapping {
                iova: 0x7_0000_0800,
                length: 0x2000,
                pages: 3,
                page_shift: 12,
            };
            assert_eq!(mapping, expected);
            wr.access = 1 << 15;
            assert_eq!(take(&wr).err(), Some(EOPNOTSUPP));

            // More pages than there is room for, starting again from the first one.
            (list[0].dma_address, list[0].dma_length) = (0xa_0000_0000, 0x6000);
            // SAFETY: As above.
            let mapped =
                unsafe { bindings::ib_map_mr_sg(mr, list.as_mut_ptr(), 1, null_mut(), 0x1000) };
            assert_eq!(mapped, 0);
            wr.access = 0;
            let (_, mapping, ..) = take(&wr)?;
            assert_eq!((mapping.iova, mapping.pages), (0xa_0000_0000, 4));
            assert_eq!(object.pages[3].load(SeqCst), 0xa_0000_3000);
            // SAFETY: The core created the region, and it is no longer in use.
            to_result(unsafe { bindings::ib_dereg_mr_user(mr, null_mut()) })
        })
    }

    #[test]
    fn a_mapping_is_what_the_core_left() -> Result {
        let mut raw = boxed::<bindings::ib_mr>()?;
        // SAFETY: The region is not shared.
        let mapping = |raw: &bindings::ib_mr, pages| unsafe { Mapping::from_raw(raw, pages) };
        assert_eq!(mapping(&raw, 0).err(), Some(EINVAL));

        raw.iova = 0x1_2345;
        raw.length = 0x3000;
        raw.page_size = 4096;
        assert_eq!(
            mapping(&raw, 4)?,
            Mapping {
                iova: 0x1_2345,
                length: 0x3000,
                pages: 4,
                page_shift: 12,
            }
        );
        raw.page_size = 6144;
        assert_eq!(mapping(&raw, 4).err(), Some(EINVAL));
        Ok(())
    }
}
