// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guest memory, as the engine sees it.
//!
//! The engine never holds a pointer. When memory is registered, it asks the embedding program to resolve guest
//! addresses to [`HostRange`]s, and uses those from then on. Guest memory is shared with potentially hostile code that
//! writes concurrently. So implementations copy with volatile or atomic accesses, and the engine reads each field once,
//! into a private copy.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A bus address of a guest. Not validated: [`Memory::resolve`] does that.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

/// ID of a mapped block of guest memory. It is never reused after the block is gone.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionId(pub u32);

impl RegionId {
    /// ID of no block, but of memory that reads as zeros and ignores writes. No block has this ID.
    pub const NULL: Self = Self(u32::MAX);
}

/// A piece of a mapped block of some guest's memory, or of [`RegionId::NULL`].
///
/// This is only a name. Every access through it is checked again, so the worst result of using a range that outlived
/// its block is [`Unmapped`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRange {
    /// The block.
    pub region: RegionId,
    /// Byte offset in the block.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl HostRange {
    /// Returns a range of `length` bytes that read as zeros and ignore writes.
    pub const fn null(length: u64) -> Self {
        Self {
            region: RegionId::NULL,
            offset: 0,
            length,
        }
    }

    /// Returns whether the bytes read as zeros and ignore writes.
    pub fn is_null(&self) -> bool {
        self.region == RegionId::NULL
    }

    /// Returns the part of this range that begins `offset` bytes into it and has `length` bytes, or `None` if that
    /// exceeds the range.
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

    /// Returns whether `next` begins where this range ends, so that the two can be merged.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.region == next.region && self.offset + self.length == next.offset
    }
}

/// Implements [`Memory::read`] for bytes of [`RegionId::NULL`].
pub fn read_null(from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
    from.slice(0, buffer.len() as u64).ok_or(Unmapped)?;
    buffer.fill(0);
    Ok(())
}

/// Implements [`Memory::write`] for bytes of [`RegionId::NULL`].
pub fn write_null(to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
    to.slice(0, bytes.len() as u64).ok_or(Unmapped)?;
    Ok(())
}

/// Implements [`Memory::copy`] if either range is in [`RegionId::NULL`].
pub fn copy_null<M: Memory>(memory: &M, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
    let to = to.slice(0, from.length).ok_or(Unmapped)?;
    if to.is_null() {
        Ok(())
    } else {
        memory.clear(to)
    }
}

/// Error: the memory is not mapped, or not any more.
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
/// [`resolve`](Memory::resolve) takes addresses of the guest that the device belongs to. All other methods take ranges
/// of any guest, so that one device can copy from another's memory. Words must be naturally aligned; otherwise the
/// result is [`Unmapped`]. Bytes of [`RegionId::NULL`] can be read, written and copied, but not accessed as words.
pub trait Memory {
    /// Returns the host range of `length` bytes at `address`, or `None` if they are not all writable RAM in one block.
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange>;

    /// Returns the length of the block in bytes if its contents can be made persistent.
    fn persistent_length(&self, region: RegionId) -> Option<u64>;

    /// Copies the first `buffer.len()` bytes of `from` to `buffer`.
    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped>;

    /// Does the same as [`read`](Memory::read), but for bytes that the device does not interpret, such as payload. This
    /// is faster where it need not read each byte exactly once.
    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        self.read(from, buffer)
    }

    /// Copies `bytes` to the beginning of `to`.
    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped>;

    /// Does the same as [`write`](Memory::write), but for bytes that the device does not interpret.
    fn write_payload(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        self.write(to, bytes)
    }

    /// Tells that the device interprets these bytes of a payload, or what it calculated from one. A replay, which does
    /// not know the payload, replaces them by those of the recording.
    fn interpret(&self, _bytes: &mut [u8]) -> Result<(), Unmapped> {
        Ok(())
    }

    /// Copies `from` to the beginning of `to`, which must be at least as long. The two may overlap or belong to
    /// different guests.
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

    /// Returns the word at `offset` in `range`, or `None` if it is not known. This is for people who inspect the
    /// device: nothing depends on the value, and recordings do not contain it.
    fn glance(&self, range: HostRange, offset: u64) -> Result<Option<u32>, Unmapped> {
        self.load_u32(range, offset).map(Some)
    }

    /// Stores the word at `offset` in `range` with release order.
    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped>;

    /// Stores the byte at `offset` in `range` with release order.
    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped>;

    /// Loads the word at `offset` in `range` with acquire order.
    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped>;

    /// Exchanges the word at `offset` in `range`, sequentially consistent, and returns the old value.
    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped>;

    /// Adds to the word at `offset` in `range`, wrapping and sequentially consistent, and returns the old value.
    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped>;

    /// Stores `new` if the word at `offset` in `range` is `current`, sequentially consistent, and returns the old
    /// value.
    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped>;

    /// Executes a full fence: earlier stores are visible before later loads.
    fn fence(&self);
}

/// No memory: nothing is mapped.
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
