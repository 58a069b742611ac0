// SPDX-License-Identifier: GPL-2.0

//! Tests of work requests.

use crate::testing::prelude::*;

#[kunit_tests(rdma_wr)]
mod cases {
    use super::*;

    #[test]
    fn a_request_that_is_refused_is_named() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut bad_send = ptr::null();
            let mut second = bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..Default::default()
            };
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut second.__bindgen_anon_1.wr_id) } = 52;
            let mut first = bindings::ib_send_wr {
                next: &raw mut second,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..Default::default()
            };
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut first.__bindgen_anon_1.wr_id) } = 51;
            to_result(verb!(
                device,
                post_send(raw, &raw const first, &mut bad_send)
            ))?;
            assert_eq!(log.asked(), Some(Asked::Send(2, 52)));
            assert!(bad_send.is_null());
            second.opcode = bindings::ib_wr_opcode_IB_WR_LSO;
            let refused = verb!(device, post_send(raw, &raw const first, &mut bad_send));
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), Some(Asked::Send(1, 51)));
            assert_eq!(bad_send, &raw const second);

            let mut bad_receive = ptr::null();
            let mut second = bindings::ib_recv_wr::default();
            let mut first = bindings::ib_recv_wr {
                next: &raw mut second,
                ..Default::default()
            };
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut first.__bindgen_anon_1.wr_id) } = 61;
            // SAFETY: All members of the union are plain words.
            *unsafe { crate::compat::member_mut(&mut second.__bindgen_anon_1.wr_id) } = 62;
            to_result(verb!(
                device,
                post_recv(raw, &raw const first, &mut bad_receive)
            ))?;
            assert_eq!(log.asked(), Some(Asked::Receive(2, 62)));
            assert!(bad_receive.is_null());
            second.num_sge = -1;
            let refused = verb!(device, post_recv(raw, &raw const first, &mut bad_receive));
            assert!(refused < 0);
            assert_eq!(log.asked(), Some(Asked::Receive(1, 61)));
            assert_eq!(bad_receive, &raw const second);
            qp.end(device)
        })
    }

    #[test]
    fn a_queue_pair_for_datagrams_only_sends() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::of_type(device, bindings::ib_qp_type_IB_QPT_UD)?;
            let raw = qp.as_raw();
            log.asked();
            // Where a datagram has its address handle, these have an address.
            let mut atomic = bindings::ib_atomic_wr {
                remote_addr: 0x1122_3344_5566_7788,
                ..Default::default()
            };
            for opcode in [
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
                bindings::ib_wr_opcode_IB_WR_RDMA_READ,
                bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
                bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
            ] {
                atomic.wr.opcode = opcode;
                let wr = (&raw const atomic).cast::<bindings::ib_send_wr>();
                let mut bad = ptr::null();
                let refused = verb!(device, post_send(raw, wr, &mut bad));
                assert_eq!(to_result(refused), Err(EINVAL));
                assert_eq!(bad, wr);
                assert_eq!(log.asked(), None);
            }
            qp.end(device)
        })
    }

    #[test]
    fn receives_are_taken_in_order() -> Result {
        let mut elements = core::array::from_fn::<_, 2, _>(|i| bindings::ib_sge {
            addr: 0x1000 * i as u64,
            length: 64,
            lkey: 5,
        });
        let mut second = bindings::ib_recv_wr {
            num_sge: -1,
            ..Default::default()
        };
        let mut first = bindings::ib_recv_wr {
            next: &mut second,
            sg_list: elements.as_mut_ptr(),
            num_sge: 2,
            ..Default::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut first.__bindgen_anon_1.wr_id) } = 77;

        let head = &raw mut first;
        let order = Order::new();
        let queue = WorkQueue::ordered(Poster::new(), &order);
        // SAFETY: The list is as long as its requests say, and no request changes before it is
        // posted. The negative count must be detected.
        let mut list = unsafe { ReceiveRequests::new(head, queue) };
        let request = list.take().ok_or(ENOENT)??;
        assert_eq!(request.elements().len(), 2);
        assert_eq!(request.elements()[1].address(), 0x1000);
        assert_eq!(request.elements()[1].lkey(), 5);
        let request = request.post();
        assert_eq!((request.wr_id, request.is_receive), (77, true));
        assert_eq!((request.position, request.length), (1, 128));
        // The owner of a posted request may free it.
        // SAFETY: The request is valid, and not accessed any more.
        unsafe { (*head).next = ptr::null_mut() };

        assert!(list.take().ok_or(ENOENT)?.is_err());
        assert!(list.take().is_none());
        let mut bad = ptr::null();
        // SAFETY: `bad` is writable.
        assert_eq!(unsafe { list.answer(Err(EINVAL), &mut bad) }, Err(EINVAL));
        assert_eq!(bad, &raw const second);
        Ok(())
    }
}
