// SPDX-License-Identifier: GPL-2.0

//! Page lists, which commands use to describe memory of processes, of the kernel, or shared by
//! both.

use kernel::{
    dma::DmaAddress,
    page::PAGE_SHIFT,
    prelude::*, //
};
use rdma::{
    access::Access,
    umem::Buffer,
    Umem,
    UserPages, //
};
use virtio::{
    Dma,
    SharedMemory, //
};
use vrnic_wire::memory::{
    PageList,
    PageListChunk,
    CHUNK_PAGES,
    CHUNK_SIZE,
    MIN_PAGE_SHIFT, //
};

use crate::device::Call;

/// A page list in memory that the device can read, which lives as long as a command needs it.
pub(crate) struct PageListBuffer {
    list: PageList,
    _chunks: Option<SharedMemory>,
}

impl PageListBuffer {
    /// Creates a list without pages.
    pub(crate) fn empty() -> Self {
        Self {
            list: PageList {
                page_shift: MIN_PAGE_SHIFT,
                ..PageList::default()
            },
            _chunks: None,
        }
    }

    /// Creates a list of `pages` of two to the power of `page_shift` bytes.
    ///
    /// The memory starts `offset` bytes into the first page and has `length` bytes. `EINVAL` if
    /// this does not match the number of pages.
    pub(crate) fn new(
        dma: &Dma,
        pages: impl ExactSizeIterator<Item = DmaAddress>,
        page_shift: u8,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        let count = pages.len();
        if needed_pages(page_shift, offset, length) != Some(count as u64) {
            return Err(EINVAL);
        }

        let chunk_count = count.div_ceil(CHUNK_PAGES);
        let chunks = SharedMemory::new(dma, chunk_count * CHUNK_SIZE)?;
        write_chunks(chunks.dma_pages(), pages, |offset, word| {
            chunks.write(offset, &word.to_le_bytes())
        })?;

        let first_chunk = chunks.dma_pages().next().ok_or(EINVAL)?;
        Ok(Self {
            list: PageList {
                first_chunk: first_chunk.into(),
                offset: offset.into(),
                length: length.into(),
                page_count: u32::try_from(count)?.into(),
                page_shift,
                reserved: [0; 3],
            },
            _chunks: Some(chunks),
        })
    }

    /// Creates a list of all pages of `memory`.
    pub(crate) fn of_shared(dma: &Dma, memory: &SharedMemory) -> Result<Self> {
        const SHIFT: u8 = SharedMemory::PAGE_SIZE.ilog2() as u8;

        Self::new(dma, memory.dma_pages(), SHIFT, 0, memory.len() as u64)
    }

    /// Returns the list in the format of commands.
    pub(crate) fn list(&self) -> PageList {
        self.list
    }
}

/// Returns the number of pages for `length` bytes that start `offset` bytes into the first page.
fn needed_pages(page_shift: u8, offset: u64, length: u64) -> Option<u64> {
    let page = 1u64.checked_shl(page_shift.into())?;
    if length == 0 || offset >= page {
        return None;
    }
    Some(offset.checked_add(length)?.div_ceil(page))
}

/// Writes the chunks of a list of `pages`.
///
/// `addresses` are those of the chunks. `write` stores a word at an offset from the start of the
/// first chunk, as if the chunks were contiguous.
fn write_chunks(
    mut addresses: impl ExactSizeIterator<Item = DmaAddress>,
    mut pages: impl ExactSizeIterator<Item = DmaAddress>,
    mut write: impl FnMut(usize, u64) -> Result,
) -> Result {
    // A `PageListChunk` on the stack would take a whole page.
    const HEADER: usize = core::mem::offset_of!(PageListChunk, pages);
    const WORD: usize = size_of::<u64>();

    for chunk in (0..addresses.len()).map(|i| i * CHUNK_SIZE) {
        let count = pages.len().min(CHUNK_PAGES);

        // The previous chunk, or the command for the first one, contains the address of this chunk.
        let address = addresses.next().ok_or(EINVAL)?;
        if let Some(previous) = chunk.checked_sub(CHUNK_SIZE) {
            write(previous, address)?;
        }
        write(chunk + WORD, count as u64)?;
        for (i, page) in pages.by_ref().take(count).enumerate() {
            write(chunk + HEADER + i * WORD, page)?;
        }
    }
    Ok(())
}

/// Pins the buffer of a new object, which holds the object's rings, and creates its page list. The
/// buffer is `length` bytes at `address`, unless the call describes another one. It must start at a
/// page boundary (`EINVAL`).
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

/// Like [`pin_buffer`], for an object that moves to a new ring.
pub(crate) fn pin_ring(
    call: &Call<'_>,
    address: u64,
    length: u64,
) -> Result<(Umem, PageListBuffer)> {
    let length = usize::try_from(length)?;
    let umem = Umem::get(call, address, length, Access::LocalWrite.into())?;
    list_ring(call, umem)
}

/// Creates the page list of a buffer that holds rings.
fn list_ring(call: &Call<'_>, mut umem: Umem) -> Result<(Umem, PageListBuffer)> {
    let address = umem.address();
    let (pages, offset) = list(call, &mut umem, 1 << MIN_PAGE_SHIFT, address)?;
    if offset != 0 {
        return Err(EINVAL);
    }
    Ok((umem, pages))
}

/// Creates the page list of the first `length` bytes of a notify area.
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

/// Creates the page list of a memory region whose first byte has the address `iova`, with the
/// largest pages that the device and the memory allow.
pub(crate) fn region_pages(call: &Call<'_>, umem: &mut Umem, iova: u64) -> Result<PageListBuffer> {
    list(call, umem, call.data().limits.page_sizes.get(), iova).map(|(list, _)| list)
}

/// Creates the page list of `umem`, and returns it with the offset in the first page.
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

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_page_list)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_as_the_standard_says() {
        assert_eq!(needed_pages(12, 0, 1), Some(1));
        assert_eq!(needed_pages(12, 4095, 1), Some(1));
        assert_eq!(needed_pages(12, 4095, 2), Some(2));
        assert_eq!(needed_pages(12, 0, 8192), Some(2));
        assert_eq!(needed_pages(21, 4096, 1 << 21), Some(2));
        assert_eq!(needed_pages(12, 4096, 1), None);
        assert_eq!(needed_pages(12, 0, 0), None);
        assert_eq!(needed_pages(64, 0, 1), None);
        assert_eq!(needed_pages(12, 1, u64::MAX), None);
    }

    #[test]
    fn a_long_list_is_a_chain_of_chunks() -> Result {
        const COUNT: usize = CHUNK_PAGES + 3;

        let mut memory = KVec::from_elem(0u8, 2 * CHUNK_SIZE, GFP_KERNEL)?;
        write_chunks(
            [0xa000, 0xc000].into_iter(),
            (0..COUNT).map(|i| (i as u64 + 1) << 12),
            |offset, word| {
                let end = offset + size_of::<u64>();
                let to = memory.get_mut(offset..end).ok_or(EINVAL)?;
                to.copy_from_slice(&word.to_le_bytes());
                Ok(())
            },
        )?;

        let (first, rest) = PageListChunk::ref_from_prefix(&memory).map_err(|_| EINVAL)?;
        let (second, _) = PageListChunk::ref_from_prefix(rest).map_err(|_| EINVAL)?;
        assert_eq!(first.next.get(), 0xc000);
        assert_eq!(first.count.get(), 510);
        assert_eq!(first.reserved.get(), 0);
        assert_eq!(first.pages[0].get(), 1 << 12);
        assert_eq!(first.pages[509].get(), 510 << 12);
        assert_eq!(second.next.get(), 0);
        assert_eq!(second.count.get(), 3);
        assert_eq!(second.pages[2].get(), 513 << 12);
        assert_eq!(second.pages[3].get(), 0);
        Ok(())
    }
}
