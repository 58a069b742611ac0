// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::DmaAddress,
    prelude::*, //
};
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
use virtio::SharedMemory;
use vrnic_wire::{
    command::{
        mr_flags,
        AllocateMr,
        DeregisterMr,
        RegisterMr, //
    },
    memory::{
        access,
        TABLE_ENTRY_LENGTH, //
    }, //
};

use crate::{
    commands::{
        allocate_mr,
        register_mr,
        Object,
        PageListBuffer, //
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
    memory: Memory,
}

/// What a region covers.
enum Memory {
    /// Memory of a process.
    User {
        _umem: Umem,
        /// Pages that the device was told of, and the binary logarithm of their size.
        pages: (u32, u8),
    },
    /// All memory there is.
    All,
    /// What work requests register.
    Fast(Table),
}

/// The pages of a region for fast registration, as the device reads them.
struct Table {
    memory: SharedMemory,
    max_pages: u32,
}

impl Table {
    /// A table for that many pages, at least 1.
    fn new(dev: &Device<Bound>, max_pages: u32) -> Result<Self> {
        let length = (max_pages as usize)
            .checked_mul(TABLE_ENTRY_LENGTH)
            .ok_or(EINVAL)?;
        Ok(Self {
            memory: SharedMemory::new(dev, length)?,
            max_pages,
        })
    }

    /// Writes an entry; `ENOMEM` if the table is not that long.
    fn set(&self, index: u32, address: DmaAddress) -> Result {
        if index >= self.max_pages {
            return Err(ENOMEM);
        }
        let entry = address.to_le_bytes();
        self.memory.write(index as usize * TABLE_ENTRY_LENGTH, &entry)
    }
}

/// The rights that the device knows; `EOPNOTSUPP` if there are others.
///
/// That memory is made of huge pages is no right but a hint, and seen anyway.
pub(crate) fn rights(access: AccessFlags) -> Result<u32> {
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
                memory: Memory::User {
                    _umem: umem,
                    pages: (list.page_count.get(), list.page_shift),
                },
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
                memory: Memory::All,
            }),
            response: (),
            lkey: key,
            rkey: key,
        })
    }

    fn allocate_fast(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        max_pages: u32,
    ) -> Result<New<impl PinInit<Self>, ()>> {
        if max_pages > call.data.limits.max_fast_registration_pages.get() {
            return Err(EINVAL);
        }
        let table = Table::new(call.data.dma, max_pages)?;
        let list = PageListBuffer::of_shared(call.data.dma, &table.memory)?;
        let object = allocate_mr(
            &call.data.control,
            &AllocateMr {
                pd: pd.number().into(),
                max_pages: max_pages.into(),
                table: list.list(),
            },
        )?;
        let key = object.number();

        Ok(New {
            init: pin_init!(Self {
                object,
                memory: Memory::Fast(table),
            }),
            response: (),
            lkey: key,
            rkey: key,
        })
    }

    fn set_page(mr: &rdma::Mr<Self>, index: u32, address: DmaAddress) -> Result {
        match &mr.memory {
            Memory::Fast(table) => table.set(index, address),
            Memory::User { .. } | Memory::All => Err(EINVAL),
        }
    }

    fn deregister(mr: &rdma::Mr<Self>, _call: &Call<'_>) -> Result {
        mr.object.destroy()
    }

    fn fill_details(mr: &rdma::Mr<Self>, details: &mut Details<'_>) -> Result {
        match &mr.memory {
            Memory::User {
                pages: (count, shift),
                ..
            } => {
                details.number(c"pages", *count)?;
                details.number(c"page_shift", (*shift).into())
            }
            Memory::Fast(table) => details.number(c"max_pages", table.max_pages),
            Memory::All => Ok(()),
        }
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
    fn a_table_holds_as_many_pages_as_it_says() -> Result {
        virtio::with_test_device(|dev| {
            let table = Table::new(dev, 600)?;
            table.set(0, 0x1_2000)?;
            table.set(599, 0xfedc_ba98_7654_3000)?;
            assert_eq!(table.set(600, 0), Err(ENOMEM));

            let mut entry = [0; TABLE_ENTRY_LENGTH];
            table.memory.read(0, &mut entry)?;
            assert_eq!(u64::from_le_bytes(entry), 0x1_2000);
            table.memory.read(599 * TABLE_ENTRY_LENGTH, &mut entry)?;
            assert_eq!(u64::from_le_bytes(entry), 0xfedc_ba98_7654_3000);
            assert_eq!(Table::new(dev, 0).err(), Some(EINVAL));
            Ok(())
        })
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
