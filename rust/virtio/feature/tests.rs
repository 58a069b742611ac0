// SPDX-License-Identifier: GPL-2.0

//! Tests of features.

use kernel::prelude::*;

use crate::{
    testing::driver::with_device,
    Feature,
    Features, //
};

#[kunit_tests(virtio_feature)]
mod cases {
    use super::*;

    #[test]
    fn transport_features_have_the_numbers_of_the_standard() {
        assert_eq!(Feature::VERSION_1.bit(), 32);
        assert_eq!(Feature::ACCESS_PLATFORM.bit(), 33);
        assert_eq!(Feature::ORDER_PLATFORM.bit(), 36);
        assert_eq!(Feature::device(5).bit(), 5);
    }

    #[test]
    fn a_set_contains_what_was_put_in() {
        let (first, second) = (Feature::device(0), Feature::device(63));
        let set = first | second | Feature::ACCESS_PLATFORM;
        assert!(set.contains(first) && set.contains(second));
        assert!(set.contains(Feature::ACCESS_PLATFORM));
        assert!(!set.contains(Feature::VERSION_1));
        assert!(!set.contains(Feature::device(1)));
        assert!(!Features::default().contains(first));
    }

    #[test]
    fn a_device_has_the_features_that_were_negotiated() -> Result {
        with_device(
            |dev, _, _| {
                // The transport offers only this one.
                assert!(dev.features() == Features::from(Feature::VERSION_1));
                Ok(())
            },
            |_| Ok(()),
        )
    }
}
