// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The engine's names for guest memory, and its access to that memory.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

use vrnic_engine::memory::{
    GuestAddress, HostRange, Memory, RegionId, Unmapped, copy_null, read_null, write_null,
};

use super::{GuestMemory, Mapping};

/// Number of bits of a [`RegionId`] that select the slot in a table.
const SLOT_BITS: u32 = 10;
/// Number of bits that tell how often the device has got a new table.
const GENERATION_BITS: u32 = 10;
/// Number of devices of which names can tell.
pub const MAX_DEVICES: usize = 1 << (u32::BITS - SLOT_BITS - GENERATION_BITS);
/// Number of slots. The last slot does not exist, so that no name ever is `u32::MAX`.
const SLOTS: usize = (1 << SLOT_BITS) - 1;

/// The mappings that registered memory of one device can refer to, by name.
///
/// A [`RegionId`] consists of the device, the generation of its table and a slot. So names of different devices differ,
/// and a name from before a reset means nothing after it.
///
/// Names are added and never removed; a reset gives the device a new table. So no access takes a lock. Whatever may
/// still refer to memory of the device holds the table through an [`Arc`]: if the device is the only one that holds it,
/// nothing of what it has sent is under way.
pub struct RegionTable {
    /// The upper bits of all names.
    number: u32,
    slots: Box<[OnceLock<Arc<Mapping>>]>,
}

impl RegionTable {
    /// Creates an empty table for the device with this index.
    pub fn new(device: usize) -> Self {
        Self::with_number((device as u32) << GENERATION_BITS)
    }

    /// Creates the table that takes the place of this one; no name of this one means anything in it.
    #[must_use]
    pub fn next(&self) -> Self {
        let generation = (1 << GENERATION_BITS) - 1;
        let next = self.number.wrapping_add(1) & generation;
        Self::with_number(self.number & !generation | next)
    }

    fn with_number(number: u32) -> Self {
        Self {
            number: number & (u32::MAX >> SLOT_BITS),
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns memory as the device of this table sees it: the addresses of its own VM, its own ranges, and those of
    /// the device that sent what it is receiving, whose table is `sender`.
    pub fn device<'a>(
        &'a self,
        guest: &'a GuestMemory,
        sender: Option<&'a RegionTable>,
    ) -> DeviceMemory<'a> {
        DeviceMemory {
            own: self,
            sender,
            guest,
        }
    }

    /// Returns the mapping with that name.
    pub fn mapping(&self, region: RegionId) -> Option<&Arc<Mapping>> {
        let slot = (region.0 & ((1 << SLOT_BITS) - 1)) as usize;
        (region.0 >> SLOT_BITS == self.number).then(|| self.slots.get(slot)?.get())?
    }

    fn name(&self, mapping: &Arc<Mapping>) -> Option<RegionId> {
        // Slots are used from the first one on. At most one thread at a time adds a name, and if there were two, both
        // would get a name for their mappings.
        let slot = self.slots.iter().position(|slot| {
            let there = slot.get_or_init(|| mapping.clone());
            Arc::ptr_eq(there, mapping)
        })?;
        Some(RegionId(self.number << SLOT_BITS | slot as u32))
    }
}

/// Guest memory as the engine of one device sees it.
#[derive(Clone, Copy)]
pub struct DeviceMemory<'a> {
    own: &'a RegionTable,
    sender: Option<&'a RegionTable>,
    guest: &'a GuestMemory,
}

impl DeviceMemory<'_> {
    /// Runs `access` on the mapping that `range` refers to, with the offset in the file, if `offset..offset + length`
    /// lies within the range.
    fn with<R>(
        &self,
        range: HostRange,
        offset: u64,
        length: u64,
        access: impl FnOnce(&Mapping, u64) -> Option<R>,
    ) -> Result<R, Unmapped> {
        let part = range.slice(offset, length).ok_or(Unmapped)?;
        let mapping = self.own.mapping(part.region);
        let mapping = mapping.or_else(|| self.sender?.mapping(part.region));
        access(mapping.ok_or(Unmapped)?, part.offset).ok_or(Unmapped)
    }
}

impl Memory for DeviceMemory<'_> {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let piece = self.guest.piece(address.0, length)?;
        if !piece.writable || piece.length != length {
            return None;
        }
        let region = self.own.name(&piece.mapping)?;
        Some(HostRange {
            region,
            offset: piece.offset,
            length,
        })
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        let mapping = self.own.mapping(region)?;
        mapping.is_persistent().then(|| mapping.len())
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        if from.is_null() {
            return read_null(from, buffer);
        }
        self.with(from, 0, buffer.len() as u64, |mapping, at| {
            mapping.read(at, buffer)
        })
    }

    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        if from.is_null() {
            return read_null(from, buffer);
        }
        self.with(from, 0, buffer.len() as u64, |mapping, at| {
            mapping.read_payload(at, buffer)
        })
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        if to.is_null() {
            return write_null(to, bytes);
        }
        self.with(to, 0, bytes.len() as u64, |mapping, at| {
            mapping.write(at, bytes)
        })
    }

    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
        if from.is_null() || to.is_null() {
            return copy_null(self, from, to);
        }
        let length = from.length;
        self.with(from, 0, length, |source, source_at| {
            self.with(to, 0, length, |target, target_at| {
                target.copy_from(target_at, source, source_at, length)
            })
            .ok()
        })
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        self.with(range, offset, 4, |mapping, at| {
            mapping.with_u32(at, |word| word.load(Ordering::Acquire))
        })
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        self.with(range, offset, 4, |mapping, at| {
            mapping.with_u32(at, |word| word.store(value, Ordering::Release))
        })
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        self.with(range, offset, 1, |mapping, at| {
            mapping.store_u8_release(at, value)
        })
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        self.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| word.load(Ordering::Acquire))
        })
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| word.swap(value, Ordering::SeqCst))
        })
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| word.fetch_add(value, Ordering::SeqCst))
        })
    }

    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        self.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| {
                match word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            })
        })
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::memfd;
    use super::*;

    #[test]
    fn names_are_of_one_device_and_die_with_its_table() {
        let tables = [RegionTable::new(0), RegionTable::new(1)];
        let (first, second) = (GuestMemory::new(), GuestMemory::new());
        first.map(0, 0x2000, &memfd(0x2000), 0, true).unwrap();
        second.map(0, 0x2000, &memfd(0x2000), 0, true).unwrap();
        let a = tables[0].device(&first, None);
        let b = tables[1].device(&second, Some(&tables[0]));
        let from = a.resolve(GuestAddress(0x10), 8).unwrap();
        let to = b.resolve(GuestAddress(0x1000), 0x1000).unwrap();
        assert_ne!(from.region, to.region);
        a.write(from, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        b.copy(from, to).unwrap();
        assert_eq!(
            b.load_u64(to, 0),
            Ok(u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]))
        );
        assert_eq!(a.load_u32(from, 5), Err(Unmapped));
        assert_eq!(b.copy(to, from), Err(Unmapped), "too short");
        assert_eq!(a.load_u64(to, 0), Err(Unmapped), "nothing came from there");
        let alone = tables[1].device(&second, None);
        assert_eq!(alone.copy(from, to), Err(Unmapped));

        let next = tables[0].next();
        let b = tables[1].device(&second, Some(&next));
        assert_eq!(b.copy(from, to), Err(Unmapped));
        let a = next.device(&first, None);
        let again = a.resolve(GuestAddress(0x10), 8).unwrap();
        assert_ne!(again.region, from.region, "another table has other names");
        assert_eq!(a.load_u32(from, 0), Err(Unmapped));
        assert_eq!(a.load_u32(again, 0), Ok(0x0403_0201));
    }

    #[test]
    fn a_device_has_as_many_names_as_slots() {
        let table = RegionTable::new(usize::MAX);
        let mappings: Vec<_> = (0..=SLOTS)
            .map(|_| Arc::new(Mapping::new(memfd(0x1000)).unwrap()))
            .collect();
        let (last, mappings) = mappings.split_last().unwrap();
        for mapping in mappings {
            let name = table.name(mapping).unwrap();
            assert_ne!(name, RegionId::NULL);
            assert!(Arc::ptr_eq(table.mapping(name).unwrap(), mapping));
            assert_eq!(table.name(mapping), Some(name));
        }
        assert_eq!(table.name(last), None);
        assert_eq!(table.mapping(RegionId::NULL).map(Arc::as_ptr), None);
        let mut other = table.next();
        for _ in 1..1 << GENERATION_BITS {
            assert_ne!(other.number, table.number);
            assert_eq!(
                other.number >> GENERATION_BITS,
                table.number >> GENERATION_BITS
            );
            other = RegionTable {
                slots: Box::default(),
                ..other.next()
            };
        }
        assert_eq!(other.number, table.number);
    }

    #[test]
    fn nothing_is_read_as_zeros_and_written_nowhere() {
        let table = RegionTable::new(0);
        let guest = GuestMemory::new();
        guest.map(0, 0x30000, &memfd(0x30000), 0, true).unwrap();
        let memory = table.device(&guest, None);
        let all = memory.resolve(GuestAddress(0), 0x30000).unwrap();
        let part = all.slice(1, 0x2fffe).unwrap();
        let null = HostRange::null(part.length);
        memory.write(all, &vec![7; 0x30000]).unwrap();
        memory.copy(part, null).unwrap();
        memory.write(null, &[7; 9]).unwrap();
        memory.copy(null, part).unwrap();
        let mut bytes = vec![1; 0x30000];
        memory.read(all, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[0x2ffff]), (7, 7));
        assert!(bytes[1..0x2ffff].iter().all(|byte| *byte == 0));
        bytes.fill(1);
        memory.read_payload(null, &mut bytes[..100]).unwrap();
        assert_eq!(bytes[..101], *[&[0; 100][..], &[1]].concat());
        assert_eq!(memory.copy(null, null), Ok(()));
        assert_eq!(
            memory.copy(null, HostRange::null(5)),
            Err(Unmapped),
            "too short"
        );
        assert_eq!(
            memory.read(HostRange::null(5), &mut bytes[..6]),
            Err(Unmapped)
        );
        assert_eq!(memory.load_u64(null, 0), Err(Unmapped));
    }

    #[test]
    fn only_writable_whole_ranges_resolve() {
        let table = RegionTable::new(0);
        let guest = GuestMemory::new();
        guest.map(0, 0x1000, &memfd(0x1000), 0, true).unwrap();
        guest.map(0x1000, 0x1000, &memfd(0x1000), 0, false).unwrap();
        let memory = table.device(&guest, None);
        assert!(memory.resolve(GuestAddress(0), 0x1000).is_some());
        assert!(memory.resolve(GuestAddress(0), 0x1001).is_none());
        assert!(memory.resolve(GuestAddress(0x1000), 1).is_none());
        assert!(memory.resolve(GuestAddress(u64::MAX), 2).is_none());
    }
}
