// SPDX-License-Identifier: GPL-2.0

//! Tests of regions for integrity.

use super::*;

use crate::testing::prelude::*;

#[kunit_tests(rdma_integrity)]
mod cases {
    use super::*;

    /// Returns the protection information of a C domain.
    fn dif(domain: &mut bindings::ib_sig_domain) -> &mut bindings::ib_t10_dif_domain {
        // SAFETY: The only member of the union, which is plain data.
        unsafe { crate::compat::member_mut(&mut domain.sig.dif) }
    }

    /// A C domain with protection information whose values differ.
    fn raw_domain() -> bindings::ib_sig_domain {
        let mut domain = bindings::ib_sig_domain {
            sig_type: bindings::ib_signature_type_IB_SIG_TYPE_T10_DIF,
            ..Default::default()
        };
        *dif(&mut domain) = bindings::ib_t10_dif_domain {
            bg_type: bindings::ib_t10_dif_bg_type_IB_T10DIF_CSUM,
            pi_interval: 512,
            bg: 1,
            app_tag: 2,
            ref_tag: 3,
            ref_remap: true,
            app_escape: false,
            ref_escape: true,
            apptag_check_mask: 4,
        };
        domain
    }

    const DOMAIN: Protection = Protection {
        guard: Guard::IpChecksum,
        interval: 512,
        seed: 1,
        application_tag: 2,
        application_mask: 4,
        reference_tag: 3,
        reference_increments: true,
        application_escape: false,
        reference_escape: true,
    };

    fn lists(data: u32, metadata: u32) -> Lists {
        let extent = |length| Extent { pieces: 1, length };
        Lists {
            data: extent(data),
            metadata: extent(metadata),
        }
    }

    #[test]
    fn whole_parts_are_checked() {
        assert_eq!(Checks::from_raw(0), Ok(Checks::default()));
        let tags = Check::ApplicationTag | Check::ReferenceTag;
        assert_eq!(Checks::from_raw(0x3f), Ok(tags));
        assert_eq!(Checks::from_raw(0xff), Ok(tags | Check::Guard));
        for part in [0x80, 0x10, 0x07, 0xfe] {
            assert_eq!(Checks::from_raw(part), Err(EINVAL));
        }
    }

    #[test]
    fn a_domain_is_plain_or_protected() {
        let plain = bindings::ib_sig_domain::default();
        assert_eq!(Protection::from_raw(&plain), Ok(None));
        assert_eq!(Protection::from_raw(&raw_domain()), Ok(Some(DOMAIN)));

        let mut unknown = raw_domain();
        unknown.sig_type = 2;
        assert_eq!(Protection::from_raw(&unknown), Err(EINVAL));
        let mut unknown = raw_domain();
        dif(&mut unknown).bg_type = 2;
        assert_eq!(Protection::from_raw(&unknown), Err(EINVAL));
        let mut empty = raw_domain();
        dif(&mut empty).pi_interval = 0;
        assert_eq!(Protection::from_raw(&empty), Err(EINVAL));
    }

    #[test]
    fn each_block_has_protection_information() {
        let mut raw = bindings::ib_sig_attrs {
            check_mask: 0xc0,
            ..Default::default()
        };
        let found = |raw: &_, data, metadata| Attributes::from_raw(raw, &lists(data, metadata));
        let expected = Attributes {
            checks: Check::Guard.into(),
            memory: None,
            wire: None,
        };
        // Without protection information there are no blocks.
        assert_eq!(found(&raw, 1, 0), Ok(expected));
        raw.mem = raw_domain();
        let memory = Some(DOMAIN);
        assert_eq!(found(&raw, 1024, 16), Ok(Attributes { memory, ..expected }));
        for length in [15, 17, 24] {
            assert_eq!(found(&raw, 1024, length), Err(EINVAL));
        }
        assert_eq!(found(&raw, 1025, 24), Err(EINVAL));
        raw.mem = bindings::ib_sig_domain::default();
        raw.wire = raw_domain();
        let wire = Some(DOMAIN);
        assert_eq!(found(&raw, 1024, 0), Ok(Attributes { wire, ..expected }));
        assert_eq!(found(&raw, 1000, 0), Err(EINVAL));
        raw.check_mask = 1;
        assert_eq!(found(&raw, 1024, 0), Err(EINVAL));
    }

    /// An element of a list. Its address is not that of memory, and is not accessed.
    fn element(address: u64, length: u32) -> bindings::scatterlist {
        bindings::scatterlist {
            dma_address: address,
            dma_length: length,
            ..Default::default()
        }
    }

    #[test]
    fn pieces_are_those_of_a_chain() -> Result {
        let mut second = [element(0x2000, 20), element(0x3000, 30)];
        let mut first = [element(0x1000, 10), element(0, 0)];
        // The last element of the first array is a link to the second.
        // CAST: The address of the array, which is aligned, with the mark of a link.
        first[1].page_link = second.as_mut_ptr() as usize | 1;
        let list = first.as_mut_ptr();
        // SAFETY: The lists have that many elements, and do not change.
        let pieces = |count, offset| unsafe { Pieces::new(list, count, offset) };

        let mut all = pieces(3, 4)?;
        let extent = Extent {
            pieces: 3,
            length: 56,
        };
        assert_eq!(all.extent()?, extent);
        assert_eq!(all.next(), Some((0x1004, 6)));
        assert_eq!(all.next(), Some((0x2000, 20)));
        assert_eq!(all.next(), Some((0x3000, 30)));
        assert_eq!((all.next(), all.next()), (None, None));
        assert_eq!(pieces(1, 0)?.extent()?.length, 10);
        assert_eq!(pieces(1, 10).err(), Some(EINVAL));
        assert!(pieces(-1, 0).is_err());
        assert_eq!(pieces(0, 10)?.extent()?, Extent::default());
        Ok(())
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() -> Result {
        let mut list = [element(0, 1 << 31), element(0, 1 << 31)];
        // SAFETY: The list has that many elements.
        let mut length = |count| unsafe { Pieces::new(list.as_mut_ptr(), count, 0) }?.extent();
        assert_eq!(length(1)?.length, 1 << 31);
        assert!(length(2).is_err());
        Ok(())
    }

    #[test]
    fn a_region_checks_what_is_registered() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            // SAFETY: The domain is valid.
            let mr = from_err_ptr(unsafe { bindings::ib_alloc_mr_integrity(pd.0, 3, 2) })?;
            assert_eq!(log.asked(), Some(Asked::Integrity(3, 2)));
            // SAFETY: The region exists.
            let object = unsafe { &*mr.cast::<Mr<Object>>() };
            let mut wr = bindings::ib_reg_wr {
                mr,
                key: 0x1234_5678,
                access: Access::LocalWrite as c_int,
                ..Default::default()
            };
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR_INTEGRITY;
            let take = || {
                let queue = WorkQueue::unordered(Poster::new());
                let ty = qp::Type::ReliableConnection;
                // SAFETY: The request satisfies its operation's requirements, and does not change
                // while it is used.
                let mut list = unsafe {
                    SendRequests::<TestDriver>::new(ptr::from_ref(&wr).cast(), ty, queue, true)
                };
                match list.take().ok_or(ENOENT)??.operation() {
                    Operation::RegisterIntegrity {
                        mr,
                        lists,
                        attributes,
                        key,
                        access,
                    } => Ok((mr.number, *lists, *attributes, *key, *access)),
                    _ => Err(EINVAL),
                }
            };
            // The region has not been mapped.
            assert_eq!(take().err(), Some(EINVAL));

            let mut data = [element(0x10_0000, 700), element(0x20_0000, 324)];
            // The end of the list.
            data[1].page_link = 2;
            let mut metadata = [element(0x30_0008, 20)];
            let (data, metadata) = (data.as_mut_ptr(), metadata.as_mut_ptr());
            let map = move || {
                let mut offset = 4;
                // SAFETY: The lists have that many elements, and the region is not used
                // concurrently.
                to_result(unsafe {
                    bindings::ib_map_mr_sg_pi(
                        mr,
                        data,
                        2,
                        null_mut(),
                        metadata,
                        1,
                        &mut offset,
                        4096,
                    )
                })
            };
            map()?;
            let pages = object.pages.each_ref().map(|page| page.load(SeqCst));
            assert_eq!(pages, [0x10_0000, 0x20_0000, 0x30_000c, 0]);
            // SAFETY: The region exists.
            unsafe {
                assert_eq!(((*mr).iova, (*mr).length), (0, 1024 + 16));
                assert_eq!((*(*mr).sig_attrs).meta_length, 16);
                (*(*mr).sig_attrs).check_mask = 0x0f;
                (*(*mr).sig_attrs).mem = raw_domain();
            }
            let (number, lists, attributes, key, access) = take()?;
            assert_eq!((number, key), (object.number, 0x1234_5678));
            assert_eq!(access, Access::LocalWrite.into());
            assert_eq!((lists.data.pieces, lists.data.length), (2, 1024));
            assert_eq!((lists.metadata.pieces, lists.metadata.length), (1, 16));
            let expected = Attributes {
                checks: Check::ReferenceTag.into(),
                memory: Some(DOMAIN),
                wire: None,
            };
            assert_eq!(attributes, expected);

            // What was mapped before is not registered after an error.
            log.keeps.store(true, SeqCst);
            assert_eq!(map(), Err(ENOMEM));
            log.keeps.store(false, SeqCst);
            assert_eq!(take().err(), Some(EINVAL));

            found(mr, object.number)?;
            // SAFETY: The core created the region, and it is no longer in use.
            to_result(unsafe { bindings::ib_dereg_mr_user(mr, null_mut()) })?;

            // Other regions have no checks.
            // SAFETY: The domain is valid.
            let mr = from_err_ptr(unsafe {
                bindings::ib_alloc_mr(pd.0, bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, 1)
            })?;
            let mut status = bindings::ib_mr_status::default();
            // SAFETY: The region exists.
            let checked = unsafe { bindings::ib_check_mr_status(mr, 1, &mut status) };
            assert_eq!(to_result(checked), Err(EINVAL));
            wr.mr = mr;
            let queue = WorkQueue::unordered(Poster::new());
            // SAFETY: As above.
            let mut list = unsafe {
                let wr = ptr::from_ref(&wr).cast();
                SendRequests::<TestDriver>::new(wr, qp::Type::ReliableConnection, queue, true)
            };
            assert_eq!(list.take().ok_or(ENOENT)?.err(), Some(EINVAL));
            // SAFETY: The core created the region, and it is no longer in use.
            to_result(unsafe { bindings::ib_dereg_mr_user(mr, null_mut()) })
        })
    }

    /// Checks that the driver's error, whose key is `number`, is reported if it is asked for.
    fn found(mr: *mut bindings::ib_mr, number: u32) -> Result {
        let check = |mask| {
            let mut status = CoreMemory::<bindings::ib_mr_status>::poisoned(0x5a)?;
            let raw = status.as_raw();
            // SAFETY: The region exists, and the status is writable.
            to_result(unsafe { bindings::ib_check_mr_status(mr, mask, raw) })?;
            // SAFETY: The verb has initialised the status.
            let (fail, error) = unsafe { ((*raw).fail_status, &(*raw).sig_err) };
            let values = (error.err_type, error.expected, error.actual);
            Ok((fail, values, error.sig_err_offset, error.key))
        };
        assert_eq!(check(2).err(), Some(EINVAL));
        assert_eq!(check(0)?, (0, (0, 0, 0), 0, 0));
        let apptag = bindings::ib_sig_err_type_IB_SIG_BAD_APPTAG;
        assert_eq!(check(1)?, (1, (apptag, 11, 12), 13, number));
        // It was taken.
        assert_eq!(check(1)?, (0, (0, 0, 0), 0, 0));
        Ok(())
    }
}
