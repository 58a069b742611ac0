// SPDX-License-Identifier: GPL-2.0

//! Tests of the buffers of queues of processes.

use super::common::*;

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
            let attributes = cq::Attributes {
                entries: 4,
                vector: 1,
                flags: 3,
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
            // They say where their buffers are.
            let buffer = process.memory.address();
            let (mut send_cq, mut recv_cq) = (Queue::new(device, 1, 0)?, Queue::new(device, 1, 0)?);
            let pd = Domain::new(device)?;

            let mut call = process.call(buffer + 11)?;
            let mut srq = new_shared(device, &pd, call.udata())?;
            let asked = srq::Attributes {
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
            // SAFETY: What the core sets.
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
                capabilities: qp::Capabilities {
                    max_send_wr: 9,
                    ..Default::default()
                },
                signal_all: true,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                srq: None,
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

    /// Makes objects of a process, with the buffer of its request and with one that `attribute`
    /// describes.
    fn buffers(
        process: &mut Process,
        log: &Log,
        attribute: u32,
        create: impl Fn(UserCall) -> Result,
    ) -> Result {
        let (address, page) = (process.memory.address(), PAGE_SIZE as u64);
        let descriptor = process.memory.page(1);
        let describe = |address, length: u64| -> Result {
            // `struct ib_uverbs_buffer_desc`, in words of 64 bits.
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

        // One that is too small.
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
                // SAFETY: What the core sets.
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
            // It has one buffer.
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
