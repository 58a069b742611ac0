// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guest memory, as the engine sees it.
//!
//! The engine never holds a pointer. It asks the embedding program to resolve guest addresses to
//! [`HostRange`]s once, when memory is registered, and uses those names from then on. Guest memory
//! is shared with hostile code that writes concurrently: implementations copy with volatile or
//! atomic accesses and the engine reads each field once into a private copy.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A bus address of a guest. Not validated: [`Memory::resolve`] does that.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

/// Name of a mapped block of guest memory; never used again after the block is gone.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionId(pub u32);

impl RegionId {
    /// Name of no block, but of memory that is all zeros and keeps nothing. Nobody maps it.
    pub const NULL: Self = Self(u32::MAX);
}

/// A piece of a mapped block of some guest's memory, or of [`RegionId::NULL`].
///
/// Only a name: every access through it is checked again, so a range that outlived its block
/// gives [`Unmapped`] and nothing worse.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRange {
    /// The block.
    pub region: RegionId,
    /// Byte offset in the block.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl HostRange {
    /// So many bytes that are zeros and keep nothing.
    pub const fn null(length: u64) -> Self {
        Self {
            region: RegionId::NULL,
            offset: 0,
            length,
        }
    }

    /// Whether the bytes are zeros and keep nothing.
    pub fn is_null(&self) -> bool {
        self.region == RegionId::NULL
    }

    /// The part of this range that begins `offset` bytes into it and has `length` bytes, or `None`
    /// if it does not lie within.
    pub fn slice(&self, offset: u64, length: u64) -> Option<Self> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        Some(Self {
            region: self.region,
            offset: self.offset + offset,
            length,
        })
    }

    /// Whether `next` begins where this range ends, so that the two can be one.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.region == next.region && self.offset + self.length == next.offset
    }
}

/// What [`Memory::read`] does with bytes of [`RegionId::NULL`].
pub fn read_null(from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
    from.slice(0, buffer.len() as u64).ok_or(Unmapped)?;
    buffer.fill(0);
    Ok(())
}

/// What [`Memory::write`] does with bytes of [`RegionId::NULL`].
pub fn write_null(to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
    to.slice(0, bytes.len() as u64).ok_or(Unmapped)?;
    Ok(())
}

/// What [`Memory::copy`] does if one of the two is in [`RegionId::NULL`].
pub fn copy_null<M: Memory>(memory: &M, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
    let to = to.slice(0, from.length).ok_or(Unmapped)?;
    if to.is_null() {
        Ok(())
    } else {
        memory.clear(to)
    }
}

/// The memory that was named is not, or no longer, mapped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Unmapped;

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("guest memory is not mapped")
    }
}

impl std::error::Error for Unmapped {}

/// Access to guest memory.
///
/// [`resolve`](Memory::resolve) speaks of the guest that the device belongs to; all other methods
/// take ranges of any guest, so that one device can copy from another's memory. Words must be
/// naturally aligned, else [`Unmapped`]. Bytes of [`RegionId::NULL`] can be read, written and
/// copied; there are no words in it.
pub trait Memory {
    /// The host range of `length` bytes at `address`, or `None` if they are not all writable RAM
    /// in one block.
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange>;

    /// Bytes of the block, if what is in it can be made to survive a loss of power.
    fn persistent_length(&self, region: RegionId) -> Option<u64>;

    /// Copies the first `buffer.len()` bytes of `from` to `buffer`.
    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped>;

    /// Does what [`read`](Memory::read) does with bytes that mean nothing to the device, as payload: faster where that
    /// need not read each byte once.
    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        self.read(from, buffer)
    }

    /// Copies `bytes` to the beginning of `to`.
    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped>;

    /// Does what [`write`](Memory::write) does, with bytes that mean nothing to the device.
    fn write_payload(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        self.write(to, bytes)
    }

    /// Copies `from` to the beginning of `to`, which is at least as long. The two may overlap or
    /// belong to different guests.
    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped>;

    /// Fills a range with zeros.
    fn clear(&self, to: HostRange) -> Result<(), Unmapped> {
        const ZEROS: &[u8] = &[0; 64 << 10];
        let mut offset = 0;
        while offset < to.length {
            let length = (to.length - offset).min(ZEROS.len() as u64);
            let part = to.slice(offset, length).ok_or(Unmapped)?;
            self.write(part, &ZEROS[..length as usize])?;
            offset += length;
        }
        Ok(())
    }

    /// Loads the word at `offset` in `range` with acquire order.
    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped>;

    /// The word at `offset` in `range`, for people who look at the device: it depends on nothing, and no recording
    /// has it. `None` if it is not known.
    fn glance(&self, range: HostRange, offset: u64) -> Result<Option<u32>, Unmapped> {
        self.load_u32(range, offset).map(Some)
    }

    /// Stores the word at `offset` in `range` with release order.
    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped>;

    /// Stores the byte at `offset` in `range` with release order.
    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped>;

    /// Loads the word at `offset` in `range` with acquire order.
    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped>;

    /// Exchanges the word at `offset` in `range`, sequentially consistent; gives the old value.
    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped>;

    /// Adds to the word at `offset` in `range`, wrapping and sequentially consistent; gives the
    /// old value.
    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped>;

    /// Stores `new` if the word at `offset` in `range` is `current`, sequentially consistent; gives
    /// the old value.
    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped>;

    /// A full fence: what was stored before it is seen before what is loaded after it.
    fn fence(&self);
}

/// No memory at all: of what stands in it nothing is known.
#[derive(Copy, Clone, Debug)]
pub struct Nowhere;

impl Memory for Nowhere {
    fn resolve(&self, _: GuestAddress, _: u64) -> Option<HostRange> {
        None
    }

    fn persistent_length(&self, _: RegionId) -> Option<u64> {
        None
    }

    fn read(&self, _: HostRange, _: &mut [u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn write(&self, _: HostRange, _: &[u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn copy(&self, _: HostRange, _: HostRange) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn load_u32(&self, _: HostRange, _: u64) -> Result<u32, Unmapped> {
        Err(Unmapped)
    }

    fn glance(&self, _: HostRange, _: u64) -> Result<Option<u32>, Unmapped> {
        Ok(None)
    }

    fn store_u32(&self, _: HostRange, _: u64, _: u32) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn store_u8(&self, _: HostRange, _: u64, _: u8) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn load_u64(&self, _: HostRange, _: u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }

    fn swap_u64(&self, _: HostRange, _: u64, _: u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }

    fn fetch_add_u64(&self, _: HostRange, _: u64, _: u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }

    fn compare_exchange_u64(&self, _: HostRange, _: u64, _: u64, _: u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }

    fn fence(&self) {}
}
