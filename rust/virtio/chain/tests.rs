// SPDX-License-Identifier: GPL-2.0

//! Tests of buffers.

use kernel::prelude::*;

use super::Chain;

#[kunit_tests(virtio_chain)]
mod cases {
    use super::*;

    #[test]
    fn a_chain_without_memory_is_refused() {
        assert!(Chain::new(KVec::new(), 0, (), GFP_KERNEL).is_err());
        assert!(Chain::new(KVec::new(), 1, (), GFP_KERNEL).is_ok());
    }
}
