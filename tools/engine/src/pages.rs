// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Pages of on-demand memory regions: which are present, which are wanted, and which queue pairs wait for them.

use crate::{
    cause::Cause,
    memory::{HostRange, RegionId},
    page_list::Shape,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, ops::Range};

/// Number of pages whose translations are allocated together, so that sparse regions take little memory.
const BLOCK: usize = 512;

/// Largest number of wants that are recorded. Others that need pages have to ask again.
const MAX_WANTS: usize = 64;

/// A present page, all of it in one host range.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Page {
    /// Location of the page.
    pub(crate) range: HostRange,
    /// Whether the page may be written.
    pub(crate) writable: bool,
}

/// Translations of [`BLOCK`] pages.
type Block = Box<[Option<Page>]>;

/// Pages that are needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Want {
    /// Numbers of the pages.
    pub(crate) pages: Range<u32>,
    /// Whether the pages will be written.
    pub(crate) write: bool,
}

/// Part of a queue pair that waits independently of the others.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Half {
    /// Sends posted requests and handles the responses.
    Requester,
    /// Handles the peer's requests.
    Responder,
    /// Sends the data that the peer reads.
    Reader,
}

impl Half {
    /// All parts.
    pub(crate) const ALL: [Self; 3] = [Self::Requester, Self::Responder, Self::Reader];
}

/// What waits for pages: the number of a queue pair, and the part of it.
pub(crate) type Waiter = (u32, Half);

/// The pages of a region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pages {
    shape: Shape,
    blocks: Vec<Option<Block>>,
    /// Number of blocks that are allocated.
    used: usize,
    /// Wants that the driver has not taken yet.
    wants: Vec<Want>,
    /// The want that the driver took last, until it answers.
    taken: Option<Want>,
    /// Queue pairs that wait for pages.
    waiting: BTreeSet<Waiter>,
    /// Blocks of guest memory with pages that are or were mapped writable.
    written: Vec<RegionId>,
}

impl Pages {
    /// Creates pages of this shape, none of which is present.
    pub(crate) fn new(shape: Shape) -> Self {
        let blocks = (shape.pages as usize).div_ceil(BLOCK);
        Self {
            blocks: std::iter::repeat_with(|| None).take(blocks).collect(),
            ..Self::absent(shape)
        }
    }

    /// Creates pages of this shape that are never mapped, however many there are.
    pub(crate) fn absent(shape: Shape) -> Self {
        Self {
            shape,
            blocks: Vec::new(),
            used: 0,
            wants: Vec::new(),
            taken: None,
            waiting: BTreeSet::new(),
            written: Vec::new(),
        }
    }

    /// Returns the length of the region in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.shape.length
    }

    /// Returns the number of pages.
    pub(crate) fn count(&self) -> u32 {
        // A page list has no more pages than 32 bits can count.
        self.shape.pages as u32
    }

    /// Returns the size of a page in bytes.
    pub(crate) fn page_size(&self) -> u64 {
        self.shape.page_size
    }

    /// Returns whether the region is `length` bytes long and begins on a page boundary, so that it can be a page
    /// itself.
    pub(crate) fn is_whole(&self, length: u64) -> bool {
        self.shape.offset == 0 && self.shape.length == length
    }

    /// Returns the number of host ranges for which there is room, plus the number of blocks needed to find them.
    pub(crate) fn translations(&self) -> usize {
        self.blocks.len() + self.used * BLOCK
    }

    /// Returns the pages `first..first + count`. There must be at least one, and all must be in the region.
    pub(crate) fn numbered(&self, first: u32, count: u32) -> Result<Range<u32>, Cause> {
        let end = first.checked_add(count).ok_or(Cause::PageNumber)?;
        if count == 0 || u64::from(end) > self.shape.pages {
            return Err(Cause::PageNumber);
        }
        Ok(first..end)
    }

    fn get(&self, page: u32) -> Option<&Page> {
        let page = page as usize;
        let block = self.blocks.get(page / BLOCK)?.as_ref()?;
        block[page % BLOCK].as_ref()
    }

    /// Returns the number of additional translations that mapping these pages would need.
    pub(crate) fn growth(&self, pages: &Range<u32>) -> usize {
        let first = pages.start as usize / BLOCK;
        let last = (pages.end as usize).div_ceil(BLOCK);
        let missing = self.blocks[first..last]
            .iter()
            .filter(|block| block.is_none());
        missing.count() * BLOCK
    }

    /// Returns the blocks of guest memory in which peers may have written, including those of pages that are gone.
    pub(crate) fn written(&self) -> &[RegionId] {
        &self.written
    }

    /// Maps a page.
    pub(crate) fn map(&mut self, number: u32, page: Page) {
        if page.writable && !self.written.contains(&page.range.region) {
            self.written.push(page.range.region);
        }
        let number = number as usize;
        let used = &mut self.used;
        if let Some(block) = self.blocks.get_mut(number / BLOCK) {
            let block = block.get_or_insert_with(|| {
                *used += 1;
                vec![None; BLOCK].into()
            });
            block[number % BLOCK] = Some(page);
        }
    }

    /// Unmaps pages until it has looked at `left` pages, or as many blocks without pages. Subtracts these from `left`.
    /// Returns how many pages were present, and where the rest begins.
    pub(crate) fn unmap(&mut self, pages: Range<u32>, left: &mut u64) -> (u64, u32) {
        let mut gone = 0;
        let (mut at, end) = (pages.start as usize, pages.end as usize);
        while at < end && *left > 0 {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            *left -= 1;
            if let Some(Some(block)) = self.blocks.get_mut(at / BLOCK) {
                *left = left.saturating_sub((next - at) as u64 - 1);
                for page in &mut block[at % BLOCK..at % BLOCK + next - at] {
                    gone += u64::from(page.take().is_some());
                }
                if block.iter().all(Option::is_none) {
                    self.blocks[at / BLOCK] = None;
                    self.used -= 1;
                }
            }
            at = next;
        }
        (gone, at as u32)
    }

    /// Returns the numbers of the pages with the `length` bytes, at least 1, at `offset`.
    fn numbers(&self, offset: u64, length: u64) -> Range<u32> {
        let start = self.shape.offset + offset;
        let first = start / self.shape.page_size;
        let end = (start + length).div_ceil(self.shape.page_size);
        // A page list has no more pages than 32 bits can count.
        first as u32..end as u32
    }

    /// Appends the host ranges of the `length` bytes at `offset`, which must lie in the region. If pages are missing,
    /// returns these and appends nothing.
    pub(crate) fn ranges(
        &self,
        offset: u64,
        length: u64,
        write: bool,
        ranges: &mut Vec<HostRange>,
    ) -> Result<(), Want> {
        let before = ranges.len();
        let mut at = self.shape.offset + offset;
        let end = at + length;
        for number in self.numbers(offset, length) {
            let page = self.get(number).filter(|page| page.writable || !write);
            let skip = at & (self.shape.page_size - 1);
            let bytes = (end - at).min(self.shape.page_size - skip);
            let Some(range) = page.and_then(|page| page.range.slice(skip, bytes)) else {
                ranges.truncate(before);
                return Err(self.missing(offset, length, write).unwrap_or(Want {
                    pages: number..number + 1,
                    write,
                }));
            };
            match ranges[before..].last_mut() {
                Some(last) if last.is_followed_by(&range) => last.length += range.length,
                _ => ranges.push(range),
            }
            at += bytes;
        }
        Ok(())
    }

    /// Returns the missing pages of the `length` bytes at `offset`, which must lie in the region: from the first
    /// missing page to the last.
    pub(crate) fn missing(&self, offset: u64, length: u64, write: bool) -> Option<Want> {
        if length == 0 {
            return None;
        }
        let lacks = |&number: &u32| !self.get(number).is_some_and(|page| page.writable || !write);
        let mut numbers = self.numbers(offset, length);
        let first = numbers.find(lacks)?;
        let last = numbers.rfind(lacks).unwrap_or(first);
        let pages = first..last + 1;
        Some(Want { pages, write })
    }

    /// Makes `waiter` wait for pages. Returns whether there is a new want for the driver to take.
    pub(crate) fn want(&mut self, want: &Want, waiter: Waiter) -> bool {
        self.waiting.insert(waiter);
        let covers = |other: &Want| {
            other.pages.start <= want.pages.start
                && want.pages.end <= other.pages.end
                && (other.write || !want.write)
        };
        if self.wants.iter().chain(&self.taken).any(covers) {
            return false;
        }
        // If there is no room for the want, the waiter waits until any page comes, and then asks again.
        let heard = self.wants.len() < MAX_WANTS;
        if heard {
            self.wants.push(want.clone());
        }
        heard
    }

    /// Returns the pages that the driver has to supply next.
    pub(crate) fn take_want(&mut self) -> Option<Want> {
        let want = (!self.wants.is_empty()).then(|| self.wants.remove(0))?;
        self.taken = Some(want.clone());
        Some(want)
    }

    /// Handles the driver's answer: returns those that waited, and stops their waiting.
    pub(crate) fn wake(&mut self) -> Vec<Waiter> {
        self.taken = None;
        std::mem::take(&mut self.waiting).into_iter().collect()
    }

    /// Stops `waiter` from waiting.
    pub(crate) fn forget(&mut self, waiter: Waiter) {
        self.waiting.remove(&waiter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionId;

    fn pages() -> Pages {
        Pages::new(Shape {
            page_size: 4096,
            offset: 100,
            length: 3 * 4096,
            pages: 4,
        })
    }

    fn page(offset: u64, writable: bool) -> Page {
        Page {
            range: HostRange {
                region: RegionId(0),
                offset,
                length: 4096,
            },
            writable,
        }
    }

    fn want(pages: Range<u32>, write: bool) -> Want {
        Want { pages, write }
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut pages = pages();
        assert_eq!(pages.missing(0, 1, false), Some(want(0..1, false)));
        pages.map(0, page(0, false));
        pages.map(1, page(4096, true));
        pages.map(3, page(0, true));
        assert_eq!(pages.missing(0, 1, false), None);
        assert_eq!(pages.missing(0, 1, true), Some(want(0..1, true)));
        assert_eq!(pages.missing(0, 3 * 4096, true), Some(want(0..3, true)));
        assert_eq!(pages.missing(0, 3 * 4096, false), Some(want(2..3, false)));
        assert_eq!(pages.missing(4095, 0, true), None);
        assert_eq!(pages.translations(), 1 + BLOCK);
        assert_eq!(pages.unmap(0..4, &mut 4), (3, 4));
        assert_eq!(pages.translations(), 1);
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut pages = pages();
        for number in 0..3 {
            pages.map(number, page(u64::from(number) * 4096, true));
        }
        pages.map(3, page(0, true));
        let mut ranges = Vec::new();
        assert_eq!(pages.ranges(10, 3 * 4096 - 10, true, &mut ranges), Ok(()));
        let expected = [(110, 3 * 4096 - 110), (0, 100)];
        assert_eq!(ranges.len(), expected.len());
        for (range, (offset, length)) in ranges.iter().zip(expected) {
            assert_eq!((range.offset, range.length), (offset, length));
        }
        assert_eq!(pages.unmap(3..4, &mut 1), (1, 4));
        assert_eq!(
            pages.ranges(10, 3 * 4096 - 10, true, &mut ranges),
            Err(want(3..4, true))
        );
        assert_eq!(ranges.len(), expected.len(), "appends nothing");
    }

    #[test]
    fn pages_go_in_parts() {
        const BLOCKS: u64 = 5;
        let mut pages = Pages::new(Shape {
            page_size: 4096,
            offset: 0,
            length: BLOCKS * BLOCK as u64 * 4096,
            pages: BLOCKS * BLOCK as u64,
        });
        let (block, all) = (BLOCK as u32, pages.count());
        (block..2 * block).for_each(|number| pages.map(number, page(0, true)));
        assert_eq!(
            pages.unmap(0..all, &mut 1),
            (0, block),
            "no pages to look at"
        );
        assert_eq!(pages.unmap(0..all, &mut 2), (512, 2 * block));
        assert_eq!(pages.unmap(2 * block..all, &mut 2), (0, 4 * block));
        assert_eq!(pages.unmap(4 * block..all - 3, &mut 9), (0, all - 3));
        assert_eq!(pages.translations(), BLOCKS as usize);
    }

    #[test]
    fn page_numbers_are_checked() {
        let pages = pages();
        assert_eq!(pages.numbered(0, 4), Ok(0..4));
        for (first, count) in [(0, 0), (0, 5), (4, 1), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(pages.numbered(first, count), Err(Cause::PageNumber));
        }
    }

    #[test]
    fn the_same_is_asked_for_once() {
        let mut pages = pages();
        let waiter = |qpn| (qpn, Half::Requester);
        assert!(pages.want(&want(0..3, true), waiter(1)));
        assert!(!pages.want(&want(1..2, false), waiter(2)));
        assert!(pages.want(&want(1..4, false), waiter(2)));
        assert_eq!(pages.take_want(), Some(want(0..3, true)));
        assert!(!pages.want(&want(1..2, true), waiter(3)), "on its way");
        assert_eq!(pages.take_want(), Some(want(1..4, false)));
        assert!(pages.want(&want(1..2, true), waiter(3)));
        assert_eq!(pages.take_want(), Some(want(1..2, true)));
        assert_eq!(pages.take_want(), None);
        pages.forget(waiter(2));
        let mut woken: Vec<u32> = pages.wake().iter().map(|(qpn, _)| *qpn).collect();
        woken.sort_unstable();
        assert_eq!(woken, [1, 3]);
        assert!(pages.want(&want(1..2, true), waiter(3)), "asked once more");
        for number in 0..1000u32 {
            pages.want(&want(number..number + 1, true), waiter(number));
        }
        assert_eq!(pages.wants.len(), MAX_WANTS);
    }
}
