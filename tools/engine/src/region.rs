// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions and their keys.

use crate::explain::Access;
use crate::{
    buffer::Buffer,
    cause::Cause,
    memory::{GuestAddress, HostRange, Memory},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use rustc_hash::FxHashMap;
use std::cell::Cell;

/// What a region covers.
#[derive(Debug)]
pub(crate) enum RegionMemory {
    /// A buffer that was resolved when the region was registered.
    Buffer(Buffer),
    /// All memory of the guest: addresses are bus addresses, resolved with each access.
    All,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    /// Protection domain.
    pub(crate) pd: u32,
    /// [`access`](vrnic_wire::memory::access) rights.
    pub(crate) access: u32,
    /// Address of the first byte in work requests.
    pub(crate) iova: u64,
    /// What it covers.
    pub(crate) memory: RegionMemory,
}

impl Region {
    /// Host ranges that the region holds on to.
    pub(crate) fn translations(&self) -> usize {
        match &self.memory {
            RegionMemory::Buffer(buffer) => buffer.translations(),
            RegionMemory::All => 0,
        }
    }
}

/// All regions of a device by their keys.
#[derive(Debug)]
pub(crate) struct Regions {
    by_key: FxHashMap<u32, Region>,
    random: ChaCha12Rng,
    limit: u32,
    /// The access that was refused last, until somebody tells of it.
    refused: Cell<Option<(Cause, Access)>>,
}

impl Regions {
    /// No regions, room for `limit`, and keys that follow from `seed`.
    pub(crate) fn new(limit: u32, seed: [u8; 32]) -> Self {
        Self {
            by_key: FxHashMap::default(),
            random: ChaCha12Rng::from_seed(seed),
            limit,
            refused: Cell::new(None),
        }
    }

    /// Number of regions.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is no room for another region.
    pub(crate) fn is_full(&self) -> bool {
        self.by_key.len() >= self.limit as usize
    }

    /// Adds a region and gives it a key that no other has; `None` if there is no room.
    pub(crate) fn insert(&mut self, region: Region) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        // Far less than half of all keys are in use, so this ends soon.
        let key = loop {
            let key = self.random.next_u32();
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        self.by_key.insert(key, region);
        Some(key)
    }

    /// The region with that key.
    pub(crate) fn get(&self, key: u32) -> Option<&Region> {
        self.by_key.get(&key)
    }

    /// Takes out the region with that key.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Region> {
        self.by_key.remove(&key)
    }

    /// What was refused last, and why; once.
    pub(crate) fn take_refused(&self) -> Option<(Cause, Access)> {
        self.refused.take()
    }

    /// Remembers that an access was refused for that reason, which it gives back.
    pub(crate) fn refuse(&self, cause: Cause, access: Access) -> Cause {
        self.refused.set(Some((cause, access)));
        cause
    }

    /// Up to `limit` regions with their keys, from the one at `position` on, in no order.
    pub(crate) fn page(
        &self,
        position: usize,
        limit: usize,
    ) -> impl Iterator<Item = (u32, &Region)> {
        let all = self.by_key.iter().skip(position).take(limit);
        all.map(|(key, region)| (*key, region))
    }

    /// The region that covers `length` bytes at `address`, provided that it belongs to `pd` and
    /// gives all of `rights`. Failures are named as those of a local access.
    fn covering(
        &self,
        key: u32,
        pd: u32,
        rights: u32,
        address: u64,
        length: u64,
    ) -> Result<(&Region, u64), Cause> {
        let region = self.by_key.get(&key).ok_or(Cause::LocalKey)?;
        if region.pd != pd {
            return Err(Cause::LocalKeyPd);
        }
        if region.access & rights != rights {
            return Err(Cause::LocalRights);
        }
        let offset = match &region.memory {
            RegionMemory::Buffer(buffer) => {
                let offset = address.checked_sub(region.iova).ok_or(Cause::LocalBounds)?;
                let end = offset.checked_add(length).ok_or(Cause::LocalBounds)?;
                if end > buffer.length() {
                    return Err(Cause::LocalBounds);
                }
                offset
            }
            RegionMemory::All => address,
        };
        Ok((region, offset))
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
        pd: u32,
        rights: u32,
        address: u64,
        length: u64,
        memory: &M,
        ranges: &mut Vec<HostRange>,
    ) -> Result<(), Cause> {
        if length == 0 {
            return Ok(());
        }
        let resolved =
            self.covering(key, pd, rights, address, length)
                .and_then(|(region, offset)| match &region.memory {
                    RegionMemory::Buffer(buffer) => buffer
                        .ranges(offset, length, ranges)
                        .ok_or(Cause::LocalBounds),
                    RegionMemory::All => memory
                        .resolve(GuestAddress(offset), length)
                        .map(|range| ranges.push(range))
                        .ok_or(Cause::LocalUnmapped),
                });
        resolved.map_err(|cause| {
            let access = Access {
                key,
                pd,
                rights,
                address,
                length,
            };
            self.refuse(cause, access)
        })
    }

    /// Checks an access as [`resolve`](Self::resolve) does, without resolving it.
    pub(crate) fn check<M: Memory>(
        &self,
        key: u32,
        pd: u32,
        rights: u32,
        address: u64,
        length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        if length == 0 {
            return Ok(());
        }
        let covered = self.covering(key, pd, rights, address, length);
        let checked = covered.and_then(|(region, offset)| match &region.memory {
            RegionMemory::All if memory.resolve(GuestAddress(offset), length).is_none() => {
                Err(Cause::LocalUnmapped)
            }
            _ => Ok(()),
        });
        checked.map_err(|cause| {
            let access = Access {
                key,
                pd,
                rights,
                address,
                length,
            };
            self.refuse(cause, access)
        })
    }
}
