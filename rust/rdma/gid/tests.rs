// SPDX-License-Identifier: GPL-2.0

//! Tests of the GID table.

use crate::testing::prelude::*;

#[kunit_tests(rdma_gid)]
mod cases {
    use super::*;

    #[test]
    fn an_entry_of_the_gid_table_is_what_the_core_left() -> Result {
        let mut raw = bindings::ib_gid_attr {
            index: 0x1234,
            port_num: 2,
            gid_type: bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
            ..Default::default()
        };
        let bytes = core::array::from_fn::<_, 16, _>(|i| i as u8 + 1);
        // SAFETY: All members of the union are plain bytes.
        *unsafe { crate::compat::member_mut(&mut raw.gid.raw) } = bytes;
        let entry = GidAttr::new(&raw);
        assert_eq!((entry.index(), entry.port()), (0x1234, Port::try_from(2)));
        assert_eq!(
            (entry.gid(), entry.kind()),
            (Gid(bytes), Ok(gid::Type::RoceV2))
        );
        // The network device of the GID is gone.
        assert_eq!(entry.link_layer(), Err(ENODEV));

        raw.gid_type = bindings::ib_gid_type_IB_GID_TYPE_ROCE;
        raw.port_num = 0;
        let entry = GidAttr::new(&raw);
        assert_eq!(
            (entry.kind(), entry.port()),
            (Ok(gid::Type::RoceV1), Err(EINVAL))
        );
        raw.gid_type = bindings::ib_gid_type_IB_GID_TYPE_IB;
        assert_eq!(GidAttr::new(&raw).kind(), Ok(gid::Type::InfiniBand));
        raw.gid_type = 99;
        assert_eq!(GidAttr::new(&raw).kind(), Err(EINVAL));
        Ok(())
    }
}
