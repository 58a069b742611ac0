// SPDX-License-Identifier: GPL-2.0

//! Memory of processes that is not pinned: its pages are looked up when the hardware needs them,
//! and the hardware forgets them before they go away.
//!
//! C header: [`include/rdma/ib_umem_odp.h`](srctree/include/rdma/ib_umem_odp.h)
//!
//! Two things happen at any time and exclude each other by the `umem_mutex` of the memory: the
//! driver gives pages to the hardware ([`OnDemand::map`]), and the kernel takes them back
//! ([`Pager::forget`]). The latter may be part of reclaiming memory. So nothing that is done under
//! the mutex may wait for memory.

use core::{
    mem::offset_of,
    ops::Range,
    ptr::NonNull, //
};

use kernel::{
    device,
    dma::DmaAddress,
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    static_lock_class,
    sync::{
        aref::ARef,
        Arc, //
    },
    types::Opaque, //
};

use crate::{
    access::{
        Access,
        AccessFlags, //
    },
    bindings,
    compat,
    device::{
        Device,
        Operations, //
    },
    umem::kept_devices, //
};

/// What a driver does with pages.
pub trait Pager: Send + Sync + Sized + 'static {
    /// Makes the hardware forget pages; on return it does not access them.
    ///
    /// Sleeps, but may be called to reclaim memory: it must not allocate with `GFP_KERNEL`, nor
    /// take a lock under which others do.
    fn forget(&self, pages: Range<usize>);

    /// Gives the hardware what it waits for. Called by a work item, some time after
    /// [`OnDemand::request`] and at least once.
    fn serve(&self, memory: &OnDemand<Self>);
}

/// A piece of the memory of a process, which the process may unmap, move and swap out at will
/// (`struct ib_umem_odp`).
///
/// It belongs inside an RDMA object, as does a [`Umem`](crate::Umem).
///
/// # Invariants
///
/// `raw` is valid and owned; `work` is initialised and its function is [`Self::work_callback`].
/// Once constructed, `private` of `raw` points to `self` and nothing else.
#[pin_data(PinnedDrop)]
pub struct OnDemand<P: Pager> {
    raw: NonNull<bindings::ib_umem_odp>,
    #[pin]
    work: Opaque<bindings::work_struct>,
    pager: P,
    _device: ARef<device::Device>,
    dma_device: ARef<device::Device>,
}

/// Owns memory until it is part of an [`OnDemand`].
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

impl<P: Pager> OnDemand<P> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        ..pin_init::zeroed()
    };

    /// Watches `length` bytes at `address` of the calling process.
    ///
    /// The device may write to them if `access` says so. `EOPNOTSUPP` if the device cannot follow
    /// changes of memory, `EOVERFLOW` for ranges that there are not.
    pub fn new<T: Operations>(
        device: &Device<T>,
        address: u64,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Arc<Self>> {
        // SAFETY: The device is registered, since verbs run.
        unsafe { Self::watch(device.as_raw(), address, length, access, pager) }
    }

    /// As [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// `device` must be valid, have a DMA device, and be registered or else not go away.
    unsafe fn watch(
        device: *mut bindings::ib_device,
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
        let owned = Owned(NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?);
        // SAFETY: By contract.
        let (device, dma_device) = unsafe { kept_devices(device) };
        // One for all types, as is the lock class: lockdep knows names by address.
        static WORK: &CStr = c"rdma::OnDemand::work";

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
                pager,
                _device: device,
                dma_device,
            }),
            GFP_KERNEL,
        )?;
        let pointer = core::ptr::from_ref::<Self>(&this).cast_mut();
        this.exclusively(|| {
            // SAFETY: Valid by the type invariant. Who reads this takes the mutex.
            unsafe { (*this.raw.as_ptr()).private = pointer.cast() };
        });
        Ok(this)
    }

    /// A table that lives for ever.
    const OPS_REF: &'static bindings::mmu_interval_notifier_ops = &Self::OPS;

    /// What the driver keeps for the memory.
    pub fn pager(&self) -> &P {
        &self.pager
    }

    /// Pages of [`PAGE_SIZE`] bytes, counted from the one with the first byte.
    pub fn pages(&self) -> usize {
        // SAFETY: Valid by the type invariant; the limits do not change.
        unsafe {
            let tree = &(*self.raw.as_ptr()).notifier.interval_tree;
            (tree.last - tree.start) / PAGE_SIZE + 1
        }
    }

    /// Where in the first page the memory begins.
    pub fn offset(&self) -> usize {
        // SAFETY: Valid by the type invariant; the address does not change.
        unsafe { (*self.raw.as_ptr()).umem.address % PAGE_SIZE }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant; the length does not change.
        unsafe { (*self.raw.as_ptr()).umem.length }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has [`Pager::serve`] called. May be called in any context.
    pub fn request(&self) {
        // SAFETY: The work is initialised by the type invariant, and cancelled before it is freed.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
            )
        };
    }

    /// Looks pages up, with `write` such that may be written, and lets `tell` give them to the
    /// hardware while they cannot go away. Sleeps.
    ///
    /// With `fault`, pages that are not there are brought in, and it is an error if one cannot be:
    /// `EFAULT` if there is no such memory, `EINVAL` if the process is gone, `EBUSY` if the memory
    /// changes too fast. Else those that are there are taken.
    ///
    /// What [`Pager::forget`] must not do, `tell` must not either.
    pub fn map(
        &self,
        pages: Range<usize>,
        write: bool,
        fault: bool,
        tell: impl FnOnce(&mut dyn Iterator<Item = Result<Option<Page>>>) -> Result,
    ) -> Result {
        if pages.is_empty() || pages.end > self.pages() {
            return Err(EINVAL);
        }
        let raw = self.raw.as_ptr();
        let mask = if write {
            bindings::hmm_pfn_flags_HMM_PFN_WRITE
        } else {
            0
        };
        // SAFETY: Valid by the type invariant. On success the mutex is held.
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
        // The closure may unwind no more than anything else in the kernel.
        let result = tell(&mut pages.map(|index| {
            // SAFETY: The mutex is held, and the index is in range.
            unsafe { self.page(index) }
        }));
        // SAFETY: Held since `ib_umem_odp_map_dma_and_lock`.
        unsafe { bindings::mutex_unlock(&raw mut (*raw).umem_mutex) };
        result
    }

    /// The page `index`, mapped for the device, if it is there.
    ///
    /// # Safety
    ///
    /// The mutex must be held, and the memory must have that many pages.
    unsafe fn page(&self, index: usize) -> Result<Option<Page>> {
        let raw = self.raw.as_ptr();
        // SAFETY: The list has an entry for each page, and is protected by the mutex.
        let entry = unsafe { *(*raw).map.pfn_list.add(index) };
        if entry & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            return Ok(None);
        }
        // SAFETY: The page is valid; the mutex is held. The device that does DMA is kept.
        let address = unsafe {
            let address = bindings::ib_umem_odp_map_page(raw, index);
            let device = compat::device_as_raw(&*self.dma_device);
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
    /// What [`Pager::forget`] must not do, `f` must not either.
    pub fn exclusively<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::mutex_lock(&raw mut (*self.raw.as_ptr()).umem_mutex) };
        let result = f();
        // SAFETY: Locked above.
        unsafe { bindings::mutex_unlock(&raw mut (*self.raw.as_ptr()).umem_mutex) };
        result
    }

    /// The kernel takes pages back.
    ///
    /// # Safety
    ///
    /// `notifier` must be that of the `ib_umem_odp` of an [`OnDemand`], and `range` valid.
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
                    this.pager.forget(first..end);
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
    /// `work` must be the `work` of an [`OnDemand`] which lives until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe { &*work.byte_sub(offset_of!(Self, work)).cast::<Self>() };
        this.pager.serve(this);
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

#[pinned_drop]
impl<P: Pager> PinnedDrop for OnDemand<P> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The work is initialised, by the type invariant; when this returns it does not run
        // and is not queued, for nobody is left who could queue it.
        unsafe { bindings::cancel_work_sync(self.work.get()) };
        // SAFETY: Owned by the type invariant. Whoever takes pages back at this time is waited for;
        // the pager is dropped later.
        unsafe { bindings::ib_umem_odp_release(self.raw.as_ptr()) };
    }
}

// SAFETY: The C structure is protected by its mutex; the pager is `Send`.
unsafe impl<P: Pager> Send for OnDemand<P> {}

// SAFETY: As above; the pager is `Sync`.
unsafe impl<P: Pager> Sync for OnDemand<P> {}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(rdma_paging)]
mod tests {
    use super::*;

    use crate::testing::{
        ProcessMemory,
        TestDevice, //
    };
    use kernel::{
        bindings::flush_work,
        new_mutex,
        sync::Mutex, //
    };

    const PAGES: usize = 8;

    /// Remembers what it was told.
    #[pin_data]
    struct Log {
        #[pin]
        forgotten: Mutex<KVec<Range<usize>>>,
        #[pin]
        served: Mutex<usize>,
    }

    impl Pager for Arc<Log> {
        fn forget(&self, pages: Range<usize>) {
            // The test made room.
            let _ = self.forgotten.lock().push_within_capacity(pages);
        }

        fn serve(&self, memory: &OnDemand<Self>) {
            *self.served.lock() += memory.pages();
        }
    }

    /// Calls `test` with memory of a process that is watched, and what its pager was told.
    fn with_memory(
        access: AccessFlags,
        test: impl FnOnce(&OnDemand<Arc<Log>>, &ProcessMemory, &Log) -> Result,
    ) -> Result {
        let device = TestDevice::new()?;
        let process = ProcessMemory::new(PAGES)?;
        let log = Arc::pin_init(
            pin_init!(Log {
                forgotten <- new_mutex!(KVec::with_capacity(PAGES, GFP_KERNEL)?),
                served <- new_mutex!(0),
            }? Error),
            GFP_KERNEL,
        )?;
        let pager = log.clone();
        // The first and the last page in part.
        let (start, length) = (process.address() + 8, PAGES * PAGE_SIZE - 16);
        // SAFETY: The device outlives the memory.
        let memory = unsafe { OnDemand::watch(device.as_raw(), start, length, access, pager) }?;
        test(&memory, &process, &log)?;
        drop(memory);
        Ok(())
    }

    /// Which pages are there, and whether they may be written.
    fn present(
        memory: &OnDemand<Arc<Log>>,
        pages: Range<usize>,
        write: bool,
        fault: bool,
    ) -> Result<KVec<Option<bool>>> {
        let mut found = KVec::with_capacity(PAGES, GFP_KERNEL)?;
        memory.map(pages, write, fault, |pages| {
            for page in pages {
                found.push_within_capacity(page?.map(|page| page.writable))?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn pages_come_when_they_are_asked_for() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, log| {
            assert_eq!((memory.pages(), memory.offset()), (PAGES, 8));
            assert_eq!(memory.len(), PAGES * PAGE_SIZE - 16);
            assert_eq!(*present(memory, 0..PAGES, true, false)?, [None; PAGES]);
            assert_eq!(*present(memory, 2..4, true, true)?, [Some(true); 2]);
            let there = present(memory, 1..5, false, false)?;
            assert_eq!(*there, [None, Some(true), Some(true), None]);
            for wrong in [0..0, 3..3, 0..PAGES + 1, PAGES..PAGES + 1] {
                assert_eq!(present(memory, wrong, false, true).err(), Some(EINVAL));
            }
            assert!(log.forgotten.lock().is_empty());
            Ok(())
        })
    }

    #[test]
    fn pages_have_addresses_of_their_own() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, _| {
            memory.map(0..PAGES, true, true, |pages| {
                let mut last = None;
                for page in pages {
                    let address = page?.ok_or(EFAULT)?.address;
                    assert!(address % PAGE_SIZE as u64 == 0 && last != Some(address));
                    last = Some(address);
                }
                Ok(())
            })
        })
    }

    #[test]
    fn pages_that_may_only_be_read_are_not_writable() -> Result {
        with_memory(Access::RemoteRead.into(), |memory, _, _| {
            assert_eq!(*present(memory, 0..2, false, true)?, [Some(false); 2]);
            Ok(())
        })
    }

    #[test]
    fn what_the_process_unmaps_is_forgotten() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, process, log| {
            // What was never given need not be forgotten.
            process.unmap(7..8)?;
            assert!(log.forgotten.lock().is_empty());

            present(memory, 1..5, true, true)?;
            process.unmap(0..3)?;
            let forgotten = log.forgotten.lock();
            assert!(forgotten.len() == 1 && forgotten[0] == (1..3));
            drop(forgotten);
            let there = present(memory, 1..5, true, false);
            assert!(there.is_err() || there.is_ok_and(|there| there[..2] == [None; 2]));
            assert_eq!(present(memory, 1..2, true, true).err(), Some(EFAULT));
            assert_eq!(*present(memory, 3..5, true, true)?, [Some(true); 2]);
            Ok(())
        })
    }

    #[test]
    fn requests_are_served() -> Result {
        with_memory(Access::LocalWrite.into(), |memory, _, log| {
            memory.request();
            // SAFETY: The work is initialised.
            unsafe { flush_work(memory.work.get()) };
            assert_eq!(*log.served.lock(), PAGES);
            Ok(())
        })
    }

    #[test]
    fn pages_are_counted_from_the_first() {
        let base = 16 * PAGE_SIZE;
        assert_eq!(page_numbers(base, base, base), 0..1);
        assert_eq!(page_numbers(base, base + 1, base + PAGE_SIZE - 1), 0..1);
        assert_eq!(
            page_numbers(base, base + PAGE_SIZE, base + 2 * PAGE_SIZE),
            1..3
        );
    }
}
