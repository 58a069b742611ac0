// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use crate::{
    buffer::{Buffer, BufferBuilder},
    cause::Cause,
    integrity::Integrity,
    limits::Features,
    memory::{GuestAddress, HostRange, Memory},
    pages::Pages,
    persistence,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vrnic_wire::{
    U64,
    integrity::IntegrityTarget,
    memory::{MAX_PAGE_SHIFT, MIN_PAGE_SHIFT, TABLE_ENTRY_LENGTH, access},
    work::RegisterTarget,
};
use zerocopy::IntoBytes;

/// Number of table entries that are read at a time.
const TABLE_PIECE: usize = 64;

/// Memory that a region covers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RegionMemory {
    /// A buffer that was resolved when the region was registered.
    Buffer(Buffer),
    /// Pages that the driver maps and unmaps.
    Paged(Pages),
    /// Other regions, each in place of a page.
    Nested(Box<Nested>),
    /// All memory of the guest: addresses are bus addresses, resolved with each access.
    All,
    /// Blocks with protection information.
    Integrity(Box<Integrity>),
    /// At every address, memory that reads as zeros and ignores writes.
    Null,
}

/// An on-demand region whose pages are other on-demand regions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nested {
    /// Wanted pages, and what waits for them. No page is ever present here.
    pub(crate) pages: Pages,
    /// Indices of the regions by page number.
    pub(crate) regions: BTreeMap<u32, u32>,
}

impl Nested {
    /// Splits the `length` bytes at `offset`, which must lie in the region, into pieces that are each in one page.
    /// Returns the page, the offset in it and the length of each piece.
    pub(crate) fn pieces(
        &self,
        mut offset: u64,
        mut length: u64,
    ) -> impl Iterator<Item = (u32, u64, u64)> + use<> {
        let size = self.pages.page_size();
        std::iter::from_fn(move || {
            if length == 0 {
                return None;
            }
            let inside = offset % size;
            let part = (size - inside).min(length);
            // A page list has no more pages than 32 bits can count.
            let piece = ((offset / size) as u32, inside, part);
            offset += part;
            length -= part;
            Some(piece)
        })
    }
}

impl RegionMemory {
    /// Returns the pages, to record which are wanted and what waits for them; [`None`] if no page can be missing.
    pub(crate) fn pages_mut(&mut self) -> Option<&mut Pages> {
        match self {
            Self::Paged(pages) => Some(pages),
            Self::Nested(nested) => Some(&mut nested.pages),
            Self::Buffer(_) | Self::Integrity(_) | Self::All | Self::Null => None,
        }
    }
}

/// Properties of a region that work requests register: for fast registration, or an integrity region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fast {
    /// Table in which the driver lists the memory.
    pub(crate) table: Buffer,
    /// Number of pages or elements for which the table has room.
    pub(crate) max_pages: u32,
    /// Whether the region is valid rather than free.
    pub(crate) valid: bool,
}

/// A memory region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Region {
    /// Protection domain.
    pub(crate) pd: u32,
    /// [`access`] rights.
    pub(crate) access: u32,
    /// Address of the first byte in work requests.
    pub(crate) iova: u64,
    /// Memory that it covers.
    pub(crate) memory: RegionMemory,
    /// Present in regions that work requests register.
    pub(crate) fast: Option<Fast>,
    /// Number of memory windows that are bound to it.
    pub(crate) windows: u32,
    /// Index of the nested region of which it is a page, and the number of the page.
    pub(crate) page_of: Option<(u32, u32)>,
    /// What a flush makes persistent, apart from on-demand pages: one range in each block.
    pub(crate) flush_ranges: Vec<HostRange>,
}

/// Checks the rights that are requested for a region at `iova`.
pub(crate) fn check_rights(rights: u32, iova: u64, features: Features) -> Result<(), Cause> {
    let mut known = access::REGION;
    if !features.memory_windows {
        known &= !access::WINDOWS;
    }
    if !features.memory_placement {
        known &= !access::PLACEMENT;
    }
    let unlawful = rights & access::REMOTE_CHANGES != 0 && rights & access::LOCAL_WRITE == 0;
    let misplaced = rights & access::ZERO_BASED != 0 && iova != 0;
    if rights & !known != 0 || unlawful || misplaced {
        return Err(Cause::AccessRights);
    }
    Ok(())
}

/// Checks that each byte of a region has an address.
pub(crate) fn check_extent(iova: u64, length: u64) -> Result<(), Cause> {
    if iova.checked_add(length.saturating_sub(1)).is_none() {
        return Err(Cause::RegionLength);
    }
    Ok(())
}

impl Region {
    /// Creates a free region for fast registration.
    pub(crate) fn free(pd: u32, table: Buffer, max_pages: u32) -> Self {
        Self {
            pd,
            access: 0,
            iova: 0,
            memory: RegionMemory::Buffer(Buffer::default()),
            fast: Some(Fast {
                table,
                max_pages,
                valid: false,
            }),
            windows: 0,
            page_of: None,
            flush_ranges: Vec::new(),
        }
    }

    /// Creates a free integrity region; `None` if the table is too short.
    pub(crate) fn free_integrity(
        pd: u32,
        table: Buffer,
        max_elements: u32,
        max_metadata_elements: u32,
    ) -> Option<Self> {
        let integrity = Integrity::new(&table, max_elements, max_metadata_elements)?;
        Some(Self {
            memory: RegionMemory::Integrity(Box::new(integrity)),
            ..Self::free(
                pd,
                table,
                max_elements.saturating_add(max_metadata_elements),
            )
        })
    }

    /// Returns whether work requests register the region.
    pub(crate) fn is_fast(&self) -> bool {
        self.fast.is_some()
    }

    /// Returns whether the region waits for a fast registration.
    pub(crate) fn is_free(&self) -> bool {
        self.fast.as_ref().is_some_and(|fast| !fast.valid)
    }

    /// Returns the number of host ranges that the region keeps or may keep.
    pub(crate) fn translations(&self) -> usize {
        match (&self.fast, &self.memory) {
            (Some(fast), _) => fast.table.translations() + fast.max_pages as usize,
            (None, RegionMemory::Buffer(buffer)) => buffer.translations(),
            (None, RegionMemory::Paged(pages)) => pages.translations(),
            (None, RegionMemory::Nested(nested)) => nested.pages.translations(),
            (None, RegionMemory::Integrity(_) | RegionMemory::All | RegionMemory::Null) => 0,
        }
    }

    /// Returns the length in bytes; `None` if it covers all memory.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.memory {
            RegionMemory::Buffer(buffer) => Some(buffer.length()),
            RegionMemory::Paged(pages) => Some(pages.length()),
            RegionMemory::Nested(nested) => Some(nested.pages.length()),
            RegionMemory::Integrity(integrity) => Some(integrity.length()),
            RegionMemory::All | RegionMemory::Null => None,
        }
    }

    /// Returns the offset of the `length` bytes at `address` in the region, if it contains them.
    pub(crate) fn offset_of(&self, address: u64, length: u64) -> Option<u64> {
        let Some(all) = self.length() else {
            return Some(address);
        };
        let offset = address.checked_sub(self.iova)?;
        (offset.checked_add(length)? <= all).then_some(offset)
    }

    /// Returns what a flush makes persistent, one range in each block of memory.
    pub(crate) fn to_sync<M: Memory>(&self, memory: &M) -> Result<Vec<HostRange>, Cause> {
        let RegionMemory::Paged(pages) = &self.memory else {
            return Ok(self.flush_ranges.clone());
        };
        let whole = |&region| {
            let length = memory
                .persistent_length(region)
                .ok_or(Cause::NotPersistent)?;
            Ok(HostRange {
                region,
                offset: 0,
                length,
            })
        };
        pages.written().iter().map(whole).collect()
    }

    /// Makes a region for fast registration free. It must be valid.
    pub(crate) fn invalidate(&mut self) -> Result<(), Cause> {
        if self.windows > 0 {
            return Err(Cause::RegionBound);
        }
        match &mut self.fast {
            Some(fast) if fast.valid => {
                fast.valid = false;
                Ok(())
            }
            Some(_) => Err(Cause::LocalFree),
            None => Err(Cause::LocalInvalidate),
        }
    }

    /// Registers the memory that the table lists with a free region for fast registration. If this fails, the region is
    /// unchanged.
    pub(crate) fn register<M: Memory>(
        &mut self,
        wanted: &RegisterTarget,
        max_length: u64,
        features: Features,
        memory: &M,
    ) -> Result<(), Cause> {
        let (iova, length) = (wanted.iova.get(), wanted.length.get());
        let fast = self.fast.as_mut().ok_or(Cause::RegisterKey)?;
        if fast.valid {
            return Err(Cause::RegisterValid);
        }
        let zero_based = wanted.access.get() & access::ZERO_BASED != 0;
        let first = if zero_based { 0 } else { iova };
        check_rights(wanted.access.get(), first, features)?;
        check_extent(iova, length)?;
        if length == 0 || length > max_length {
            return Err(Cause::RegionLength);
        }
        let count = wanted.page_count.get();
        if !(MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(&wanted.page_shift) || count > fast.max_pages
        {
            return Err(Cause::RegisterPages);
        }
        let page_size = 1u64 << wanted.page_shift;
        let skip = iova & (page_size - 1);
        if zero_based && skip != iova {
            return Err(Cause::AccessRights);
        }
        // The table has few pages, so a length that fits it is far too small for an overflow.
        if skip.checked_add(length).map(|end| end.div_ceil(page_size)) != Some(count.into()) {
            return Err(Cause::RegisterPages);
        }
        let old = match &mut self.memory {
            RegionMemory::Buffer(buffer) => std::mem::take(buffer),
            RegionMemory::Paged(_)
            | RegionMemory::Nested(_)
            | RegionMemory::Integrity(_)
            | RegionMemory::All
            | RegionMemory::Null => {
                return Err(Cause::RegisterKey);
            }
        };
        let mut builder = BufferBuilder::reusing(old);
        let read = read_table(fast, count, page_size, skip, length, memory, |range| {
            builder.push(range);
        });
        self.memory = RegionMemory::Buffer(builder.finish_for_reuse());
        read?;
        self.flush_ranges = persistence::flush_ranges(wanted.access.get(), &self.memory, memory)?;
        fast.valid = true;
        self.access = wanted.access.get();
        self.iova = first;
        Ok(())
    }

    /// Registers the memory that the table lists with a free integrity region. If this fails, the region stays free.
    pub(crate) fn register_integrity<M: Memory>(
        &mut self,
        wanted: &IntegrityTarget,
        max_length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let (Some(fast), RegionMemory::Integrity(integrity)) = (&mut self.fast, &mut self.memory)
        else {
            return Err(Cause::IntegrityKey);
        };
        if fast.valid {
            return Err(Cause::RegisterValid);
        }
        integrity.register(wanted, &fast.table, max_length, memory)?;
        fast.valid = true;
        self.access = wanted.access.get();
        Ok(())
    }
}

/// Reads the first `count` entries of a table, and passes on the parts of the pages that `length` bytes use, from byte
/// `skip` of the first page on.
fn read_table<M: Memory>(
    fast: &Fast,
    count: u32,
    page_size: u64,
    mut skip: u64,
    length: u64,
    memory: &M,
    mut push: impl FnMut(HostRange),
) -> Result<(), Cause> {
    let mut entries = [U64::ZERO; TABLE_PIECE];
    let mut ranges = Vec::new();
    let mut missing = length;
    let mut done = 0;
    while done < count as usize {
        let entries = &mut entries[..TABLE_PIECE.min(count as usize - done)];
        ranges.clear();
        let at = (done * TABLE_ENTRY_LENGTH) as u64;
        fast.table
            .ranges(at, size_of_val(entries) as u64, &mut ranges)
            .ok_or(Cause::RegisterTable)?;
        let mut bytes = entries.as_mut_bytes();
        for range in &ranges {
            let (part, rest) = bytes.split_at_mut(range.length as usize);
            memory
                .read(*range, part)
                .map_err(|_| Cause::RegisterTable)?;
            bytes = rest;
        }
        for page in entries.iter().map(|page| page.get()) {
            if page & (page_size - 1) != 0 {
                return Err(Cause::PageMisaligned);
            }
            let used = missing.min(page_size - skip);
            let range = memory
                .resolve(GuestAddress(page + skip), used)
                .ok_or(Cause::PageUnmapped)?;
            push(range);
            missing -= used;
            skip = 0;
        }
        done += entries.len();
    }
    Ok(())
}
