// SPDX-License-Identifier: GPL-2.0

//! Tests of structures in BARs.

use kernel::prelude::*;

use super::fits;

#[kunit_tests(virtio_pci)]
mod cases {
    use super::*;

    #[test]
    fn a_structure_must_lie_in_its_bar() {
        assert!(fits(4096, 0, 4096));
        assert!(!fits(4096, 1, 4096));
        assert!(!fits(4096, u64::MAX, 2));
        assert!(fits(4096, 4095, 1));
    }
}
