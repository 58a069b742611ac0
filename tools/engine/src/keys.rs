// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Keys, and what may be accessed by them.

use crate::{
    cause::Cause,
    memory::{GuestAddress, HostRange, Memory},
    region::{Region, RegionMemory},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use vrnic_wire::{
    memory::{KEY_INDEX_MASK, LOCAL_DMA_KEY, access},
    work::RegisterTarget,
};

/// Indices that stay unused for a while before one is used again.
const RESTING: usize = 1 << 16;

/// What the local DMA key names.
const ALL_MEMORY: &RegionMemory = &RegionMemory::All;

/// The queue pair on whose behalf memory is accessed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Accessor {
    /// Its protection domain.
    pub(crate) pd: u32,
    /// Whether it belongs to a kernel context.
    pub(crate) kernel: bool,
}

/// The bits of a key that name its object.
fn index_of(key: u32) -> u32 {
    key & KEY_INDEX_MASK
}

/// A region and its key.
#[derive(Debug)]
struct Entry {
    /// The whole key: the lowest byte must match too.
    key: u32,
    region: Region,
}

/// All regions of a device by their keys.
#[derive(Debug)]
pub(crate) struct Keys {
    by_index: FxHashMap<u32, Entry>,
    /// Indices of objects that are gone, oldest first; none of them is in use.
    resting: VecDeque<u32>,
    rests: FxHashSet<u32>,
    random: ChaCha12Rng,
    limit: u32,
    /// Whether there is a local DMA key.
    has_local_dma: bool,
}

impl Keys {
    /// No regions, room for `limit`, and keys that follow from `seed`.
    pub(crate) fn new(limit: u32, has_local_dma: bool, seed: [u8; 32]) -> Self {
        Self {
            by_index: FxHashMap::default(),
            resting: VecDeque::new(),
            rests: FxHashSet::default(),
            random: ChaCha12Rng::from_seed(seed),
            limit,
            has_local_dma,
        }
    }

    /// Number of regions.
    pub(crate) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Whether there is no room for another region.
    pub(crate) fn is_full(&self) -> bool {
        self.by_index.len() >= self.limit as usize
    }

    /// Adds a region and gives it a key whose index no other has; `None` if there is no room.
    pub(crate) fn insert(&mut self, region: Region) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        // Far less than half of all indices are in use, so this ends soon.
        let key = loop {
            let key = self.random.next_u32();
            let index = index_of(key);
            let taken = self.by_index.contains_key(&index) || self.rests.contains(&index);
            if index != index_of(LOCAL_DMA_KEY) && !taken {
                break key;
            }
        };
        self.by_index.insert(index_of(key), Entry { key, region });
        Some(key)
    }

    /// The region that a command names by that key. The lowest byte is the poster's where work
    /// requests change it, and means nothing to commands there.
    pub(crate) fn named(&self, key: u32) -> Option<&Region> {
        let entry = self.by_index.get(&index_of(key))?;
        (entry.key == key || entry.region.fast.is_some()).then_some(&entry.region)
    }

    /// Takes out the region that a command names by that key.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Region> {
        self.named(key)?;
        let index = index_of(key);
        let entry = self.by_index.remove(&index)?;
        if self.resting.len() >= RESTING
            && let Some(oldest) = self.resting.pop_front()
        {
            self.rests.remove(&oldest);
        }
        self.resting.push_back(index);
        self.rests.insert(index);
        Some(entry.region)
    }

    /// The region that a work request names by that key.
    fn get_mut(&mut self, key: u32) -> Option<&mut Region> {
        let entry = self.by_index.get_mut(&index_of(key))?;
        (entry.key == key).then_some(&mut entry.region)
    }

    /// Makes the region with that key free. Failures are named as those of a local operation.
    pub(crate) fn invalidate(&mut self, key: u32, by: Accessor) -> Result<(), Cause> {
        let region = self.get_mut(key).ok_or(Cause::LocalKey)?;
        if region.pd != by.pd {
            return Err(Cause::LocalKeyPd);
        }
        region.invalidate()
    }

    /// Registers a free region, which gets a new key with the index of the old one.
    pub(crate) fn register<M: Memory>(
        &mut self,
        wanted: &RegisterTarget,
        by: Accessor,
        max_length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let key = wanted.key.get();
        let entry = self.by_index.get_mut(&index_of(key));
        let entry = entry.ok_or(Cause::RegisterKey)?;
        if entry.region.pd != by.pd {
            return Err(Cause::LocalKeyPd);
        }
        entry.region.register(wanted, max_length, memory)?;
        entry.key = key;
        Ok(())
    }

    /// The memory with `length` bytes at `address`, and where they are in it, provided that the
    /// key belongs to the accessor and gives all of `rights`. Failures are named as those of a
    /// local access.
    fn covering(
        &self,
        key: u32,
        by: Accessor,
        rights: u32,
        address: u64,
        length: u64,
    ) -> Result<(&RegionMemory, u64), Cause> {
        if key == LOCAL_DMA_KEY {
            let permitted = self.has_local_dma && by.kernel && rights & !access::LOCAL_WRITE == 0;
            return permitted
                .then_some((ALL_MEMORY, address))
                .ok_or(Cause::LocalKey);
        }
        let entry = self.by_index.get(&index_of(key));
        let entry = entry.filter(|entry| entry.key == key);
        let region = &entry.ok_or(Cause::LocalKey)?.region;
        if region.is_free() {
            return Err(Cause::LocalFree);
        }
        if region.pd != by.pd {
            return Err(Cause::LocalKeyPd);
        }
        if region.access & rights != rights {
            return Err(Cause::LocalRights);
        }
        let offset = region.offset_of(address, length);
        Ok((&region.memory, offset.ok_or(Cause::LocalBounds)?))
    }

    /// Appends the host ranges of `length` bytes at `address` to `ranges`, after all checks.
    /// Failures are named as those of a local access and append nothing.
    #[expect(
        clippy::too_many_arguments,
        reason = "an access is described by that much"
    )]
    pub(crate) fn resolve<M: Memory>(
        &self,
        key: u32,
        by: Accessor,
        rights: u32,
        address: u64,
        length: u64,
        memory: &M,
        ranges: &mut Vec<HostRange>,
    ) -> Result<(), Cause> {
        if length == 0 {
            return Ok(());
        }
        match self.covering(key, by, rights, address, length)? {
            (RegionMemory::Buffer(buffer), offset) => buffer
                .ranges(offset, length, ranges)
                .ok_or(Cause::LocalBounds),
            (RegionMemory::All, offset) => {
                let range = memory
                    .resolve(GuestAddress(offset), length)
                    .ok_or(Cause::LocalUnmapped)?;
                ranges.push(range);
                Ok(())
            }
        }
    }

    /// Checks an access as [`resolve`](Self::resolve) does, without resolving it.
    pub(crate) fn check<M: Memory>(
        &self,
        key: u32,
        by: Accessor,
        rights: u32,
        address: u64,
        length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        if length == 0 {
            return Ok(());
        }
        let (place, offset) = self.covering(key, by, rights, address, length)?;
        if matches!(place, RegionMemory::All)
            && memory.resolve(GuestAddress(offset), length).is_none()
        {
            return Err(Cause::LocalUnmapped);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    fn region() -> Region {
        Region::free(1, Buffer::default(), 1)
    }

    #[test]
    fn no_two_keys_share_an_index_and_none_returns_soon() {
        let mut keys = Keys::new(1 << 16, true, [7; 32]);
        let mut seen = FxHashSet::default();
        for _ in 0..RESTING / 4 {
            let batch: Vec<u32> = (0..4).filter_map(|_| keys.insert(region())).collect();
            for key in batch {
                assert!(seen.insert(index_of(key)), "{key:#x}");
                assert_ne!(index_of(key), index_of(LOCAL_DMA_KEY));
                assert!(keys.remove(key).is_some() && keys.named(key).is_none());
            }
        }
        assert_eq!(keys.len(), 0);
        // What rests is bounded.
        for _ in 0..1000 {
            let key = keys.insert(region()).expect("room");
            keys.remove(key);
        }
        assert_eq!((keys.resting.len(), keys.rests.len()), (RESTING, RESTING));
    }
}
