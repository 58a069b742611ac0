// SPDX-License-Identifier: GPL-2.0

//! Tests of completion queues.

use crate::testing::prelude::*;

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
            let attributes = CqInitAttr {
                entries: 40,
                vector: 2,
                flags: CqFlags::default(),
            };
            assert_eq!(log.asked(), Some(Asked::Queue(attributes, None)));
            let raw = queue.0.as_raw();
            // SAFETY: The object was constructed.
            let this = unsafe { Cq::<Object>::from_raw(raw) };
            assert_eq!((this.vector(), this.entries()), (2, 41));

            to_result(verb!(device, modify_cq(raw, 15, 16)))?;
            assert_eq!(log.asked(), Some(Asked::Moderate(15, 16)));

            let mut process = Process::new(device)?;
            let mut call = process.call(12)?;
            // SAFETY: The response has no bytes.
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
    fn flags_without_a_name_are_refused() {
        for (raw, flags) in [
            (0, CqFlags::default()),
            (
                bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
                CqFlag::Timestamps.into(),
            ),
            (
                bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN,
                CqFlag::IgnoreOverrun.into(),
            ),
        ] {
            assert_eq!(CqFlags::from_raw(raw), Ok(flags));
        }
        assert_eq!(CqFlags::from_raw(1 << 2), Err(EOPNOTSUPP));
        assert_eq!(CqFlags::from_raw(1 << 31), Err(EOPNOTSUPP));
    }

    #[test]
    fn events_that_nobody_asked_for_are_not_told() -> Result {
        with_device(|device, log| {
            // While `ib_alloc_cq` creates the queue, its handler has no work to queue yet; when
            // `ib_free_cq` destroys it, the work is gone.
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
                // SAFETY: The object was constructed.
                let number = unsafe { Cq::<Object>::from_raw(cq) }.number();
                assert!(log.dispatcher.complete(0, number));
                // SAFETY: The queue was just created, and is not in use.
                unsafe { bindings::ib_free_cq(cq) };
                log.raises.store(false, SeqCst);
                assert!(!log.dispatcher.complete(0, number));
            }
            Ok(())
        })
    }

    /// Returns the IDs of the completed requests, at most three, and checks that they are of that
    /// queue pair.
    fn poll(
        device: &Device<TestDriver>,
        cq: *mut bindings::ib_cq,
        qp: *mut bindings::ib_qp,
    ) -> Result<KVec<u64>> {
        let mut room = core::array::from_fn::<_, 3, _>(|_| bindings::ib_wc::default());
        let count = verb!(device, poll_cq(cq, 3, room.as_mut_ptr()));
        let mut names = KVec::new();
        for wc in &room[..count as usize] {
            assert_eq!(wc.qp, qp);
            // SAFETY: All members of the union are plain words.
            let wr_id = *unsafe { crate::compat::member(&wc.__bindgen_anon_1.wr_id) };
            names.push(wr_id, GFP_KERNEL)?;
        }
        Ok(names)
    }

    #[test]
    fn completions_are_of_requests_that_were_posted() -> Result {
        with_device(|device, log| {
            let (mut qp, mut other) = (Pair::new(device)?, Pair::new(device)?);
            let (raw, cq) = (qp.as_raw(), qp.send_cq());
            assert!(poll(device, cq, raw)?.is_empty());
            log.completing.store(qp.number(), SeqCst);
            for name in 1..=4 {
                qp.send(device, name)?;
            }
            assert_eq!(*poll(device, cq, raw)?, [1, 2, 3]);
            assert_eq!(*poll(device, cq, raw)?, [4]);
            // Each request completes once.
            assert!(poll(device, cq, raw)?.is_empty());

            // Sends complete neither in the queue for receives, nor in another queue pair's queue.
            for elsewhere in [qp.queues[1].0.as_raw(), other.send_cq()] {
                qp.send(device, 5)?;
                assert!(poll(device, elsewhere, raw)?.is_empty());
            }
            // Requests do not complete for another queue pair.
            log.completing.store(other.number(), SeqCst);
            qp.send(device, 6)?;
            assert!(poll(device, cq, raw)?.is_empty());
            qp.send(device, 7)?;
            assert!(poll(device, other.send_cq(), raw)?.is_empty());

            let mut room = bindings::ib_wc::default();
            assert!(verb!(device, poll_cq(cq, -1, &mut room)) < 0);
            qp.end(device)?;
            other.end(device)
        })
    }

    #[test]
    fn what_completes_late_does_not_complete() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let (raw, cq) = (qp.as_raw(), qp.send_cq());
            log.completing.store(qp.number(), SeqCst);
            for name in 1..=3 {
                qp.send(device, name)?;
            }
            // A user that sees the last completion may have freed the handlers of the earlier ones.
            log.backwards.store(true, SeqCst);
            assert_eq!(*poll(device, cq, raw)?, [3]);
            log.backwards.store(false, SeqCst);
            for name in 4..=5 {
                qp.send(device, name)?;
            }
            assert_eq!(*poll(device, cq, raw)?, [4, 5]);
            qp.end(device)
        })
    }

    #[test]
    fn what_is_posted_before_a_reset_does_not_complete() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let (raw, cq) = (qp.as_raw(), qp.send_cq());
            log.completing.store(qp.number(), SeqCst);
            qp.send(device, 1)?;
            let mut attr = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
            attr.qp_state = State::Error.raw();
            // CAST: A set of bits that C keeps in an `int`.
            let mask = Attribute::State as c_int;
            to_result(verb!(
                device,
                modify_qp(raw, &raw mut *attr, mask, null_mut())
            ))?;
            assert_eq!(*poll(device, cq, raw)?, [1]);
            qp.send(device, 2)?;
            attr.qp_state = State::Reset.raw();
            to_result(verb!(
                device,
                modify_qp(raw, &raw mut *attr, mask, null_mut())
            ))?;
            qp.send(device, 3)?;
            assert_eq!(*poll(device, cq, raw)?, [3]);
            qp.end(device)
        })
    }

    #[test]
    fn queues_of_processes_are_not_polled_by_the_kernel() -> Result {
        with_device(|device, _| {
            let mut process = Process::new(device)?;
            let mut cq = room!(device, ib_cq, Cq);
            let attributes = bindings::ib_cq_init_attr {
                cqe: 1,
                ..Default::default()
            };
            let buffer = process.memory.address();
            let mut call = process.call(buffer)?;
            to_result(verb!(
                device,
                create_user_cq(cq.as_raw(), &attributes, call.attributes())
            ))?;
            let mut room = bindings::ib_wc::default();
            let polled = verb!(device, poll_cq(cq.as_raw(), 1, &mut room));
            assert_eq!(to_result(polled), Err(EOPNOTSUPP));
            to_result(verb!(device, destroy_cq(cq.as_raw(), null_mut())))?;
            process.end(device)
        })
    }
}
