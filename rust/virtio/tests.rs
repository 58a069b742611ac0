// SPDX-License-Identifier: GPL-2.0

//! Tests that need no device.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    pci,
    virtqueue::{
        Chain,
        Handler,
        Virtqueue, //
    },
    Completion,
    Feature,
    Status, //
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
        let queue = Virtqueue::new(c"test", Idle)?;

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
        assert!(!completion.wait_timeout(1));
        completion.complete_all();
        assert!(completion.wait_timeout(1));
        completion.wait();
        Ok(())
    }

    #[test]
    fn a_structure_must_lie_in_its_bar() {
        assert!(pci::fits(4096, 0, 4096));
        assert!(!pci::fits(4096, 1, 4096));
        assert!(!pci::fits(4096, u64::MAX, 2));
        assert!(pci::fits(4096, 4095, 1));
    }
}
