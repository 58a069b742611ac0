// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use kernel::{
    dma::DmaAddress,
    error::from_result,
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    types::Opaque, //
};

use crate::{
    access::{
        Access,
        AccessFlags, //
    },
    bindings,
    device::{
        Call,
        Operations, //
    },
    dm::{
        Dm,
        DmRange, //
    },
    dmah::{
        DmaHandle,
        Dmah, //
    },
    integrity::{
        Attributes,
        Extent,
        IntegrityError,
        Lists,
        Pieces, //
    },
    object::{
        blank,
        optional, //
    },
    odp::Pager,
    pd::{
        Pd,
        ProtectionDomain, //
    },
    restrack::Details,
    udata::{
        Request,
        Response,
        User, //
    },
    verb::Verb,
    wr::Sge, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Memory that a process registers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Address of the first byte in the process's address space.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which work requests refer to the first byte.
    pub iova: u64,
}

/// Part of a dma-buf that a process registers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DmaBufRange {
    /// File descriptor of the dma-buf in the calling process.
    pub fd: c_int,
    /// Offset of the first byte in the dma-buf.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which work requests refer to the first byte. It has the same offset in a page as
    /// `offset`.
    pub iova: u64,
}

/// A change of a memory region.
pub struct MrChange<'a, P: ProtectionDomain> {
    /// The new memory, if it changes.
    pub range: Option<Range>,
    /// The new access rights, if they change.
    pub access: Option<AccessFlags>,
    /// The new protection domain, if it changes. It lives at least as long as the region.
    pub pd: Option<&'a Pd<P>>,
}

c_enum! {
    /// Advice from a process about the use of memory.
    pub enum Advice: bindings::ib_uverbs_advise_mr_advice {
        /// The memory will be read soon.
        Prefetch = bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        /// The memory will be written soon.
        PrefetchWrite =
            bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        /// The pages that are present will be accessed soon.
        PrefetchNoFault =
            bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    }
}

/// A new region.
pub struct NewMr<I, R> {
    /// Initialiser of the region.
    pub init: I,
    /// Response to the provider; `()` for regions of the kernel.
    pub response: R,
    /// Key by which local work requests refer to the region.
    pub lkey: u32,
    /// Key by which peers refer to the region.
    pub rkey: u32,
}

/// A memory region (`struct ib_mr`).
#[vtable]
pub trait MemoryRegion: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<MemoryRegion = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// Registers memory of the calling process. The DMA handle, if there is one, lives at least as
    /// long as the region.
    fn register_user(
        call: &Call<'_, Self::Driver>,
        pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        range: &Range,
        access: AccessFlags,
        handle: Option<&Dmah<<Self::Driver as Operations>::DmaHandle>>,
        user: User<'_, Self::Driver, Self::Request>,
    ) -> Result<NewMr<impl PinInit<Self>, Self::Response>>;

    /// Registers a part of a dma-buf for the calling process. The DMA handle, if there is one,
    /// lives at least as long as the region.
    fn register_dma_buf(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _range: &DmaBufRange,
        _access: AccessFlags,
        _handle: Option<&Dmah<<Self::Driver as Operations>::DmaHandle>>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Err::<NewMr<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Registers a part of device memory; addresses in the region start from 0.
    fn register_dm(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _dm: &Dm<<Self::Driver as Operations>::DmBuffer>,
        _range: &DmRange,
        _access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Err::<NewMr<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Registers all memory for the kernel; addresses in the region are DMA addresses. `access` may
    /// contain remote rights without local write (`__ib_alloc_pd()` in
    /// `drivers/infiniband/core/verbs.c`).
    fn register_dma(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Err::<NewMr<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Allocates a region for fast registration of up to `max_pages` pages by the kernel. It has no
    /// memory until a work request registers it
    /// ([`Operation::Register`](crate::wr::Operation::Register)).
    fn allocate_fast(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _max_pages: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Err::<NewMr<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Records page `index` of the memory that the region will be registered with. The pages come
    /// in order, starting from 0. `ENOMEM` if there are more pages than the region has room for.
    ///
    /// The region is not registered concurrently. May be called in any context.
    fn set_page(_mr: &Mr<Self>, _index: u32, _address: DmaAddress) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Allocates a region for integrity, for up to `max_data` pieces of data and `max_metadata`
    /// pieces of protection information of the kernel. It has no memory until a work request
    /// registers it ([`Operation::RegisterIntegrity`](crate::wr::Operation::RegisterIntegrity)).
    ///
    /// A driver has all three methods for such regions, or none.
    fn allocate_integrity(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _max_data: u32,
        _max_metadata: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Err::<NewMr<Self, ()>, _>(EOPNOTSUPP)
    }

    /// Records the memory that the region for integrity will be registered with. `ENOMEM` if there
    /// are more pieces than the region has room for.
    ///
    /// The region is not registered concurrently. May be called in any context.
    fn map_integrity(_mr: &Mr<Self>, _data: Pieces<'_>, _metadata: Pieces<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Takes the first error that was found since the region was registered or this was last
    /// called. The user knows that the transfer is over. May be called in any context.
    fn take_integrity_error(_mr: &Mr<Self>) -> Result<Option<IntegrityError>> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Changes a region of a process as described by `change`. Returns its local and remote keys,
    /// which may differ from the old ones. On error the region stays unchanged.
    ///
    /// The region is not changed concurrently.
    fn reregister(
        _mr: &Mr<Self>,
        _call: &Call<'_, Self::Driver>,
        _change: &MrChange<'_, <Self::Driver as Operations>::ProtectionDomain>,
    ) -> Result<(u32, u32)> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Acts on advice about parts of a process's regions, given by key. With `wait` this happens
    /// before the method returns. Otherwise it may happen at any time, and failures are not
    /// reported.
    fn advise(
        _call: &Call<'_, Self::Driver>,
        _pd: &Pd<<Self::Driver as Operations>::ProtectionDomain>,
        _advice: Advice,
        _wait: bool,
        _pieces: &[Sge],
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Removes the region from the hardware; on success it is dropped.
    ///
    /// An error means that the hardware still owns the region, for example because memory windows
    /// are bound to it; the region then continues to exist. A region can also be dropped without
    /// this method, which cannot fail: its [`Drop`] must then remove it from the hardware, or stop
    /// the hardware.
    fn deregister(mr: &Mr<Self>, call: &Call<'_, Self::Driver>) -> Result;

    /// Adds driver-specific details to the dump of a region (`rdma resource show -dd`).
    fn fill_details(_mr: &Mr<Self>, _details: &mut Details<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

/// Memory for a fast registration: pages of one size, which the driver received through
/// [`MemoryRegion::set_page`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address by which work requests refer to the first byte. It has the same offset in a page as
    /// the memory has in its first page.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// Number of pages.
    pub pages: u32,
    /// Binary logarithm of the page size.
    pub page_shift: u32,
}

impl Mapping {
    /// Converts what `ib_map_mr_sg` stored in a region for which `pages` pages were recorded.
    /// `EINVAL` if it was not called, or was called with a bad page size.
    ///
    /// # Safety
    ///
    /// `raw` must be a region whose mapping does not change during the call. Other members, such as
    /// the reference count, may change, which is why this takes no reference to the whole.
    pub(crate) unsafe fn from_raw(raw: *const bindings::ib_mr, pages: u32) -> Result<Self> {
        // SAFETY: Guaranteed by the caller.
        let (iova, length, page_size) = unsafe { ((*raw).iova, (*raw).length, (*raw).page_size) };
        if !page_size.is_power_of_two() {
            return Err(EINVAL);
        }
        Ok(Self {
            iova,
            length,
            pages,
            page_shift: page_size.trailing_zeros(),
        })
    }
}

/// A memory region: `struct ib_mr` and the driver's part.
///
/// Unlike most other objects it is allocated by this crate and not by the core.
///
/// # Invariants
///
/// A reference to this type always refers to a constructed region, which never moves.
#[pin_data]
#[repr(C)]
pub struct Mr<T: MemoryRegion> {
    raw: Opaque<bindings::ib_mr>,
    /// Number of pages recorded for the next fast registration.
    mapped: Atomic<u32>,
    /// Lists recorded for the next registration of a region for integrity.
    lists: MappedLists,
    #[pin]
    data: T,
}

/// Changeable [`Lists`], which nobody reads while they change.
struct MappedLists {
    data: [Atomic<u32>; 2],
    metadata: [Atomic<u32>; 2],
}

impl MappedLists {
    const fn new() -> Self {
        Self {
            data: [Atomic::new(0), Atomic::new(0)],
            metadata: [Atomic::new(0), Atomic::new(0)],
        }
    }

    fn set(&self, lists: Lists) {
        for (to, from) in [(&self.data, lists.data), (&self.metadata, lists.metadata)] {
            to[0].store(from.pieces, Relaxed);
            to[1].store(from.length, Relaxed);
        }
    }

    fn get(&self) -> Lists {
        let [data, metadata] = [&self.data, &self.metadata].map(|from| Extent {
            pieces: from[0].load(Relaxed),
            length: from[1].load(Relaxed),
        });
        Lists { data, metadata }
    }
}

impl<T: MemoryRegion> Mr<T> {
    /// Borrows a region from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must have been returned by [`into_raw`](Self::into_raw), and must not go away during
    /// `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_mr) -> &'a Self {
        const { assert!(core::mem::offset_of!(Self, raw) == 0) };
        // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
        unsafe { &*ptr.cast() }
    }

    /// Borrows the fast-registration region of a work request, and returns it with the memory to
    /// register.
    ///
    /// # Safety
    ///
    /// `ptr` must be null, or a region of a device of the driver that does not go away and whose
    /// mapping does not change during `'a`.
    pub(crate) unsafe fn mapped_from_raw<'a>(
        ptr: *mut bindings::ib_mr,
    ) -> Result<(&'a Self, Mapping)> {
        if ptr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = Self::from_raw(ptr);
            Ok((this, Mapping::from_raw(ptr, this.mapped.load(Relaxed))?))
        }
    }

    /// Borrows the region for integrity of a work request, and returns it with the memory to
    /// register and with what to do.
    ///
    /// # Safety
    ///
    /// As for [`mapped_from_raw`](Self::mapped_from_raw), and the attributes of the region must not
    /// change during the call.
    pub(crate) unsafe fn integrity_from_raw<'a>(
        ptr: *mut bindings::ib_mr,
    ) -> Result<(&'a Self, Lists, Attributes)> {
        if ptr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: Guaranteed by the caller. Only regions for integrity have attributes.
        let (this, raw) = unsafe { (Self::from_raw(ptr), (*ptr).sig_attrs.as_ref()) };
        let lists = this.lists.get();
        if lists.data.pieces == 0 {
            return Err(EINVAL);
        }
        let attributes = Attributes::from_raw(raw.ok_or(EINVAL)?, &lists)?;
        Ok((this, lists, attributes))
    }

    /// Passes ownership of a region to the core.
    fn into_raw(this: Pin<KBox<Self>>) -> *mut bindings::ib_mr {
        // SAFETY: Nothing moves out of the result; it is pinned again when the core returns it.
        KBox::into_raw(unsafe { Pin::into_inner_unchecked(this) }).cast()
    }
}

impl<T: MemoryRegion> core::ops::Deref for Mr<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

// SAFETY: Nothing in the C structure is bound to a thread; the data is `Send`.
unsafe impl<T: MemoryRegion> Send for Mr<T> {}

// SAFETY: The C structure is not accessed through shared references; the data is `Sync`.
unsafe impl<T: MemoryRegion> Sync for Mr<T> {}

/// Registers a region. The memory is allocated before `register` is called, because nothing may
/// fail once the hardware has the region.
fn create<T: Operations, I: PinInit<T::MemoryRegion>, R: Response>(
    verb: &Verb<'_, T>,
    pd: &Pd<T::ProtectionDomain>,
    register: impl FnOnce() -> Result<NewMr<I, R>>,
) -> Result<*mut bindings::ib_mr> {
    let room = KBox::<Mr<T::MemoryRegion>>::new_uninit(GFP_KERNEL)?;
    let new = register()?;
    let init = pin_init!(Mr {
        raw: Opaque::new(bindings::ib_mr {
            device: verb.device().as_raw(),
            pd: pd.as_raw(),
            lkey: new.lkey,
            rkey: new.rkey,
            ..pin_init::zeroed()
        }),
        mapped: Atomic::new(0),
        lists: MappedLists::new(),
        data <- new.init,
    });
    let mr = match room.write_pin_init::<core::convert::Infallible>(init) {
        Ok(mr) => mr,
        Err(never) => match never {},
    };
    // On an error the region is dropped, which also removes it from the hardware.
    verb.respond(&new.response)?;
    Ok(Mr::into_raw(mr))
}

/// Converts the access rights of a region. `EOPNOTSUPP` if the region is on demand and the driver
/// has no pager.
fn rights<T: Operations>(access: c_int) -> Result<AccessFlags> {
    let access = AccessFlags::from_raw(access)?;
    if !T::Pager::IS_SUPPORTED && access.contains(Access::OnDemand) {
        return Err(EOPNOTSUPP);
    }
    Ok(access)
}

/// Checks the DMA handle that memory is registered with, if there is one. `EINVAL` if the memory is
/// on demand, whose pages come and go.
fn check_handle<T: Operations>(dmah: Option<&Dmah<T::DmaHandle>>, access: AccessFlags) -> Result {
    if dmah.is_some() && !T::DmaHandle::IS_SUPPORTED {
        return Err(EOPNOTSUPP);
    }
    if dmah.is_some() && access.contains(Access::OnDemand) {
        return Err(EINVAL);
    }
    Ok(())
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`, `dmah` null or a constructed handle of
/// that device, and `udata` that of the call.
pub(crate) unsafe extern "C" fn reg_user_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*pd).device, udata) };
    // SAFETY: The core holds references to both during the call.
    let (pd, handle) = unsafe { (Pd::from_raw(pd), optional(dmah)) };
    let range = Range {
        start,
        length,
        iova,
    };

    verb.pointer(|call| {
        let user = verb.user()?.ok_or(EINVAL)?;
        let access = rights::<T>(access)?;
        check_handle::<T>(handle, access)?;

        create(&verb, pd, || {
            T::MemoryRegion::register_user(call, pd, &range, access, handle, user)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`, `dmah` null or a constructed handle of
/// that device, and `attributes` those of the call.
pub(crate) unsafe extern "C" fn reg_dma_buf_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: c_int,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    attributes: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain. Only processes register dma-bufs, and the call
    // has no driver-specific request.
    let verb = unsafe {
        match attributes.is_null() {
            true => Verb::<T>::new((*pd).device),
            false => Verb::<T>::by_process((*pd).device),
        }
    };
    // SAFETY: The core holds references to both during the call.
    let (pd, handle) = unsafe { (Pd::from_raw(pd), optional(dmah)) };
    let range = DmaBufRange {
        fd,
        offset,
        length,
        iova,
    };

    verb.pointer(|call| {
        let access = rights::<T>(access)?;
        check_handle::<T>(handle, access)?;

        create(&verb, pd, || {
            T::MemoryRegion::register_dma_buf(call, pd, &range, access, handle)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`, `dm` a constructed buffer of that device,
/// and `attributes` valid and within the buffer.
pub(crate) unsafe extern "C" fn reg_dm_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    dm: *mut bindings::ib_dm,
    attributes: *mut bindings::ib_dm_mr_attr,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain. Only processes have device memory.
    let verb = unsafe { Verb::<T>::by_process((*pd).device) };
    // SAFETY: The attributes are valid during the call.
    let attributes = unsafe { &*attributes };
    // SAFETY: The core holds references to both during the call.
    let (pd, dm) = unsafe { (Pd::from_raw(pd), Dm::from_raw(dm)) };
    let range = DmRange {
        offset: attributes.offset,
        length: attributes.length,
    };

    verb.pointer(|call| {
        // CAST: Access flags are bits that C keeps in an `int`.
        let access = rights::<T>(attributes.access_flags as c_int)?;

        create(&verb, pd, || {
            T::MemoryRegion::register_dm(call, pd, dm, &range, access)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`.
pub(crate) unsafe extern "C" fn get_dma_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    access: c_int,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain.
    let verb = unsafe { Verb::<T>::new((*pd).device) };
    // SAFETY: The domain is constructed, and is not deallocated during the call.
    let pd = unsafe { Pd::from_raw(pd) };

    verb.pointer(|call| {
        let access = rights::<T>(access)?;
        create(&verb, pd, || {
            T::MemoryRegion::register_dma(call, pd, access)
        })
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    ty: bindings::ib_mr_type,
    max_pages: u32,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain.
    let verb = unsafe { Verb::<T>::new((*pd).device) };
    // SAFETY: The domain is constructed, and is not deallocated during the call.
    let pd = unsafe { Pd::from_raw(pd) };

    verb.pointer(|call| {
        if ty != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return Err(EOPNOTSUPP);
        }
        create(&verb, pd, || {
            T::MemoryRegion::allocate_fast(call, pd, max_pages)
        })
    })
}

/// # Safety
///
/// `mr` must be a region of a device of `T` that is not mapped or registered concurrently. `list`
/// must have `count` elements mapped for the DMA device of the region's device. `offset` must be
/// null or valid.
pub(crate) unsafe extern "C" fn map_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    count: c_int,
    offset: *mut c_uint,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    unsafe {
        let this = Mr::<T::MemoryRegion>::from_raw(mr);
        this.mapped.store(0, Relaxed);
        bindings::ib_sg_to_pages(mr, list, count, offset, Some(set_page_callback::<T>))
    }
}

/// # Safety
///
/// As for [`map_callback`], which calls this.
unsafe extern "C" fn set_page_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    address: u64,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let this = unsafe { Mr::<T::MemoryRegion>::from_raw(mr) };
    from_result(|| {
        let index = this.mapped.load(Relaxed);
        T::MemoryRegion::set_page(this, index, address)?;
        this.mapped.store(index + 1, Relaxed);
        Ok(0)
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`.
pub(crate) unsafe extern "C" fn alloc_integrity_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    max_data: u32,
    max_metadata: u32,
) -> *mut bindings::ib_mr {
    // SAFETY: The core set the device of the domain.
    let verb = unsafe { Verb::<T>::new((*pd).device) };
    // SAFETY: The domain is constructed, and is not deallocated during the call.
    let pd = unsafe { Pd::from_raw(pd) };

    verb.pointer(|call| {
        create(&verb, pd, || {
            T::MemoryRegion::allocate_integrity(call, pd, max_data, max_metadata)
        })
    })
}

/// Returns 0 or an error, unlike [`map_callback`].
///
/// # Safety
///
/// `mr` must be a region for integrity of a device of `T` that is not mapped or registered
/// concurrently. Each list must have as many elements as its count says, mapped for the DMA device
/// of the region's device. The offsets must be null or valid.
pub(crate) unsafe extern "C" fn map_integrity_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    data: *mut bindings::scatterlist,
    data_count: c_int,
    data_offset: *mut c_uint,
    metadata: *mut bindings::scatterlist,
    metadata_count: c_int,
    metadata_offset: *mut c_uint,
) -> c_int {
    // SAFETY: The region came from `into_raw`, and is not deregistered during the call.
    let this = unsafe { Mr::<T::MemoryRegion>::from_raw(mr) };
    // SAFETY: The offsets are null or valid, and not shared.
    let offsets = unsafe { [data_offset.as_mut(), metadata_offset.as_mut()] };
    let [data_offset, metadata_offset] = offsets.map(|offset| offset.map_or(0, core::mem::take));
    // SAFETY: The lists are as long as their counts say, and do not change during the call.
    let pieces = unsafe {
        (
            Pieces::new(data, data_count, data_offset),
            Pieces::new(metadata, metadata_count, metadata_offset),
        )
    };

    from_result(|| {
        let (data, metadata) = (pieces.0?, pieces.1?);
        let lists = Lists {
            data: data.extent()?,
            metadata: metadata.extent()?,
        };
        let metadata_length = c_int::try_from(lists.metadata.length)?;
        this.lists.set(Lists::default());
        T::MemoryRegion::map_integrity(this, data, metadata)?;
        this.lists.set(lists);
        // SAFETY: The region is valid, and nobody else accesses these members.
        unsafe {
            // Addresses in the region start from 0.
            (*mr).iova = 0;
            (*mr).length = u64::from(lists.data.length) + u64::from(lists.metadata.length);
            (*(*mr).sig_attrs).meta_length = metadata_length;
        }
        Ok(0)
    })
}

/// # Safety
///
/// `mr` must be a region of a device of `T`, and `status` valid for writes.
pub(crate) unsafe extern "C" fn check_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    mask: u32,
    status: *mut bindings::ib_mr_status,
) -> c_int {
    // SAFETY: The region came from `into_raw`, and is not deregistered during the call. Only
    // regions for integrity have attributes.
    let (this, has_checks) = unsafe {
        let this = Mr::<T::MemoryRegion>::from_raw(mr);
        (this, !(*mr).sig_attrs.is_null())
    };
    // SAFETY: The status belongs to this call.
    let status = unsafe { blank(status) };

    from_result(|| {
        let checks = bindings::ib_mr_status_check_IB_MR_CHECK_SIG_STATUS;
        if mask & !checks != 0 || mask != 0 && !has_checks {
            return Err(EINVAL);
        }
        if mask != 0 {
            if let Some(error) = T::MemoryRegion::take_integrity_error(this)? {
                status.fail_status = checks;
                status.sig_err = error.to_raw();
            }
        }
        Ok(0)
    })
}

/// Changes a region in place, and returns null to say so.
///
/// # Safety
///
/// `mr` must be a process's region of a device of `T` that is not changed concurrently. `pd` must
/// be a constructed domain of the device if `flags` include it, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn rereg_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    flags: c_int,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    // CAST: A set of bits that C keeps in an `int`.
    let has = |flag| flags as u32 & flag != 0;
    // SAFETY: The device was set by `create`; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*mr).device, udata) };
    let pd = has(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD).then(|| {
        // SAFETY: If the flags include the domain, the core holds a reference to it.
        unsafe { Pd::from_raw(pd) }
    });
    // SAFETY: The region came from `into_raw`, and is not deregistered during the call.
    let this = unsafe { Mr::<T::MemoryRegion>::from_raw(mr) };

    verb.pointer(|call| {
        verb.no_io()?;
        let change = MrChange {
            range: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some(Range {
                start,
                length,
                iova,
            }),
            access: if has(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS) {
                Some(rights::<T>(access)?)
            } else {
                None
            },
            pd,
        };
        let (lkey, rkey) = T::MemoryRegion::reregister(this, call, &change)?;
        // SAFETY: The region is valid. The core reads the keys only after the call.
        unsafe {
            (*mr).lkey = lkey;
            (*mr).rkey = rkey;
        }
        Ok(core::ptr::null_mut())
    })
}

/// # Safety
///
/// `pd` must be a constructed domain of a device of `T`, and `list` have `count` elements.
pub(crate) unsafe extern "C" fn advise_callback<T: Operations>(
    pd: *mut bindings::ib_pd,
    advice: bindings::ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut bindings::ib_sge,
    count: u32,
    _attributes: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the domain.
    let verb = unsafe { Verb::<T>::new((*pd).device) };
    // SAFETY: The domain is constructed, and is not deallocated during the call.
    let pd = unsafe { Pd::from_raw(pd) };

    verb.run(|call| {
        let flush = bindings::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
        if flags & !flush != 0 {
            return Err(EOPNOTSUPP);
        }
        let advice = Advice::try_from(advice).map_err(|_| EOPNOTSUPP)?;
        // SAFETY: The list has `count` elements, which do not change during the call.
        let pieces = unsafe { Sge::slice(list, c_int::try_from(count)?) }?;
        T::MemoryRegion::advise(call, pd, advice, flags & flush != 0, pieces)
    })
}

/// # Safety
///
/// `mr` must be a region of a device of `T` that is no longer in use, and `udata` the udata of the
/// call.
pub(crate) unsafe extern "C" fn dereg_callback<T: Operations>(
    mr: *mut bindings::ib_mr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The device was set by `create`; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::with_udata((*mr).device, udata) };

    verb.run(|call| {
        verb.no_io()?;
        // SAFETY: The region came from `into_raw`, and is not used by others any more.
        T::MemoryRegion::deregister(unsafe { Mr::from_raw(mr) }, call)?;
        // SAFETY: The region came from `into_raw`. From here on this verb succeeds, and nothing
        // borrows the region.
        drop(unsafe { KBox::from_raw(mr.cast::<Mr<T::MemoryRegion>>()) });
        Ok(())
    })
}

/// # Safety
///
/// `mr` must be a region of a device of `T`, and `message` a netlink message being written.
pub(crate) unsafe extern "C" fn fill_callback<T: Operations>(
    message: *mut bindings::sk_buff,
    mr: *mut bindings::ib_mr,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let mr = unsafe { Mr::<T::MemoryRegion>::from_raw(mr) };
    // SAFETY: Guaranteed by the caller.
    unsafe {
        Details::write(message, |details| {
            T::MemoryRegion::fill_details(mr, details)
        })
    }
}
