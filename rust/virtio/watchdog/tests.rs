// SPDX-License-Identifier: GPL-2.0

//! Tests of watchdogs.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};

use kernel::{
    device,
    faux,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    Watch,
    Watchdog,
    Watchdogs, //
};
use crate::{
    testing::driver::with_device,
    Stopper, //
};

#[kunit_tests(virtio_watchdog)]
mod cases {
    use super::*;

    /// Drops its own watchdog in its first check.
    struct Suicidal(Arc<Kennel>);

    /// Reference to that watchdog.
    #[pin_data]
    struct Kennel {
        #[pin]
        watchdog: Mutex<Option<Watchdog<Suicidal>>>,
        looks: AtomicU32,
    }

    impl Watch for Suicidal {
        fn check(&self) -> Option<u32> {
            let watchdog = self.0.watchdog.lock().take();
            drop(watchdog);
            self.0.looks.fetch_add(1, Ordering::Relaxed);
            Some(1)
        }
    }

    #[test]
    fn a_look_may_be_the_last() -> Result {
        let kennel = Arc::pin_init(
            pin_init!(Kennel {
                watchdog <- new_mutex!(None),
                looks: AtomicU32::new(0),
            }),
            GFP_KERNEL,
        )?;
        let dev = faux::Registration::new(c"virtio-test", None)?;
        let dev: &device::Device<device::Bound> = dev.as_ref().as_ref();
        let all = Watchdogs::new(dev)?;
        *kennel.watchdog.lock() = Some(Watchdog::new(&all, 1, Suicidal(kennel.clone()))?);
        for _ in 0..1000 {
            fsleep(Delta::from_millis(10));
            if kennel.looks.load(Ordering::Relaxed) != 0 {
                break;
            }
        }
        fsleep(Delta::from_millis(20));
        assert_eq!(kennel.looks.load(Ordering::Relaxed), 1);
        Ok(())
    }

    /// Counts its checks.
    struct Counting(Arc<AtomicU32>);

    impl Watch for Counting {
        fn check(&self) -> Option<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Some(1)
        }
    }

    #[test]
    fn nobody_looks_when_all_have_ended() -> Result {
        let looks = Arc::new(AtomicU32::new(0), GFP_KERNEL)?;
        let dev = faux::Registration::new(c"virtio-test", None)?;
        let dev: &device::Device<device::Bound> = dev.as_ref().as_ref();
        let all = Watchdogs::new(dev)?;
        let kept = Watchdog::new(&all, 1, Counting(looks.clone()))?;
        for _ in 0..1000 {
            fsleep(Delta::from_millis(10));
            if looks.load(Ordering::Relaxed) >= 2 {
                break;
            }
        }
        assert!(looks.load(Ordering::Relaxed) >= 2);
        all.close();
        let last = looks.load(Ordering::Relaxed);
        kept.check_now();
        fsleep(Delta::from_millis(50));
        assert_eq!(looks.load(Ordering::Relaxed), last);
        let late = Watchdog::new(&all, 1, Counting(looks));
        assert_eq!(late.err(), Some(ENODEV));
        Ok(())
    }

    /// Stops its device at the same time as another thread.
    struct Stopping(Stopper, Arc<AtomicU32>);

    impl Watch for Stopping {
        fn check(&self) -> Option<u32> {
            self.1.fetch_add(1, Ordering::Relaxed);
            while !self.0.device_failed() {
                fsleep(Delta::from_millis(1));
            }
            self.0.stop();
            None
        }
    }

    /// Reference to its watchdog.
    #[pin_data]
    struct Kept {
        #[pin]
        watchdog: Mutex<Option<Watchdog<Stopping>>>,
    }

    #[test]
    fn a_watchdog_is_dropped_while_its_look_waits() -> Result {
        with_device(
            |_, data, _| {
                let looks = Arc::new(AtomicU32::new(0), GFP_KERNEL)?;
                let (stopper, watchdog) = {
                    let queues = data.queues.lock();
                    let queues = queues.as_ref().ok_or(ENOENT)?;
                    let watch = Stopping(queues.stopper(), looks.clone());
                    (queues.stopper(), queues.watch(1, watch)?)
                };
                let kept = Arc::pin_init(
                    pin_init!(Kept {
                        watchdog <- new_mutex!(Some(watchdog)),
                    }),
                    GFP_KERNEL,
                )?;
                let deed = {
                    let kept = kept.clone();
                    move || {
                        let watchdog = kept.watchdog.lock().take();
                        drop(watchdog);
                    }
                };
                *data.queue.handler().cancelled.lock() = Some(Arc::new(deed, GFP_KERNEL)?);
                while looks.load(Ordering::Relaxed) == 0 {
                    fsleep(Delta::from_millis(1));
                }
                stopper.stop();
                assert!(kept.watchdog.lock().is_none());
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn watchdogs_that_are_forgotten_end_with_the_driver() -> Result {
        let looks = Arc::new(AtomicU32::new(0), GFP_KERNEL)?;
        let mut kept = None;
        let result = with_device(
            |_, data, _| {
                let queues = data.queues.lock();
                let queues = queues.as_ref().ok_or(ENOENT)?;
                // As good as leaked: it outlives the driver's data.
                kept = Some(queues.watch(1, Counting(looks.clone()))?);
                while looks.load(Ordering::Relaxed) == 0 {
                    fsleep(Delta::from_millis(1));
                }
                Ok(())
            },
            |_| {
                let last = looks.load(Ordering::Relaxed);
                fsleep(Delta::from_millis(50));
                assert_eq!(looks.load(Ordering::Relaxed), last);
                Ok(())
            },
        );
        drop(kept);
        result
    }
}
