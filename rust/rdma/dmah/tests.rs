// SPDX-License-Identifier: GPL-2.0

//! Tests of DMA handles.

use crate::testing::prelude::*;

use crate::dmah::{
    Dmah,
    Hints,
    MemoryType, //
};

#[kunit_tests(rdma_dmah)]
mod cases {
    use super::*;

    #[test]
    fn handles_have_the_hints_of_their_process() -> Result {
        const CPU: u8 = 1 << bindings::IB_DMAH_CPU_ID_EXISTS;
        const MEMORY: u8 = 1 << bindings::IB_DMAH_MEM_TYPE_EXISTS;
        const PROCESSING: u8 = 1 << bindings::IB_DMAH_PH_EXISTS;

        with_device(|device, log| {
            for (fields, hints) in [
                (0, Hints::default()),
                (
                    PROCESSING,
                    Hints {
                        processing: Some(3),
                        ..Default::default()
                    },
                ),
                (
                    CPU | MEMORY | PROCESSING,
                    Hints {
                        cpu: Some(7),
                        memory_type: Some(MemoryType::Persistent),
                        processing: Some(3),
                    },
                ),
            ] {
                let mut dmah = room!(device, ib_dmah, Dmah);
                // SAFETY: The structure is not shared.
                unsafe {
                    let raw = dmah.as_raw();
                    (*raw).cpu_id = 7;
                    (*raw).mem_type = bindings::tph_mem_type_TPH_MEM_TYPE_PM;
                    (*raw).ph = 3;
                    (*raw).valid_fields = fields;
                }
                to_result(verb!(device, alloc_dmah(dmah.as_raw(), null_mut())))?;
                assert_eq!(log.asked(), Some(Asked::DmaHandle(hints)));
                // SAFETY: The object was constructed.
                let number = unsafe { Dmah::<Object>::from_raw(dmah.as_raw()).number };
                to_result(verb!(device, dealloc_dmah(dmah.as_raw(), null_mut())))?;
                assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            }
            Ok(())
        })
    }

    #[test]
    fn memory_is_registered_with_a_handle() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            let mut dmah = room!(device, ib_dmah, Dmah);
            to_result(verb!(device, alloc_dmah(dmah.as_raw(), null_mut())))?;
            // SAFETY: The object was constructed.
            let number = unsafe { Dmah::<Object>::from_raw(dmah.as_raw()).number };

            // Pages of memory on demand come and go.
            for (access, expected) in [(Access::LocalWrite, None), (Access::OnDemand, Some(EINVAL))]
            {
                // CAST: A set of bits that C keeps in an `int`.
                let raw = access as c_int;
                let mut call = process.call(10)?;
                let mr = from_err_ptr(verb!(
                    device,
                    reg_user_mr(pd.0, 1, 2, 3, raw, dmah.as_raw(), call.udata())
                ));
                assert_eq!(mr.as_ref().err(), expected.as_ref());
                if let Ok(mr) = mr {
                    let range = mr::Range {
                        start: 1,
                        length: 2,
                        iova: 3,
                    };
                    let asked = Asked::Region(range, access.into(), Some(number), 10);
                    assert_eq!(log.asked(), Some(asked));
                    to_result(verb!(device, dereg_mr(mr, null_mut())))?;
                }

                let mr = from_err_ptr(verb!(
                    device,
                    reg_user_mr_dmabuf(pd.0, 1, 2, 3, 44, raw, dmah.as_raw(), null_mut())
                ));
                assert_eq!(mr.as_ref().err(), expected.as_ref());
                if let Ok(mr) = mr {
                    let range = mr::DmaBufRange {
                        fd: 44,
                        offset: 1,
                        length: 2,
                        iova: 3,
                    };
                    let asked = Asked::DmaBuf(range, access.into(), Some(number));
                    assert_eq!(log.asked(), Some(asked));
                    to_result(verb!(device, dereg_mr(mr, null_mut())))?;
                }
            }
            to_result(verb!(device, dealloc_dmah(dmah.as_raw(), null_mut())))?;
            process.end(device)
        })
    }
}
