// SPDX-License-Identifier: GPL-2.0

//! Tests of the queues of a device.

use core::{
    mem::transmute,
    sync::atomic::{
        AtomicU32,
        Ordering::SeqCst, //
    }, //
};

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::transport::with_device;
use crate::{
    AnyVirtqueue,
    Chain,
    Virtqueues,
    Watch, //
};

#[kunit_tests(virtio_queues)]
mod cases {
    use super::*;

    #[test]
    fn queues_go_with_the_lock_of_their_device() -> Result {
        with_device(
            |_, data, transport| {
                // Whoever can name the driver's data can do this, with whatever lock.
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
                // SAFETY: It is not used any more, but dropped when all is over, so that the test
                // does not leak it in truth.
                kept = Some(unsafe { transmute::<Virtqueues<'_>, Virtqueues<'static>>(queues) });
                assert_eq!(data.queue.capacity(), 8);
                Ok(())
            },
            |transport| {
                // The core has acknowledged it again, and nothing more.
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (1, 1));
                Ok(())
            },
        );
        drop(kept);
        result
    }

    /// Counts how often it looks.
    struct Counting(Arc<AtomicU32>);

    impl Watch for Counting {
        fn look(&self) -> Option<u32> {
            self.0.fetch_add(1, SeqCst);
            Some(1)
        }
    }

    #[test]
    fn watchdogs_that_are_forgotten_end_with_the_driver() -> Result {
        let looks = Arc::new(AtomicU32::new(0), GFP_KERNEL)?;
        let mut kept = None;
        let result = with_device(
            |_, data, _| {
                let queues = data.queues.lock();
                let queues = queues.as_ref().ok_or(ENOENT)?;
                // As good as forgotten: it is there for longer than the driver.
                kept = Some(queues.watch(1, Counting(looks.clone()))?);
                while looks.load(SeqCst) == 0 {
                    fsleep(Delta::from_millis(1));
                }
                Ok(())
            },
            |_| {
                let last = looks.load(SeqCst);
                fsleep(Delta::from_millis(50));
                assert_eq!(looks.load(SeqCst), last);
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
                let calls = &data.queue.handler().0;
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
    fn a_configuration_that_is_not_there_is_not_read() -> Result {
        with_device(
            |dev, _, _| {
                // Nobody knows how long it is, and in truth the transport has none.
                assert_eq!(dev.read_config::<[u8; 4]>(), Err(EOPNOTSUPP));
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
                assert!(data.queue.handler().0.load(SeqCst) >= 2);
                Ok(())
            },
            |_| Ok(()),
        )
    }
}
