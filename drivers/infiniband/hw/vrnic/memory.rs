// SPDX-License-Identifier: GPL-2.0

//! Memory of processes, and memory for them, as the device is told of it.

use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};
use rdma::{
    access::Access,
    umem::Buffer,
    Umem,
    UserPages, //
};
use vrnic_wire::memory::MIN_PAGE_SHIFT;

use crate::{
    commands::PageListBuffer,
    device::Call, //
};

/// Pins the buffer of a new object, which holds its rings, and lists its pages. Unless the call has
/// it elsewhere, it is `length` bytes at `address`. It must begin at a page (`EINVAL`).
pub(crate) fn pin_buffer(
    call: &Call<'_>,
    buffer: &Buffer<'_>,
    address: u64,
    length: u64,
) -> Result<(Umem, PageListBuffer)> {
    let length = usize::try_from(length)?;
    list_ring(
        call,
        buffer.pin(address, length, Access::LocalWrite.into())?,
    )
}

/// As [`pin_buffer`], for an object that moves to another ring.
pub(crate) fn pin_ring(
    call: &Call<'_>,
    address: u64,
    length: u64,
) -> Result<(Umem, PageListBuffer)> {
    let length = usize::try_from(length)?;
    let umem = Umem::get(call, address, length, Access::LocalWrite.into())?;
    list_ring(call, umem)
}

/// Lists the pages of a buffer that holds rings.
fn list_ring(call: &Call<'_>, mut umem: Umem) -> Result<(Umem, PageListBuffer)> {
    let address = umem.address();
    let (pages, offset) = list(call, &mut umem, 1 << MIN_PAGE_SHIFT, address)?;
    if offset != 0 {
        return Err(EINVAL);
    }
    Ok((umem, pages))
}

/// Lists the pages of the first `length` bytes of a notify area.
pub(crate) fn notify_pages(
    call: &Call<'_>,
    pages: &UserPages,
    length: usize,
) -> Result<PageListBuffer> {
    const { assert!(PAGE_SHIFT >= MIN_PAGE_SHIFT as usize) };

    PageListBuffer::new(
        call.data().dma(),
        pages.dma_pages(),
        u8::try_from(PAGE_SHIFT)?,
        0,
        length as u64,
    )
}

/// Lists the pages of a memory region whose first byte work requests name by `iova`, in pages as
/// large as the device and the memory allow.
pub(crate) fn region_pages(call: &Call<'_>, umem: &mut Umem, iova: u64) -> Result<PageListBuffer> {
    list(call, umem, call.data().limits.page_sizes.get(), iova).map(|(list, _)| list)
}

/// Lists the pages of `umem` and says where in the first it begins.
fn list(
    call: &Call<'_>,
    umem: &mut Umem,
    sizes: u64,
    iova: u64,
) -> Result<(PageListBuffer, usize)> {
    let length = umem.len() as u64;
    let pages = umem.pages(sizes, iova)?;
    let list = PageListBuffer::new(
        call.data().dma(),
        pages.iter(),
        u8::try_from(pages.shift())?,
        pages.offset() as u64,
        length,
    )?;
    Ok((list, pages.offset()))
}
