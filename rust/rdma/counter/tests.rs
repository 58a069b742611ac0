// SPDX-License-Identifier: GPL-2.0

//! Tests of counters.

use crate::testing::prelude::*;

#[kunit_tests(rdma_counter)]
mod cases {
    use super::*;

    #[test]
    fn counters_have_names_and_values() -> Result {
        with_device(|device, log| {
            let stats = verb!(device, alloc_hw_port_stats(device.as_raw(), 2));
            // SAFETY: The statistics were allocated for three counters.
            unsafe {
                assert_eq!((*stats).num_counters, 3);
                let names = core::slice::from_raw_parts((*stats).descs, 3);
                for (counter, name) in names.iter().zip([c"first", c"second", c"third"]) {
                    assert_eq!(CStr::from_char_ptr(counter.name), name);
                }
            }
            let read = verb!(device, get_hw_stats(device.as_raw(), stats, 2, 0));
            assert_eq!(read, 3);
            assert_eq!(log.asked(), Some(Asked::PortCounters(second_port()?)));
            // SAFETY: As above.
            let values = unsafe { core::slice::from_raw_parts((*stats).value.as_ptr(), 3) };
            assert_eq!(values, [200, 201, 202]);
            // SAFETY: The statistics are ours, and no longer in use.
            unsafe { bindings::rdma_free_hw_stats_struct(stats) };
            Ok(())
        })
    }

    #[test]
    fn the_first_read_does_not_fail() -> Result {
        with_device(|device, log| {
            let stats = verb!(device, alloc_hw_port_stats(device.as_raw(), 2));
            log.keeps.store(true, SeqCst);
            let first = verb!(device, get_hw_stats(device.as_raw(), stats, 2, 0));
            // SAFETY: The statistics were allocated for three counters.
            let values = unsafe { core::slice::from_raw_parts((*stats).value.as_ptr(), 3) };
            assert_eq!((first, values), (3, &[0; 3][..]));
            // The core sets the timestamp after a successful read.
            // SAFETY: As above.
            unsafe { (*stats).timestamp = 1 };
            let second = verb!(device, get_hw_stats(device.as_raw(), stats, 2, 0));
            log.keeps.store(false, SeqCst);
            assert_eq!(to_result(second), Err(EBUSY));
            // SAFETY: The statistics are ours, and no longer in use.
            unsafe { bindings::rdma_free_hw_stats_struct(stats) };
            Ok(())
        })
    }

    #[test]
    fn counters_are_bound_to_queue_pairs() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let number = qp.number();
            let mut counter = KBox::new(bindings::rdma_counter::default(), GFP_KERNEL)?;
            counter.device = device.as_raw();
            counter.port = 2;
            counter.stats = verb!(device, counter_alloc_stats(&raw mut *counter));

            // Counters to which no queue pair could be bound are destroyed again.
            log.keeps.store(true, SeqCst);
            let bound = verb!(device, counter_bind_qp(&raw mut *counter, qp.as_raw(), 2));
            log.keeps.store(false, SeqCst);
            assert_eq!((to_result(bound), counter.id), (Err(EBUSY), 0));
            let Some(Asked::DestroyCounter(refused)) = log.asked() else {
                return Err(EINVAL);
            };
            // SAFETY: The queue pair is ours.
            assert!(unsafe { (*qp.as_raw()).counter }.is_null());

            to_result(verb!(
                device,
                counter_bind_qp(&raw mut *counter, qp.as_raw(), 2)
            ))?;
            assert_eq!(counter.id, refused + 1);
            let bound = Asked::BindCounter(number, counter.id);
            assert_eq!(log.asked(), Some(bound));
            // SAFETY: As above.
            assert_eq!(unsafe { (*qp.as_raw()).counter }, &raw mut *counter);

            to_result(verb!(device, counter_update_stats(&raw mut *counter)))?;
            assert_eq!(log.asked(), Some(Asked::ReadCounter(counter.id)));
            // SAFETY: The statistics were allocated for three counters.
            let values = unsafe { core::slice::from_raw_parts((*counter.stats).value.as_ptr(), 3) };
            let first = 1000 * u64::from(counter.id);
            assert_eq!(values, [first, first + 1, first + 2]);

            to_result(verb!(device, counter_unbind_qp(qp.as_raw(), 2)))?;
            assert_eq!(log.asked(), Some(Asked::UnbindCounter(number)));
            // SAFETY: As above.
            assert!(unsafe { (*qp.as_raw()).counter }.is_null());
            to_result(verb!(device, counter_dealloc(&raw mut *counter)))?;
            assert_eq!(log.asked(), Some(Asked::DestroyCounter(counter.id)));
            // SAFETY: The statistics are ours, and no longer in use.
            unsafe { bindings::rdma_free_hw_stats_struct(counter.stats) };
            qp.end(device)
        })
    }

    #[test]
    fn counters_are_created_by_the_first_that_has_them() {
        let (mut id, mut gone) = (0, 0);
        let five = |number| (number == 5).then_some(()).ok_or(EINVAL);
        let bound = counter::bind_in(&mut id, || Ok(5), five, |number| gone = number);
        assert_eq!((bound, id, gone), (Ok(()), 5, 0));

        let bound = counter::bind_in(&mut id, || Err(EEXIST), five, |number| gone = number);
        assert_eq!((bound, id, gone), (Ok(()), 5, 0));
    }

    #[test]
    fn counters_that_nobody_got_are_destroyed() {
        let (mut id, mut gone) = (0, 0);
        let refused = counter::bind_in(&mut id, || Ok(5), |_| Err(EBUSY), |number| gone = number);
        assert_eq!((refused, id, gone), (Err(EBUSY), 0, 5));

        let refused = counter::bind_in(&mut id, || Err(ENOSPC), |_| Ok(()), |_| gone = 6);
        assert_eq!((refused, id, gone), (Err(ENOSPC), 0, 5));

        // 0 is not a valid number.
        let refused = counter::bind_in(&mut id, || Ok(0), |_| Ok(()), |_| gone = 6);
        assert_eq!((refused, id, gone), (Err(EIO), 0, 5));

        // Counters that others use are not destroyed.
        id = 7;
        let refused = counter::bind_in(&mut id, || Ok(8), |_| Err(EBUSY), |_| gone = 6);
        assert_eq!((refused, id, gone), (Err(EBUSY), 7, 5));
    }
}
