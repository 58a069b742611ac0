// SPDX-License-Identifier: GPL-2.0

//! Tests of access rights.

use crate::testing::prelude::*;

#[kunit_tests(rdma_access)]
mod cases {
    use super::*;

    #[test]
    fn rights_without_a_name_are_refused() -> Result {
        let writable = AccessFlags::from_raw(0b11)?;
        assert_eq!(writable, Access::LocalWrite | Access::RemoteWrite);
        assert_eq!(AccessFlags::from_raw(1 << 15).err(), Some(EOPNOTSUPP));
        assert_eq!(AccessFlags::from_raw(1 << 30).err(), Some(EOPNOTSUPP));

        // Unknown optional rights may be dropped; the known one is kept.
        assert_eq!(AccessFlags::from_raw(1 << 25)?, AccessFlags::default());
        assert_eq!(
            AccessFlags::from_raw(1 << 20)?,
            Access::RelaxedOrdering.into()
        );
        Ok(())
    }
}
