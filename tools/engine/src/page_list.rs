// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Page lists: from the guest's description of a buffer to host ranges.

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

/// Smallest chunk address alignment, as a mask.
const CHUNK_MASK: u64 = CHUNK_SIZE as u64 - 1;

/// What a [`PageListChunk`](vrnic_wire::memory::PageListChunk) has before its pages.
#[derive(Default, FromBytes, IntoBytes)]
#[repr(C)]
struct ChunkHead {
    next: U64,
    count: U32,
    reserved: U32,
}

/// A page list that has been found consistent.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Bytes of a page.
    pub(crate) page_size: u64,
    /// Where in its first page the buffer begins.
    pub(crate) offset: u64,
    /// Bytes of the buffer.
    pub(crate) length: u64,
    /// Pages.
    pub(crate) pages: u64,
}

/// Checks what a page list says of itself.
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

/// A page list on its way to host ranges.
///
/// Time and memory are proportional to the page count, which [`check`] ties to the length; chains
/// that loop or end early do not change that. A part of the way takes a bounded time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resolver {
    page_size: u64,
    builder: BufferBuilder,
    /// Address of the next chunk.
    next: u64,
    /// Pages to come.
    left: u64,
    /// Bytes of the next page before the buffer.
    skip: u64,
    /// Bytes of the buffer to come.
    missing: u64,
}

impl Resolver {
    /// Begins with a list of a buffer of at most `max_length` bytes.
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

    /// Resolves chunks until at least `pages` pages were seen or none is left. `max_translations`
    /// bounds the host ranges that the whole buffer may need. Whether it is done.
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

    /// The buffer, when it is done.
    pub(crate) fn finish(self) -> Buffer {
        self.builder.finish()
    }
}

/// Reads the chunk at `next`, which becomes the address of the one after it. Gives the number of
/// pages: at least 1 and at most `left`.
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
