// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use kernel::{
    dma::DmaAddress,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    access::{
        Access,
        AccessFlags, //
    },
    dm::DmRange,
    integrity::{
        IntegrityError,
        Pieces, //
    },
    mr::{
        Advice,
        DmaBufRange,
        MrChange,
        NewMr,
        Range, //
    },
    restrack::Details,
    wr::Sge,
    MemoryRegion,
    Umem,
    User,
    UserPages, //
};
use virtio::{
    Dma,
    SharedMemory, //
};
use vrnic_wire::{
    command::{
        mr_flags,
        reregister_flags,
        AllocateIntegrityMr,
        AllocateMr,
        DeregisterMr,
        DeviceLimits,
        RegisterMr,
        ReregisterMr, //
    },
    memory::{
        access,
        TABLE_ENTRY_LENGTH, //
    }, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    dm::Dm,
    dmah::Dmah,
    feature,
    integrity::{
        self,
        IntegrityTable, //
    },
    object::{
        create,
        Object, //
    },
    odp::Paged,
    page_list::{
        region_pages,
        PageListBuffer, //
    },
    pd::Pd, //
};

/// A memory region.
#[pin_data]
pub(crate) struct Mr {
    /// The registration, which a process may change. Held during commands about the region.
    #[pin]
    registered: Mutex<Registered>,
    /// What the driver and the device share about the region, if the kernel registers it by work
    /// requests.
    table: Option<Table>,
}

/// The device's view of a region.
enum Registered {
    /// Pinned memory.
    InPlace {
        // Fields are dropped in declaration order: the device stops using the memory first.
        object: Object<DeregisterMr>,
        /// The process's memory; [`None`] for memory of the kernel.
        user: Option<UserMemory>,
    },
    /// Device memory.
    DeviceMemory {
        // As above.
        object: Object<DeregisterMr>,
        _pages: Arc<UserPages>,
    },
    /// On-demand memory.
    OnDemand(Paged),
}

impl Registered {
    /// Registers memory of a process, pinned unless `access` asks for on-demand paging.
    fn of_process(call: &Call<'_>, pd: u32, range: &Range, access: AccessFlags) -> Result<Self> {
        if access.contains(Access::OnDemand) {
            let rights = device_rights(access & !Access::OnDemand, &call.data().limits)?;
            return Paged::register(call, pd, range, access, rights).map(Self::OnDemand);
        }
        Self::in_place(call, pd, access, || UserMemory::get(call, range, access))
    }

    /// Registers pinned memory.
    fn in_place(
        call: &Call<'_>,
        pd: u32,
        access: AccessFlags,
        get: impl FnOnce() -> Result<(UserMemory, PageListBuffer)>,
    ) -> Result<Self> {
        let rights = device_rights(access, &call.data().limits)?;
        let (memory, pages) = get()?;
        let (object, _) = create(
            &call.data().control,
            &RegisterMr {
                pd: pd.into(),
                access: rights.into(),
                iova: first_address(memory.iova, access).into(),
                pages: pages.list(),
                ..Default::default()
            },
        )?;
        let user = Some(memory);
        Ok(Self::InPlace { object, user })
    }

    /// Wraps a region of kernel memory.
    fn kernel(object: Object<DeregisterMr>) -> Self {
        Self::InPlace { object, user: None }
    }

    /// Changes a region of a process. On error the region stays unchanged.
    fn change(&mut self, call: &Call<'_>, change: &MrChange<'_, Pd>) -> Result {
        let (pd, range, access) = match self {
            Self::InPlace {
                object,
                user: Some(user),
            } => (object.pd(), user.range(), user.access),
            Self::OnDemand(paged) => paged.registered(),
            Self::InPlace { user: None, .. } | Self::DeviceMemory { .. } => return Err(EINVAL),
        };
        let access = change.access.unwrap_or(access);
        match self {
            Self::InPlace {
                object,
                user: Some(user),
            } if !access.contains(Access::OnDemand) => {
                return user.change(object, call, change, access);
            }
            _ => {}
        }
        // Otherwise a new region replaces the old one. Of an on-demand region, only the memory of a
        // dma-buf is reused. Rights do not change whether that stays in place.
        let pd = change.pd.map_or(pd, |pd| pd.number());
        let Some(range) = change.range.or(range) else {
            return match self {
                Self::OnDemand(paged) if !access.contains(Access::OnDemand) => {
                    paged.replace(pd, access, device_rights(access, &call.data().limits)?)
                }
                _ => Err(EOPNOTSUPP),
            };
        };
        let new = Self::of_process(call, pd, &range, access)?;
        // This fails while memory windows are bound to the region.
        self.try_destroy()?;
        *self = new;
        Ok(())
    }

    /// Destroys the region, unless memory windows are bound to it (`EBUSY`).
    fn try_destroy(&self) -> Result {
        match self {
            Self::InPlace { object, user } => {
                let access = user.as_ref().map(|user| user.access);
                object.try_destroy(access.is_some_and(may_have_windows))
            }
            Self::DeviceMemory { object, .. } => object.try_destroy(false),
            Self::OnDemand(paged) => paged.try_destroy(),
        }
    }

    /// Returns the key of the region.
    fn key(&self) -> u32 {
        match self {
            Self::InPlace { object, .. } | Self::DeviceMemory { object, .. } => object.number(),
            Self::OnDemand(paged) => paged.key(),
        }
    }
}

/// Checks the length of a region; `EINVAL` if it exceeds the device's limit.
pub(crate) fn checked_length(call: &Call<'_>, length: u64) -> Result<usize> {
    if length > call.data().limits.max_mr_size.get() {
        return Err(EINVAL);
    }
    Ok(usize::try_from(length)?)
}

/// Memory that a process registered.
struct UserMemory {
    /// [`None`] for a region of length 0, which pins nothing.
    umem: Option<Umem>,
    start: u64,
    /// Requested address, which has the same offset in a page as `start`.
    iova: u64,
    access: AccessFlags,
    /// Number of pages in the device's page list, and binary logarithm of the page size.
    pages: (u32, u8),
}

impl UserMemory {
    /// Pins memory and creates its page list.
    fn get(call: &Call<'_>, range: &Range, access: AccessFlags) -> Result<(Self, PageListBuffer)> {
        let length = checked_length(call, range.length)?;
        if length == 0 {
            let pages = PageListBuffer::empty();
            let memory = Self {
                umem: None,
                start: range.start,
                iova: range.iova,
                access,
                pages: (0, pages.list().page_shift),
            };
            return Ok((memory, pages));
        }
        let umem = Umem::get(call, range.start, length, access)?;
        Self::list(call, umem, range.iova, access)
    }

    /// Pins a part of a dma-buf and creates its page list.
    fn get_dma_buf(
        call: &Call<'_>,
        range: &DmaBufRange,
        access: AccessFlags,
    ) -> Result<(Self, PageListBuffer)> {
        let length = checked_length(call, range.length)?;
        let offset = usize::try_from(range.offset)?;
        let umem = Umem::get_dma_buf(call, range.fd, offset, length, access)?;
        Self::list(call, umem, range.iova, access)
    }

    /// Creates the page list of pinned memory.
    fn list(
        call: &Call<'_>,
        mut umem: Umem,
        iova: u64,
        access: AccessFlags,
    ) -> Result<(Self, PageListBuffer)> {
        let pages = region_pages(call, &mut umem, iova)?;
        let list = pages.list();
        let memory = Self {
            start: umem.address(),
            umem: Some(umem),
            iova,
            access,
            pages: (list.page_count.get(), list.page_shift),
        };
        Ok((memory, pages))
    }

    /// Returns the range of the memory in the process; [`None`] for a dma-buf.
    fn range(&self) -> Option<Range> {
        let range = |length| Range {
            start: self.start,
            length,
            iova: self.iova,
        };
        match &self.umem {
            None => Some(range(0)),
            Some(umem) => (!umem.is_dma_buf()).then(|| range(umem.len() as u64)),
        }
    }

    /// Changes the region of this memory, which gets the rights `access` and stays pinned.
    fn change(
        &mut self,
        object: &mut Object<DeregisterMr>,
        call: &Call<'_>,
        change: &MrChange<'_, Pd>,
        access: AccessFlags,
    ) -> Result {
        let mut request = ReregisterMr::default();
        let mut flags = 0;

        if let Some(pd) = change.pd {
            flags |= reregister_flags::PD;
            request.new_pd = pd.number().into();
        }
        if change.access.is_some() {
            flags |= reregister_flags::ACCESS;
            request.access = device_rights(access, &call.data().limits)?.into();
        }
        // Memory that was pinned for reading must be pinned again for writing, and may then be
        // other memory; a dma-buf is mapped for both. If the region becomes zero-based or ceases to
        // be, its addresses change.
        let repins = pins_for_writing(access) && !pins_for_writing(self.access);
        let recounts = is_zero_based(access) != is_zero_based(self.access);
        let own = || self.range().filter(|_| repins || recounts);
        let mut memory = None;
        let mut listed = None;
        if let Some(range) = change.range.or_else(own) {
            let (new, pages) = Self::get(call, &range, access)?;
            request.iova = first_address(range.iova, access).into();
            listed = Some(pages);
            memory = Some(new);
        } else if let (true, Some(umem)) = (recounts, &mut self.umem) {
            request.iova = first_address(self.iova, access).into();
            listed = Some(region_pages(call, umem, self.iova)?);
        }
        if let Some(pages) = &listed {
            flags |= reregister_flags::TRANSLATION;
            request.pages = pages.list();
        }
        if flags != 0 {
            request.flags = flags.into();
            object.reregister(&request)?;
        }
        // The device has released the old memory and uses the new one.
        if let Some(new) = memory {
            *self = new;
        }
        self.access = access;
        Ok(())
    }
}

impl Mr {
    /// Creates a region with a single key for all uses.
    fn new(registered: Registered, table: Option<Table>) -> NewMr<impl PinInit<Self>, ()> {
        let key = registered.key();
        NewMr {
            init: pin_init!(Self {
                registered <- new_mutex!(registered),
                table,
            }),
            response: (),
            lkey: key,
            rkey: key,
        }
    }

    /// Returns the table of a region for integrity; `EINVAL` for others.
    pub(crate) fn integrity(&self) -> Result<&IntegrityTable> {
        match &self.table {
            Some(Table::Integrity(table)) => Ok(table),
            Some(Table::Pages(_)) | None => Err(EINVAL),
        }
    }
}

/// What the driver and the device share about a region.
enum Table {
    /// The page table of a region for fast registration.
    Pages(PageTable),
    /// The table of a region for integrity.
    Integrity(IntegrityTable),
}

/// The page table of a region for fast registration, which the device reads.
struct PageTable {
    memory: SharedMemory,
    max_pages: u32,
}

impl PageTable {
    /// Allocates a table for `max_pages` pages, at least 1.
    fn new(dma: &Dma, max_pages: u32) -> Result<Self> {
        let length = (max_pages as usize)
            .checked_mul(TABLE_ENTRY_LENGTH)
            .ok_or(EINVAL)?;
        Ok(Self {
            memory: SharedMemory::new(dma, length)?,
            max_pages,
        })
    }

    /// Writes an entry; `ENOMEM` if the table is too short.
    fn set(&self, index: u32, address: DmaAddress) -> Result {
        if index >= self.max_pages {
            return Err(ENOMEM);
        }
        let entry = address.to_le_bytes();
        self.memory
            .write(index as usize * TABLE_ENTRY_LENGTH, &entry)
    }
}

/// Returns the rights in the device's encoding; `EOPNOTSUPP` for rights that the device does not
/// have.
///
/// Huge pages are only a hint, and are detected anyway.
pub(crate) fn rights(access: AccessFlags) -> Result<u32> {
    let bits = access.bits() & !(Access::HugeTlb as u32);
    if bits & !access::REGION != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(bits)
}

/// Like [`rights`], for a device that may lack memory windows.
fn device_rights(access: AccessFlags, limits: &DeviceLimits) -> Result<u32> {
    let bits = rights(access)?;
    if limits.max_mw.get() == 0 && bits & access::WINDOWS != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(bits)
}

/// Returns the rights that the device grants to device memory. Windows cannot be bound to it, and
/// it does not survive a loss of power; `EINVAL` for such rights.
fn device_memory_rights(access: AccessFlags) -> Result<u32> {
    const KNOWN: u32 = access::QUEUE_PAIR | access::FLUSH_GLOBAL | access::RELAXED_ORDERING;

    // A zero-based region is expressed by its first address, not by a right.
    let bits = access.bits() & !access::ZERO_BASED;
    if bits & !KNOWN != 0 {
        return Err(EINVAL);
    }
    Ok(bits)
}

/// Returns whether windows may be bound to a region with these rights. On a device without windows
/// such regions do not exist ([`device_rights`]).
pub(crate) fn may_have_windows(access: AccessFlags) -> bool {
    access.bits() & access::MW_BIND != 0
}

/// Returns whether the addresses of a region with these rights start from 0.
fn is_zero_based(access: AccessFlags) -> bool {
    access.contains(Access::ZeroBased)
}

/// Returns the address by which work requests refer to the first byte of a region registered at
/// `iova`. It is 0 if the region is zero-based.
pub(crate) fn first_address(iova: u64, access: AccessFlags) -> u64 {
    if is_zero_based(access) {
        0
    } else {
        iova
    }
}

/// Returns whether memory with these rights is pinned for writing.
fn pins_for_writing(access: AccessFlags) -> bool {
    let writing = access::LOCAL_WRITE | access::REMOTE_CHANGES | access::MW_BIND;
    access.bits() & writing != 0
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
        _handle: Option<&rdma::Dmah<Dmah>>,
        _user: User<'_, Vrnic, ()>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        let registered = Registered::of_process(call, pd.number(), range, access)?;
        Ok(Self::new(registered, None))
    }

    fn register_dma_buf(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        range: &DmaBufRange,
        access: AccessFlags,
        _handle: Option<&rdma::Dmah<Dmah>>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        let pd = pd.number();
        let registered = if call.data().paging.is_some() {
            let rights = device_rights(access, &call.data().limits)?;
            Registered::OnDemand(Paged::register_dma_buf(call, pd, range, access, rights)?)
        } else {
            let get = || UserMemory::get_dma_buf(call, range, access);
            Registered::in_place(call, pd, access, get)?
        };
        Ok(Self::new(registered, None))
    }

    fn register_dm(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        dm: &rdma::Dm<Dm>,
        range: &DmRange,
        access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        let access = device_memory_rights(access)?;
        let pages = dm.list(call, range)?;
        let (object, _) = create(
            &call.data().control,
            &RegisterMr {
                pd: pd.number().into(),
                access: access.into(),
                pages: pages.list(),
                ..Default::default()
            },
        )?;
        let registered = Registered::DeviceMemory {
            object,
            _pages: dm.pages().clone(),
        };
        Ok(Self::new(registered, None))
    }

    fn register_dma(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        // For `IB_PD_UNSAFE_GLOBAL_RKEY` the core asks for remote rights alone, which the device
        // rejects: remote write requires local write.
        let access = access | Access::LocalWrite;
        let (object, _) = create(
            &call.data().control,
            &RegisterMr {
                pd: pd.number().into(),
                access: rights(access)?.into(),
                flags: mr_flags::ALL_MEMORY.into(),
                ..Default::default()
            },
        )?;
        Ok(Self::new(Registered::kernel(object), None))
    }

    fn allocate_fast(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        max_pages: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        if max_pages > call.data().limits.max_fast_registration_pages.get() {
            return Err(EINVAL);
        }
        let table = PageTable::new(call.data().dma(), max_pages)?;
        let list = PageListBuffer::of_shared(call.data().dma(), &table.memory)?;
        let (object, _) = create(
            &call.data().control,
            &AllocateMr {
                pd: pd.number().into(),
                max_pages: max_pages.into(),
                table: list.list(),
            },
        )?;
        Ok(Self::new(
            Registered::kernel(object),
            Some(Table::Pages(table)),
        ))
    }

    fn set_page(mr: &rdma::Mr<Self>, index: u32, address: DmaAddress) -> Result {
        match &mr.table {
            Some(Table::Pages(table)) => table.set(index, address),
            Some(Table::Integrity(_)) | None => Err(EINVAL),
        }
    }

    fn allocate_integrity(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        max_data: u32,
        max_metadata: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        if !call.data().features.contains(feature::INTEGRITY) {
            return Err(EOPNOTSUPP);
        }
        if max_data.max(max_metadata) > integrity::max_pieces(&call.data().limits) {
            return Err(EINVAL);
        }
        let table = IntegrityTable::new(call.data().dma(), max_data, max_metadata)?;
        let list = PageListBuffer::of_shared(call.data().dma(), table.memory())?;
        let (object, _) = create(
            &call.data().control,
            &AllocateIntegrityMr {
                pd: pd.number().into(),
                max_elements: max_data.into(),
                max_metadata_elements: max_metadata.into(),
                table: list.list(),
                ..Default::default()
            },
        )?;
        Ok(Self::new(
            Registered::kernel(object),
            Some(Table::Integrity(table)),
        ))
    }

    fn map_integrity(mr: &rdma::Mr<Self>, data: Pieces<'_>, metadata: Pieces<'_>) -> Result {
        mr.integrity()?.map(data, metadata)
    }

    fn take_integrity_error(mr: &rdma::Mr<Self>) -> Result<Option<IntegrityError>> {
        mr.integrity()?.take_error()
    }

    fn reregister(
        mr: &rdma::Mr<Self>,
        call: &Call<'_>,
        change: &MrChange<'_, Pd>,
    ) -> Result<(u32, u32)> {
        let mut registered = mr.registered.lock();
        registered.change(call, change)?;
        Ok((registered.key(), registered.key()))
    }

    fn advise(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        advice: Advice,
        wait: bool,
        pieces: &[Sge],
    ) -> Result {
        if call.data().paging.is_none() {
            return Err(EOPNOTSUPP);
        }
        call.data().faults.advise(pd.number(), advice, wait, pieces)
    }

    fn deregister(mr: &rdma::Mr<Self>, _call: &Call<'_>) -> Result {
        mr.registered.lock().try_destroy()
    }

    fn fill_details(mr: &rdma::Mr<Self>, details: &mut Details<'_>) -> Result {
        match &mr.table {
            Some(Table::Pages(table)) => return details.number(c"max_pages", table.max_pages),
            Some(Table::Integrity(table)) => {
                let (data, metadata) = table.room();
                details.number(c"max_pieces", data)?;
                return details.number(c"max_metadata_pieces", metadata);
            }
            None => {}
        }
        // A process decides how long a change of its region takes, and whoever asks for details
        // must not wait for that.
        let Some(registered) = mr.registered.try_lock() else {
            return Ok(());
        };
        match &*registered {
            Registered::InPlace { user: None, .. } | Registered::DeviceMemory { .. } => Ok(()),
            Registered::InPlace {
                user: Some(user), ..
            } => {
                let (count, shift) = user.pages;
                details.number(c"pages", count)?;
                details.number(c"page_shift", shift.into())
            }
            Registered::OnDemand(paged) => details.number(c"on_demand_pages", paged.pages()),
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
        assert_eq!(Access::MwBind as u32, access::MW_BIND);
        assert_eq!(Access::ZeroBased as u32, access::ZERO_BASED);
        assert_eq!(Access::FlushGlobal as u32, access::FLUSH_GLOBAL);
        assert_eq!(Access::FlushPersistent as u32, access::FLUSH_PERSISTENT);
        assert_eq!(Access::RelaxedOrdering as u32, access::RELAXED_ORDERING);
    }

    #[test]
    fn device_memory_has_fewer_rights() {
        let access = Access::LocalWrite | Access::RemoteAtomic | Access::ZeroBased;
        let both = access::LOCAL_WRITE | access::REMOTE_ATOMIC;
        assert_eq!(device_memory_rights(access), Ok(both));
        for other in [Access::MwBind, Access::OnDemand, Access::FlushPersistent] {
            assert_eq!(device_memory_rights(access | other), Err(EINVAL));
        }
    }

    #[test]
    fn rights_to_change_pin_for_writing() {
        assert!(!pins_for_writing(Access::RemoteRead.into()));
        assert!(!pins_for_writing(Access::RelaxedOrdering.into()));
        assert!(pins_for_writing(Access::LocalWrite.into()));
        assert!(pins_for_writing(Access::MwBind.into()));
    }

    #[test]
    fn addresses_of_a_zero_based_region_count_from_zero() {
        let access = Access::LocalWrite | Access::RemoteWrite;
        assert_eq!(first_address(0x1234_5678, access), 0x1234_5678);
        assert_eq!(first_address(0x1234_5678, access | Access::ZeroBased), 0);
    }

    #[test]
    fn a_table_holds_as_many_pages_as_it_says() -> Result {
        virtio::testing::with_dma(|dma| {
            let table = PageTable::new(dma, 600)?;
            table.set(0, 0x1_2000)?;
            table.set(599, 0xfedc_ba98_7654_3000)?;
            assert_eq!(table.set(600, 0), Err(ENOMEM));

            let mut entry = [0; TABLE_ENTRY_LENGTH];
            table.memory.read(0, &mut entry)?;
            assert_eq!(u64::from_le_bytes(entry), 0x1_2000);
            table.memory.read(599 * TABLE_ENTRY_LENGTH, &mut entry)?;
            assert_eq!(u64::from_le_bytes(entry), 0xfedc_ba98_7654_3000);
            assert_eq!(PageTable::new(dma, 0).err(), Some(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn rights_that_the_device_lacks_are_refused() {
        assert_eq!(rights(AccessFlags::default()), Ok(0));
        assert_eq!(rights(Access::LocalWrite | Access::RemoteRead), Ok(5));
        assert_eq!(rights(Access::LocalWrite | Access::HugeTlb), Ok(1));
        let mut limits = DeviceLimits::default();
        let bind = Access::MwBind.into();
        assert_eq!(device_rights(bind, &limits), Err(EOPNOTSUPP));
        limits.max_mw = 1.into();
        assert_eq!(device_rights(bind, &limits), Ok(access::MW_BIND));
        assert_eq!(
            rights(Access::LocalWrite | Access::OnDemand),
            Err(EOPNOTSUPP)
        );
        let flush = Access::FlushPersistent.into();
        assert_eq!(rights(flush), Ok(access::FLUSH_PERSISTENT));
    }
}
