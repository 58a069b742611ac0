// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guest memory made of vectors.

use crate::memory::{
    GuestAddress, HostRange, Memory, RegionId, Unmapped, copy_null, read_null, write_null,
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Bus address of the first byte of every guest's memory.
pub const BASE: u64 = 0x1_0000_0000;

/// A guest that reacts at once whenever the device stores a certain word.
#[derive(Copy, Clone, Debug)]
struct Reaction {
    /// Address of the word of the device.
    watched: u64,
    /// Address of the word to which the guest writes the same value plus `ahead`.
    answer: u64,
    ahead: u32,
    /// How often it will still react.
    left: u32,
}

/// Memory of all guests: one block each, which can be unmapped. Either all or none of it is persistent.
#[derive(Clone, Debug, Default)]
pub struct Memories {
    blocks: Rc<RefCell<Vec<Option<Vec<u8>>>>>,
    volatile: Rc<Cell<bool>>,
    reaction: Rc<Cell<Option<Reaction>>>,
}

impl Memories {
    /// Creates memory without guests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a guest with `length` bytes of memory.
    pub fn add(&self, length: usize) -> GuestView {
        let mut blocks = self.blocks.borrow_mut();
        blocks.push(Some(vec![0; length]));
        GuestView {
            memories: self.clone(),
            region: RegionId(blocks.len() as u32 - 1),
        }
    }

    /// Sets whether memory is volatile from now on.
    pub fn set_volatile(&self, volatile: bool) {
        self.volatile.set(volatile);
    }

    fn with<R>(
        &self,
        range: HostRange,
        offset: u64,
        length: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Unmapped> {
        if offset.checked_add(length as u64).ok_or(Unmapped)? > range.length {
            return Err(Unmapped);
        }
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks
            .get_mut(range.region.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(Unmapped)?;
        let start = usize::try_from(range.offset + offset).map_err(|_| Unmapped)?;
        let bytes = block.get_mut(start..start + length).ok_or(Unmapped)?;
        Ok(work(bytes))
    }

    fn word<const N: usize, R>(
        &self,
        range: HostRange,
        offset: u64,
        work: impl FnOnce(&mut [u8; N]) -> R,
    ) -> Result<R, Unmapped> {
        if !(range.offset + offset).is_multiple_of(N as u64) {
            return Err(Unmapped);
        }
        self.with(range, offset, N, |bytes| {
            work(bytes.try_into().expect("length is N"))
        })
    }
}

/// Memory as the device of one guest sees it.
#[derive(Clone, Debug)]
pub struct GuestView {
    memories: Memories,
    region: RegionId,
}

impl GuestView {
    /// Unmaps the guest's memory.
    pub fn unmap(&self) {
        self.memories.blocks.borrow_mut()[self.region.0 as usize] = None;
    }

    /// Reads guest memory as the guest does.
    pub fn get(&self, address: u64, buffer: &mut [u8]) {
        let range = self.range(address, buffer.len());
        self.read(range, buffer).expect("guest memory");
    }

    /// Writes guest memory as the guest does.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let range = self.range(address, bytes.len());
        self.write(range, bytes).expect("guest memory");
    }

    /// Lets the guest react to the next `times` stores of its device to the word at `watched`: it writes the value plus
    /// `ahead` to the word at `answer`.
    pub fn react(&self, watched: u64, answer: u64, ahead: u32, times: u32) {
        self.memories.reaction.set(Some(Reaction {
            watched,
            answer,
            ahead,
            left: times,
        }));
    }

    fn range(&self, address: u64, length: usize) -> HostRange {
        self.resolve(GuestAddress(address), length as u64)
            .expect("address of guest memory")
    }
}

impl Memory for GuestView {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let offset = address.0.checked_sub(BASE)?;
        let blocks = self.memories.blocks.borrow();
        let block = blocks[self.region.0 as usize].as_ref()?;
        (offset.checked_add(length)? <= block.len() as u64).then_some(HostRange {
            region: self.region,
            offset,
            length,
        })
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        let blocks = self.memories.blocks.borrow();
        let block = blocks.get(region.0 as usize)?.as_ref()?;
        (!self.memories.volatile.get()).then_some(block.len() as u64)
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        if from.is_null() {
            return read_null(from, buffer);
        }
        self.memories.with(from, 0, buffer.len(), |bytes| {
            buffer.copy_from_slice(bytes);
        })
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        if to.is_null() {
            return write_null(to, bytes);
        }
        self.memories
            .with(to, 0, bytes.len(), |target| target.copy_from_slice(bytes))
    }

    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
        if from.is_null() || to.is_null() {
            return copy_null(self, from, to);
        }
        let Some(to) = to.slice(0, from.length) else {
            return Err(Unmapped);
        };
        let blocks = &self.memories.blocks;
        let source_index = from.region.0 as usize;
        if from.region == to.region {
            let mut bytes = vec![0; from.length as usize];
            self.read(from, &mut bytes)?;
            return self.write(to, &bytes);
        }
        // Takes the source out for a moment, so that source and target can be borrowed at once.
        let source = blocks.borrow_mut()[source_index].take().ok_or(Unmapped)?;
        let start = from.offset as usize;
        let copied = source
            .get(start..start + from.length as usize)
            .ok_or(Unmapped)
            .and_then(|bytes| self.write(to, bytes));
        blocks.borrow_mut()[source_index] = Some(source);
        copied
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        self.memories
            .word(range, offset, |word| u32::from_le_bytes(*word))
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        self.memories
            .word(range, offset, |word| *word = value.to_le_bytes())?;
        if let Some(mut reaction) = self.memories.reaction.get()
            && range.region == self.region
            && BASE + range.offset + offset == reaction.watched
            && reaction.left > 0
        {
            reaction.left -= 1;
            self.memories.reaction.set(Some(reaction));
            let answer = value.wrapping_add(reaction.ahead);
            self.put(reaction.answer, &answer.to_le_bytes());
        }
        Ok(())
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        self.memories
            .word(range, offset, |word: &mut [u8; 1]| *word = [value])
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        self.memories
            .word(range, offset, |word| u64::from_le_bytes(*word))
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.memories.word(range, offset, |word| {
            u64::from_le_bytes(std::mem::replace(word, value.to_le_bytes()))
        })
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.memories.word(range, offset, |word| {
            let old = u64::from_le_bytes(*word);
            *word = old.wrapping_add(value).to_le_bytes();
            old
        })
    }

    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        self.memories.word(range, offset, |word| {
            let old = u64::from_le_bytes(*word);
            if old == current {
                *word = new.to_le_bytes();
            }
            old
        })
    }

    fn fence(&self) {}
}
