// SPDX-License-Identifier: GPL-2.0

//! Tests of memory windows.

use crate::testing::prelude::*;

#[kunit_tests(rdma_mw)]
mod cases {
    use super::*;

    #[test]
    fn windows_have_a_type_and_a_key() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            for (raw, ty) in [
                (bindings::ib_mw_type_IB_MW_TYPE_1, mw::Type::Type1),
                (bindings::ib_mw_type_IB_MW_TYPE_2, mw::Type::Type2),
            ] {
                let mut mw = room!(device, ib_mw, Mw);
                let mut call = process.call(9)?;
                // SAFETY: The structure is not shared.
                unsafe {
                    (*mw.as_raw()).pd = pd.0;
                    (*mw.as_raw()).type_ = raw;
                }
                to_result(verb!(device, alloc_mw(mw.as_raw(), call.udata())))?;
                assert_eq!(log.asked(), Some(Asked::Window(ty, 9)));
                assert_eq!(process.memory.read()?, !9);
                // SAFETY: The object was constructed.
                let (rkey, number) = unsafe {
                    let this = Mw::<Object>::from_raw(mw.as_raw());
                    ((*mw.as_raw()).rkey, this.number)
                };
                assert_eq!(rkey, keys(number).1);
                to_result(verb!(device, dealloc_mw(mw.as_raw())))?;
                assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            }
            process.end(device)
        })
    }

    #[test]
    fn windows_have_two_types() {
        assert_eq!(mw::Type::try_from(1), Ok(mw::Type::Type1));
        assert_eq!(mw::Type::try_from(2), Ok(mw::Type::Type2));
        assert!(mw::Type::try_from(0).is_err() && mw::Type::try_from(3).is_err());
    }
}
