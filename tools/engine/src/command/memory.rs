// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about memory regions and windows, and the page lists of all commands.

use super::{Execute, PAGES_AT_ONCE, done, reserved};
use crate::{
    buffer::Buffer,
    cause::Cause,
    event::names_region,
    memory::{HostRange, Memory},
    page_list::{self, Resolver},
    pages::Pages,
    persistence,
    region::{Nested, Region, RegionMemory, check_extent, check_rights},
    resources::Io,
    rnic::Engine,
    state::wire,
    window::Window,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vrnic_wire::{
    command::{
        AllocateIntegrityMr, AllocateMr, AllocateMw, ContextKind, DeallocateMw, DeregisterMr,
        Empty, MrRegistered, MwAllocated, MwType, RegisterMr, ReregisterMr, mr_flags,
        reregister_flags,
    },
    integrity::table_length,
    memory::{PageList, TABLE_ENTRY_LENGTH, access},
};
use zerocopy::IntoBytes;

/// A page list that is being resolved, or the result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resolution {
    #[serde(with = "wire")]
    list: PageList,
    state: Result<Resolver, Cause>,
}

impl Resolution {
    fn new(list: &PageList, max_length: u64) -> Self {
        Self {
            list: *list,
            state: Resolver::new(list, max_length),
        }
    }

    /// Returns the number of pages left.
    fn left(&self) -> u64 {
        self.state.as_ref().map_or(0, Resolver::left)
    }

    /// Returns whether this is the resolution of `list`.
    fn is_of(&self, list: &PageList) -> bool {
        self.list.as_bytes() == list.as_bytes()
    }

    /// Continues with up to `pages` pages. Returns whether it is finished or has failed.
    fn advance<M: Memory>(&mut self, pages: u64, max_translations: usize, memory: &M) -> bool {
        let Ok(resolver) = &mut self.state else {
            return true;
        };
        match resolver.advance(pages, max_translations, memory) {
            Ok(done) => done,
            Err(cause) => {
                self.state = Err(cause);
                true
            }
        }
    }

    fn finish(self) -> Result<Buffer, Cause> {
        self.state.map(Resolver::finish)
    }
}

impl Engine {
    /// Resolves a page list to a buffer. Part or all of it may have been resolved in advance.
    pub(super) fn resolve_buffer<M: Memory>(
        &mut self,
        list: &PageList,
        io: &Io<'_, M>,
    ) -> Result<Buffer, Cause> {
        let mut resolution = match self.resolution.take() {
            Some(begun) if begun.is_of(list) => begun,
            _ => Resolution::new(list, self.config.limits.mr_size),
        };
        while !resolution.advance(u64::MAX, self.translations_left(), io.memory) {}
        resolution.finish()
    }

    /// Resolves a part of a page list in advance. Returns whether nothing is left to do.
    pub(super) fn resolve_part<M: Memory>(&mut self, list: &PageList, io: &Io<'_, M>) -> bool {
        let left = self.translations_left();
        let resolution = match &mut self.resolution {
            Some(begun) if begun.is_of(list) => begun,
            other => other.insert(Resolution::new(list, self.config.limits.mr_size)),
        };
        let before = resolution.left();
        let done = resolution.advance(PAGES_AT_ONCE, left, io.memory);
        self.effort += before - resolution.left();
        done
    }

    /// Creates the pages for a list with this shape, none of which is present.
    fn pages_without_memory(&self, list: &PageList, nested: bool) -> Result<Pages, Cause> {
        if list.first_chunk.get() != 0 {
            return Err(Cause::ReservedField);
        }
        let shape = page_list::check(list)?;
        if nested && shape.offset != 0 {
            return Err(Cause::PageListShape);
        }
        // A nested region need not be limited in length: it is limited by its pages, which are regions.
        if shape.length == 0 || !nested && shape.length > self.config.limits.mr_size {
            return Err(Cause::RegionLength);
        }
        let pages = if nested {
            Pages::absent(shape)
        } else {
            Pages::new(shape)
        };
        if pages.translations() > self.translations_left() {
            return Err(Cause::TranslationsExhausted);
        }
        Ok(pages)
    }

    fn translations_left(&self) -> usize {
        let limit = self.config.limits.translations;
        limit.saturating_sub(self.translations)
    }

    /// Adds a region to its protection domain.
    fn add_region(&mut self, region: Region) -> Result<MrRegistered, Cause> {
        let (pd, translations) = (region.pd, region.translations());
        let keys = &mut self.resources.keys;
        let key = keys.insert_region(region).ok_or(Cause::LimitReached)?;
        self.translations += translations;
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
        Ok(MrRegistered {
            key: key.into(),
            reserved: 0.into(),
        })
    }

    /// Changes a region and returns its key, which is a new one if its memory changes.
    fn change_region(
        &mut self,
        key: u32,
        pd: u32,
        access: u32,
        iova: u64,
        changed: Option<RegionMemory>,
        flush_ranges: Vec<HostRange>,
    ) -> Result<u32, Cause> {
        let keys = &mut self.resources.keys;
        let region = keys.region_mut(key).ok_or(Cause::UnknownKey)?;
        let old_pd = std::mem::replace(&mut region.pd, pd);
        region.access = access;
        region.iova = iova;
        region.flush_ranges = flush_ranges;
        let mut new_key = key;
        if let Some(memory) = changed {
            self.translations -= region.translations();
            region.memory = memory;
            self.translations += region.translations();
            // There is room, because the region has just been removed.
            let region = keys.remove_region(key).ok_or(Cause::UnknownKey)?;
            new_key = keys.insert_region(region).ok_or(Cause::LimitReached)?;
        }
        if let Some(old) = self.pds.get_mut(old_pd) {
            old.users -= 1;
        }
        if let Some(new) = self.pds.get_mut(pd) {
            new.users += 1;
        }
        Ok(new_key)
    }

    /// Resolves the page list of rings, a table or a notify area, which must begin on a page boundary.
    pub(super) fn resolve_ring_buffer<M: Memory>(
        &mut self,
        list: &PageList,
        io: &Io<'_, M>,
    ) -> Result<Buffer, Cause> {
        if list.offset.get() != 0 || list.length.get() == 0 {
            return Err(Cause::PageListShape);
        }
        self.resolve_buffer(list, io)
    }
}

impl Execute for RegisterMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<MrRegistered, Cause> {
        reserved(self.reserved)?;
        let flags = self.flags.get();
        let rights = self.access.get();
        let iova = self.iova.get();
        let on_demand = flags & mr_flags::ON_DEMAND != 0;
        let nested = flags & mr_flags::NESTED != 0;
        let features = rnic.config.features;
        let mut known = mr_flags::ALL_MEMORY;
        if features.on_demand_paging {
            known |= mr_flags::ON_DEMAND;
            known |= if features.nested_paging {
                mr_flags::NESTED
            } else {
                0
            };
        }
        let kinds = flags & (mr_flags::ALL_MEMORY | mr_flags::ON_DEMAND);
        if flags & !known != 0 || kinds.count_ones() > 1 || nested && !on_demand {
            return Err(Cause::Flags);
        }
        check_rights(rights, iova, rnic.config.features)?;
        let kind = rnic.pds.get(self.pd.get()).ok_or(Cause::UnknownPd)?.kind;
        if rnic.resources.keys.is_full() {
            return Err(Cause::LimitReached);
        }
        let memory = if flags & mr_flags::ALL_MEMORY != 0 {
            if kind != ContextKind::Kernel {
                return Err(Cause::KernelOnly);
            }
            if iova != 0 || self.pages.as_bytes().iter().any(|&byte| byte != 0) {
                return Err(Cause::ReservedField);
            }
            RegionMemory::All
        } else if on_demand {
            check_extent(iova, self.pages.length.get())?;
            let pages = rnic.pages_without_memory(&self.pages, nested)?;
            if nested {
                let regions = BTreeMap::new();
                RegionMemory::Nested(Box::new(Nested { pages, regions }))
            } else {
                RegionMemory::Paged(pages)
            }
        } else {
            check_extent(iova, self.pages.length.get())?;
            RegionMemory::Buffer(rnic.resolve_buffer(&self.pages, io)?)
        };
        let flush_ranges = persistence::flush_ranges(rights, &memory, io.memory)?;
        rnic.add_region(Region {
            pd: self.pd.get(),
            access: rights,
            iova,
            memory,
            fast: None,
            windows: 0,
            page_of: None,
            flush_ranges,
        })
    }
}

impl Engine {
    /// Removes a part of the pages of a region that is about to go. Returns where the rest begins, if there is one.
    pub(super) fn empty_part(&mut self, wanted: DeregisterMr, begun: Option<u32>) -> Option<u32> {
        let (pd, key) = (wanted.pd.get(), wanted.key.get());
        if self.resources.keys.region(key)?.windows > 0 {
            return None;
        }
        let all = self.pages_mut(pd, key).ok()?.count();
        let (_, next) = self.remove_pages(pd, key, begun.unwrap_or(0)..all).ok()?;
        if next == all {
            return None;
        }
        // The command can no longer be refused, so no window may be bound to what is left.
        if let Some(region) = self.resources.keys.region_mut(key) {
            region.access &= !access::MW_BIND;
        }
        Some(next)
    }
}

impl Execute for DeregisterMr {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let key = self.key.get();
        let keys = &mut rnic.resources.keys;
        let region = keys.region(key).ok_or(Cause::UnknownKey)?;
        if region.pd != self.pd.get() {
            return Err(Cause::PdMismatch);
        }
        if region.windows > 0 {
            return Err(Cause::RegionBound);
        }
        rnic.translations -= region.translations();
        if let Some(pd) = rnic.pds.get_mut(region.pd) {
            pd.users -= 1;
        }
        // Those that wait for pages will find that the key is gone.
        rnic.wake_waiters(self.pd.get(), key, None);
        rnic.resources.async_events.forget(key, names_region);
        rnic.resources.keys.remove_region(key);
        done()
    }
}

impl Execute for AllocateMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<MrRegistered, Cause> {
        if !rnic.config.features.memory_extensions {
            return Err(Cause::CommandCode);
        }
        let pages = self.max_pages.get();
        if pages == 0 || pages > rnic.config.limits.fast_registration_pages {
            return Err(Cause::TableLength);
        }
        if self.table.length.get() != u64::from(pages) * TABLE_ENTRY_LENGTH as u64 {
            return Err(Cause::PageListShape);
        }
        let kind = rnic.pds.get(self.pd.get()).ok_or(Cause::UnknownPd)?.kind;
        if kind != ContextKind::Kernel {
            return Err(Cause::KernelOnly);
        }
        if rnic.resources.keys.is_full() {
            return Err(Cause::LimitReached);
        }
        let table = rnic.resolve_ring_buffer(&self.table, io)?;
        let region = Region::free(self.pd.get(), table, pages);
        // Reserves the translations of its future pages now, so that no registration fails for lack of room.
        if rnic.translations + region.translations() > rnic.config.limits.translations {
            return Err(Cause::TranslationsExhausted);
        }
        rnic.add_region(region)
    }
}

impl Execute for AllocateIntegrityMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<MrRegistered, Cause> {
        if !rnic.config.features.has_integrity() {
            return Err(Cause::CommandCode);
        }
        reserved(self.reserved)?;
        let (elements, metadata) = (self.max_elements.get(), self.max_metadata_elements.get());
        let limit = rnic.config.limits.fast_registration_pages;
        if elements == 0 || elements > limit || metadata > limit {
            return Err(Cause::TableLength);
        }
        if self.table.length.get() != table_length(elements, metadata) {
            return Err(Cause::PageListShape);
        }
        let kind = rnic.pds.get(self.pd.get()).ok_or(Cause::UnknownPd)?.kind;
        if kind != ContextKind::Kernel {
            return Err(Cause::KernelOnly);
        }
        if rnic.resources.keys.is_full() {
            return Err(Cause::LimitReached);
        }
        let table = rnic.resolve_ring_buffer(&self.table, io)?;
        let region = Region::free_integrity(self.pd.get(), table, elements, metadata)
            .ok_or(Cause::PageListShape)?;
        if rnic.translations + region.translations() > rnic.config.limits.translations {
            return Err(Cause::TranslationsExhausted);
        }
        rnic.add_region(region)
    }
}

impl Execute for ReregisterMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<MrRegistered, Cause> {
        let features = rnic.config.features;
        if !features.reregistration {
            return Err(Cause::CommandCode);
        }
        reserved(self.reserved)?;
        let (pd, key, flags) = (self.pd.get(), self.key.get(), self.flags.get());
        let has = |flag| flags & flag != 0;
        let known = reregister_flags::TRANSLATION | reregister_flags::PD | reregister_flags::ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Cause::Flags);
        }
        let region = rnic.resources.keys.region(key).ok_or(Cause::UnknownKey)?;
        if region.pd != pd {
            return Err(Cause::PdMismatch);
        }
        if region.fast.is_some() || !matches!(region.memory, RegionMemory::Buffer(_)) {
            return Err(Cause::RegionFixed);
        }
        if region.windows > 0 {
            return Err(Cause::RegionBound);
        }
        let new_pd = if has(reregister_flags::PD) {
            self.new_pd.get()
        } else {
            pd
        };
        let context_of = |pd| rnic.pds.get(pd).map(|pd| pd.context);
        if context_of(new_pd).ok_or(Cause::UnknownPd)? != context_of(pd).ok_or(Cause::UnknownPd)? {
            return Err(Cause::ContextMismatch);
        }
        let rights = if has(reregister_flags::ACCESS) {
            self.access.get()
        } else {
            region.access
        };
        let iova = if has(reregister_flags::TRANSLATION) {
            self.iova.get()
        } else {
            region.iova
        };
        check_rights(rights, iova, features)?;
        let memory = if has(reregister_flags::TRANSLATION) {
            check_extent(iova, self.pages.length.get())?;
            Some(RegionMemory::Buffer(rnic.resolve_buffer(&self.pages, io)?))
        } else {
            None
        };
        let region = rnic.resources.keys.region(key).ok_or(Cause::UnknownKey)?;
        let of = memory.as_ref().unwrap_or(&region.memory);
        let flush_ranges = persistence::flush_ranges(rights, of, io.memory)?;
        let key = rnic.change_region(key, new_pd, rights, iova, memory, flush_ranges)?;
        Ok(MrRegistered {
            key: key.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for AllocateMw {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<MwAllocated, Cause> {
        if !rnic.config.features.memory_windows {
            return Err(Cause::CommandCode);
        }
        let mw_type = MwType::try_from(self.mw_type.get()).map_err(|_| Cause::WindowType)?;
        let pd = rnic.pds.get_mut(self.pd.get()).ok_or(Cause::UnknownPd)?;
        let window = Window {
            pd: self.pd.get(),
            mw_type,
            binding: None,
        };
        let key = rnic.resources.keys.insert_window(window);
        let key = key.ok_or(Cause::LimitReached)?;
        pd.users += 1;
        Ok(MwAllocated {
            key: key.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DeallocateMw {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.memory_windows {
            return Err(Cause::CommandCode);
        }
        let keys = &mut rnic.resources.keys;
        let window = keys.window(self.key.get()).ok_or(Cause::WindowKey)?;
        if window.pd != self.pd.get() {
            return Err(Cause::PdMismatch);
        }
        keys.remove_window(self.key.get());
        if let Some(pd) = rnic.pds.get_mut(self.pd.get()) {
            pd.users -= 1;
        }
        done()
    }
}
