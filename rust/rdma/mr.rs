// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use kernel::{
    dma::DmaAddress,
    error::{
        from_result,
        Error, //
    },
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
        Device,
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
    object::respond,
    odp::Pager,
    pd::{
        Pd,
        ProtectionDomain, //
    },
    restrack::Details,
    udata::{
        Request,
        Response,
        Udata,
        User, //
    },
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
    #[pin]
    data: T,
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
    call: &Call<'_, T>,
    pd: *mut bindings::ib_pd,
    udata: Option<&Udata<'_>>,
    register: impl FnOnce() -> Result<NewMr<I, R>>,
) -> Result<*mut bindings::ib_mr> {
    let room = KBox::<Mr<T::MemoryRegion>>::new_uninit(GFP_KERNEL)?;
    let new = register()?;
    let init = pin_init!(Mr {
        raw: Opaque::zeroed(),
        mapped: Atomic::new(0),
        data <- new.init,
    });
    let mr = match room.write_pin_init::<core::convert::Infallible>(init) {
        Ok(mr) => mr,
        Err(never) => match never {},
    };
    let raw = Mr::into_raw(mr);

    // SAFETY: The region is valid and not shared yet.
    unsafe {
        (*raw).device = call.device().as_raw();
        (*raw).pd = pd;
        (*raw).lkey = new.lkey;
        (*raw).rkey = new.rkey;

        respond(udata, &new.response).inspect_err(|_| {
            // Dropping the region also removes it from the hardware.
            drop(KBox::from_raw(raw.cast::<Mr<T::MemoryRegion>>()));
        })?;
    }
    Ok(raw)
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

/// Borrows the DMA handle that memory is registered with, if there is one. `EINVAL` if the memory
/// is on demand, whose pages come and go.
///
/// # Safety
///
/// `dmah` must be null or a constructed handle of a device of `T` that does not go away during
/// `'a`.
unsafe fn handle<'a, T: Operations>(
    dmah: *mut bindings::ib_dmah,
    access: AccessFlags,
) -> Result<Option<&'a Dmah<T::DmaHandle>>> {
    if dmah.is_null() {
        return Ok(None);
    }
    if !T::DmaHandle::IS_SUPPORTED {
        return Err(EOPNOTSUPP);
    }
    if access.contains(Access::OnDemand) {
        return Err(EINVAL);
    }
    // SAFETY: Guaranteed by the caller.
    Ok(Some(unsafe { Dmah::from_raw(dmah) }))
}

/// Returns a region or an error to C.
fn from_region_result(result: Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    result.unwrap_or_else(Error::to_ptr)
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
    // SAFETY: The core set the device of the domain; the call does not end before this function
    // returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*pd).device), Udata::from_raw(udata)) };
    let range = Range {
        start,
        length,
        iova,
    };

    // SAFETY: Verbs run only while the device is registered; its users have contexts, and only
    // processes have udata.
    from_region_result(unsafe {
        device.with_caller(udata.is_some(), |call| {
            let udata = udata.as_ref().ok_or(EINVAL)?;
            let user = udata.user::<T, _>()?;
            let access = rights::<T>(access)?;
            let handle = handle::<T>(dmah, access)?;

            create(call, pd, Some(udata), || {
                let pd = Pd::from_raw(pd);
                T::MemoryRegion::register_user(call, pd, &range, access, handle, user)
            })
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
    // SAFETY: The core set the device of the domain.
    let device = unsafe { Device::<T>::from_raw((*pd).device) };
    let range = DmaBufRange {
        fd,
        offset,
        length,
        iova,
    };

    // SAFETY: Verbs run only while the device is registered. Only processes register dma-bufs, and
    // the call has no driver-specific request.
    from_region_result(unsafe {
        device.with_caller(!attributes.is_null(), |call| {
            let access = rights::<T>(access)?;
            let handle = handle::<T>(dmah, access)?;

            create(call, pd, None, || {
                T::MemoryRegion::register_dma_buf(call, Pd::from_raw(pd), &range, access, handle)
            })
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
    // SAFETY: The core set the device of the domain; the attributes are valid.
    let (device, range, access) = unsafe {
        let range = DmRange {
            offset: (*attributes).offset,
            length: (*attributes).length,
        };
        // CAST: Access flags are bits that C keeps in an `int`.
        let access = (*attributes).access_flags as c_int;
        (Device::<T>::from_raw((*pd).device), range, access)
    };

    // SAFETY: Verbs run only while the device is registered; only processes have device memory.
    from_region_result(unsafe {
        device.with_caller(true, |call| {
            let access = rights::<T>(access)?;

            create(call, pd, None, || {
                let (pd, dm) = (Pd::from_raw(pd), Dm::from_raw(dm));
                T::MemoryRegion::register_dm(call, pd, dm, &range, access)
            })
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
    let device = unsafe { Device::<T>::from_raw((*pd).device) };

    // SAFETY: Verbs run only while the device is registered.
    from_region_result(unsafe {
        device.with(|call| {
            let access = rights::<T>(access)?;

            create(call, pd, None, || {
                T::MemoryRegion::register_dma(call, Pd::from_raw(pd), access)
            })
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
    let device = unsafe { Device::<T>::from_raw((*pd).device) };

    // SAFETY: Verbs run only while the device is registered.
    from_region_result(unsafe {
        device.with(|call| {
            if ty != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
                return Err(EOPNOTSUPP);
            }
            create(call, pd, None, || {
                T::MemoryRegion::allocate_fast(call, Pd::from_raw(pd), max_pages)
            })
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
    // SAFETY: The device was set by `create`; the call does not end before this function returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*mr).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered, and only processes have udata. The
    // region came from `into_raw`, and the domain is valid if `flags` include it. The core reads
    // the keys only after the call.
    let result = unsafe {
        device.with_caller(udata.is_some(), |call| {
            Udata::no_io(udata.as_ref())?;
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
                pd: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD).then(|| Pd::from_raw(pd)),
            };
            let (lkey, rkey) = T::MemoryRegion::reregister(Mr::from_raw(mr), call, &change)?;
            (*mr).lkey = lkey;
            (*mr).rkey = rkey;
            Ok(core::ptr::null_mut())
        })
    };
    from_region_result(result)
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
    let device = unsafe { Device::<T>::from_raw((*pd).device) };

    // SAFETY: Verbs run only while the device is registered; the list is valid.
    from_result(|| unsafe {
        device.with(|call| {
            let flush = bindings::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
            if flags & !flush != 0 {
                return Err(EOPNOTSUPP);
            }
            let advice = Advice::try_from(advice).map_err(|_| EOPNOTSUPP)?;
            let pieces = Sge::slice(list, c_int::try_from(count)?)?;
            T::MemoryRegion::advise(call, Pd::from_raw(pd), advice, flags & flush != 0, pieces)?;
            Ok(0)
        })
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
    // SAFETY: The device was set by `create`; the call does not end before this function returns.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*mr).device), Udata::from_raw(udata)) };

    // SAFETY: Verbs run only while the device is registered; the region came from `into_raw`.
    from_result(|| unsafe {
        device.with(|call| {
            Udata::no_io(udata.as_ref())?;
            T::MemoryRegion::deregister(Mr::from_raw(mr), call)?;
            drop(KBox::from_raw(mr.cast::<Mr<T::MemoryRegion>>()));
            Ok(0)
        })
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
    unsafe {
        Details::write(message, |details| {
            T::MemoryRegion::fill_details(Mr::from_raw(mr), details)
        })
    }
}
