// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guest memory as far as a recording knows it: what calls found at each place, and what the device stored.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use vrnic_engine::memory::{GuestAddress, HostRange, Memory, RegionId, Unmapped};
use vrnic_engine::recording::{Access, Touch};

/// Size of a page of the image in bytes.
const PAGE: u64 = 4096;

/// A piece of memory: block, offset and length.
type Place = (RegionId, u64, u64);

fn place(range: &HostRange) -> Place {
    (range.region, range.offset, range.length)
}

/// Contents of memory; unknown bytes are 0.
#[derive(Debug, Default)]
struct Pages(HashMap<(RegionId, u64), Box<[u8; PAGE as usize]>>);

impl Pages {
    fn put(&mut self, range: HostRange, bytes: &[u8]) {
        for (offset, byte) in (range.offset..).zip(bytes) {
            let page = self.0.entry((range.region, offset / PAGE));
            let page = page.or_insert_with(|| Box::new([0; PAGE as usize]));
            page[(offset % PAGE) as usize] = *byte;
        }
    }

    fn get(&self, range: HostRange, bytes: &mut [u8]) {
        for (offset, byte) in (range.offset..).zip(bytes) {
            let page = self.0.get(&(range.region, offset / PAGE));
            *byte = page.map_or(0, |page| page[(offset % PAGE) as usize]);
        }
    }

    fn word(&self, range: HostRange) -> u64 {
        let mut bytes = [0; 8];
        self.get(range, &mut bytes[..range.length.min(8) as usize]);
        u64::from_le_bytes(bytes)
    }

    fn put_word(&mut self, range: HostRange, value: u64) {
        let bytes = value.to_le_bytes();
        self.put(range, &bytes[..range.length.min(8) as usize]);
    }
}

#[derive(Debug, Default)]
struct State {
    pages: Pages,
    /// What the next call found at each place, in order.
    found: HashMap<Place, VecDeque<Access>>,
    /// What it interpreted, in order.
    interpreted: VecDeque<Access>,
}

/// Guest memory for a replay that leaves out some of the recorded calls.
///
/// A call that was recorded finds what it found then. At other places, it finds what the guest had stored there by
/// then, as far as any call saw it, and what the device itself has stored.
#[derive(Debug)]
pub struct Image {
    places: Rc<Places>,
    state: RefCell<State>,
    /// Accesses and their results since the last [`take_touches`](Self::take_touches).
    touches: RefCell<Vec<(Touch, Access)>>,
}

/// Mapping of addresses.
#[derive(Debug, Default)]
pub struct Places {
    /// The place of an address, by page.
    resolved: HashMap<u64, (RegionId, u64)>,
    lengths: HashMap<RegionId, u64>,
}

impl Places {
    /// Collects what all accesses of a recording reveal.
    pub fn new<'a>(all: impl Iterator<Item = &'a (Touch, Access)>) -> Self {
        let mut places = Self::default();
        for (touch, access) in all {
            match (touch, access) {
                (Touch::Resolve(address, length), Access::Resolved(region, offset)) => {
                    let first = address.0 / PAGE;
                    let last = address.0.saturating_add(length.saturating_sub(1)) / PAGE;
                    // The first pages of a long range are enough, because it is resolved as a whole.
                    for page in first..=last.min(first + 64) {
                        let ahead = (page * PAGE).wrapping_sub(address.0);
                        places
                            .resolved
                            .insert(page, (*region, offset.wrapping_add(ahead)));
                    }
                }
                (Touch::PersistentLength(region), Access::Length(length)) => {
                    places.lengths.insert(*region, *length);
                }
                _ => {}
            }
        }
        places
    }
}

impl Image {
    /// Creates memory of which nothing but the addresses is known.
    pub fn new(places: Rc<Places>) -> Self {
        Self {
            places,
            state: RefCell::default(),
            touches: RefCell::default(),
        }
    }

    /// Returns the accesses and their results since the last call of this function.
    pub fn take_touches(&self) -> Vec<(Touch, Access)> {
        self.touches.take()
    }

    fn note(&self, touch: Touch, access: Access) {
        self.touches.borrow_mut().push((touch, access));
    }

    /// Advances to the time of a recorded call, whether or not that is going to be repeated. By then, the guest has
    /// stored what the call found.
    pub fn reach(&mut self, touches: &[(Touch, Access)]) {
        let state = self.state.get_mut();
        state.found.clear();
        state.interpreted.clear();
        for (touch, access) in touches {
            if let Touch::Interpret(_) = touch {
                state.interpreted.push_back(access.clone());
                continue;
            }
            let (Touch::Read(range)
            | Touch::ReadPayload(range)
            | Touch::Load(range)
            | Touch::Swap(range, _)
            | Touch::Add(range, _)
            | Touch::Compare(range, ..)) = touch
            else {
                continue;
            };
            let queue = state.found.entry(place(range)).or_default();
            if queue.is_empty() {
                match access {
                    Access::Read(bytes) => state.pages.put(*range, bytes),
                    Access::Word(word) => state.pages.put_word(*range, *word),
                    _ => {}
                }
            }
            queue.push_back(access.clone());
        }
    }

    /// Returns what the current call found there.
    fn find(&self, range: &HostRange) -> Option<Access> {
        let state = &mut *self.state.borrow_mut();
        state.found.get_mut(&place(range))?.pop_front()
    }

    fn load(&self, range: HostRange) -> Result<u64, Unmapped> {
        match self.find(&range) {
            Some(Access::Word(word)) => Ok(word),
            Some(Access::Unmapped) => Err(Unmapped),
            _ => Ok(self.state.borrow().pages.word(range)),
        }
    }

    fn store(&self, range: HostRange, value: u64) {
        self.state.borrow_mut().pages.put_word(range, value);
    }

    fn fetch(&self, range: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        match self.find(&range) {
            Some(Access::Read(bytes)) if bytes.len() == buffer.len() => {
                buffer.copy_from_slice(&bytes);
            }
            Some(Access::Skipped) => buffer.fill(0),
            Some(Access::Unmapped) => return Err(Unmapped),
            _ => self.state.borrow().pages.get(range, buffer),
        }
        self.note(Touch::Read(range), Access::Read(buffer.to_vec()));
        Ok(())
    }
}

fn first(range: HostRange, length: usize) -> HostRange {
    HostRange {
        length: length as u64,
        ..range
    }
}

/// Returns the word at `offset` of a range, if it lies within.
fn word(range: HostRange, offset: u64, length: u64) -> Result<HostRange, Unmapped> {
    range.slice(offset, length).ok_or(Unmapped)
}

impl Memory for Image {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let (region, offset) = self.places.resolved.get(&(address.0 / PAGE))?;
        Some(HostRange {
            region: *region,
            offset: offset.wrapping_add(address.0 % PAGE),
            length,
        })
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        self.places.lengths.get(&region).copied()
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        self.fetch(first(from, buffer.len()), buffer)
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        self.state.borrow_mut().pages.put(to, bytes);
        self.note(
            Touch::Write(first(to, bytes.len()), bytes.to_vec()),
            Access::Done,
        );
        Ok(())
    }

    fn interpret(&self, bytes: &mut [u8]) -> Result<(), Unmapped> {
        match self.state.borrow_mut().interpreted.pop_front() {
            Some(Access::Read(kept)) if kept.len() == bytes.len() => bytes.copy_from_slice(&kept),
            Some(Access::Unmapped) => return Err(Unmapped),
            _ => {}
        }
        Ok(())
    }

    fn write_payload(&self, _: HostRange, _: &[u8]) -> Result<(), Unmapped> {
        // Payload has no meaning here.
        Ok(())
    }

    fn copy(&self, _: HostRange, _: HostRange) -> Result<(), Unmapped> {
        Ok(())
    }

    fn clear(&self, _: HostRange) -> Result<(), Unmapped> {
        Ok(())
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        Ok(self.load(word(range, offset, 4)?)? as u32)
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        self.store(word(range, offset, 4)?, value.into());
        Ok(())
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        self.store(word(range, offset, 1)?, value.into());
        Ok(())
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        self.load(word(range, offset, 8)?)
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        let range = word(range, offset, 8)?;
        let old = self.load(range)?;
        self.store(range, value);
        Ok(old)
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        let range = word(range, offset, 8)?;
        let old = self.load(range)?;
        self.store(range, old.wrapping_add(value));
        Ok(old)
    }

    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        let range = word(range, offset, 8)?;
        let old = self.load(range)?;
        if old == current {
            self.store(range, new);
        }
        Ok(old)
    }

    fn fence(&self) {}
}
