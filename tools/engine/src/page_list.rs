// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Page lists: from the guest's description of a buffer to host ranges.

use crate::{
    buffer::{Buffer, BufferBuilder},
    cause::Cause,
    memory::{GuestAddress, Memory},
};
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
#[derive(Copy, Clone, Debug)]
struct Shape {
    page_size: u64,
    offset: u64,
    length: u64,
    pages: u64,
}

/// Checks what a page list says of itself.
fn check(list: &PageList) -> Result<Shape, Cause> {
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
    if offset >= page_size || length == 0 || end.div_ceil(page_size) != pages {
        return Err(Cause::PageListShape);
    }
    Ok(Shape {
        page_size,
        offset,
        length,
        pages,
    })
}

/// Walks a page list and resolves its pages. `max_translations` bounds the host ranges that the
/// buffer may need, and with them the work.
///
/// Time and memory are proportional to the page count, which [`check`] ties to the length; chains
/// that loop or end early do not change that.
pub(crate) fn resolve<M: Memory>(
    list: &PageList,
    max_length: u64,
    max_translations: usize,
    memory: &M,
) -> Result<Buffer, Cause> {
    let shape = check(list)?;
    if shape.length > max_length {
        return Err(Cause::RegionLength);
    }

    let mut builder = BufferBuilder::default();
    let mut pages = [U64::ZERO; CHUNK_PAGES];
    let mut next = list.first_chunk.get();
    let mut left = shape.pages;
    let mut skip = shape.offset;
    let mut missing = shape.length;
    while left > 0 {
        let count = read_chunk(&mut next, left, &mut pages, memory)?;
        left -= count as u64;
        for page in &pages[..count] {
            let page = page.get();
            if page & (shape.page_size - 1) != 0 {
                return Err(Cause::PageMisaligned);
            }
            let bytes = missing.min(shape.page_size - skip);
            let range = memory
                .resolve(GuestAddress(page + skip), bytes)
                .ok_or(Cause::PageUnmapped)?;
            builder.push(range);
            missing -= bytes;
            skip = 0;
        }
        if builder.translations() > max_translations {
            return Err(Cause::TranslationsExhausted);
        }
    }
    Ok(builder.finish())
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
