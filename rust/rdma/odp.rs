// SPDX-License-Identifier: GPL-2.0

//! On-demand paging: memory that is not pinned, of a process or of a dma-buf. Pages are looked up
//! when the hardware needs them, and the hardware forgets them before they go away.
//!
//! C headers: [`include/rdma/ib_umem_odp.h`](srctree/include/rdma/ib_umem_odp.h),
//! [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h)
//!
//! Two things can happen at any time, and the lock of the memory makes them exclude each other: the
//! driver passes pages to the hardware ([`Memory::map`]), and the kernel or the exporter of the
//! dma-buf takes pages back ([`Pager::forget`]). Either may do so to reclaim memory, so nothing
//! that runs under the lock may wait for memory.
//!
//! The lock of process memory is its `umem_mutex`, and that of a dma-buf the lock of its
//! reservation object. All that is watched of a dma-buf shares the latter.

use core::{
    mem::offset_of,
    ops::{
        Deref,
        Range, //
    },
    ptr::NonNull, //
};

use kernel::{
    dma::DmaAddress,
    error::{
        from_err_ptr,
        to_result, //
    },
    mm::Mm,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    static_lock_class,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    task::Task,
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
    dma::{
        Mapper,
        Revoke, //
    }, //
};

mod dma_buf;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// The driver's handling of pages.
///
/// A driver that pins all memory uses [`Unsupported`](crate::Unsupported) instead. It then never
/// gets a region with on-demand paging, and its devices do not advertise the feature.
pub trait Pager: Send + Sync + Sized + 'static {
    /// Whether the driver has on-demand paging; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    #[doc(hidden)]
    const IS_SUPPORTED: bool = true;

    /// Whether the hardware reaches memory of other devices, which is not memory of the machine. If
    /// not, the exporter of a dma-buf moves it to memory of the machine, or the dma-buf cannot be
    /// watched.
    const PEER_TO_PEER: bool = false;

    /// Makes the hardware forget pages. Once this returns, the hardware does not access them.
    ///
    /// May sleep, but may be called to reclaim memory, so it must not take a lock under which
    /// others allocate. Its own allocations do not wait for memory, whatever flags they use.
    fn forget(&self, pages: Range<usize>);

    /// Passes pages that the hardware waits for to the hardware. Called by a work item, at least
    /// once at some time after [`Memory::request`].
    fn serve(&self, memory: &Memory<Self>);
}

/// A range of a process's memory, which the process may unmap, move and swap out at will, or of a
/// dma-buf, whose exporter may move it and take it away.
///
/// It is watched until this is dropped or the device is unregistered. Keep it in an RDMA object,
/// like a [`Umem`](crate::Umem). It must not be dropped by its own pager, nor in a closure or pager
/// callback that runs under the lock of this or any other memory: it then stays watched until the
/// device is unregistered.
pub struct OnDemand<P: Pager> {
    memory: Arc<Memory<P>>,
}

impl<P: Pager> OnDemand<P> {
    /// Watches `length` bytes at `address` of the calling process.
    ///
    /// The device may write to the memory if `access` allows it. Returns `ESRCH` if no process
    /// called the verb, `EOPNOTSUPP` if the device cannot follow changes of memory, `EOVERFLOW` for
    /// invalid ranges, and `ENOMEM` if the page lists of everything that is watched for the device
    /// would take more than a sixteenth of the machine's memory.
    pub fn new<T: Operations<Pager = P>>(
        call: &Call<'_, T>,
        address: u64,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The call proves that the device is registered. The task is in a call from a
        // process.
        let memory = unsafe {
            Memory::watch(
                call.device().as_raw(),
                call.mapper(),
                address,
                length,
                access,
                pager,
            )
        }?;
        Self::keep(memory)
    }

    /// Wraps `memory`, and has it revoked at the latest when the device is unregistered.
    fn keep(memory: Arc<Memory<P>>) -> Result<Self> {
        let this = Self { memory };
        // An error drops `this`.
        this.memory.mapper.add(this.memory.clone())?;
        Ok(this)
    }
}

impl<P: Pager> Deref for OnDemand<P> {
    type Target = Memory<P>;

    #[inline]
    fn deref(&self) -> &Memory<P> {
        &self.memory
    }
}

impl<P: Pager> Drop for OnDemand<P> {
    fn drop(&mut self) {
        // Revoking waits for the work, and for all invalidations of the memory that are in
        // progress. It would wait for itself in the work or under the lock, and must not wait at
        // all while reclaiming memory.
        if self.memory.is_served_here() || has_memory() {
            dev_err!(
                self.memory.mapper.dma(),
                "on-demand memory is dropped by a pager and kept until the device is removed\n"
            );
            return;
        }
        // If the device is not registered any more, the mapper revokes everything.
        if let Some(_registered) = self.memory.mapper.enter() {
            let revocable: Arc<dyn Revoke> = self.memory.clone();
            self.memory.mapper.remove(&revocable);
            revocable.revoke();
        }
    }
}

/// The address space of a process, ranges of which can be watched later, from any context.
///
/// # Invariants
///
/// `implicit` is a valid, owned structure without memory of its own (`is_implicit_odp`), of the
/// device of `mapper`; `_mm` is its `owning_mm`.
pub struct AddressSpace {
    implicit: NonNull<bindings::ib_umem_odp>,
    _mm: ARef<Mm>,
    mapper: Arc<Mapper>,
}

impl AddressSpace {
    /// Returns the address space of the process that calls the verb. The device may write to it if
    /// `access` allows it. `ESRCH` if there is no process.
    pub fn of_caller<T: Operations>(call: &Call<'_, T>, access: AccessFlags) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The call proves that the device is registered.
        unsafe { Self::of_current(call.device().as_raw(), call.mapper(), access) }
    }

    /// Like [`of_caller`](Self::of_caller).
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` be that of the device.
    unsafe fn of_current(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        access: AccessFlags,
    ) -> Result<Self> {
        let mm = current!().mm().map(|mm| ARef::<Mm>::from(&**mm));
        let mm = mm.ok_or(ESRCH)?;
        // CAST: Access flags are bits that C keeps in an `int`. Whether pages are huge is found out
        // page by page.
        let access = (access.bits() & !(Access::HugeTlb as u32)) as c_int;
        // SAFETY: Guaranteed by the caller.
        let raw = unsafe { bindings::ib_umem_odp_alloc_implicit(device, access) };
        // INVARIANT: The function used the current process, which is still the same.
        Ok(Self {
            implicit: NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?,
            _mm: mm,
            mapper: mapper.clone(),
        })
    }

    /// Watches `length` bytes at `address` of the process. Sleeps.
    ///
    /// Returns `EFAULT` if the process is gone, `ENODEV` if the device is not registered any more,
    /// and `ENOMEM` if the page lists of everything that is watched for the device would take more
    /// than a sixteenth of the machine's memory.
    pub fn watch<P: Pager>(&self, address: u64, length: usize, pager: P) -> Result<OnDemand<P>> {
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        let counted = Counted::take(&self.mapper, length)?;
        // SAFETY: The structure is implicit by the type invariant, and its device is registered.
        // The operations are static. C refers to the address space, which `_mm` keeps alive.
        // CAST: Addresses of processes are `c_ulong`.
        let raw = unsafe {
            bindings::ib_umem_odp_alloc_child(
                self.implicit.as_ptr(),
                address as c_ulong,
                length,
                Memory::<P>::OPS_REF,
            )
        };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?;
        OnDemand::keep(Memory::of(Owned(Backing::Process(raw)), counted, pager)?)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and has no pages.
        unsafe { bindings::ib_umem_odp_release(self.implicit.as_ptr()) };
    }
}

/// Bytes that count as watched for the device of a mapper until this is dropped.
struct Counted {
    mapper: Arc<Mapper>,
    length: usize,
}

impl Counted {
    /// Counts bytes as watched; `ENOMEM` if this exceeds the limit of the device. `EDEADLK` if this
    /// task has memory: what would be watched next has locks, too.
    fn take(mapper: &Arc<Mapper>, length: usize) -> Result<Self> {
        if has_memory() {
            return Err(EDEADLK);
        }
        mapper.watched().add(length)?;
        Ok(Self {
            mapper: mapper.clone(),
            length,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.mapper.watched().remove(self.length);
    }
}

// SAFETY: The structure is not bound to a thread.
unsafe impl Send for AddressSpace {}

// SAFETY: The structure does not change; C only reads it.
unsafe impl Sync for AddressSpace {}

/// The C structure behind a memory.
#[derive(Copy, Clone)]
enum Backing {
    /// Memory of a process.
    Process(NonNull<bindings::ib_umem_odp>),
    /// Part of a dma-buf.
    DmaBuf(NonNull<bindings::ib_umem_dmabuf>),
}

impl Backing {
    /// Returns the umem with which the structure begins.
    fn umem(self) -> *mut bindings::ib_umem {
        match self {
            Self::Process(raw) => {
                const { assert!(offset_of!(bindings::ib_umem_odp, umem) == 0) };
                raw.as_ptr().cast()
            }
            Self::DmaBuf(raw) => {
                const { assert!(offset_of!(bindings::ib_umem_dmabuf, umem) == 0) };
                raw.as_ptr().cast()
            }
        }
    }

    /// Locks the memory. Sleeps.
    ///
    /// # Safety
    ///
    /// The structure must be valid, and must not be released before [`unlock`](Self::unlock).
    unsafe fn lock(self) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            match self {
                Self::Process(raw) => bindings::mutex_lock(&raw mut (*raw.as_ptr()).umem_mutex),
                Self::DmaBuf(raw) => bindings::ib_umem_dmabuf_revoke_lock(raw.as_ptr()),
            }
        }
    }

    /// Unlocks the memory.
    ///
    /// # Safety
    ///
    /// This task must have locked it.
    unsafe fn unlock(self) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            match self {
                Self::Process(raw) => bindings::mutex_unlock(&raw mut (*raw.as_ptr()).umem_mutex),
                Self::DmaBuf(raw) => bindings::ib_umem_dmabuf_revoke_unlock(raw.as_ptr()),
            }
        }
    }
}

/// The memory of an [`OnDemand`].
///
/// # Invariants
///
/// - `raw` is valid, owned, and of the device of `mapper`, until `released` is set. It is set only
///   when the [`OnDemand`] is dropped or the device is not registered any more.
/// - `work` is initialised with the function [`Self::work_callback`].
/// - Once constructed, `private` of `raw` always points to `self`.
#[pin_data]
pub struct Memory<P: Pager> {
    raw: Backing,
    #[pin]
    released: Mutex<bool>,
    /// Number of pages.
    pages: usize,
    /// Address of the first byte.
    address: usize,
    /// Length in bytes.
    length: usize,
    #[pin]
    work: Opaque<bindings::work_struct>,
    pager: P,
    mapper: Arc<Mapper>,
    _counted: Counted,
}

/// Owns the C structure until it is part of a [`Memory`].
///
/// # Invariants
///
/// The structure is valid and owned.
struct Owned(Backing);

impl Owned {
    fn into_raw(self) -> Backing {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and no page of it was ever mapped.
        unsafe { bindings::ib_umem_release(self.0.umem()) };
    }
}

impl<P: Pager> Memory<P> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        ..pin_init::zeroed()
    };

    /// A static table.
    const OPS_REF: &'static bindings::mmu_interval_notifier_ops = &Self::OPS;

    /// Like [`OnDemand::new`].
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` must be that of the device. The
    /// current task must have the memory of a process.
    unsafe fn watch(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        address: u64,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Arc<Self>> {
        // C checks this as well, but only after the range was counted.
        // CAST: `u64` has as many bits.
        address.checked_add(length as u64).ok_or(EOVERFLOW)?;
        let counted = Counted::take(mapper, length)?;
        // CAST: Addresses of processes are `c_ulong`; access flags are bits that C keeps in an
        // `int`. Whether pages are huge is found out page by page.
        let access = (access.bits() | Access::OnDemand as u32) & !(Access::HugeTlb as u32);
        // SAFETY: Guaranteed by the caller; the operations are static.
        let raw = unsafe {
            bindings::ib_umem_odp_get(
                device,
                address as c_ulong,
                length,
                access as c_int,
                Self::OPS_REF,
            )
        };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?;
        Self::of(Owned(Backing::Process(raw)), counted, pager)
    }

    /// Wraps memory whose operations are those of this type. It is of the device for which
    /// `counted` counts it.
    fn of(owned: Owned, counted: Counted, pager: P) -> Result<Arc<Self>> {
        // SAFETY: The structure is valid, and these members never change.
        let (address, length) = unsafe {
            let umem = owned.0.umem();
            ((*umem).address, (*umem).length)
        };
        // C checked that this does not overflow.
        let pages = (address % PAGE_SIZE + length).div_ceil(PAGE_SIZE);
        // One name for all types, because they share a lock class, which lockdep identifies by the
        // name's address.
        static WORK: &CStr = c"rdma::Memory::work";

        let this = Arc::pin_init(
            pin_init!(Self {
                work <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes; it will be in an `Arc`, not on a stack.
                    unsafe {
                        bindings::init_work_with_key(
                            slot,
                            Some(Self::work_callback),
                            false,
                            WORK.as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
                raw: owned.into_raw(),
                released <- new_mutex!(false),
                pages,
                address,
                length,
                pager,
                mapper: counted.mapper.clone(),
                _counted: counted,
            }),
            GFP_KERNEL,
        )?;
        let pointer = core::ptr::from_ref::<Self>(&this).cast_mut();
        // SAFETY: Valid by the type invariant. Readers of `private` hold the lock.
        unsafe {
            this.raw.lock();
            match this.raw {
                Backing::Process(raw) => (*raw.as_ptr()).private = pointer.cast(),
                Backing::DmaBuf(raw) => (*raw.as_ptr()).private = pointer.cast(),
            }
            this.raw.unlock();
        }
        Ok(this)
    }

    /// Returns the driver's data for the memory.
    #[inline]
    pub fn pager(&self) -> &P {
        &self.pager
    }

    /// Returns the number of pages of [`PAGE_SIZE`] bytes, counted from the page with the first
    /// byte.
    #[inline]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the offset of the memory in its first page.
    #[inline]
    pub fn offset(&self) -> usize {
        self.address % PAGE_SIZE
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the memory is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether the memory belongs to a dma-buf.
    #[inline]
    pub fn is_dma_buf(&self) -> bool {
        matches!(self.raw, Backing::DmaBuf(_))
    }

    /// Schedules a call of [`Pager::serve`]. May be called in any context.
    pub fn request(&self) {
        // SAFETY: The work is initialised by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.mapper.paging().as_raw(),
                self.work.get(),
            )
        };
    }

    /// Returns whether this task is executing the work.
    fn is_served_here(&self) -> bool {
        // SAFETY: Any task may query the work that it executes.
        unsafe { bindings::current_work() == self.work.get() }
    }

    /// Looks up pages, and lets `tell` pass them to the hardware while they cannot go away. With
    /// `write` the pages must be writable. Sleeps.
    ///
    /// With `fault`, missing pages are brought in, and a page that cannot be brought in is an
    /// error: `EFAULT` if there is no such memory, `EINVAL` if the process is gone, `EBUSY` if the
    /// memory changes too fast, or what the exporter of the dma-buf returns. Without `fault`,
    /// missing pages are skipped. Returns `ENODEV` if the device is not registered any more, and
    /// `EDEADLK` in a closure or pager callback that runs under the lock of any memory.
    ///
    /// The restrictions of [`Pager::forget`] apply to `tell`, too.
    pub fn map(
        &self,
        pages: Range<usize>,
        write: bool,
        fault: bool,
        tell: impl FnOnce(&mut dyn Iterator<Item = Result<Option<Page>>>) -> Result,
    ) -> Result {
        if pages.is_empty() || pages.end > self.pages {
            return Err(EINVAL);
        }
        if has_memory() {
            return Err(EDEADLK);
        }
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        // SAFETY: The structure is not released while the device is registered, and the memory has
        // these pages.
        unsafe {
            match self.raw {
                Backing::Process(raw) => self.map_process(raw.as_ptr(), pages, write, fault, tell),
                Backing::DmaBuf(raw) => dma_buf::map(raw.as_ptr(), pages, fault, tell),
            }
        }
    }

    /// Like [`map`](Self::map), for memory of a process.
    ///
    /// # Safety
    ///
    /// `raw` must be that of this memory and valid, the device must be registered, and the memory
    /// must have these pages.
    unsafe fn map_process(
        &self,
        raw: *mut bindings::ib_umem_odp,
        pages: Range<usize>,
        write: bool,
        fault: bool,
        tell: impl FnOnce(&mut dyn Iterator<Item = Result<Option<Page>>>) -> Result,
    ) -> Result {
        let mask = if write {
            bindings::hmm_pfn_flags_HMM_PFN_WRITE
        } else {
            0
        };
        // SAFETY: Guaranteed by the caller. On success the mutex is held.
        let mapped = unsafe {
            let start = (*raw).notifier.interval_tree.start as u64;
            bindings::ib_umem_odp_map_dma_and_lock(
                raw,
                start + (pages.start * PAGE_SIZE) as u64,
                (pages.len() * PAGE_SIZE) as u64,
                mask as u64,
                fault,
            )
        };
        if mapped < 0 {
            return to_result(mapped);
        }
        let result = without_reclaim(|| {
            tell(&mut pages.map(|index| {
                // SAFETY: The mutex is held, the device is registered, and the index is in range.
                unsafe { self.page(raw, index) }
            }))
        });
        // SAFETY: Held since `ib_umem_odp_map_dma_and_lock`.
        unsafe { self.raw.unlock() };
        result
    }

    /// Returns entry `index` of the list of pages: bits of `hmm_pfn_flags`, and more.
    ///
    /// # Safety
    ///
    /// The memory must be valid and have that page, and its mutex must be held.
    unsafe fn entry(raw: *mut bindings::ib_umem_odp, index: usize) -> c_ulong {
        // SAFETY: The list has an entry for each page. The mutex protects the flags that the core
        // sets for pages mapped for the device. But a lookup that has not taken the mutex yet may
        // write the entry, so it is read only once.
        unsafe { (*raw).map.pfn_list.add(index).read_volatile() }
    }

    /// Returns page `index` of memory of a process, mapped for the device, if it is present.
    ///
    /// # Safety
    ///
    /// `raw` must be that of this memory, its mutex must be held, the device must be registered,
    /// and the memory must have that page.
    unsafe fn page(&self, raw: *mut bindings::ib_umem_odp, index: usize) -> Result<Option<Page>> {
        // SAFETY: The mutex is held, and there is such a page.
        let entry = unsafe { Self::entry(raw, index) };
        if entry & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            return Ok(None);
        }
        // SAFETY: The page is valid and the mutex is held. The device that does the DMA is bound.
        let address = unsafe {
            let address = bindings::ib_umem_odp_map_page(raw, index);
            let device = self.mapper.dma_device();
            to_result(bindings::dma_mapping_error(device, address)).map_err(|_| EFAULT)?;
            address
        };
        if entry & bindings::hmm_pfn_flags_HMM_PFN_DMA_MAPPED == 0 {
            // SAFETY: Protected by the mutex.
            unsafe { (*raw).npages += 1 };
        }
        Ok(Some(Page {
            address,
            writable: entry & bindings::hmm_pfn_flags_HMM_PFN_WRITE != 0,
        }))
    }

    /// Calls `f` while no pages are passed to the hardware and none are taken from it. Sleeps.
    ///
    /// Returns `ENODEV` and `EDEADLK` as for [`map`](Self::map). The restrictions of
    /// [`Pager::forget`] apply to `f`, too.
    pub fn exclusively<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        if has_memory() {
            return Err(EDEADLK);
        }
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        // SAFETY: The structure is not released while the device is registered.
        unsafe { self.raw.lock() };
        let result = without_reclaim(f);
        // SAFETY: Locked above.
        unsafe { self.raw.unlock() };
        Ok(result)
    }

    /// Handles an invalidation: the kernel takes pages back.
    ///
    /// # Safety
    ///
    /// `notifier` must be the notifier of the `ib_umem_odp` of a [`Memory`], and `range` must be
    /// valid.
    unsafe extern "C" fn invalidate_callback(
        notifier: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        sequence: c_ulong,
    ) -> bool {
        // SAFETY: Guaranteed by the caller.
        if !unsafe { bindings::mmu_notifier_range_blockable(range) } {
            return false;
        }
        // SAFETY: The notifier is part of an `ib_umem_odp`, which is freed only after the notifier
        // was removed; removing it waits for this function. The pages are those of the memory.
        unsafe {
            let raw = notifier
                .byte_sub(offset_of!(bindings::ib_umem_odp, notifier))
                .cast::<bindings::ib_umem_odp>();
            bindings::mutex_lock(&raw mut (*raw).umem_mutex);
            bindings::mmu_interval_set_seq(notifier, sequence);

            let tree = &(*raw).notifier.interval_tree;
            let start = (*range).start.max(tree.start);
            // The end of the address space is 0.
            let last = (*range).end.wrapping_sub(1).min(tree.last);
            let numbers = page_numbers(tree.start, start, last);
            // The hardware does not know pages that were never mapped.
            let is_mapped = |index: &usize| {
                Self::entry(raw, *index) & bindings::hmm_pfn_flags_HMM_PFN_DMA_MAPPED != 0
            };
            let mut mapped = numbers.clone();
            if let Some(first) = mapped.find(is_mapped) {
                let end = mapped.rfind(is_mapped).unwrap_or(first) + 1;
                if let Some(this) = (*raw).private.cast::<Self>().as_ref() {
                    without_reclaim(|| this.pager.forget(first..end));
                }
            }
            bindings::ib_umem_odp_unmap_dma_pages(raw, start as u64, last as u64 + 1);
            bindings::mutex_unlock(&raw mut (*raw).umem_mutex);
        }
        true
    }

    /// Runs the work item.
    ///
    /// # Safety
    ///
    /// `work` must be the `work` of a [`Memory`] which lives until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe { &*work.byte_sub(offset_of!(Self, work)).cast::<Self>() };
        this.pager.serve(this);
    }
}

/// Calls `f`, whose allocations never wait for memory reclaim, whatever flags they use.
fn without_reclaim<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: The saved state is restored below, by the same task.
    let flags = unsafe { bindings::memalloc_noreclaim_save() };
    let result = f();
    // SAFETY: The state was saved above, by the same task.
    unsafe { bindings::memalloc_noreclaim_restore(flags) };
    result
}

/// Returns whether this task holds the lock of any memory and calls a driver under it, or is
/// reclaiming memory. In both cases it must not wait for others that may wait for memory, nor for
/// the lock of any memory, which may be the same one.
pub(crate) fn has_memory() -> bool {
    // SAFETY: The current task is valid, and only the task itself changes its flags.
    unsafe { (*Task::current_raw()).flags & bindings::PF_MEMALLOC != 0 }
}

impl<P: Pager> Revoke for Memory<P> {
    fn revoke(&self) {
        // SAFETY: The work is initialised by the type invariant. On return it does not run, and
        // will not run again.
        unsafe { bindings::disable_work_sync(self.work.get()) };
        let mut released = self.released.lock();
        if !*released {
            // INVARIANT: This is called when the owner is dropped, or by the mapper once the device
            // is not registered any more.
            *released = true;
            // SAFETY: Owned by the type invariant, and released only here. Releasing waits for
            // invalidations in progress.
            unsafe { bindings::ib_umem_release(self.raw.umem()) };
        }
    }
}

/// Returns the page numbers from the page with address `start` to the page with address `last`, in
/// memory whose first page is at `base`.
pub(crate) fn page_numbers(base: usize, start: usize, last: usize) -> Range<usize> {
    (start - base) / PAGE_SIZE..(last - base) / PAGE_SIZE + 1
}

/// A page that the hardware may use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// DMA address of the page.
    pub address: DmaAddress,
    /// Whether the hardware may write to the page.
    pub writable: bool,
}

// SAFETY: The C structure is protected by its lock; the pager is `Send`.
unsafe impl<P: Pager> Send for Memory<P> {}

// SAFETY: The memory may be used by several threads at the same time; the pager is `Sync`.
unsafe impl<P: Pager> Sync for Memory<P> {}
