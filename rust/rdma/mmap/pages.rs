// SPDX-License-Identifier: GPL-2.0

//! Memory of the kernel that processes map and the device accesses at the same time.

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

/// What is written to the pages is seen at the other side without being asked for. A device for
/// which that is not so gets none.
const ATTRIBUTES: c_ulong = bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// A page, and how the device addresses it.
struct Mapped {
    page: Page,
    dma: DmaAddress,
}

/// Zeroed pages, mapped for DMA, that a context lets its processes map
/// ([`Mappings::insert_pages`](crate::mmap::Mappings::insert_pages)).
///
/// Unlike a [`Umem`](crate::Umem) it is no process's: all that share a context share it, whichever
/// of them ends first. A mapping keeps the pages for itself, so what was written last can be read
/// when context and device are gone.
///
/// It belongs inside an RDMA object, which is gone before the device is: what is dropped later
/// stays mapped for ever. The device must have let go of the memory before this is dropped, as for
/// [`Coherent`](kernel::dma::Coherent).
///
/// # Invariants
///
/// `pages` are mapped for the device of `mapper`, in both directions.
pub struct UserPages {
    mapper: Arc<Mapper>,
    pages: KVec<Mapped>,
}

impl UserPages {
    /// Allocates at least `length` bytes, at the expense of the calling process. `ESRCH` if no
    /// process called the verb.
    pub fn new<T: Operations>(call: &Call<'_, T>, length: usize) -> Result<Self> {
        call.check_process()?;
        Self::of(call.mapper(), length)
    }

    /// Allocates at least `length` bytes for the device of `mapper`; `ENODEV` if that is not
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
            // SAFETY: The device is bound, and this is what it said of the mapping.
            to_result(unsafe { bindings::dma_mapping_error(mapper.dma_device(), dma) })?;
            // INVARIANT: Just mapped. There is room, so the mapping is not lost.
            this.pages.push(Mapped { page, dma }, GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Bytes of the memory: whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }

    /// The pages of [`PAGE_SIZE`] bytes, as the device addresses them.
    pub fn dma_pages(&self) -> impl ExactSizeIterator<Item = DmaAddress> + '_ {
        self.pages.iter().map(|mapped| mapped.dma)
    }

    /// Calls `f` with the word at `offset`, which processes and the device may change meanwhile.
    ///
    /// `EINVAL` if that is beyond the end or not aligned. `f` must not sleep.
    pub fn with_u32<R>(&self, offset: usize, f: impl FnOnce(&AtomicU32) -> R) -> Result<R> {
        let page = self.pages.get(offset / PAGE_SIZE).ok_or(EINVAL)?;
        if offset % align_of::<AtomicU32>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: A page of ours, which is unmapped below.
        let address = unsafe { bindings::kmap_local_page(page.page.as_ptr()) };
        // SAFETY: The word is in the page, aligned, initialised with zeroes, and accessed by
        // atomics only, or by others who count as such.
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
    /// `vma` must be an area that is being set up by `mmap` and as long as the memory.
    pub(crate) unsafe fn map(&self, vma: *mut bindings::vm_area_struct) -> Result {
        // SAFETY: Nobody else has the area yet.
        let vma = unsafe { VmaNew::from_raw(vma) };
        // Beyond its end there is nothing.
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
            // SAFETY: Mapped for this device, by the type invariant, which is bound meanwhile, and
            // only unmapped here.
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

// SAFETY: Through a shared reference the memory is accessed by atomics only.
unsafe impl Sync for UserPages {}
