// SPDX-License-Identifier: GPL-2.0

//! Memory of processes that is not pinned: its pages are looked up when the hardware needs them,
//! and the hardware forgets them before they go away.
//!
//! C header: [`include/rdma/ib_umem_odp.h`](srctree/include/rdma/ib_umem_odp.h)
//!
//! Two things happen at any time and exclude each other by the `umem_mutex` of the memory: the
//! driver gives pages to the hardware ([`Memory::map`]), and the kernel takes them back
//! ([`Pager::forget`]). The latter may be part of reclaiming memory. So nothing that is done under
//! the mutex may wait for memory.

use core::{
    mem::{
        offset_of,
        MaybeUninit, //
    },
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
        atomic::{
            Atomic,
            Relaxed, //
        },
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

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// What a driver does with pages.
///
/// A driver that pins all memory has [`Unsupported`](crate::Unsupported) for one. Then no region on
/// demand gets to it, nor does anybody hear that its devices could have some.
pub trait Pager: Send + Sync + Sized + 'static {
    /// Whether there are regions on demand. Only [`Unsupported`](crate::Unsupported) says
    /// otherwise.
    #[doc(hidden)]
    const IS_SUPPORTED: bool = true;

    /// Makes the hardware forget pages; on return it does not access them.
    ///
    /// Sleeps, but may be called to reclaim memory: it must not take a lock under which others
    /// allocate. What it allocates itself does not wait for memory, whatever the flags say.
    fn forget(&self, pages: Range<usize>);

    /// Gives the hardware what it waits for. Called by a work item, some time after
    /// [`Memory::request`] and at least once.
    fn serve(&self, memory: &Memory<Self>);
}

/// A piece of the memory of a process, which the process may unmap, move and swap out at will.
///
/// It is watched until this is dropped, or the device is not registered any more. It belongs inside
/// an RDMA object, as does a [`Umem`](crate::Umem). Its own pager must not drop it, nor may what is
/// done while the task has memory, be it this or other: then it is watched as long as the device is
/// registered.
pub struct OnDemand<P: Pager> {
    memory: Arc<Memory<P>>,
}

impl<P: Pager> OnDemand<P> {
    /// Watches `length` bytes at `address` of the calling process.
    ///
    /// The device may write to them if `access` says so. `ESRCH` if no process called the verb,
    /// `EOPNOTSUPP` if the device cannot follow changes of memory, `EOVERFLOW` for ranges that
    /// there are not.
    pub fn new<T: Operations<Pager = P>>(
        call: &Call<'_, T>,
        address: u64,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The device is registered, since there is a call. The task is in one of a process.
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

    /// Has `memory` given up when the device is not registered any more, if not before.
    fn keep(memory: Arc<Memory<P>>) -> Result<Self> {
        let this = Self { memory };
        // Dropped on an error.
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
        // It waits for who works for the memory, and for all that the kernel takes back of the
        // process, whatever memory that has to be got for this: not for itself.
        if self.memory.is_served_here() || has_memory() {
            dev_err!(
                self.memory.mapper.dma(),
                "memory on demand is dropped by a pager, and stays until the device goes\n"
            );
            return;
        }
        // If it is not registered any more, the mapper revokes all that it knows.
        if let Some(_registered) = self.memory.mapper.enter() {
            let revocable: Arc<dyn Revoke> = self.memory.clone();
            self.memory.mapper.remove(&revocable);
            revocable.revoke();
        }
    }
}

/// The address space of a process, memory of which is watched later, by whomever.
///
/// That is not without bounds: the kernel lists the pages of all that is watched, whether they are
/// there or not, and charges nobody for the list.
///
/// # Invariants
///
/// The structure is one without memory of its own (`is_implicit_odp`), and of the device of
/// `mapper`; `_mm` is what it calls `owning_mm`.
pub struct AddressSpace {
    implicit: Owned,
    _mm: ARef<Mm>,
    mapper: Arc<Mapper>,
    /// Bytes that are watched, and how many may be.
    watched: Arc<Atomic<usize>>,
    limit: usize,
}

impl AddressSpace {
    /// The address space of the process that calls the verb, which the device may write to if
    /// `access` says so. `ESRCH` if there is none.
    pub fn of_caller<T: Operations>(call: &Call<'_, T>, access: AccessFlags) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The device is registered, since there is a call.
        unsafe { Self::of_current(call.device().as_raw(), call.mapper(), access) }
    }

    /// As [`of_caller`](Self::of_caller).
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
        // CAST: Rights are bits that C keeps in an `int`. That pages are huge is seen page by page.
        let access = (access.bits() & !(Access::HugeTlb as u32)) as c_int;
        // SAFETY: By contract.
        let raw = unsafe { bindings::ib_umem_odp_alloc_implicit(device, access) };
        // INVARIANT: It is the current process's, which has not changed.
        Ok(Self {
            implicit: Owned(NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?),
            _mm: mm,
            mapper: mapper.clone(),
            watched: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            limit: bytes_of_machine().saturating_mul(WATCHED_PER_BYTE),
        })
    }

    /// Watches `length` bytes at `address` of the process. Sleeps.
    ///
    /// `EFAULT` if the process is gone, `ENODEV` if the device is not registered any more, `ENOMEM`
    /// if so much is watched that the lists of its pages take a sixteenth of the machine's memory.
    pub fn watch<P: Pager>(&self, address: u64, length: usize, pager: P) -> Result<OnDemand<P>> {
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        let counted = self.count(length)?;
        // SAFETY: The structure is implicit by the type invariant, and its device registered. The
        // operations are static. C refers to the address space, which `_mm` keeps.
        // CAST: Addresses of processes are `c_ulong`.
        let raw = unsafe {
            bindings::ib_umem_odp_alloc_child(
                self.implicit.0.as_ptr(),
                address as c_ulong,
                length,
                Memory::<P>::OPS_REF,
            )
        };
        let owned = Owned(NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?);
        OnDemand::keep(Memory::of(owned, &self.mapper, pager, Some(counted))?)
    }

    /// Counts bytes as watched, as long as the result lives; `ENOMEM` if there are too many.
    fn count(&self, length: usize) -> Result<Counted> {
        let counted = Counted {
            watched: self.watched.clone(),
            length,
        };
        let before = counted.watched.fetch_add(length, Relaxed);
        match before.checked_add(length) {
            Some(all) if all <= self.limit => Ok(counted),
            _ => Err(ENOMEM),
        }
    }
}

/// Bytes that are counted as watched until this is dropped.
struct Counted {
    watched: Arc<Atomic<usize>>,
    length: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.watched.fetch_add(self.length.wrapping_neg(), Relaxed);
    }
}

/// Bytes of an address space that may be watched for each byte of the machine's memory.
const WATCHED_PER_BYTE: usize = PAGE_SIZE / size_of::<c_ulong>() / 16;

/// Bytes of memory that the machine has.
fn bytes_of_machine() -> usize {
    let mut info = MaybeUninit::<bindings::sysinfo>::uninit();
    // SAFETY: `info` is writable; this is a member that C sets.
    let pages = unsafe {
        bindings::si_meminfo(info.as_mut_ptr());
        (*info.as_ptr()).totalram
    };
    // CAST: The machine has so many pages.
    (pages as usize).saturating_mul(PAGE_SIZE)
}

// SAFETY: Nothing of the structure is bound to a thread.
unsafe impl Send for AddressSpace {}

// SAFETY: The structure does not change; C reads it.
unsafe impl Sync for AddressSpace {}

/// The memory of an [`OnDemand`] (`struct ib_umem_odp`).
///
/// # Invariants
///
/// - `raw` is valid, owned, and of the device of `mapper`, until `released` says otherwise; that is
///   so only if nobody has the [`OnDemand`], or the device is not registered any more.
/// - `work` is initialised and its function is [`Self::work_callback`].
/// - Once constructed, `private` of `raw` points to `self` and nothing else.
#[pin_data]
pub struct Memory<P: Pager> {
    raw: NonNull<bindings::ib_umem_odp>,
    #[pin]
    released: Mutex<bool>,
    /// Which task has the `umem_mutex` of `raw`, and calls the driver under it; 0 for none.
    locked_by: Atomic<usize>,
    /// Pages.
    pages: usize,
    /// Address of the first byte.
    address: usize,
    /// Bytes.
    length: usize,
    #[pin]
    work: Opaque<bindings::work_struct>,
    pager: P,
    mapper: Arc<Mapper>,
    /// Of an address space.
    _counted: Option<Counted>,
}

/// Owns memory until it is part of a [`Memory`].
///
/// # Invariants
///
/// The pointer is valid and owned.
struct Owned(NonNull<bindings::ib_umem_odp>);

impl Owned {
    fn into_raw(self) -> NonNull<bindings::ib_umem_odp> {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and no page of it was ever mapped.
        unsafe { bindings::ib_umem_odp_release(self.0.as_ptr()) };
    }
}

/// Number of the task that runs.
fn current() -> usize {
    // CAST: Not used as an address.
    Task::current_raw() as usize
}

impl<P: Pager> Memory<P> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        ..pin_init::zeroed()
    };

    /// A table that lives for ever.
    const OPS_REF: &'static bindings::mmu_interval_notifier_ops = &Self::OPS;

    /// As [`OnDemand::new`].
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` be that of the device. The task
    /// that runs must have the memory of a process.
    unsafe fn watch(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        address: u64,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Arc<Self>> {
        // CAST: Addresses of processes are `c_ulong`; rights are bits that C keeps in an `int`.
        // That pages are huge is seen page by page.
        let access = (access.bits() | Access::OnDemand as u32) & !(Access::HugeTlb as u32);
        // SAFETY: By contract; the operations are static.
        let raw = unsafe {
            bindings::ib_umem_odp_get(
                device,
                address as c_ulong,
                length,
                access as c_int,
                Self::OPS_REF,
            )
        };
        Self::of(
            Owned(NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?),
            mapper,
            pager,
            None,
        )
    }

    /// Watches memory of the device of `mapper`, whose operations are [`Self::OPS`].
    fn of(
        owned: Owned,
        mapper: &Arc<Mapper>,
        pager: P,
        counted: Option<Counted>,
    ) -> Result<Arc<Self>> {
        // SAFETY: Valid, and none of this changes.
        let (pages, address, length) = unsafe {
            let raw = owned.0.as_ref();
            let tree = &raw.notifier.interval_tree;
            let pages = (tree.last - tree.start) / PAGE_SIZE + 1;
            (pages, raw.umem.address, raw.umem.length)
        };
        // One for all types, as is the lock class: lockdep knows names by address.
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
                locked_by: Atomic::new(0),
                pages,
                address,
                length,
                pager,
                mapper: mapper.clone(),
                _counted: counted,
            }),
            GFP_KERNEL,
        )?;
        let pointer = core::ptr::from_ref::<Self>(&this).cast_mut();
        // SAFETY: Valid by the type invariant, and just made: nobody has the mutex for long. Who
        // reads this takes it.
        unsafe {
            this.lock_raw();
            (*this.raw.as_ptr()).private = pointer.cast();
            this.unlock_raw();
        }
        Ok(this)
    }

    /// What the driver keeps for the memory.
    pub fn pager(&self) -> &P {
        &self.pager
    }

    /// Pages of [`PAGE_SIZE`] bytes, counted from the one with the first byte.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Where in the first page the memory begins.
    pub fn offset(&self) -> usize {
        self.address % PAGE_SIZE
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Has [`Pager::serve`] called. May be called in any context.
    pub fn request(&self) {
        // SAFETY: The work is initialised by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
            )
        };
    }

    /// Takes the mutex, for which this task must not have it.
    ///
    /// # Safety
    ///
    /// `raw` must not be released before [`unlock_raw`](Self::unlock_raw).
    unsafe fn lock_raw(&self) {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::mutex_lock(&raw mut (*self.raw.as_ptr()).umem_mutex) };
        self.locked_by.store(current(), Relaxed);
    }

    /// Gives the mutex back.
    ///
    /// # Safety
    ///
    /// This task must have it.
    unsafe fn unlock_raw(&self) {
        self.locked_by.store(0, Relaxed);
        // SAFETY: Locked, as the caller guarantees.
        unsafe { bindings::mutex_unlock(&raw mut (*self.raw.as_ptr()).umem_mutex) };
    }

    /// Whether this task has the mutex already.
    fn is_locked_here(&self) -> bool {
        self.locked_by.load(Relaxed) == current()
    }

    /// Whether this task is the work.
    fn is_served_here(&self) -> bool {
        // SAFETY: Any task may ask what it runs.
        unsafe { bindings::current_work() == self.work.get() }
    }

    /// Looks pages up, with `write` such that may be written, and lets `tell` give them to the
    /// hardware while they cannot go away. Sleeps.
    ///
    /// With `fault`, pages that are not there are brought in, and it is an error if one cannot be:
    /// `EFAULT` if there is no such memory, `EINVAL` if the process is gone, `EBUSY` if the memory
    /// changes too fast. Else those that are there are taken. `ENODEV` if the device is not
    /// registered any more, `EDEADLK` in a closure that was given to this or to
    /// [`exclusively`](Self::exclusively).
    ///
    /// What [`Pager::forget`] must not do, `tell` must not either.
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
        if self.is_locked_here() {
            return Err(EDEADLK);
        }
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        let raw = self.raw.as_ptr();
        let mask = if write {
            bindings::hmm_pfn_flags_HMM_PFN_WRITE
        } else {
            0
        };
        // SAFETY: Valid by the type invariant, for the device is registered. On success the mutex
        // is held.
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
        self.locked_by.store(current(), Relaxed);
        let result = without_reclaim(|| {
            tell(&mut pages.map(|index| {
                // SAFETY: The mutex is held, and the index is in range.
                unsafe { self.page(index) }
            }))
        });
        // SAFETY: Held since `ib_umem_odp_map_dma_and_lock`.
        unsafe { self.unlock_raw() };
        result
    }

    /// The page `index`, mapped for the device, if it is there.
    ///
    /// # Safety
    ///
    /// The mutex must be held, the device be registered, and the memory have that many pages.
    unsafe fn page(&self, index: usize) -> Result<Option<Page>> {
        let raw = self.raw.as_ptr();
        // SAFETY: The list has an entry for each page, and is protected by the mutex.
        let entry = unsafe { *(*raw).map.pfn_list.add(index) };
        if entry & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            return Ok(None);
        }
        // SAFETY: The page is valid; the mutex is held. The device that does DMA is bound.
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

    /// Calls `f` while the hardware is neither given pages nor made to forget them. Sleeps.
    ///
    /// `ENODEV` and `EDEADLK` as for [`map`](Self::map). What [`Pager::forget`] must not do, `f`
    /// must not either.
    pub fn exclusively<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        if self.is_locked_here() {
            return Err(EDEADLK);
        }
        let _registered = self.mapper.enter().ok_or(ENODEV)?;
        // SAFETY: Not released while the device is registered.
        unsafe { self.lock_raw() };
        let result = without_reclaim(f);
        // SAFETY: Locked above.
        unsafe { self.unlock_raw() };
        Ok(result)
    }

    /// The kernel takes pages back.
    ///
    /// # Safety
    ///
    /// `notifier` must be that of the `ib_umem_odp` of a [`Memory`], and `range` valid.
    unsafe extern "C" fn invalidate_callback(
        notifier: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        sequence: c_ulong,
    ) -> bool {
        // SAFETY: Guaranteed by the caller.
        if !unsafe { bindings::mmu_notifier_range_blockable(range) } {
            return false;
        }
        // SAFETY: The notifier is part of an `ib_umem_odp`, which does not go away before the
        // notifier was removed, which waits for us. The list is protected by the mutex.
        unsafe {
            let raw = notifier
                .byte_sub(offset_of!(bindings::ib_umem_odp, notifier))
                .cast::<bindings::ib_umem_odp>();
            bindings::mutex_lock(&raw mut (*raw).umem_mutex);
            bindings::mmu_interval_set_seq(notifier, sequence);

            let tree = &(*raw).notifier.interval_tree;
            let start = (*range).start.max(tree.start);
            // The end of all addresses is none.
            let last = ((*range).end - 1).min(tree.last);
            let numbers = page_numbers(tree.start, start, last);
            // Pages that were never mapped the hardware does not know.
            let is_mapped = |index: &usize| {
                *(*raw).map.pfn_list.add(*index) & bindings::hmm_pfn_flags_HMM_PFN_DMA_MAPPED != 0
            };
            let mut mapped = numbers.clone();
            if let Some(first) = mapped.find(is_mapped) {
                let end = mapped.rfind(is_mapped).unwrap_or(first) + 1;
                if let Some(this) = (*raw).private.cast::<Self>().as_ref() {
                    this.locked_by.store(current(), Relaxed);
                    without_reclaim(|| this.pager.forget(first..end));
                    this.locked_by.store(0, Relaxed);
                }
            }
            bindings::ib_umem_odp_unmap_dma_pages(raw, start as u64, last as u64 + 1);
            bindings::mutex_unlock(&raw mut (*raw).umem_mutex);
        }
        true
    }

    /// Function of the work.
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

/// Calls `f`, which does not wait for memory to be reclaimed, whatever it allocates how.
fn without_reclaim<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: What is saved is restored below, by the same task.
    let flags = unsafe { bindings::memalloc_noreclaim_save() };
    let result = f();
    // SAFETY: As above.
    unsafe { bindings::memalloc_noreclaim_restore(flags) };
    result
}

/// Whether this task has the mutex of any memory, and calls a driver under it; or else it reclaims
/// memory, and must not wait for others who may.
fn has_memory() -> bool {
    // SAFETY: The task runs, and nobody else changes its flags.
    unsafe { (*Task::current_raw()).flags & bindings::PF_MEMALLOC != 0 }
}

impl<P: Pager> Revoke for Memory<P> {
    fn revoke(&self) {
        // SAFETY: The work is initialised, by the type invariant; when this returns it does not run
        // and will not.
        unsafe { bindings::disable_work_sync(self.work.get()) };
        let mut released = self.released.lock();
        if !*released {
            // INVARIANT: The owner calls this when he is dropped, or the mapper when the device is
            // not registered any more.
            *released = true;
            // SAFETY: Owned by the type invariant, and released only here. Whoever takes pages back
            // at this time is waited for.
            unsafe { bindings::ib_umem_odp_release(self.raw.as_ptr()) };
        }
    }
}

/// Numbers of the pages from that of address `start` to that of `last`, in memory whose first page
/// is at `base`.
pub(crate) fn page_numbers(base: usize, start: usize, last: usize) -> Range<usize> {
    (start - base) / PAGE_SIZE..(last - base) / PAGE_SIZE + 1
}

/// A page as the hardware may use it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its DMA address.
    pub address: DmaAddress,
    /// Whether it may be written.
    pub writable: bool,
}

// SAFETY: The C structure is protected by its mutex; the pager is `Send`.
unsafe impl<P: Pager> Send for Memory<P> {}

// SAFETY: As above; the pager is `Sync`.
unsafe impl<P: Pager> Sync for Memory<P> {}
