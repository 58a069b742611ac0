// SPDX-License-Identifier: GPL-2.0

//! Tests of completion counters.

use crate::testing::prelude::*;

use crate::comp_cntr::{
    Change,
    CompCntr,
    CountedOperation,
    CountedOperations,
    Entry, //
};

#[kunit_tests(rdma_comp_cntr)]
mod cases {
    use super::*;

    #[test]
    fn capabilities_fill_their_structure() -> Result {
        with_device(|device, _| {
            let query = |caps: *mut bindings::ib_comp_cntr_caps| {
                to_result(verb!(
                    device,
                    query_comp_cntr_caps(device.as_raw(), caps, null_mut())
                ))
            };
            assert!(fills::<bindings::ib_comp_cntr_caps>(query)?);
            let mut caps = bindings::ib_comp_cntr_caps::default();
            query(&mut caps)?;
            assert_eq!((caps.max_value, caps.max_counters), (u64::MAX - 7, 141));
            let operations = CountedOperation::Send | CountedOperation::RemoteWrite;
            assert_eq!(caps.supported_qp_attach_ops, operations.bits());
            Ok(())
        })
    }

    #[test]
    fn a_counter_is_changed_read_and_attached() -> Result {
        const INC: u32 = bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_INC;
        const SET: u32 = bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET;

        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let mut pair = Pair::new(device)?;
            let mut call = process.bare_call()?;
            let mut memory = room!(device, ib_comp_cntr, CompCntr);
            let counter = memory.as_raw();
            to_result(verb!(device, create_comp_cntr(counter, call.attributes())))?;
            // SAFETY: The counter was constructed.
            let number = unsafe { CompCntr::<Object>::from_raw(counter) }.number;
            assert_eq!(log.asked(), Some(Asked::CompletionCounter));

            for (entry, operation, change) in [
                (Entry::Errors, SET, Change::Set(u64::MAX)),
                (Entry::Completions, INC, Change::Add(u64::MAX)),
            ] {
                let raw = entry.raw();
                to_result(verb!(
                    device,
                    modify_comp_cntr(counter, raw, operation, u64::MAX)
                ))?;
                assert_eq!(log.asked(), Some(Asked::Count(number, entry, change)));
                let mut value = 0x5a;
                to_result(verb!(device, read_comp_cntr(counter, raw, &raw mut value)))?;
                assert_eq!(value, 10 * u64::from(number) + u64::from(raw));
            }
            for (entry, operation) in [(2, SET), (0, 2), (u32::MAX, u32::MAX)] {
                let refused = verb!(device, modify_comp_cntr(counter, entry, operation, 1));
                assert_eq!(to_result(refused), Err(EINVAL));
            }
            let mut value = 0x5a;
            let refused = verb!(device, read_comp_cntr(counter, 2, &raw mut value));
            assert_eq!((to_result(refused), value), (Err(EINVAL), 0));
            assert!(log.asked().is_none());

            let operations = CountedOperation::Receive | CountedOperation::Read;
            let all = CountedOperations::ALL.bits();
            for (mask, expected) in [(operations.bits(), Ok(())), (all + 1, Err(EOPNOTSUPP))] {
                let mut attr = bindings::ib_qp_attach_comp_cntr_attr { op_mask: mask };
                let attached = verb!(
                    device,
                    qp_attach_comp_cntr(pair.as_raw(), counter, &raw mut attr)
                );
                assert_eq!(to_result(attached), expected);
                // SAFETY: The queue pair was constructed.
                let qpn = unsafe { Qp::<Object>::from_raw(pair.as_raw()) }.number();
                let asked = Asked::AttachCounter(qpn, number, operations);
                assert_eq!(log.asked(), expected.is_ok().then_some(asked));
            }

            to_result(verb!(device, destroy_comp_cntr(counter)))?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            pair.end(device)?;
            process.end(device)
        })
    }

    #[test]
    fn a_counter_that_is_refused_leaves_nothing_behind() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let others = log.objects();
            let mut call = process.bare_call()?;
            let mut memory = room!(device, ib_comp_cntr, CompCntr);
            log.keeps.store(true, SeqCst);
            let refused = verb!(device, create_comp_cntr(memory.as_raw(), call.attributes()));
            log.keeps.store(false, SeqCst);
            assert_eq!(to_result(refused), Err(EBUSY));
            assert_eq!(log.objects(), others);
            process.end(device)
        })
    }
}
