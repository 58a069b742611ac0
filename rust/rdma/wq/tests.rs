// SPDX-License-Identifier: GPL-2.0

//! Tests of receive work queues and indirection tables.

use core::{
    ffi::c_void,
    sync::atomic::{
        AtomicU32,
        Ordering::SeqCst, //
    }, //
};

use crate::{
    testing::prelude::*,
    wq::{
        CreationFlag,
        State, //
    },
    RwqTable, //
};

/// Attributes of a queue of a process.
fn attributes(cq: *mut bindings::ib_cq) -> bindings::ib_wq_init_attr {
    bindings::ib_wq_init_attr {
        wq_type: bindings::ib_wq_type_IB_WQT_RQ,
        max_wr: 5,
        max_sge: 3,
        cq,
        event_handler: Some(count_event),
        ..Default::default()
    }
}

/// Number of events of queues.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// # Safety
///
/// `event` must be valid.
unsafe extern "C" fn count_event(event: *mut bindings::ib_event, _context: *mut c_void) {
    // SAFETY: Guaranteed by the caller.
    if unsafe { (*event).event } == bindings::ib_event_type_IB_EVENT_WQ_FATAL {
        EVENTS.fetch_add(1, SeqCst);
    }
}

#[kunit_tests(rdma_wq)]
mod cases {
    use super::*;

    #[test]
    fn queues_a_table_and_a_queue_pair_go_one_by_one() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let (mut cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);
            let mut process = Process::new(device)?;
            let before = log.objects();
            let mut attr = attributes(cq.0.as_raw());
            attr.create_flags = bindings::ib_wq_flags_IB_WQ_FLAGS_CVLAN_STRIPPING;
            let mut call = process.call(5)?;
            let wq = process
                .file
                .call(|| from_err_ptr(verb!(device, create_wq(pd.0, &mut attr, call.udata()))))?;
            assert_eq!(process.memory.read()?, !5);
            assert_eq!((attr.max_wr, attr.max_sge), (6, 5));
            // SAFETY: The queue was constructed.
            let (number, state) = unsafe { ((*wq).wq_num, (*wq).state) };
            assert_eq!(state, bindings::ib_wq_state_IB_WQS_RESET);
            let Some(Asked::WorkQueue(5, 3, _, flags, Some(5))) = log.asked() else {
                return Err(EINVAL);
            };
            assert_eq!(flags, CreationFlag::StripVlan.into());

            // Nobody is told of an event before the queue was used.
            EVENTS.store(0, SeqCst);
            assert!(!log.dispatcher.wq_fatal(number));
            let mut change = bindings::ib_wq_attr {
                wq_state: bindings::ib_wq_state_IB_WQS_RDY,
                ..Default::default()
            };
            let mask = bindings::ib_wq_attr_mask_IB_WQ_STATE;
            let mut call = process.bare_call()?;
            to_result(verb!(
                device,
                modify_wq(wq, &mut change, mask, call.udata())
            ))?;
            let asked = Asked::ModifyQueue(number, State::Reset, State::Ready);
            assert_eq!(log.asked(), Some(asked));
            // SAFETY: The queue was constructed.
            assert_eq!(unsafe { (*wq).state }, State::Ready.raw());
            assert!(log.dispatcher.wq_fatal(number));
            assert!(!log.dispatcher.wq_fatal(number + 1));
            assert_eq!(EVENTS.load(SeqCst), 1);

            let mut table = room!(device, ib_rwq_ind_table, RwqTable);
            let mut queues = [wq, wq];
            let mut init = bindings::ib_rwq_ind_table_init_attr {
                log_ind_tbl_size: 1,
                ind_tbl: queues.as_mut_ptr(),
            };
            let mut call = process.bare_call()?;
            to_result(verb!(
                device,
                create_rwq_ind_table(table.as_raw(), &mut init, call.udata())
            ))?;
            assert_eq!(log.asked(), Some(Asked::Table(2, [number, number, 0, 0])));

            let mut qp = room!(device, ib_qp, Qp);
            let mut init = bindings::ib_qp_init_attr {
                qp_type: bindings::ib_qp_type_IB_QPT_RAW_PACKET,
                rwq_ind_tbl: table.as_raw(),
                ..Default::default()
            };
            // SAFETY: The structure is not shared.
            unsafe { (*qp.as_raw()).pd = pd.0 };
            let mut call = process.call(9)?;
            process.file.call(|| {
                to_result(verb!(
                    device,
                    create_qp(qp.as_raw(), &mut init, call.udata())
                ))
            })?;
            // SAFETY: The table was constructed.
            let of = unsafe { RwqTable::<Object>::from_raw(table.as_raw()) }.number;
            assert_eq!(log.asked(), Some(Asked::Scaling(of, 9)));
            assert_eq!(log.objects(), before + 3);

            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;
            to_result(verb!(device, destroy_rwq_ind_table(table.as_raw())))?;
            let mut call = process.bare_call()?;
            to_result(verb!(device, destroy_wq(wq, call.udata())))?;
            assert_eq!(log.objects(), before);
            assert!(!log.dispatcher.wq_fatal(number));
            process.end(device)?;
            cq.end(device)?;
            drop(pd);
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn what_is_not_a_receive_queue_of_a_process_is_refused() -> Result {
        with_device(|device, log| {
            let (mut cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);
            let mut process = Process::new(device)?;
            let others = log.objects();
            let raw = cq.0.as_raw();
            let good = || attributes(raw);
            let cases = [
                (
                    bindings::ib_wq_init_attr {
                        wq_type: 1,
                        ..good()
                    },
                    EINVAL,
                ),
                (
                    bindings::ib_wq_init_attr {
                        cq: null_mut(),
                        ..good()
                    },
                    EINVAL,
                ),
                (
                    bindings::ib_wq_init_attr {
                        create_flags: bindings::ib_wq_flags_IB_WQ_FLAGS_SCATTER_FCS,
                        ..good()
                    },
                    EOPNOTSUPP,
                ),
            ];
            for (mut attr, error) in cases {
                let mut call = process.call(5)?;
                let refused = process
                    .file
                    .call(|| from_err_ptr(verb!(device, create_wq(pd.0, &mut attr, call.udata()))));
                assert_eq!(refused.err(), Some(error));
            }
            // The kernel has no such queues.
            let mut attr = good();
            let refused = from_err_ptr(verb!(device, create_wq(pd.0, &mut attr, null_mut())));
            assert_eq!(refused.err(), Some(EOPNOTSUPP));
            // If the response is lost, so is the queue.
            let mut call = process.call(5)?;
            call.lose_response();
            let lost = process
                .file
                .call(|| from_err_ptr(verb!(device, create_wq(pd.0, &mut attr, call.udata()))));
            assert_eq!(lost.err(), Some(EFAULT));
            assert_eq!(log.objects(), others);

            // A flag that changes, and an unknown state.
            let mut attr = good();
            let mut call = process.call(5)?;
            let wq = process
                .file
                .call(|| from_err_ptr(verb!(device, create_wq(pd.0, &mut attr, call.udata()))))?;
            let changes = [
                (0, 1, bindings::ib_wq_attr_mask_IB_WQ_FLAGS, EOPNOTSUPP),
                (7, 0, bindings::ib_wq_attr_mask_IB_WQ_STATE, EINVAL),
            ];
            for (wq_state, flags_mask, mask, error) in changes {
                let mut change = bindings::ib_wq_attr {
                    wq_state,
                    flags_mask,
                    ..Default::default()
                };
                let mut call = process.bare_call()?;
                let refused = verb!(device, modify_wq(wq, &mut change, mask, call.udata()));
                assert_eq!(to_result(refused), Err(error));
            }
            let mut call = process.bare_call()?;
            to_result(verb!(device, destroy_wq(wq, call.udata())))?;
            process.end(device)?;
            cq.end(device)
        })
    }

    #[test]
    fn queue_pairs_with_a_table_are_for_raw_packets_of_processes() -> Result {
        with_device(|device, log| {
            let (mut cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);
            let mut process = Process::new(device)?;
            let others = log.objects();
            // It is not looked at.
            let mut table = room!(device, ib_rwq_ind_table, RwqTable);
            let raw = table.as_raw();
            let good = || bindings::ib_qp_init_attr {
                qp_type: bindings::ib_qp_type_IB_QPT_RAW_PACKET,
                rwq_ind_tbl: raw,
                ..Default::default()
            };
            let cases = [
                (
                    bindings::ib_qp_init_attr {
                        qp_type: bindings::ib_qp_type_IB_QPT_UD,
                        ..good()
                    },
                    EINVAL,
                ),
                (
                    bindings::ib_qp_init_attr {
                        send_cq: cq.0.as_raw(),
                        ..good()
                    },
                    EINVAL,
                ),
            ];
            for (mut init, error) in cases {
                let mut qp = room!(device, ib_qp, Qp);
                let mut call = process.call(9)?;
                let refused = verb!(device, create_qp(qp.as_raw(), &mut init, call.udata()));
                assert_eq!(to_result(refused), Err(error));
            }
            let mut qp = room!(device, ib_qp, Qp);
            let mut init = good();
            let refused = verb!(device, create_qp(qp.as_raw(), &mut init, null_mut()));
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            assert_eq!(log.objects(), others);
            drop(pd);
            process.end(device)?;
            cq.end(device)
        })
    }
}
