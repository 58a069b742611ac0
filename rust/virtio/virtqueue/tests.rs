// SPDX-License-Identifier: GPL-2.0

//! Tests of virtqueues.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    Chain,
    Handler,
    Virtqueue, //
};

/// A handler that does nothing.
struct Idle;

impl Handler for Idle {
    type Context = Arc<u32>;

    fn used(&self, _queue: &Virtqueue<Self>) {}
}

#[kunit_tests(virtio_virtqueue)]
mod cases {
    use super::*;

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
}
