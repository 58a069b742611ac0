// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use kernel::prelude::*;
use rdma::{
    access::{
        Access,
        AccessFlags, //
    },
    mr::{
        New,
        Range, //
    },
    restrack::Details,
    MemoryRegion,
    Umem,
    User, //
};
use vrnic_wire::{
    command::{
        mr_flags,
        DeregisterMr,
        RegisterMr, //
    },
    memory::access, //
};

use crate::{
    commands::{
        register_mr,
        Object, //
    },
    device::{
        Call,
        Vrnic, //
    },
    memory::region_pages,
    pd::Pd, //
};

/// A memory region.
#[pin_data]
pub(crate) struct Mr {
    // Fields are dropped in declaration order: the device lets go of the memory first.
    object: Object<DeregisterMr>,
    /// Memory of the region; [`None`] if it is all memory there is.
    umem: Option<Umem>,
    /// Pages that the device was told of, and the binary logarithm of their size.
    pages: (u32, u8),
}

/// The rights that the device knows; `EOPNOTSUPP` if there are others.
///
/// That memory is made of huge pages is no right but a hint, and seen anyway.
fn rights(access: AccessFlags) -> Result<u32> {
    let bits = access.bits() & !(Access::HugeTlb as u32);
    if bits & !access::REGION != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(bits)
}

#[vtable]
impl MemoryRegion for Mr {
    type Driver = Vrnic;
    type Request = ();
    type Response = ();

    fn register_user(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        range: &Range,
        access: AccessFlags,
        _user: User<'_, Vrnic, ()>,
    ) -> Result<New<impl PinInit<Self>, ()>> {
        let rights = rights(access)?;
        if range.length > call.data.limits.max_mr_size.get() {
            return Err(EINVAL);
        }
        let umem = Umem::get(
            call.device,
            range.start,
            usize::try_from(range.length)?,
            access,
        )?;
        let pages = region_pages(call, &umem, range.iova)?;
        let list = pages.list();
        let object = register_mr(
            &call.data.control,
            &RegisterMr {
                pd: pd.number().into(),
                access: rights.into(),
                iova: range.iova.into(),
                pages: list,
                ..Default::default()
            },
        )?;
        let key = object.number();

        Ok(New {
            init: pin_init!(Self {
                object,
                umem: Some(umem),
                pages: (list.page_count.get(), list.page_shift),
            }),
            response: (),
            lkey: key,
            rkey: key,
        })
    }

    fn register_dma(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        access: AccessFlags,
    ) -> Result<New<impl PinInit<Self>, ()>> {
        let object = register_mr(
            &call.data.control,
            &RegisterMr {
                pd: pd.number().into(),
                access: rights(access)?.into(),
                flags: mr_flags::ALL_MEMORY.into(),
                ..Default::default()
            },
        )?;
        let key = object.number();

        Ok(New {
            init: pin_init!(Self {
                object,
                umem: None,
                pages: (0, 0),
            }),
            response: (),
            lkey: key,
            rkey: key,
        })
    }

    fn deregister(mr: &rdma::Mr<Self>, _call: &Call<'_>) -> Result {
        mr.object.destroy()
    }

    fn fill_details(mr: &rdma::Mr<Self>, details: &mut Details<'_>) -> Result {
        if mr.umem.is_some() {
            let (count, shift) = mr.pages;
            details.number(c"pages", count)?;
            details.number(c"page_shift", shift.into())?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_mr)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_numbered_as_on_the_wire() {
        assert_eq!(Access::LocalWrite as u32, access::LOCAL_WRITE);
        assert_eq!(Access::RemoteWrite as u32, access::REMOTE_WRITE);
        assert_eq!(Access::RemoteRead as u32, access::REMOTE_READ);
        assert_eq!(Access::RemoteAtomic as u32, access::REMOTE_ATOMIC);
        assert_eq!(Access::RelaxedOrdering as u32, access::RELAXED_ORDERING);
    }

    #[test]
    fn rights_that_the_device_lacks_are_refused() {
        assert_eq!(rights(AccessFlags::default()), Ok(0));
        assert_eq!(rights(Access::LocalWrite | Access::RemoteRead), Ok(5));
        assert_eq!(rights(Access::LocalWrite | Access::HugeTlb), Ok(1));
        assert_eq!(rights(Access::MwBind.into()), Err(EOPNOTSUPP));
        assert_eq!(
            rights(Access::LocalWrite | Access::OnDemand),
            Err(EOPNOTSUPP)
        );
    }
}
