// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about the pages of on-demand memory regions.

use super::{Execute, PAGES_AT_ONCE, done};
use crate::{
    cause::Cause,
    keys::index_of,
    memory::{GuestAddress, Memory},
    pages::{Page, Pages},
    region::RegionMemory,
    resources::Io,
    rnic::Engine,
};
use std::ops::Range;
use vrnic_wire::{
    U64,
    command::{
        AttachRegion, Empty, MapPages, PageFault, RefusePages, TakePageFault, UnmapPages,
        fault_flags,
    },
    counter::Counter,
    memory::{CHUNK_SIZE, TABLE_PAGES, page_flags},
};
use zerocopy::IntoBytes;

/// Bits of a table entry that are not part of the address.
const FLAG_BITS: u64 = CHUNK_SIZE as u64 - 1;

impl Engine {
    /// Returns the pages of a region that a command names.
    pub(super) fn pages_mut(&mut self, pd: u32, key: u32) -> Result<&mut Pages, Cause> {
        if !self.config.features.on_demand_paging {
            return Err(Cause::CommandCode);
        }
        self.resources.keys.pages_mut(pd, key)
    }

    /// Returns whether the pages of a region are other regions.
    fn is_nested(&self, key: u32) -> bool {
        let region = self.resources.keys.region(key);
        region.is_some_and(|region| matches!(region.memory, RegionMemory::Nested(_)))
    }

    /// Changes pages of a region and updates the number of translations.
    fn change_pages<R>(
        &mut self,
        pd: u32,
        key: u32,
        change: impl FnOnce(&mut Pages) -> R,
    ) -> Result<R, Cause> {
        let pages = self.pages_mut(pd, key)?;
        let before = pages.translations();
        let result = change(pages);
        let after = pages.translations();
        self.translations = self.translations - before + after;
        Ok(result)
    }

    /// Removes a part of these pages of a region. Returns how many were there, and where the rest begins.
    pub(super) fn remove_pages(
        &mut self,
        pd: u32,
        key: u32,
        pages: Range<u32>,
    ) -> Result<(u64, u32), Cause> {
        let mut left = PAGES_AT_ONCE;
        let removed = if self.is_nested(key) {
            self.resources.keys.detach(key, &pages, &mut left)
        } else {
            self.change_pages(pd, key, |own| own.unmap(pages, &mut left))?
        };
        self.effort += PAGES_AT_ONCE - left;
        Ok(removed)
    }

    /// Does a part of an [`UnmapPages`]. Returns where the rest begins, if there is one.
    pub(super) fn unmap_part(&mut self, wanted: &UnmapPages, begun: Option<u32>) -> Option<u32> {
        let (pd, key) = (wanted.pd.get(), wanted.key.get());
        let (first, count) = (wanted.first_page.get(), wanted.page_count.get());
        let all = self.pages_mut(pd, key).ok()?.numbered(first, count).ok()?;
        let rest = begun.unwrap_or(all.start)..all.end;
        let (gone, next) = self.remove_pages(pd, key, rest).ok()?;
        self.resources
            .counters
            .add(Counter::PageInvalidations, gone);
        (next < all.end).then_some(next)
    }

    /// Handles the driver's answer about pages of a region: what waits for a page checks again. Work that needs a page
    /// in `refused` will fail.
    pub(super) fn wake_waiters(&mut self, pd: u32, key: u32, refused: Option<&Range<u32>>) {
        let Ok(pages) = self.pages_mut(pd, key) else {
            return;
        };
        for (qpn, half) in pages.wake() {
            if let Some(refused) = refused
                && let Some(qp) = self.qps.get_mut(qpn)
            {
                qp.deny(half, index_of(key), refused);
            }
            self.qps.schedule(qpn);
        }
    }
}

/// Reads the entries of a table: the page of each, or nothing if the entry has none.
fn read_table<M: Memory>(
    address: u64,
    count: usize,
    page_size: u64,
    memory: &M,
) -> Result<Vec<Option<Page>>, Cause> {
    let mut entries = [U64::ZERO; TABLE_PAGES];
    let entries = &mut entries[..count];
    if address & FLAG_BITS != 0 {
        return Err(Cause::PageListChunk);
    }
    let table = memory
        .resolve(GuestAddress(address), size_of_val(entries) as u64)
        .ok_or(Cause::PageListUnmapped)?;
    memory
        .read(table, entries.as_mut_bytes())
        .map_err(|_| Cause::PageListUnmapped)?;
    let page = |entry: &U64| {
        let (address, flags) = (entry.get() & !FLAG_BITS, entry.get() & FLAG_BITS);
        if flags & page_flags::PRESENT == 0 {
            return Ok(None);
        }
        let unknown = flags & !(page_flags::PRESENT | page_flags::WRITABLE) != 0;
        if unknown || address & (page_size - 1) != 0 {
            return Err(Cause::PageMisaligned);
        }
        let range = memory.resolve(GuestAddress(address), page_size);
        Ok(Some(Page {
            range: range.ok_or(Cause::PageUnmapped)?,
            writable: flags & page_flags::WRITABLE != 0,
        }))
    };
    entries.iter().map(page).collect()
}

impl Execute for TakePageFault {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<PageFault, Cause> {
        let pages = rnic.pages_mut(self.pd.get(), self.key.get())?;
        let want = pages.take_want();
        Ok(want.map_or_else(PageFault::default, |want| PageFault {
            first_page: want.pages.start.into(),
            page_count: (want.pages.end - want.pages.start).into(),
            flags: if want.write { fault_flags::WRITE } else { 0 }.into(),
            reserved: 0.into(),
        }))
    }
}

impl Execute for MapPages {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let (pd, key) = (self.pd.get(), self.key.get());
        if rnic.is_nested(key) {
            return Err(Cause::NestedPage);
        }
        let pages = rnic.pages_mut(pd, key)?;
        let numbers = pages.numbered(self.first_page.get(), self.page_count.get())?;
        if numbers.len() > TABLE_PAGES {
            return Err(Cause::PageNumber);
        }
        let (page_size, growth) = (pages.page_size(), pages.growth(&numbers));
        rnic.effort += numbers.len() as u64;
        let table = read_table(self.table.get(), numbers.len(), page_size, io.memory)?;
        if rnic.translations + growth > rnic.config.limits.translations {
            return Err(Cause::TranslationsExhausted);
        }
        rnic.change_pages(pd, key, |pages| {
            for (number, page) in numbers.zip(table) {
                if let Some(page) = page {
                    pages.map(number, page);
                }
            }
        })?;
        rnic.wake_waiters(pd, key, None);
        done()
    }
}

impl Execute for UnmapPages {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let (pd, key) = (self.pd.get(), self.key.get());
        // The pages themselves are gone by now.
        (rnic.pages_mut(pd, key)?).numbered(self.first_page.get(), self.page_count.get())?;
        done()
    }
}

impl Execute for RefusePages {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let (pd, key) = (self.pd.get(), self.key.get());
        let numbers =
            (rnic.pages_mut(pd, key)?).numbered(self.first_page.get(), self.page_count.get())?;
        rnic.wake_waiters(pd, key, Some(&numbers));
        done()
    }
}

impl Execute for AttachRegion {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.nested_paging {
            return Err(Cause::CommandCode);
        }
        let (pd, key) = (self.pd.get(), self.key.get());
        let page = self.page.get();
        (rnic.pages_mut(pd, key)?).numbered(page, 1)?;
        rnic.resources
            .keys
            .attach(pd, key, page, self.region.get())?;
        rnic.wake_waiters(pd, key, None);
        done()
    }
}
