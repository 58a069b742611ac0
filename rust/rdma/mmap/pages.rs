// SPDX-License-Identifier: GPL-2.0

//! Kernel memory that processes map and that the device accesses at the same time.

use core::sync::atomic::AtomicU32;

use kernel::{
    dma::DmaAddress,
    error::to_result,
    mm::virt::VmaNew,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    dma::Mapper, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Writes must become visible to the other side without explicit synchronisation. Allocation fails
/// for devices where this is not the case.
const ATTRIBUTES: c_ulong = bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// A page and its DMA address.
struct DmaPage {
    page: Page,
    dma: DmaAddress,
}

/// Zeroed pages, mapped for DMA, that a context lets its processes map
/// ([`Mappings::insert_pages`](crate::mmap::Mappings::insert_pages)).
///
/// Unlike a [`Umem`](crate::Umem) it does not belong to a process. All processes that share a
/// context share it, whichever of them ends first. Each mapping holds references to the pages, so
/// the last contents can be read even after context and device are gone.
///
/// Keep it in an RDMA object, which goes away before the device does: if it is dropped later, the
/// pages stay mapped for DMA forever. The device must have stopped using the memory before this is
/// dropped, as for [`Coherent`](kernel::dma::Coherent).
///
/// # Invariants
///
/// `pages` are mapped for the device of `mapper`, in both directions.
pub struct UserPages {
    mapper: Arc<Mapper>,
    pages: KVec<DmaPage>,
}

impl UserPages {
    /// Allocates at least `length` bytes, charged to the calling process. `ESRCH` if no process
    /// called the verb.
    pub fn new<T: Operations>(call: &Call<'_, T>, length: usize) -> Result<Self> {
        call.check_process()?;
        Self::of(call.mapper(), length)
    }

    /// Allocates at least `length` bytes for the device of `mapper`; `ENODEV` if the device is not
    /// registered any more.
    pub(crate) fn of(mapper: &Arc<Mapper>, length: usize) -> Result<Self> {
        let _registered = mapper.enter().ok_or(ENODEV)?;
        if length == 0 {
            return Err(EINVAL);
        }
        let count = length.div_ceil(PAGE_SIZE);
        let mut this = Self {
            mapper: mapper.clone(),
            pages: KVec::with_capacity(count, GFP_KERNEL)?,
        };
        for _ in 0..count {
            let page = Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            // SAFETY: The device is registered, hence bound; the page is ours.
            let dma = unsafe {
                bindings::dma_map_page_attrs(
                    mapper.dma_device(),
                    page.as_ptr(),
                    0,
                    PAGE_SIZE,
                    bindings::dma_data_direction::DMA_BIDIRECTIONAL,
                    ATTRIBUTES,
                )
            };
            // SAFETY: The device is bound, and `dma` is the result of mapping the page.
            to_result(unsafe { bindings::dma_mapping_error(mapper.dma_device(), dma) })?;
            // INVARIANT: Just mapped. There is room, so this cannot fail and lose the mapping.
            this.pages.push(DmaPage { page, dma }, GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Returns the length of the memory in bytes, a multiple of the page size.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }

    /// Returns the DMA addresses of the pages, which have [`PAGE_SIZE`] bytes each.
    #[inline]
    pub fn dma_pages(&self) -> impl ExactSizeIterator<Item = DmaAddress> + '_ {
        self.pages.iter().map(|mapped| mapped.dma)
    }

    /// Calls `f` with the word at `offset`, which processes and the device may change concurrently.
    ///
    /// Returns `EINVAL` if the offset is beyond the end or not aligned. `f` must not sleep.
    pub fn with_u32<R>(&self, offset: usize, f: impl FnOnce(&AtomicU32) -> R) -> Result<R> {
        let page = self.pages.get(offset / PAGE_SIZE).ok_or(EINVAL)?;
        if offset % align_of::<AtomicU32>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: A page of ours, which is unmapped below.
        let address = unsafe { bindings::kmap_local_page(page.page.as_ptr()) };
        // SAFETY: The word is in the page, aligned and initialised with zeroes. It is accessed only
        // by atomics, or by processes and the device, whose accesses count as atomic.
        let result = f(unsafe {
            &*address
                .cast::<u8>()
                .add(offset % PAGE_SIZE)
                .cast::<AtomicU32>()
        });
        // SAFETY: Mapped above.
        unsafe { bindings::kunmap_local(address) };
        Ok(result)
    }

    /// Maps all of the memory into a process.
    ///
    /// # Safety
    ///
    /// `vma` must be an area that `mmap` is setting up, and as long as the memory.
    pub(crate) unsafe fn map(&self, vma: *mut bindings::vm_area_struct) -> Result {
        // SAFETY: The area is not visible to others yet.
        let vma = unsafe { VmaNew::from_raw(vma) };
        // There is nothing to map beyond the end.
        vma.set_dontexpand();
        let mixed = vma.set_mixedmap();
        for (i, mapped) in self.pages.iter().enumerate() {
            mixed.vm_insert_page(mixed.start() + i * PAGE_SIZE, &mapped.page)?;
        }
        Ok(())
    }
}

impl Drop for UserPages {
    fn drop(&mut self) {
        let Some(_registered) = self.mapper.enter_to_unmap() else {
            core::mem::forget(core::mem::take(&mut self.pages));
            return;
        };
        for mapped in &self.pages {
            // SAFETY: By the type invariant the page is mapped for this device, and it is unmapped
            // only here. The guard keeps the device bound.
            unsafe {
                bindings::dma_unmap_page_attrs(
                    self.mapper.dma_device(),
                    mapped.dma,
                    PAGE_SIZE,
                    bindings::dma_data_direction::DMA_BIDIRECTIONAL,
                    ATTRIBUTES,
                );
            }
        }
    }
}

// SAFETY: The pages may be freed and unmapped from any thread.
unsafe impl Send for UserPages {}

// SAFETY: Through a shared reference the memory is accessed only by atomics.
unsafe impl Sync for UserPages {}
