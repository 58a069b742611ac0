// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Page lists: converts the guest's description of a buffer to host ranges.

use crate::{
    buffer::{Buffer, BufferBuilder},
    cause::Cause,
    memory::{GuestAddress, Memory},
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    U32, U64,
    memory::{CHUNK_PAGES, CHUNK_SIZE, MAX_PAGE_SHIFT, MIN_PAGE_SHIFT, PageList},
};
use zerocopy::{FromBytes, IntoBytes};

/// Mask of the address bits that are 0 in the address of a chunk.
const CHUNK_MASK: u64 = CHUNK_SIZE as u64 - 1;

/// Fields of a [`PageListChunk`](vrnic_wire::memory::PageListChunk) before its pages.
#[derive(Default, FromBytes, IntoBytes)]
#[repr(C)]
struct ChunkHead {
    next: U64,
    count: U32,
    reserved: U32,
}

/// Shape of a page list that has been checked for consistency.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Size of a page in bytes.
    pub(crate) page_size: u64,
    /// Offset of the buffer in its first page.
    pub(crate) offset: u64,
    /// Length of the buffer in bytes.
    pub(crate) length: u64,
    /// Number of pages.
    pub(crate) pages: u64,
}

/// Checks the header of a page list.
pub(crate) fn check(list: &PageList) -> Result<Shape, Cause> {
    if list.reserved != [0; 3] {
        return Err(Cause::ReservedField);
    }
    if !(MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(&list.page_shift) {
        return Err(Cause::PageListShape);
    }
    let page_size = 1u64 << list.page_shift;
    let offset = list.offset.get();
    let length = list.length.get();
    let pages = u64::from(list.page_count.get());
    let end = offset.checked_add(length).ok_or(Cause::PageListShape)?;
    let needed = if length == 0 {
        0
    } else {
        end.div_ceil(page_size)
    };
    if offset >= page_size || needed != pages {
        return Err(Cause::PageListShape);
    }
    Ok(Shape {
        page_size,
        offset,
        length,
        pages,
    })
}

/// Conversion of a page list to host ranges, in steps.
///
/// Time and memory are proportional to the page count, which [`check`] ties to the length. Chains that loop or end
/// early do not change that. Each step takes a bounded time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resolver {
    page_size: u64,
    builder: BufferBuilder,
    /// Address of the next chunk.
    next: u64,
    /// Number of pages left.
    left: u64,
    /// Bytes of the next page that precede the buffer.
    skip: u64,
    /// Bytes of the buffer left.
    missing: u64,
}

impl Resolver {
    /// Starts the conversion of the list of a buffer with at most `max_length` bytes.
    pub(crate) fn new(list: &PageList, max_length: u64) -> Result<Self, Cause> {
        let shape = check(list)?;
        if shape.length > max_length {
            return Err(Cause::RegionLength);
        }
        Ok(Self {
            page_size: shape.page_size,
            builder: BufferBuilder::default(),
            next: list.first_chunk.get(),
            left: shape.pages,
            skip: shape.offset,
            missing: shape.length,
        })
    }

    /// Returns the number of pages left.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Resolves chunks until at least `pages` pages have been handled or none is left. `max_translations` limits the
    /// number of host ranges for the whole buffer. Returns whether the conversion is done.
    pub(crate) fn advance<M: Memory>(
        &mut self,
        pages: u64,
        max_translations: usize,
        memory: &M,
    ) -> Result<bool, Cause> {
        let end = self.left.saturating_sub(pages);
        let mut chunk = [U64::ZERO; CHUNK_PAGES];
        while self.left > end {
            let count = read_chunk(&mut self.next, self.left, &mut chunk, memory)?;
            self.left -= count as u64;
            for page in &chunk[..count] {
                let page = page.get();
                if page & (self.page_size - 1) != 0 {
                    return Err(Cause::PageMisaligned);
                }
                let bytes = self.missing.min(self.page_size - self.skip);
                let range = memory
                    .resolve(GuestAddress(page + self.skip), bytes)
                    .ok_or(Cause::PageUnmapped)?;
                self.builder.push(range);
                self.missing -= bytes;
                self.skip = 0;
            }
            if self.builder.translations() > max_translations {
                return Err(Cause::TranslationsExhausted);
            }
        }
        Ok(self.left == 0)
    }

    /// Returns the buffer after the conversion is done.
    pub(crate) fn finish(self) -> Buffer {
        self.builder.finish()
    }
}

/// Reads the chunk at `next`, and sets `next` to the address of the following chunk. Returns the number of pages in the
/// chunk: at least 1 and at most `left`.
fn read_chunk<M: Memory>(
    next: &mut u64,
    left: u64,
    pages: &mut [U64; CHUNK_PAGES],
    memory: &M,
) -> Result<usize, Cause> {
    if *next & CHUNK_MASK != 0 {
        return Err(Cause::PageListChunk);
    }
    let chunk = memory
        .resolve(GuestAddress(*next), CHUNK_SIZE as u64)
        .ok_or(Cause::PageListUnmapped)?;
    let mut head = ChunkHead::default();
    memory
        .read(chunk, head.as_mut_bytes())
        .map_err(|_| Cause::PageListUnmapped)?;
    *next = head.next.get();
    if head.reserved.get() != 0 {
        return Err(Cause::ReservedField);
    }
    let count = head.count.get() as usize;
    if count == 0 || count > CHUNK_PAGES || count as u64 > left {
        return Err(Cause::PageListChunk);
    }
    let body = chunk
        .slice(size_of::<ChunkHead>() as u64, count as u64 * 8)
        .ok_or(Cause::PageListChunk)?;
    memory
        .read(body, pages[..count].as_mut_bytes())
        .map_err(|_| Cause::PageListUnmapped)?;
    Ok(count)
}
