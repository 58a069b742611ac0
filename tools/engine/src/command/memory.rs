// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about memory regions, and the page lists of all commands.

use super::{Execute, done, reserved};
use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::Memory,
    page_list::Resolver,
    region::{Region, RegionMemory},
    resources::Io,
    rnic::Rnic,
};
use vrnic_wire::{
    command::{ContextKind, DeregisterMr, Empty, MrRegistered, RegisterMr, mr_flags},
    memory::{PageList, access},
};
use zerocopy::IntoBytes;

/// Pages of a list that are resolved before others have their turn.
const PAGES_AT_ONCE: u64 = 2048;

/// A page list that is being resolved, or what came of it.
#[derive(Debug)]
pub(crate) struct Resolution {
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

    /// Whether this is about `list`.
    fn is_of(&self, list: &PageList) -> bool {
        self.list.as_bytes() == list.as_bytes()
    }

    /// Goes on with so many pages. Whether it is done or has failed.
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

impl Rnic {
    /// The buffer of a page list, which may have been resolved in advance.
    fn resolve_buffer<M: Memory>(
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

    /// Resolves a part of a page list in advance. Whether nothing of it is left to do.
    pub(super) fn resolve_part<M: Memory>(&mut self, list: &PageList, io: &Io<'_, M>) -> bool {
        let left = self.translations_left();
        let resolution = match &mut self.resolution {
            Some(begun) if begun.is_of(list) => begun,
            other => other.insert(Resolution::new(list, self.config.limits.mr_size)),
        };
        resolution.advance(PAGES_AT_ONCE, left, io.memory)
    }

    fn translations_left(&self) -> usize {
        let limit = self.config.limits.translations;
        limit.saturating_sub(self.translations)
    }

    /// Resolves the page list of rings or of a notify area, which begin with a page.
    pub(super) fn resolve_ring_buffer<M: Memory>(
        &mut self,
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
