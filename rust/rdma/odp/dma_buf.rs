// SPDX-License-Identifier: GPL-2.0

//! Dma-bufs whose exporter may move them and take them away.
//!
//! The pages of a dma-buf are mapped as a whole when the hardware needs one of them, and unmapped
//! as a whole before the exporter moves the dma-buf.

use core::{
    ops::Range,
    ptr::NonNull, //
};

use kernel::{
    dma::DmaAddress,
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    without_reclaim,
    Backing,
    Counted,
    Memory,
    OnDemand,
    Owned,
    Page,
    Pager, //
};
use crate::{
    access::AccessFlags,
    bindings,
    device::{
        Call,
        Operations, //
    },
    dma::Mapper, //
};

impl<P: Pager> OnDemand<P> {
    /// Watches `length` bytes at `offset` of the dma-buf that is open as `fd` in the calling
    /// process. They stay accessible if the descriptor is closed, unless the exporter takes them
    /// away.
    ///
    /// The pages of a dma-buf are always writable. Whether the device may write to them must be
    /// checked otherwise, for example by the rights of a memory region.
    ///
    /// Returns `ESRCH` if no process called the verb, `EBADF` if there is no such file, `EINVAL` if
    /// the file is not a dma-buf or is too short, `ENOMEM` as [`new`](Self::new), or an error of
    /// the exporter.
    pub fn of_dma_buf<T: Operations<Pager = P>>(
        call: &Call<'_, T>,
        fd: c_int,
        offset: usize,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Self> {
        call.check_process()?;
        let (device, mapper) = (call.device().as_raw(), call.mapper());
        // SAFETY: The call proves that the device is registered.
        let memory =
            unsafe { Memory::watch_dma_buf(device, mapper, fd, offset, length, access, pager) }?;
        Self::keep(memory)
    }
}

impl<P: Pager> Memory<P> {
    const IMPORTER: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
        allow_peer2peer: P::PEER_TO_PEER,
        invalidate_mappings: Some(Self::invalidate_mappings_callback),
    };

    /// A static table.
    const IMPORTER_REF: &'static bindings::dma_buf_attach_ops = &Self::IMPORTER;

    /// Like [`OnDemand::of_dma_buf`].
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` must be that of the device.
    pub(super) unsafe fn watch_dma_buf(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        fd: c_int,
        offset: usize,
        length: usize,
        access: AccessFlags,
        pager: P,
    ) -> Result<Arc<Self>> {
        let counted = Counted::take(mapper, length)?;
        // SAFETY: Guaranteed by the caller; the operations are static.
        // CAST: `c_ulong` has the bits of a `size_t`; access flags are bits that C keeps in an
        // `int`.
        let raw = unsafe {
            bindings::ib_umem_dmabuf_get(
                device,
                offset as c_ulong,
                length,
                fd,
                access.bits() as c_int,
                Self::IMPORTER_REF,
            )
        };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?;
        Self::of(Owned(Backing::DmaBuf(raw)), counted, pager)
    }

    /// Handles an invalidation: the exporter is about to move the dma-buf, or takes it away.
    ///
    /// # Safety
    ///
    /// `attachment` must be that of the `ib_umem_dmabuf` of a [`Memory`], and the reservation
    /// object of its dma-buf must be locked.
    unsafe extern "C" fn invalidate_mappings_callback(
        attachment: *mut bindings::dma_buf_attachment,
    ) {
        // SAFETY: The attachment is freed together with the structure to which it points, after the
        // attachment was removed, under the same lock. The lock also protects the members used
        // here.
        unsafe {
            let raw = (*attachment)
                .importer_priv
                .cast::<bindings::ib_umem_dmabuf>();
            // Nothing may be mapped, for example because the structure is just being created.
            if (*raw).sgt.is_null() {
                return;
            }
            if let Some(this) = (*raw).private.cast::<Self>().as_ref() {
                without_reclaim(|| this.pager.forget(0..this.pages));
            }
            bindings::ib_umem_dmabuf_unmap_pages(raw);
        }
    }
}

/// Like [`Memory::map`], for a dma-buf.
///
/// # Safety
///
/// `raw` must be valid, and stay so during the call. Its device must be registered.
pub(super) unsafe fn map(
    raw: *mut bindings::ib_umem_dmabuf,
    pages: Range<usize>,
    fault: bool,
    tell: impl FnOnce(&mut dyn Iterator<Item = Result<Option<Page>>>) -> Result,
) -> Result {
    // SAFETY: Guaranteed by the caller.
    unsafe { bindings::ib_umem_dmabuf_revoke_lock(raw) };
    let result = (|| {
        if fault {
            // SAFETY: Valid and locked.
            to_result(unsafe { bindings::ib_umem_dmabuf_map_pages(raw) })?;
        }
        // SAFETY: Valid and locked. A mapped table has that many entries.
        let mut mapped = unsafe {
            match (*raw).sgt.is_null() {
                true => None,
                false => {
                    let table = &(*raw).umem.sgt_append.sgt;
                    Some(MappedPages::new(table.sgl, table.nents, pages.start))
                }
            }
        };
        without_reclaim(|| {
            tell(&mut pages.map(|_| match &mut mapped {
                None => Ok(None),
                Some(mapped) => Ok(Some(Page {
                    address: mapped.next().unwrap_or(Err(EFAULT))?,
                    writable: true,
                })),
            }))
        })
    })();
    // SAFETY: Locked above.
    unsafe { bindings::ib_umem_dmabuf_revoke_unlock(raw) };
    result
}

/// Iterator over the pages in the DMA entries of a scatterlist. An entry that does not consist of
/// whole pages is an error.
///
/// # Invariants
///
/// `entry` is valid and has `entries - 1` successors, unless `entries` is 0.
pub(super) struct MappedPages {
    entry: *mut bindings::scatterlist,
    entries: c_uint,
    /// Number of pages in and after `entry` that come before the next one.
    skip: usize,
}

impl MappedPages {
    /// Starts with page number `skip`.
    ///
    /// # Safety
    ///
    /// `entry` must be the first of at least `entries` entries, which must stay valid and mapped as
    /// long as the iterator is used.
    pub(super) unsafe fn new(
        entry: *mut bindings::scatterlist,
        entries: c_uint,
        skip: usize,
    ) -> Self {
        // INVARIANT: Guaranteed by the caller.
        let mut pages = Self {
            entry,
            entries,
            skip,
        };
        // Here, and not under the locks of whoever asks for the first page: the walk may be long.
        pages.find();
        pages
    }

    /// Goes to the entry with the next page, or to one that does not consist of whole pages.
    fn find(&mut self) -> Option<Result<DmaAddress>> {
        while self.entries > 0 {
            // SAFETY: By the type invariant.
            // CAST: `unsigned int` is not longer.
            let (address, length) = unsafe {
                let length = bindings::sg_dma_len(self.entry) as usize;
                (bindings::sg_dma_address(self.entry), length)
            };
            let page_size = PAGE_SIZE as DmaAddress;
            if length % PAGE_SIZE != 0 || address % page_size != 0 {
                return Some(Err(EINVAL));
            }
            if self.skip < length / PAGE_SIZE {
                return Some(Ok(address + self.skip as DmaAddress * page_size));
            }
            self.skip -= length / PAGE_SIZE;
            // INVARIANT: The successor has one successor less.
            self.entries -= 1;
            // SAFETY: By the type invariant. The last entry may have no successor, but then it is
            // not used.
            self.entry = unsafe { bindings::sg_next(self.entry) };
        }
        None
    }
}

impl Iterator for MappedPages {
    type Item = Result<DmaAddress>;

    fn next(&mut self) -> Option<Result<DmaAddress>> {
        let found = self.find()?;
        if found.is_ok() {
            self.skip += 1;
        }
        Some(found)
    }
}
