// SPDX-License-Identifier: GPL-2.0

//! Tests of the queues of a device.

use core::{
    mem::transmute,
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicU32,
        Ordering::SeqCst, //
    }, //
};

use kernel::{
    fmt,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::{
    compat,
    queues::{
        dma_of,
        Claimed, //
    },
    testing::driver::{
        with_device,
        Counted,
        Data, //
    },
    AnyVirtqueue,
    Chain,
    SharedMemory,
    Stopper,
    Virtqueue,
    Virtqueues, //
};

#[kunit_tests(virtio_queues)]
mod cases {
    use super::*;

    #[test]
    fn a_device_without_dma_has_no_shared_memory() -> Result {
        with_device(
            |dev, _, _| {
                let (raw, parent) = (dev.as_raw(), compat::device_as_raw(dev.parent()));
                // SAFETY: Both devices are valid, and nothing else uses these members meanwhile.
                unsafe { (*parent).coherent_dma_mask = u64::MAX };
                let dma = dma_of(dev)?;
                let memory = SharedMemory::new(&dma, 1).map(drop);
                dma.close();
                memory?;

                // SAFETY: As above.
                unsafe { (*raw).map = NonNull::dangling().as_ptr() };
                let dma = dma_of(dev);
                // SAFETY: As above.
                unsafe { (*raw).map = ptr::null() };
                assert_eq!(SharedMemory::new(&dma?, 1).err(), Some(ENODEV));
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn queues_go_with_the_lock_of_their_device() -> Result {
        with_device(
            |_, data, transport| {
                // Anyone with access to the driver's data can do this, with any lock held.
                let queues = data.queues.lock().take();
                drop(queues);
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (0, 0));
                assert_eq!(data.queue.capacity(), 0);
                let chain = Chain::new(KVec::new(), 8, (), GFP_KERNEL)?;
                let refused = data.queue.add(chain).map_err(|(error, _)| error);
                assert_eq!(refused, Err(ENODEV));
                Ok(())
            },
            |transport| {
                assert_eq!(transport.deleted.load(SeqCst), 1);
                assert!(transport.was_locked.load(SeqCst));
                Ok(())
            },
        )
    }

    #[test]
    fn queues_that_are_forgotten_go_all_the_same() -> Result {
        let mut kept = None;
        let result = with_device(
            |_, data, _| {
                let queues = data.queues.lock().take().ok_or(ENOENT)?;
                // SAFETY: It is not used any more. It is dropped after everything else, so that the
                // test does not really leak it.
                kept = Some(unsafe { transmute::<Virtqueues<'_>, Virtqueues<'static>>(queues) });
                assert_eq!(data.queue.capacity(), 8);
                Ok(())
            },
            |transport| {
                // The core has acknowledged the device again, and nothing else.
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (1, 1));
                Ok(())
            },
        );
        drop(kept);
        result
    }

    #[test]
    fn a_queue_that_is_stopped_hears_nothing() -> Result {
        with_device(
            |_, data, transport| {
                let calls = &data.queue.handler().calls;
                transport.interrupt();
                assert_eq!(calls.load(SeqCst), 1);
                let stopper = data.queues.lock().as_ref().map(|queues| queues.stopper());
                stopper.ok_or(ENOENT)?.stop();
                transport.interrupt();
                assert_eq!(calls.load(SeqCst), 1);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn what_is_deferred_does_not_wait_for_itself() -> Result {
        with_device(
            |_, data, _| {
                data.queue.flush_deferred();
                data.queue.flush_deferred();
                assert!(data.queue.handler().calls.load(SeqCst) >= 2);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    /// Returns a handle to stop the device.
    fn stopper(data: &Data<'_>) -> Result<Stopper> {
        let queues = data.queues.lock();
        Ok(queues.as_ref().ok_or(ENOENT)?.stopper())
    }

    #[test]
    fn handlers_are_waited_for_when_the_device_has_been_reset() -> Result {
        with_device(
            |_, data, transport| {
                let before = transport.synchronized.load(SeqCst);
                stopper(data)?.stop();
                assert_eq!(transport.synchronized.load(SeqCst), before + 1);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn who_is_waited_for_waits_for_the_reset() -> Result {
        const BEGUN: u32 = 1;
        const RESET: u32 = 2;

        with_device(
            |_, data, transport| {
                let (stopper, seen) = (stopper(data)?, Arc::new(AtomicU32::new(0), GFP_KERNEL)?);
                let deed = {
                    let (stopper, seen) = (stopper.clone(), seen.clone());
                    move || {
                        seen.fetch_or(BEGUN, SeqCst);
                        // Another thread stops the device in the meantime.
                        while !stopper.device_failed() {
                            fsleep(Delta::from_millis(1));
                        }
                        stopper.stop();
                        if stopper.0.dev.raw_status().is_reset() {
                            seen.fetch_or(RESET, SeqCst);
                        }
                    }
                };
                transport.is_slow.store(true, SeqCst);
                *data.queue.handler().deferred.lock() = Some(Arc::new(deed, GFP_KERNEL)?);
                data.queue.defer();
                while seen.load(SeqCst) == 0 {
                    fsleep(Delta::from_millis(1));
                }
                stopper.stop();
                assert_eq!(seen.load(SeqCst), BEGUN | RESET);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    /// Creates a queue that belongs to no device.
    fn idle(name: fmt::Arguments<'_>) -> Result<Arc<dyn AnyVirtqueue>> {
        Ok(Virtqueue::new(name, Counted::new())?)
    }

    #[test]
    fn a_queue_belongs_to_one_device() -> Result {
        let one = idle(fmt!("one"))?;
        let two = idle(fmt!("two"))?;
        let claim = |queues: &[&Arc<dyn AnyVirtqueue>]| {
            let mut all = KVec::new();
            for &queue in queues {
                all.push(queue.clone(), GFP_KERNEL)?;
            }
            Claimed::new(all)
        };
        let claimed = claim(&[&one])?;
        assert_eq!(claim(&[&one]).err(), Some(EBUSY));
        assert_eq!(claim(&[&two, &one]).err(), Some(EBUSY));
        // A failed claim does not keep its queues.
        let other = claim(&[&two])?;
        drop((claimed, other));
        assert_eq!(claim(&[&one, &two, &one]).err(), Some(EBUSY));
        claim(&[&one, &two])?;
        Ok(())
    }
}
