// SPDX-License-Identifier: GPL-2.0

//! Tests of parts that need no device.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};

use kernel::{
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

use crate::compat::Completion;
use crate::{
    memory::with_test_dma,
    pci,
    queues::Claimed,
    virtqueue::{
        AnyVirtqueue,
        Chain,
        Handler,
        Virtqueue, //
    },
    watchdog::Watchdogs,
    Feature,
    SharedMemory,
    Status,
    Watch,
    Watchdog, //
};

/// A handler that has nothing to do.
struct Idle;

impl Handler for Idle {
    type Context = Arc<u32>;

    fn used(&self, _queue: &Virtqueue<Self>) {}
}

#[kunit_tests(virtio)]
mod cases {
    use super::*;

    #[test]
    fn status_of_a_removed_device_is_no_error_state() {
        assert!(Status::from_raw(0xff).is_gone());
        assert!(!Status::from_raw(0xff).needs_reset());
        assert!(Status::from_raw(0x4f).needs_reset());
        assert!(!Status::from_raw(0x4f).is_gone());
        assert!(Status::from_raw(0x0f).driver_ok());
        assert!(!Status::from_raw(0x0b).driver_ok());
        assert!(Status::from_raw(0).is_reset());
    }

    #[test]
    fn transport_features_have_the_numbers_of_the_standard() {
        assert_eq!(Feature::VERSION_1.bit(), 32);
        assert_eq!(Feature::ACCESS_PLATFORM.bit(), 33);
        assert_eq!(Feature::device(5).bit(), 5);
    }

    #[test]
    fn a_chain_without_memory_is_refused() {
        assert!(Chain::new(KVec::new(), 0, (), GFP_KERNEL).is_err());
        assert!(Chain::new(KVec::new(), 1, (), GFP_KERNEL).is_ok());
    }

    #[test]
    fn a_queue_that_is_not_alive_returns_the_buffer() -> Result {
        let token = Arc::new(7u32, GFP_KERNEL)?;
        let queue = Virtqueue::new(fmt!("test"), Idle)?;

        assert_eq!(queue.capacity(), 0);
        assert!(queue.is_broken());
        assert!(queue.pop().is_none());
        queue.kick();
        match queue.add(Chain::new(KVec::new(), 8, token.clone(), GFP_KERNEL)?) {
            Ok(()) => panic!("accepted"),
            Err((err, chain)) => {
                assert_eq!(err, ENODEV);
                assert_eq!(chain.writable(), &[0; 8]);
                assert!(Arc::ptr_eq(chain.context(), &token));
            }
        }
        // The chain has been dropped, so this is the last reference.
        assert!(Arc::into_unique_or_drop(token).is_some());
        Ok(())
    }

    #[test]
    fn a_completion_times_out_or_is_seen() -> Result {
        let completion = KBox::pin_init(Completion::new(), GFP_KERNEL)?;
        assert!(!completion.wait_for_completion_timeout(1));
        completion.complete_all();
        assert!(completion.wait_for_completion_timeout(1));
        completion.wait_for_completion();
        Ok(())
    }

    #[test]
    fn a_structure_must_lie_in_its_bar() {
        assert!(pci::fits(4096, 0, 4096));
        assert!(!pci::fits(4096, 1, 4096));
        assert!(!pci::fits(4096, u64::MAX, 2));
        assert!(pci::fits(4096, 4095, 1));
    }

    #[test]
    fn shared_memory_is_zeroed_pages_that_keep_what_is_written() -> Result {
        const PAGE: usize = SharedMemory::PAGE_SIZE;

        with_test_dma(|dma| {
            let memory = SharedMemory::new(dma, 2 * PAGE + 100)?;
            assert_eq!(memory.len(), 2 * PAGE + 100);
            assert_eq!(memory.dma_pages().len(), 3);
            assert!(memory.dma_pages().all(|page| page % PAGE as u64 == 0));

            // Across a page, beginning and ending at odd places.
            let mut text = *b"?????????????????????????";
            memory.read(PAGE - 11, &mut text)?;
            assert_eq!(text, [0; 25]);
            memory.write(PAGE - 11, b"over the edge of the page")?;
            memory.read(PAGE - 11, &mut text)?;
            assert_eq!(&text, b"over the edge of the page");

            // The last byte, and no further.
            memory.write(2 * PAGE + 99, &[7])?;
            assert_eq!(memory.write(2 * PAGE + 99, &[7, 8]), Err(EINVAL));
            assert_eq!(memory.read(2 * PAGE + 100, &mut [0]), Err(EINVAL));
            assert_eq!(memory.read(usize::MAX, &mut [0, 0]), Err(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn shared_memory_belongs_to_a_device_with_queues() -> Result {
        with_test_dma(|dma| {
            let too_late = SharedMemory::new(dma, 8)?;
            too_late.write(0, &[1, 2, 3, 4])?;
            let page = core::ptr::from_ref(too_late.u32(0)?);
            dma.close();
            assert_eq!(SharedMemory::new(dma, 8).err(), Some(ENODEV));
            drop(too_late);
            // SAFETY: It was not freed, and never will be.
            let word = unsafe { page.read() };
            assert_eq!(word.into_inner().to_ne_bytes(), [1, 2, 3, 4]);
            Ok(())
        })
    }

    #[test]
    fn a_queue_belongs_to_one_device() -> Result {
        let one: Arc<dyn AnyVirtqueue> = Virtqueue::new(fmt!("one"), Idle)?;
        let two: Arc<dyn AnyVirtqueue> = Virtqueue::new(fmt!("two"), Idle)?;
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
        // What was refused is not kept.
        let other = claim(&[&two])?;
        drop((claimed, other));
        assert_eq!(claim(&[&one, &two, &one]).err(), Some(EBUSY));
        claim(&[&one, &two])?;
        Ok(())
    }

    /// Has its own watchdog dropped at the first look.
    struct Suicidal(Arc<Kennel>);

    /// Where that is.
    #[pin_data]
    struct Kennel {
        #[pin]
        watchdog: Mutex<Option<Watchdog<Suicidal>>>,
        looks: AtomicU32,
    }

    impl Watch for Suicidal {
        fn look(&self) -> Option<u32> {
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
        let all = Watchdogs::new()?;
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

    /// Counts how often it looks.
    struct Counting(Arc<AtomicU32>);

    impl Watch for Counting {
        fn look(&self) -> Option<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Some(1)
        }
    }

    #[test]
    fn nobody_looks_when_all_have_ended() -> Result {
        let looks = Arc::new(AtomicU32::new(0), GFP_KERNEL)?;
        let all = Watchdogs::new()?;
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
        kept.look_now();
        fsleep(Delta::from_millis(50));
        assert_eq!(looks.load(Ordering::Relaxed), last);
        let late = Watchdog::new(&all, 1, Counting(looks));
        assert_eq!(late.err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn shared_words_are_aligned_and_inside() -> Result {
        const PAGE: usize = SharedMemory::PAGE_SIZE;

        with_test_dma(|dma| {
            let memory = SharedMemory::new(dma, PAGE + 12)?;
            let word = memory.u64(PAGE)?;
            word.fetch_or(0x0102_0304_0506_0708u64.to_le(), Ordering::Relaxed);
            let mut bytes = [0; 8];
            memory.read(PAGE, &mut bytes)?;
            assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(
                u32::from_le(memory.u32(PAGE + 4)?.load(Ordering::Relaxed)),
                0x0102_0304
            );

            assert_eq!(memory.u32(2).err(), Some(EINVAL));
            assert_eq!(memory.u64(4).err(), Some(EINVAL));
            assert!(memory.u32(PAGE + 8).is_ok());
            assert_eq!(memory.u64(PAGE + 8).err(), Some(EINVAL));
            assert_eq!(memory.u32(PAGE + 12).err(), Some(EINVAL));
            assert_eq!(memory.u32(usize::MAX - 3).err(), Some(EINVAL));
            assert!(SharedMemory::new(dma, 0).is_err());
            Ok(())
        })
    }
}
