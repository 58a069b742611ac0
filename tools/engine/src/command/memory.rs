// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about memory regions, and the page lists of all commands.

use super::{Execute, done, reserved};
use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::Memory,
    page_list,
    region::{Region, RegionMemory, check_extent, check_rights},
    resources::Io,
    rnic::Rnic,
};
use vrnic_wire::{
    command::{AllocateMr, ContextKind, DeregisterMr, Empty, MrRegistered, RegisterMr, mr_flags},
    memory::{PageList, TABLE_ENTRY_LENGTH},
};
use zerocopy::IntoBytes;

impl Rnic {
    /// Resolves the page list of a memory region.
    fn resolve_buffer<M: Memory>(&self, list: &PageList, io: &Io<'_, M>) -> Result<Buffer, Cause> {
        let limits = &self.config.limits;
        let left = limits.translations.saturating_sub(self.translations);
        page_list::resolve(list, limits.mr_size, left, io.memory)
    }

    /// Adds a region to its protection domain.
    fn add_region(&mut self, region: Region) -> Result<MrRegistered, Cause> {
        let (pd, translations) = (region.pd, region.translations());
        let keys = &mut self.resources.keys;
        let key = keys.insert(region).ok_or(Cause::LimitReached)?;
        self.translations += translations;
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users += 1;
        }
        Ok(MrRegistered {
            key: key.into(),
            reserved: 0.into(),
        })
    }

    /// Resolves the page list of rings, of a table or of a notify area, which begin with a page.
    pub(super) fn resolve_ring_buffer<M: Memory>(
        &self,
        list: &PageList,
        io: &Io<'_, M>,
    ) -> Result<Buffer, Cause> {
        if list.offset.get() != 0 {
            return Err(Cause::PageListShape);
        }
        self.resolve_buffer(list, io)
    }
}

impl Execute for RegisterMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Rnic,
        io: &mut Io<'_, M>,
    ) -> Result<MrRegistered, Cause> {
        reserved(self.reserved)?;
        let flags = self.flags.get();
        let rights = self.access.get();
        let iova = self.iova.get();
        if flags & !mr_flags::ALL_MEMORY != 0 {
            return Err(Cause::Flags);
        }
        check_rights(rights)?;
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
        } else {
            check_extent(iova, self.pages.length.get())?;
            RegionMemory::Buffer(rnic.resolve_buffer(&self.pages, io)?)
        };
        rnic.add_region(Region {
            pd: self.pd.get(),
            access: rights,
            iova,
            memory,
            fast: None,
        })
    }
}

impl Execute for DeregisterMr {
    fn execute<M: Memory>(self, rnic: &mut Rnic, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let key = self.key.get();
        let keys = &mut rnic.resources.keys;
        let region = keys.named(key).ok_or(Cause::UnknownKey)?;
        if region.pd != self.pd.get() {
            return Err(Cause::PdMismatch);
        }
        rnic.translations -= region.translations();
        if let Some(pd) = rnic.pds.get_mut(region.pd) {
            pd.users -= 1;
        }
        keys.remove(key);
        done()
    }
}

impl Execute for AllocateMr {
    fn execute<M: Memory>(
        self,
        rnic: &mut Rnic,
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
        // The pages that it will have are paid for now, so that no registration lacks room.
        if rnic.translations + region.translations() > rnic.config.limits.translations {
            return Err(Cause::TranslationsExhausted);
        }
        rnic.add_region(region)
    }
}
