// SPDX-License-Identifier: GPL-2.0

//! Tests of devices.

use kernel::prelude::*;

use crate::{
    testing::driver::with_device,
    Status, //
};

#[kunit_tests(virtio_device)]
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
    fn a_configuration_that_is_not_there_is_not_read() -> Result {
        with_device(
            |dev, _, _| {
                // The length is unknown; in fact this transport has no configuration.
                assert_eq!(dev.read_config::<[u8; 4]>(), Err(EOPNOTSUPP));
                Ok(())
            },
            |_| Ok(()),
        )
    }
}
