// SPDX-License-Identifier: GPL-2.0

//! Tests of completion queues.

use super::common::*;

#[kunit_tests(rdma_cq)]
mod cases {
    use super::*;

    #[test]
    fn completion_queues_have_entries_and_a_vector() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let refused = |entries, vector| Queue::new(device, entries, vector).err();
            assert_eq!(refused(0, 0), Some(EINVAL));
            assert_eq!(refused(1, VECTORS), Some(EINVAL));
            assert_eq!((log.asked(), log.objects()), (None, others));

            let mut queue = Queue::new(device, 40, 2)?;
            let attributes = cq::Attributes {
                entries: 40,
                vector: 2,
                flags: 0,
            };
            assert_eq!(log.asked(), Some(Asked::Queue(attributes, None)));
            let raw = queue.0.as_raw();
            // SAFETY: It was constructed.
            let this = unsafe { Cq::<Object>::from_raw(raw) };
            assert_eq!((this.vector(), this.entries()), (2, 41));

            to_result(verb!(device, modify_cq(raw, 15, 16)))?;
            assert_eq!(log.asked(), Some(Asked::Moderate(15, 16)));

            let mut process = Process::new(device)?;
            let mut call = process.call(12)?;
            // SAFETY: There is no response.
            unsafe { (*call.udata()).outlen = 0 };
            to_result(verb!(device, resize_user_cq(raw, 50, call.udata())))?;
            assert_eq!(log.asked(), Some(Asked::Resize(50, 12)));
            assert_eq!(this.entries(), 52);
            process.end(device)?;

            const SOLICITED: u32 = bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
            const NEXT: u32 = bindings::ib_cq_notify_flags_IB_CQ_NEXT_COMP;
            const MISSED: u32 = bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
            for (flags, solicited_only, missed) in [
                (SOLICITED, true, 0),
                (NEXT, false, 0),
                (SOLICITED | MISSED, true, 1),
                (NEXT | MISSED, false, 1),
            ] {
                assert_eq!(verb!(device, req_notify_cq(raw, flags)), missed);
                assert_eq!(log.asked(), Some(Asked::Notify { solicited_only }));
            }
            let number = queue.number();
            queue.end(device)?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            Ok(())
        })
    }

    #[test]
    fn events_that_nobody_asked_for_are_not_told() -> Result {
        with_device(|device, log| {
            // While `ib_alloc_cq` makes the queue there is no work for the handler to queue, and
            // when `ib_free_cq` destroys it, there is no more.
            for context in [
                bindings::ib_poll_context_IB_POLL_DIRECT,
                bindings::ib_poll_context_IB_POLL_SOFTIRQ,
                bindings::ib_poll_context_IB_POLL_WORKQUEUE,
                bindings::ib_poll_context_IB_POLL_UNBOUND_WORKQUEUE,
            ] {
                log.raises.store(true, SeqCst);
                // SAFETY: The device is registered.
                let cq = from_err_ptr(unsafe {
                    bindings::__ib_alloc_cq(
                        device.as_raw(),
                        null_mut(),
                        1,
                        0,
                        context,
                        c"rdma".as_char_ptr(),
                    )
                })?;
                // SAFETY: It was constructed.
                let number = unsafe { Cq::<Object>::from_raw(cq) }.number();
                assert!(log.dispatcher.complete(0, number));
                // SAFETY: Just made, and nobody uses it.
                unsafe { bindings::ib_free_cq(cq) };
                log.raises.store(false, SeqCst);
                assert!(!log.dispatcher.complete(0, number));
            }
            Ok(())
        })
    }

    #[test]
    fn completions_are_of_queue_pairs_that_exist() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let cq = qp.queues[0].0.as_raw();
            let mut room = core::array::from_fn::<_, 3, _>(|_| bindings::ib_wc::default());
            assert_eq!(verb!(device, poll_cq(cq, 3, room.as_mut_ptr())), 0);
            log.completing.store(qp.number(), SeqCst);
            assert_eq!(verb!(device, poll_cq(cq, 2, room.as_mut_ptr())), 2);
            for (i, wc) in room.iter().enumerate() {
                let expected = if i < 2 {
                    (raw, i as u64)
                } else {
                    (null_mut(), 0)
                };
                assert_eq!((wc.qp, wc.__bindgen_anon_1.bindgen_union_field), expected);
            }
            assert!(verb!(device, poll_cq(cq, -1, room.as_mut_ptr())) < 0);
            qp.end(device)
        })
    }
}
