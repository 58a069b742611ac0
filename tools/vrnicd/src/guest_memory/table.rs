// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The engine's names for guest memory, and its access to that memory.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vrnic_engine::memory::{
    GuestAddress, HostRange, Memory, RegionId, Unmapped, copy_null, read_null, write_null,
};

use super::{GuestMemory, Mapping};

/// Number of bits of a [`RegionId`] that select the slot in the table. The other bits count how often the slot has been
/// used.
const SLOT_BITS: u32 = 12;

struct Slot {
    id: RegionId,
    /// Index of the device whose VM owns the memory.
    owner: usize,
    mapping: Option<Arc<Mapping>>,
}

/// All mappings that registered memory of any device can refer to. Owned by the worker thread.
///
/// A [`RegionId`] consists of a slot and a generation, so a name that has outlived its mapping never finds another one
/// (until the slot has been reused a million times).
#[derive(Default)]
pub struct RegionTable {
    slots: RefCell<Vec<Slot>>,
}

impl RegionTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the memory as device `owner` sees it: the addresses of its own VM, and the ranges of all VMs.
    pub fn device<'a>(&'a self, owner: usize, guest: &'a GuestMemory) -> DeviceMemory<'a> {
        DeviceMemory {
            table: self,
            owner,
            guest,
        }
    }

    /// Removes all mappings of `owner`; ranges in them are unmapped from now on.
    pub fn release(&self, owner: usize) {
        for slot in self
            .slots
            .borrow_mut()
            .iter_mut()
            .filter(|slot| slot.owner == owner)
        {
            slot.mapping = None;
        }
    }

    /// Returns the mapping with that name.
    pub fn mapping(&self, region: RegionId) -> Option<Arc<Mapping>> {
        let slots = self.slots.borrow();
        let slot = slots.get((region.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        slot.mapping.clone().filter(|_| slot.id == region)
    }

    fn name(&self, owner: usize, mapping: Arc<Mapping>) -> Option<RegionId> {
        let mut slots = self.slots.borrow_mut();
        let same = |slot: &&Slot| {
            slot.owner == owner
                && slot
                    .mapping
                    .as_ref()
                    .is_some_and(|there| Arc::ptr_eq(there, &mapping))
        };
        if let Some(slot) = slots.iter().find(same) {
            return Some(slot.id);
        }
        if let Some(slot) = slots.iter_mut().find(|slot| slot.mapping.is_none()) {
            slot.id = RegionId(slot.id.0.wrapping_add(1 << SLOT_BITS));
            slot.owner = owner;
            slot.mapping = Some(mapping);
            return Some(slot.id);
        }
        // The last slot stays unused, so that no name ever is `u32::MAX`.
        if slots.len() >= (1 << SLOT_BITS) - 1 {
            return None;
        }
        let id = RegionId(slots.len() as u32);
        slots.push(Slot {
            id,
            owner,
            mapping: Some(mapping),
        });
        Some(id)
    }

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
        let slots = self.slots.borrow();
        let slot = slots
            .get((part.region.0 & ((1 << SLOT_BITS) - 1)) as usize)
            .ok_or(Unmapped)?;
        match &slot.mapping {
            Some(mapping) if slot.id == part.region => access(mapping, part.offset).ok_or(Unmapped),
            _ => Err(Unmapped),
        }
    }
}

/// Guest memory as the engine of one device sees it.
#[derive(Clone, Copy)]
pub struct DeviceMemory<'a> {
    table: &'a RegionTable,
    owner: usize,
    guest: &'a GuestMemory,
}

impl Memory for DeviceMemory<'_> {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let piece = self.guest.piece(address.0, length)?;
        if !piece.writable || piece.length != length {
            return None;
        }
        let region = self.table.name(self.owner, piece.mapping)?;
        Some(HostRange {
            region,
            offset: piece.offset,
            length,
        })
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        let mapping = self.table.mapping(region)?;
        mapping.is_persistent().then(|| mapping.len())
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        if from.is_null() {
            return read_null(from, buffer);
        }
        self.table
            .with(from, 0, buffer.len() as u64, |mapping, at| {
                mapping.read(at, buffer)
            })
    }

    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        if from.is_null() {
            return read_null(from, buffer);
        }
        self.table
            .with(from, 0, buffer.len() as u64, |mapping, at| {
                mapping.read_payload(at, buffer)
            })
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        if to.is_null() {
            return write_null(to, bytes);
        }
        self.table.with(to, 0, bytes.len() as u64, |mapping, at| {
            mapping.write(at, bytes)
        })
    }

    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
        if from.is_null() || to.is_null() {
            return copy_null(self, from, to);
        }
        let length = from.length;
        self.table.with(from, 0, length, |source, source_at| {
            self.table
                .with(to, 0, length, |target, target_at| {
                    target.copy_from(target_at, source, source_at, length)
                })
                .ok()
        })
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        self.table.with(range, offset, 4, |mapping, at| {
            mapping.with_u32(at, |word| word.load(Ordering::Acquire))
        })
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        self.table.with(range, offset, 4, |mapping, at| {
            mapping.with_u32(at, |word| word.store(value, Ordering::Release))
        })
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        self.table.with(range, offset, 1, |mapping, at| {
            mapping.store_u8_release(at, value)
        })
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        self.table.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| word.load(Ordering::Acquire))
        })
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.table.with(range, offset, 8, |mapping, at| {
            mapping.with_u64(at, |word| word.swap(value, Ordering::SeqCst))
        })
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.table.with(range, offset, 8, |mapping, at| {
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
        self.table.with(range, offset, 8, |mapping, at| {
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
    fn names_die_with_their_mapping() {
        let table = RegionTable::new();
        let (first, second) = (GuestMemory::new(), GuestMemory::new());
        first.map(0, 0x2000, &memfd(0x2000), 0, true).unwrap();
        second.map(0, 0x2000, &memfd(0x2000), 0, true).unwrap();
        let a = table.device(0, &first);
        let b = table.device(1, &second);
        let from = a.resolve(GuestAddress(0x10), 8).unwrap();
        let to = b.resolve(GuestAddress(0x1000), 0x1000).unwrap();
        assert_ne!(from.region, to.region);
        a.write(from, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        b.copy(from, to).unwrap();
        assert_eq!(
            a.load_u64(to, 0),
            Ok(u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]))
        );
        assert_eq!(a.load_u32(from, 5), Err(Unmapped));
        assert_eq!(a.copy(to, from), Err(Unmapped), "too short");

        table.release(0);
        assert_eq!(b.copy(from, to), Err(Unmapped));
        let again = a.resolve(GuestAddress(0x10), 8).unwrap();
        assert_ne!(again.region, from.region, "a reused slot has another name");
        assert_eq!(a.load_u32(from, 0), Err(Unmapped));
        assert_eq!(a.load_u32(again, 0), Ok(0x0403_0201));
    }

    #[test]
    fn nothing_is_read_as_zeros_and_written_nowhere() {
        let table = RegionTable::new();
        let guest = GuestMemory::new();
        guest.map(0, 0x30000, &memfd(0x30000), 0, true).unwrap();
        let memory = table.device(0, &guest);
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
        let table = RegionTable::new();
        let guest = GuestMemory::new();
        guest.map(0, 0x1000, &memfd(0x1000), 0, true).unwrap();
        guest.map(0x1000, 0x1000, &memfd(0x1000), 0, false).unwrap();
        let memory = table.device(0, &guest);
        assert!(memory.resolve(GuestAddress(0), 0x1000).is_some());
        assert!(memory.resolve(GuestAddress(0), 0x1001).is_none());
        assert!(memory.resolve(GuestAddress(0x1000), 1).is_none());
        assert!(memory.resolve(GuestAddress(u64::MAX), 2).is_none());
    }
}
