// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about memory regions, and the page lists of all commands.

use super::{Execute, done, reserved};
use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::Memory,
    page_list,
    region::{Region, RegionMemory},
    resources::Io,
    rnic::Rnic,
};
use vrnic_wire::{
    command::{ContextKind, DeregisterMr, Empty, MrRegistered, RegisterMr, mr_flags},
    memory::{PageList, access},
};
use zerocopy::IntoBytes;

impl Rnic {
    /// Resolves the page list of a memory region.
    fn resolve_buffer<M: Memory>(&self, list: &PageList, io: &Io<'_, M>) -> Result<Buffer, Cause> {
        let limits = &self.config.limits;
        let left = limits.translations.saturating_sub(self.translations);
        page_list::resolve(list, limits.mr_size, left, io.memory)
    }

    /// Resolves the page list of rings or of a notify area, which begin with a page.
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
        let unlawful = rights & access::REMOTE_CHANGES != 0 && rights & access::LOCAL_WRITE == 0;
        if rights & !access::REGION != 0 || unlawful {
            return Err(Cause::AccessRights);
        }
        let kind = rnic.pds.get(self.pd.get()).ok_or(Cause::UnknownPd)?.kind;
        if rnic.resources.regions.is_full() {
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
            // The last byte must have an address too.
            let length = self.pages.length.get();
            if length == 0 || iova.checked_add(length - 1).is_none() {
                return Err(Cause::RegionLength);
            }
            RegionMemory::Buffer(rnic.resolve_buffer(&self.pages, io)?)
        };
        let region = Region {
            pd: self.pd.get(),
            access: rights,
            iova,
            memory,
        };
        let translations = region.translations();
        let key = rnic
            .resources
            .regions
            .insert(region)
            .ok_or(Cause::LimitReached)?;
        rnic.translations += translations;
        if let Some(pd) = rnic.pds.get_mut(self.pd.get()) {
            pd.users += 1;
        }
        Ok(MrRegistered {
            key: key.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DeregisterMr {
    fn execute<M: Memory>(self, rnic: &mut Rnic, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let key = self.key.get();
        let regions = &mut rnic.resources.regions;
        let region = regions.get(key).ok_or(Cause::UnknownKey)?;
        if region.pd != self.pd.get() {
            return Err(Cause::PdMismatch);
        }
        rnic.translations -= region.translations();
        if let Some(pd) = rnic.pds.get_mut(region.pd) {
            pd.users -= 1;
        }
        regions.remove(key);
        done()
    }
}
