// SPDX-License-Identifier: GPL-2.0

//! Tests of pinned memory and of the buffers of queues.

use crate::testing::prelude::*;

#[kunit_tests(rdma_buffers)]
mod cases {
    use super::*;

    #[test]
    fn buffers_of_processes_are_pinned_where_they_say() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let address = process.memory.address() + 16;
            let attributes = bindings::ib_cq_init_attr {
                cqe: 4,
                comp_vector: 1,
                flags: 3,
            };
            let mut cq = room!(device, ib_cq, Cq);
            let mut call = process.call(address)?;
            to_result(verb!(
                device,
                create_user_cq(cq.as_raw(), &attributes, call.attributes())
            ))?;
            let attributes = CqInitAttr {
                entries: 4,
                vector: 1,
                flags: CqFlag::Timestamps | CqFlag::IgnoreOverrun,
            };
            assert_eq!(log.asked(), Some(Asked::Queue(attributes, Some(address))));
            assert_eq!(process.memory.read()?, !address);
            to_result(verb!(device, destroy_cq(cq.as_raw(), null_mut())))?;
            process.end(device)
        })
    }

    #[test]
    fn processes_are_answered_when_they_make_queues() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            // The buffers are described by attributes.
            let buffer = process.memory.address();
            let (mut send_cq, mut recv_cq) = (Queue::new(device, 1, 0)?, Queue::new(device, 1, 0)?);
            let pd = Domain::new(device)?;

            let mut call = process.call(buffer + 11)?;
            let mut srq = new_shared(device, &pd, call.udata())?;
            let asked = SrqAttr {
                max_wr: 30,
                max_sge: 3,
                limit: 0,
            };
            assert_eq!(
                log.asked(),
                Some(Asked::SharedQueue(asked, Some(buffer + 11)))
            );
            assert_eq!(process.memory.read()?, !(buffer + 11));

            let mut attr = bindings::ib_srq_attr {
                max_wr: 70,
                ..Default::default()
            };
            let mask = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
            let mut call = process.call(12)?;
            to_result(verb!(
                device,
                modify_srq(srq.as_raw(), &mut attr, mask, call.udata())
            ))?;
            assert_eq!(log.asked(), Some(Asked::SharedResize(70, Some(12))));

            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            init.qp_type = bindings::ib_qp_type_IB_QPT_UC;
            init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
            init.send_cq = send_cq.0.as_raw();
            init.recv_cq = recv_cq.0.as_raw();
            init.cap.max_send_wr = 9;
            let mut qp = room!(device, ib_qp, Qp);
            // SAFETY: The core sets these members, too.
            unsafe {
                (*qp.as_raw()).pd = pd.0;
                (*qp.as_raw()).send_cq = init.send_cq;
                (*qp.as_raw()).recv_cq = init.recv_cq;
            }
            let mut call = process.call(buffer + 13)?;
            to_result(verb!(
                device,
                create_qp(qp.as_raw(), &raw mut *init, call.udata())
            ))?;
            let asked = Asked::QueuePair {
                ty: qp::Type::UnreliableConnection,
                capabilities: QpCap {
                    max_send_wr: 9,
                    ..Default::default()
                },
                signal_all: true,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                srq: None,
                flags: Default::default(),
                request: Some(buffer + 13),
            };
            assert_eq!(log.asked(), Some(asked));
            assert_eq!(process.memory.read()?, !(buffer + 13));
            assert_eq!(init.cap.max_send_wr, CAPABILITIES.max_send_wr);

            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;
            to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))?;
            send_cq.end(device)?;
            recv_cq.end(device)?;
            process.end(device)
        })
    }

    /// Creates objects of a process, with the buffer of the driver's request and with one that
    /// `attribute` describes.
    fn buffers(
        process: &mut Process,
        log: &Log,
        attribute: u32,
        create: impl Fn(UserCall) -> Result,
    ) -> Result {
        let (address, page) = (process.memory.address(), PAGE_SIZE as u64);
        let descriptor = process.memory.page(1);
        let describe = |address, length: u64| -> Result {
            // `struct ib_uverbs_buffer_desc`, in 64-bit words.
            let ty = bindings::ib_uverbs_buffer_type_IB_UVERBS_BUFFER_TYPE_VA;
            let mut writer = descriptor.user(32).writer();
            for word in [u64::from(ty), 0, address, length] {
                writer.write(&word)?;
            }
            Ok(())
        };

        create(process.call(address)?)?;
        assert_buffer(log, (address, 100))?;
        describe(address + page / 2, 200)?;
        let mut call = process.call(address)?;
        call.set_attribute(attribute, descriptor.address(), 32);
        create(call)?;
        assert_buffer(log, (address + page / 2, 200))?;

        // The buffer is too small.
        describe(address, 99)?;
        let mut call = process.call(address)?;
        call.set_attribute(attribute, descriptor.address(), 32);
        match create(call) {
            Err(EINVAL) => Ok(()),
            _ => Err(EBADE),
        }
    }

    fn assert_buffer(log: &Log, expected: (u64, usize)) -> Result {
        let buffer = log.buffer.lock().take();
        if buffer != Some(expected) {
            pr_err!("a buffer {:x?} instead of {:x?}\n", buffer, expected);
            return Err(EBADE);
        }
        Ok(())
    }

    #[test]
    fn buffers_are_where_the_call_says() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let (mut send_cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);

            let of_cq =
                bindings::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUF_UMEM;
            buffers(&mut process, log, of_cq, |mut call| {
                let mut cq = room!(device, ib_cq, Cq);
                let attributes = bindings::ib_cq_init_attr {
                    cqe: 1,
                    ..Default::default()
                };
                let made = verb!(
                    device,
                    create_user_cq(cq.as_raw(), &attributes, call.attributes())
                );
                to_result(made)?;
                to_result(verb!(device, destroy_cq(cq.as_raw(), null_mut())))
            })?;
            let of_srq =
                bindings::uverbs_attrs_create_srq_cmd_attr_ids_UVERBS_ATTR_CREATE_SRQ_BUF_UMEM;
            buffers(&mut process, log, of_srq, |mut call| {
                let mut srq = new_shared(device, &pd, call.udata())?;
                to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))
            })?;

            let cq = send_cq.0.as_raw();
            let make_qp = |mut call: UserCall| {
                let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
                init.qp_type = bindings::ib_qp_type_IB_QPT_RC;
                (init.send_cq, init.recv_cq) = (cq, cq);
                let mut qp = room!(device, ib_qp, Qp);
                // SAFETY: The core sets these members, too.
                unsafe {
                    (*qp.as_raw()).pd = pd.0;
                    ((*qp.as_raw()).send_cq, (*qp.as_raw()).recv_cq) = (cq, cq);
                }
                to_result(verb!(
                    device,
                    create_qp(qp.as_raw(), &raw mut *init, call.udata())
                ))?;
                to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))
            };
            let of_qp =
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_BUF_UMEM;
            buffers(&mut process, log, of_qp, make_qp)?;
            // The queue pair has a single buffer.
            for two in [
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM,
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM,
            ] {
                let address = process.memory.address();
                let mut call = process.call(address)?;
                call.set_attribute(two, address, 32);
                assert_eq!(make_qp(call), Err(EOPNOTSUPP));
            }
            send_cq.end(device)?;
            process.end(device)
        })
    }
}

#[kunit_tests(rdma_umem)]
mod umem {
    use super::super::*;
    use crate::{
        access::Access,
        mmap::UserPages,
        testing::{
            device::TestDevice,
            driver::with_device,
            process::ProcessMemory, //
        }, //
    };
    use kernel::{
        error::to_result,
        page::PAGE_SIZE, //
    };

    /// The tests export dma-bufs, whether they are in a module or built in.
    #[used(compiler)]
    #[link_section = ".modinfo"]
    static IMPORTED: [u8; 18] = *b"import_ns=DMA_BUF\0";

    /// A dma-buf of a device that does not exist: two pieces of two pages each, at addresses that
    /// are never accessed.
    struct Exported(c_int);

    impl Exported {
        const PIECES: [DmaAddress; 2] = [0x50_0000_0000, 0x30_0000_0000];
        const SIZE: usize = 4 * PAGE_SIZE;

        const OPS: &'static bindings::dma_buf_ops = &bindings::dma_buf_ops {
            map_dma_buf: Some(Self::map_callback),
            unmap_dma_buf: Some(Self::unmap_callback),
            release: Some(Self::release_callback),
            ..pin_init::zeroed()
        };

        /// Exports a dma-buf, and opens a descriptor for it in this process.
        fn new() -> Result<Self> {
            let info = bindings::dma_buf_export_info {
                exp_name: c"rdma-test".as_char_ptr(),
                ops: Self::OPS,
                size: Self::SIZE,
                // Never used, but must not be null.
                priv_: core::ptr::from_ref(Self::OPS).cast_mut().cast(),
                ..Default::default()
            };
            // SAFETY: The operations are static.
            let buffer = from_err_ptr(unsafe { bindings::dma_buf_export(&info) })?;
            // SAFETY: The dma-buf is valid, and its reference moves to the descriptor.
            let fd = unsafe { bindings::dma_buf_fd(buffer, 0) };
            if fd < 0 {
                // SAFETY: As above; the reference is still ours.
                unsafe { bindings::dma_buf_put(buffer) };
            }
            to_result(fd)?;
            Ok(Self(fd))
        }

        /// # Safety
        ///
        /// None; the type is that of the operation.
        unsafe extern "C" fn map_callback(
            _attachment: *mut bindings::dma_buf_attachment,
            _direction: bindings::dma_data_direction,
        ) -> *mut bindings::sg_table {
            let map = || -> Result<*mut bindings::sg_table> {
                let mut table = KBox::new(bindings::sg_table::default(), GFP_KERNEL)?;
                let flags = crate::compat::gfp_as_raw(GFP_KERNEL);
                // SAFETY: The table is ours, and has as many entries as there are pieces.
                unsafe {
                    to_result(bindings::sg_alloc_table(&raw mut *table, 2, flags))?;
                    for (i, address) in Self::PIECES.into_iter().enumerate() {
                        let element = table.sgl.add(i);
                        (*element).dma_address = address;
                        (*element).dma_length = 2 * PAGE_SIZE as u32;
                    }
                }
                Ok(KBox::into_raw(table))
            };
            map().unwrap_or_else(Error::to_ptr)
        }

        /// # Safety
        ///
        /// `table` must be what [`map_callback`](Self::map_callback) returned.
        unsafe extern "C" fn unmap_callback(
            _attachment: *mut bindings::dma_buf_attachment,
            table: *mut bindings::sg_table,
            _direction: bindings::dma_data_direction,
        ) {
            // SAFETY: Guaranteed by the caller.
            unsafe {
                bindings::sg_free_table(table);
                drop(KBox::from_raw(table));
            }
        }

        /// # Safety
        ///
        /// None; the type is that of the operation.
        unsafe extern "C" fn release_callback(_buffer: *mut bindings::dma_buf) {}
    }

    impl Drop for Exported {
        fn drop(&mut self) {
            // SAFETY: The descriptor is ours.
            unsafe { bindings::close_fd(self.0.unsigned_abs()) };
        }
    }

    /// All possible page sizes.
    const SIZES: u64 = u64::MAX << PAGE_SIZE.trailing_zeros();

    #[test]
    fn memory_is_listed_page_by_page() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(5)?;
        let (start, length) = (process.address() + 100, 4 * PAGE_SIZE);
        let access = Access::LocalWrite.into();
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let mut umem = unsafe { Umem::pin(device.as_raw(), &mapper, start, length, access) }?;
        assert_eq!((umem.address(), umem.len()), (start, length));
        assert!(!umem.is_empty() && !umem.is_dma_buf());

        let pages = umem.pages(PAGE_SIZE as u64, start)?;
        assert_eq!(pages.shift(), PAGE_SIZE.trailing_zeros());
        assert_eq!((pages.offset(), pages.count()), (100, 5));
        assert_eq!(pages.iter().len(), 5);
        let mut last = None;
        let mut count = 0;
        for address in pages.iter() {
            assert!(address % PAGE_SIZE as u64 == 0 && last != Some(address));
            last = Some(address);
            count += 1;
        }
        assert_eq!(count, 5);

        // These do not fill the last page, from which the C iterator would go on.
        {
            let pages = umem.pages(512, start)?;
            let mut iter = pages.iter();
            assert_eq!(iter.by_ref().count(), pages.count());
            assert_eq!((iter.next(), iter.next()), (None, None));
        }

        let any = umem.pages(SIZES, start)?;
        assert!(any.shift() >= PAGE_SIZE.trailing_zeros() && any.count() <= 5);
        // Pages that are larger than the memory are not possible.
        assert_eq!(umem.pages(1 << 40, start).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn memory_stays_after_the_process_unmapped_it() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(2)?;
        let (start, length) = (process.address(), 2 * PAGE_SIZE);
        let access = Access::LocalWrite.into();
        // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
        let mut umem = unsafe { Umem::pin(device.as_raw(), &mapper, start, length, access) }?;
        process.unmap(0..2)?;
        assert!(umem.pages(SIZES, start)?.iter().next().is_some());
        // SAFETY: As above.
        let again = unsafe { Umem::pin(device.as_raw(), &mapper, start, length, access) };
        assert_eq!(again.err(), Some(EFAULT));
        Ok(())
    }

    #[test]
    fn bad_ranges_are_refused() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(1)?;
        let start = process.address();
        let get = |address, length, access: Access| {
            // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
            unsafe { Umem::pin(device.as_raw(), &mapper, address, length, access.into()) }.err()
        };
        assert_eq!(get(start, 0, Access::RemoteRead), Some(EINVAL));
        assert_eq!(get(u64::MAX - 10, 100, Access::RemoteRead), Some(EINVAL));
        assert_eq!(get(start, 2 * PAGE_SIZE, Access::LocalWrite), Some(EFAULT));
        assert_eq!(get(start, PAGE_SIZE, Access::RemoteRead), None);
        Ok(())
    }

    #[test]
    fn memory_that_is_kept_for_longer_than_the_device_stays_pinned() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        let process = ProcessMemory::new(1)?;
        let access = Access::LocalWrite.into();
        let get = || {
            // SAFETY: The device is valid, and the mapper its own. The process has its memory here.
            unsafe {
                Umem::pin(
                    device.as_raw(),
                    &mapper,
                    process.address(),
                    PAGE_SIZE,
                    access,
                )
            }
        };
        let before = process.pinned();
        let in_time = get()?;
        let too_late = get()?;
        let raw = too_late.raw;
        assert_eq!(process.pinned(), before + 2);
        drop(in_time);
        assert_eq!(process.pinned(), before + 1);
        mapper.close();
        drop(too_late);
        assert_eq!(process.pinned(), before + 1);
        // SAFETY: The memory was left pinned, and the device still exists.
        unsafe { bindings::ib_umem_release(raw.as_ptr()) };
        assert_eq!(process.pinned(), before);
        Ok(())
    }

    #[test]
    fn a_piece_of_a_dma_buf_is_listed_page_by_page() -> Result {
        let _process = ProcessMemory::new(1)?;
        let exported = Exported::new()?;
        let [first, second] = Exported::PIECES;
        let page = PAGE_SIZE as u64;
        let result = with_device(|device, _| {
            let access = Access::LocalWrite.into();
            // SAFETY: The device is registered.
            let get = |offset, length| unsafe {
                device.with_caller(true, |call| {
                    Umem::get_dma_buf(call, exported.0, offset, length, access)
                })
            };
            let mut umem = get(PAGE_SIZE + 8, 2 * PAGE_SIZE)?;
            assert!(umem.is_dma_buf());
            assert_eq!(umem.address(), page + 8);
            assert_eq!(umem.len(), 2 * PAGE_SIZE);
            let pages = umem.pages(page, (1 << 40) + 8)?;
            assert_eq!((pages.offset(), pages.count()), (8, 3));
            let mut expected = [first + page, second, second + page].into_iter();
            for address in pages.iter() {
                assert_eq!(Some(address), expected.next());
            }
            assert_eq!(expected.next(), None);

            assert_eq!(get(1, Exported::SIZE).err(), Some(EINVAL));
            assert_eq!(get(0, Exported::SIZE)?.pages(page, 0)?.count(), 4);
            Ok(())
        });
        drop(exported);
        // SAFETY: May be called by any thread. Closed files are gone after this.
        unsafe { bindings::flush_delayed_fput() };
        result
    }

    #[test]
    fn memory_is_that_of_a_process_which_calls() -> Result {
        with_device(|device, _| {
            let get = |is_process, address| {
                // SAFETY: The device is registered. The thread of a test counts as a process.
                unsafe {
                    device.with_caller(is_process, |call| {
                        let access = AccessFlags::default();
                        let pinned = Umem::get(call, address, PAGE_SIZE, access).err();
                        let of_buffer = Umem::get_dma_buf(call, -1, 0, PAGE_SIZE, access).err();
                        let shared = UserPages::new(call, PAGE_SIZE).err();
                        (pinned, of_buffer, shared)
                    })
                }
            };
            let nobody = (Some(ESRCH), Some(ESRCH), Some(ESRCH));
            // Kernel threads have no process memory.
            assert_eq!(get(false, 0), nobody);
            assert_eq!(get(true, 0), nobody);
            let process = ProcessMemory::new(1)?;
            // A verb called by the kernel must not use the memory of the current process.
            assert_eq!(get(false, process.address()), nobody);
            assert_eq!(get(true, process.address()), (None, Some(EBADF), None));
            Ok(())
        })
    }

    #[test]
    fn what_is_no_dma_buf_is_refused() -> Result {
        let _process = ProcessMemory::new(1)?;
        with_device(|device, _| {
            let access = Access::LocalWrite.into();
            // SAFETY: The device is registered.
            let get = |fd, offset, length| unsafe {
                device.with_caller(true, |call| {
                    Umem::get_dma_buf(call, fd, offset, length, access).err()
                })
            };
            assert_eq!(get(-1, 0, PAGE_SIZE), Some(EBADF));
            // The range is checked first.
            assert_eq!(get(-1, usize::MAX, PAGE_SIZE), Some(EINVAL));
            assert_eq!(get(-1, PAGE_SIZE, usize::MAX), Some(EINVAL));
            Ok(())
        })
    }
}
