// SPDX-License-Identifier: GPL-2.0

//! Tests of send requests.

use super::*;

#[kunit_tests(rdma_sends)]
mod cases {
    use super::*;
    use crate::{
        event::{
            Order,
            Poster, //
        },
        testing::driver::TestDriver, //
    };

    use core::ptr::{
        null,
        null_mut, //
    };

    const RC: Type = Type::ReliableConnection;
    const UD: Type = Type::UnreliableDatagram;

    const REMOTE: Remote = Remote {
        address: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
    };

    /// Bytes of the key or immediate data, all different.
    const EXTRA: [u8; 4] = [1, 2, 3, 4];

    fn request(opcode: bindings::ib_wr_opcode) -> bindings::ib_send_wr {
        let mut wr = bindings::ib_send_wr {
            opcode,
            ..Default::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut wr.__bindgen_anon_1.wr_id) } =
            0xfedc_ba98_7654_3210;
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut wr.ex.imm_data) } = u32::from_ne_bytes(EXTRA);
        wr
    }

    /// Calls `look` with a request of the kernel that is not posted.
    ///
    /// # Safety
    ///
    /// `wr` must be a list as for [`SendRequests::new`].
    unsafe fn take<R>(
        wr: &bindings::ib_send_wr,
        look: impl FnOnce(SendRequest<'_, TestDriver>) -> R,
    ) -> Result<R> {
        // SAFETY: Guaranteed by the caller.
        unsafe { take_of(wr, true, look) }
    }

    /// Like [`take`], with inline data only if `inline`.
    ///
    /// # Safety
    ///
    /// `wr` must be a list as for [`SendRequests::new`].
    unsafe fn take_of<R>(
        wr: &bindings::ib_send_wr,
        inline: bool,
        look: impl FnOnce(SendRequest<'_, TestDriver>) -> R,
    ) -> Result<R> {
        let queue = WorkQueue::unordered(Poster::new());
        // SAFETY: Guaranteed by the caller.
        let mut list = unsafe { SendRequests::new(wr, RC, queue, inline) };
        list.take().ok_or(ENOENT)?.map(look)
    }

    /// Returns the operation of a request that has no additional members.
    fn plain<'a>(opcode: bindings::ib_wr_opcode, ty: Type) -> Result<Operation<'a, TestDriver>> {
        // Larger than needed, and zero after the request.
        let wr = bindings::ib_atomic_wr {
            wr: request(opcode),
            ..Default::default()
        };
        // SAFETY: The result refers to neither a handle nor a region.
        unsafe { Operation::from_raw(&*(&raw const wr).cast(), ty) }
    }

    /// Returns the operation of a request for remote memory.
    fn remote<'a>(opcode: bindings::ib_wr_opcode) -> Result<Operation<'a, TestDriver>> {
        let wr = bindings::ib_rdma_wr {
            wr: request(opcode),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
        };
        // SAFETY: As above.
        unsafe { Operation::from_raw(&*(&raw const wr).cast(), RC) }
    }

    /// Returns the operation of an atomic request.
    fn atomic<'a>(opcode: bindings::ib_wr_opcode, ty: Type) -> Result<Operation<'a, TestDriver>> {
        let wr = bindings::ib_atomic_wr {
            wr: request(opcode),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
            compare_add: 0x0102_0304_0506_0708,
            swap: 0x1112_1314_1516_1718,
            compare_add_mask: 0x2122_2324_2526_2728,
            swap_mask: 0x3132_3334_3536_3738,
        };
        // SAFETY: As above.
        unsafe { Operation::from_raw(&*(&raw const wr).cast(), ty) }
    }

    #[test]
    fn sends_have_what_comes_with_them() -> Result {
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND, RC)?;
        assert!(matches!(send, Operation::Send));
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM, RC)?;
        assert!(matches!(send, Operation::SendWithImmediate(0x0102_0304)));

        // Unlike immediate data, a key is in host byte order.
        let key = u32::from_ne_bytes(EXTRA);
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, RC)?;
        assert!(matches!(send, Operation::SendWithInvalidate(k) if k == key));
        let invalidate = plain(bindings::ib_wr_opcode_IB_WR_LOCAL_INV, RC)?;
        assert!(matches!(invalidate, Operation::LocalInvalidate(k) if k == key));
        Ok(())
    }

    #[test]
    fn remote_memory_is_named() -> Result {
        let write = remote(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE)?;
        assert!(matches!(write, Operation::Write(r) if r == REMOTE));
        let write = remote(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM)?;
        assert!(matches!(write, Operation::WriteWithImmediate(r, 0x0102_0304) if r == REMOTE));
        let read = remote(bindings::ib_wr_opcode_IB_WR_RDMA_READ)?;
        assert!(matches!(read, Operation::Read(r) if r == REMOTE));
        Ok(())
    }

    #[test]
    fn atomics_have_their_operands() -> Result {
        let Operation::CompareSwap {
            remote,
            compare,
            swap,
        } = atomic(bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP, RC)?
        else {
            return Err(EINVAL);
        };
        assert_eq!(remote, REMOTE);
        assert_eq!(compare, 0x0102_0304_0506_0708);
        assert_eq!(swap, 0x1112_1314_1516_1718);

        let Operation::FetchAdd { remote, add } =
            atomic(bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD, RC)?
        else {
            return Err(EINVAL);
        };
        assert_eq!((remote, add), (REMOTE, 0x0102_0304_0506_0708));
        Ok(())
    }

    #[test]
    fn operations_without_a_name_are_refused() {
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_LSO,
            bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_CMP_AND_SWP,
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_FETCH_AND_ADD,
            bindings::ib_wr_opcode_IB_WR_BIND_MW,
            bindings::ib_wr_opcode_IB_WR_FLUSH,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_WRITE,
            bindings::ib_wr_opcode_IB_WR_RESERVED1,
            200,
        ] {
            for ty in [RC, Type::UnreliableConnection] {
                assert_eq!(plain(opcode, ty).err(), Some(EOPNOTSUPP));
            }
        }
        // This is for reliable connections.
        let integrity = bindings::ib_wr_opcode_IB_WR_REG_MR_INTEGRITY;
        let unreliable = plain(integrity, Type::UnreliableConnection);
        assert_eq!(unreliable.err(), Some(EOPNOTSUPP));
        // The only operation for datagrams is a send. Management datagrams have no segments.
        let segmented = plain(bindings::ib_wr_opcode_IB_WR_LSO, Type::Gsi);
        assert_eq!(segmented.err(), Some(EINVAL));
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV,
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            bindings::ib_wr_opcode_IB_WR_REG_MR,
            200,
        ] {
            for ty in [UD, Type::Gsi] {
                // The remote address is where a datagram has its address handle.
                assert_eq!(atomic(opcode, ty).err(), Some(EINVAL));
            }
        }
    }

    #[test]
    fn segments_have_a_header_and_a_size() {
        let mut header = *b"a header";
        let start: *mut c_void = header.as_mut_ptr().cast();
        let with = |change: &dyn Fn(&mut bindings::ib_ud_wr)| {
            let mut wr = bindings::ib_ud_wr {
                wr: request(bindings::ib_wr_opcode_IB_WR_LSO),
                header: start,
                hlen: 5,
                mss: 1400,
                ..Default::default()
            };
            change(&mut wr);
            // SAFETY: The header is as long as the request says, or the length is not valid, which
            // must be detected.
            unsafe { Segments::from_raw(&wr) }
                .map(|segments| (segments.header == b"a hea", segments.size.get()))
        };
        assert_eq!(with(&|_| ()), Ok((true, 1400)));
        assert_eq!(with(&|wr| wr.header = null_mut()), Err(EINVAL));
        for wrong in [0, -1, c_int::MIN] {
            assert!(with(&|wr| wr.hlen = wrong).is_err());
            assert!(with(&|wr| wr.mss = wrong).is_err());
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        // The handle or the region is null.
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND, UD);
        assert_eq!(send.err(), Some(EINVAL));
        let register = plain(bindings::ib_wr_opcode_IB_WR_REG_MR, RC);
        assert_eq!(register.err(), Some(EINVAL));
    }

    #[test]
    fn requests_keep_their_names_and_flags() -> Result {
        let mut wr = request(bindings::ib_wr_opcode_IB_WR_SEND);
        // SAFETY: The list has one request, which does not change while it is used.
        let flags = |wr: &bindings::ib_send_wr| unsafe { take(wr, |taken| taken.flags()) };
        assert_eq!(flags(&wr), Ok(SendFlags::default()));
        // SAFETY: As above.
        let name = unsafe { take(&wr, |taken| taken.post()) }?;
        assert_eq!(
            (name.wr_id, name.is_receive),
            (0xfedc_ba98_7654_3210, false)
        );

        for (raw, flag) in [
            (bindings::ib_send_flags_IB_SEND_FENCE, SendFlag::Fence),
            (bindings::ib_send_flags_IB_SEND_SIGNALED, SendFlag::Signaled),
            (
                bindings::ib_send_flags_IB_SEND_SOLICITED,
                SendFlag::Solicited,
            ),
            (bindings::ib_send_flags_IB_SEND_INLINE, SendFlag::Inline),
            (
                bindings::ib_send_flags_IB_SEND_IP_CSUM,
                SendFlag::IpChecksum,
            ),
        ] {
            wr.send_flags = raw;
            assert_eq!(flags(&wr), Ok(flag.into()));
        }
        wr.send_flags =
            bindings::ib_send_flags_IB_SEND_INLINE | bindings::ib_send_flags_IB_SEND_FENCE;
        assert_eq!(flags(&wr), Ok(SendFlag::Inline | SendFlag::Fence));
        for unknown in [1 << 5, 1 << 26, c_int::MIN] {
            wr.send_flags = unknown;
            assert_eq!(flags(&wr), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn elements_are_those_of_the_request() -> Result {
        let mut elements = core::array::from_fn::<_, 3, _>(|i| bindings::ib_sge {
            addr: 0x1_0000_0000 * (i as u64 + 1),
            length: 10 + i as u32,
            lkey: 20 + i as u32,
        });
        let mut wr = request(bindings::ib_wr_opcode_IB_WR_SEND);
        wr.sg_list = elements.as_mut_ptr();

        for count in 0..=3 {
            wr.num_sge = count;
            let look = |taken: SendRequest<'_, TestDriver>| {
                assert_eq!(taken.elements().len(), count as usize);
                for (i, element) in taken.elements().iter().enumerate() {
                    assert_eq!(element.address(), 0x1_0000_0000 * (i as u64 + 1));
                    assert_eq!(
                        (element.length(), element.lkey()),
                        (10 + i as u32, 20 + i as u32)
                    );
                }
                taken.post().length
            };
            // SAFETY: The list is as long as the request says.
            let length = unsafe { take(&wr, look) }?;
            assert_eq!(length, [0, 10, 21, 33][count as usize]);
        }
        let mut wrong = |list, count| {
            (wr.sg_list, wr.num_sge) = (list, count);
            // SAFETY: The list is invalid, which must be detected.
            unsafe { take(&wr, |_| ()) }.err()
        };
        assert!(wrong(elements.as_mut_ptr(), -1).is_some());
        assert_eq!(wrong(null_mut(), 1), Some(EINVAL));
        // Without elements no list is needed.
        assert_eq!(wrong(null_mut(), 0), None);
        Ok(())
    }

    #[test]
    fn inline_data_is_the_memory_of_the_elements() -> Result {
        let (first, second) = (*b"inline ", *b"data");
        let element = |bytes: &[u8]| bindings::ib_sge {
            addr: bytes.as_ptr() as u64,
            length: bytes.len() as u32,
            ..Default::default()
        };
        let mut elements = [
            element(&first),
            bindings::ib_sge::default(),
            element(&second),
        ];
        let mut wr = bindings::ib_atomic_wr {
            wr: request(bindings::ib_wr_opcode_IB_WR_SEND),
            ..Default::default()
        };
        (wr.wr.sg_list, wr.wr.num_sge) = (elements.as_mut_ptr(), 3);
        let look = |wr: &bindings::ib_atomic_wr| {
            let compare = |taken: SendRequest<'_, TestDriver>| {
                taken
                    .inline_data()
                    .map(|pieces| pieces.eq([&first[..], b"", &second]))
            };
            // SAFETY: The list has one request, which is large enough for each operation. The
            // elements are those of the arrays above.
            unsafe { take(&*(&raw const *wr).cast(), compare) }
        };
        assert_eq!(look(&wr), Ok(None));
        wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_INLINE;
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_SEND,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV,
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
        ] {
            wr.wr.opcode = opcode;
            assert_eq!(look(&wr), Ok(Some(true)));
        }
        // What is read or registered is not copied.
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
        ] {
            wr.wr.opcode = opcode;
            assert_eq!(look(&wr), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn a_process_sends_no_memory_of_the_kernel() {
        let mut element = bindings::ib_sge {
            addr: u64::MAX,
            length: u32::MAX,
            ..Default::default()
        };
        let mut wr = request(bindings::ib_wr_opcode_IB_WR_SEND);
        (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        let look = |wr: &bindings::ib_send_wr| {
            // SAFETY: The list has one request, whose elements are not accessed.
            unsafe { take_of(wr, false, |taken| taken.inline_data().is_some()) }
        };
        assert_eq!(look(&wr), Ok(false));
        wr.send_flags = bindings::ib_send_flags_IB_SEND_INLINE;
        assert_eq!(look(&wr), Err(EINVAL));
    }

    #[test]
    fn a_chain_is_taken_in_order() -> Result {
        let mut third = request(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV);
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut third.__bindgen_anon_1.wr_id) } = 3;
        let mut second = request(bindings::ib_wr_opcode_IB_WR_LSO);
        second.next = &raw mut third;
        let mut first = bindings::ib_rdma_wr {
            wr: request(bindings::ib_wr_opcode_IB_WR_RDMA_READ),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
        };
        first.wr.next = &raw mut second;
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut first.wr.__bindgen_anon_1.wr_id) } = 1;

        let changing: *mut bindings::ib_send_wr = (&raw mut first).cast();
        let head = changing.cast_const();
        let order = Order::new();
        let new = |list| {
            let queue = WorkQueue::ordered(Poster::new(), &order);
            // SAFETY: Null, or a list of requests that satisfy the requirements of their
            // operations. No request changes before it is posted.
            unsafe { SendRequests::<TestDriver>::new(list, RC, queue, true) }
        };
        let mut list = new(head);
        let refused = |list: &SendRequests<'_, TestDriver>, result| {
            let mut bad = null();
            // SAFETY: `bad` is writable.
            let answer = unsafe { list.answer(result, &mut bad) };
            (answer, bad)
        };
        assert_eq!(refused(&list, Err(ENOMEM)), (Err(ENOMEM), head));
        let request = list.take().ok_or(ENOENT)??;
        assert!(matches!(request.operation(), Operation::Read(r) if *r == REMOTE));
        let posted = request.post();
        assert_eq!((posted.wr_id, posted.position), (1, 1));
        // The owner of a posted request may free it.
        // SAFETY: The request is valid, and not accessed any more.
        unsafe { (*changing).next = null_mut() };
        let behind = &raw mut second;
        assert_eq!(
            refused(&list, Err(ENOMEM)),
            (Err(ENOMEM), behind.cast_const())
        );

        // `bad` points to a rejected request, and no request follows it.
        let unknown = list.take().ok_or(ENOENT)?;
        assert_eq!(unknown.err(), Some(EOPNOTSUPP));
        assert!(list.take().is_none());
        let named = (Err(EOPNOTSUPP), behind.cast_const());
        assert_eq!(refused(&list, Err(EOPNOTSUPP)), named);

        // SAFETY: The request is valid, and not accessed concurrently.
        unsafe { (*behind).opcode = bindings::ib_wr_opcode_IB_WR_SEND };
        let mut list = new(behind);
        // A request that was taken but not posted is rejected, whatever the driver returns.
        assert!(list.take().ok_or(ENOENT)?.is_ok());
        assert!(list.take().is_none());
        assert_eq!(refused(&list, Ok(())), (Err(EIO), behind.cast_const()));

        let mut list = new(behind);
        let posted = list.take().ok_or(ENOENT)??.post();
        assert_eq!(posted.position, 2);
        // So is a request that was not even taken.
        assert_eq!(refused(&list, Ok(())), (Err(EIO), (&raw const third)));
        let request = list.take().ok_or(ENOENT)??;
        assert!(matches!(
            request.operation(),
            Operation::SendWithInvalidate(_)
        ));
        let posted = request.post();
        assert_eq!((posted.wr_id, posted.position), (3, 3));
        assert!(list.take().is_none());
        // A posted request cannot be rejected.
        assert_eq!(refused(&list, Err(EIO)), (Ok(0), null()));
        assert_eq!(refused(&list, Ok(())), (Ok(0), null()));

        let mut none = new(null());
        assert!(none.take().is_none());
        assert_eq!(refused(&none, Err(EINVAL)), (Err(EINVAL), null()));
        assert_eq!(refused(&none, Ok(())), (Ok(0), null()));
        Ok(())
    }
}
