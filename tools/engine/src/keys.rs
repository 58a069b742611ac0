// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Keys, and the memory that they give access to.

use crate::{
    cause::Cause,
    explain::Access,
    inspect::{BoundMw, MrSnapshot, MwSnapshot, Named},
    integrity::Integrity,
    limits::{Features, Limits},
    memory::{GuestAddress, HostRange, Memory, Unmapped},
    pages::{Half, Pages, Waiter, Want},
    region::{Nested, Region, RegionMemory, check_extent},
    segment::Payload,
    state,
    window::{Binding, Window},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};
use vrnic_wire::{
    command::MwType,
    integrity::IntegrityTarget,
    memory::{KEY_INDEX_MASK, LOCAL_DMA_KEY, NULL_KEY, access},
    work::{BindTarget, RegisterTarget},
};

/// Number of indices that rest before they are used again.
const RESTING: usize = 1 << 16;

/// Bytes of a message whose pages are requested together.
pub(crate) const AHEAD: u64 = 2 << 20;

/// Largest number of accesses of one request that are remembered because pages were missing.
const MAX_FAULTS: usize = 8;

/// Memory that the local DMA key names.
const ALL_MEMORY: &RegionMemory = &RegionMemory::All;

/// Memory that the null key names.
const NULL_MEMORY: &RegionMemory = &RegionMemory::Null;

/// Index of the keys that the standard defines; no object has it.
const RESERVED_INDEX: u32 = 0;
const _: () = assert!(LOCAL_DMA_KEY & KEY_INDEX_MASK == RESERVED_INDEX);
const _: () = assert!(NULL_KEY & KEY_INDEX_MASK == RESERVED_INDEX);

/// The queue pair for which memory is accessed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Accessor {
    /// Its number.
    pub(crate) qpn: u32,
    /// Its protection domain.
    pub(crate) pd: u32,
    /// Whether it belongs to a kernel context.
    pub(crate) kernel: bool,
}

/// Missing pages that an access found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// Index of the region.
    pub(crate) index: u32,
    /// The pages.
    pub(crate) want: Want,
}

/// Returns the bits of a key that identify its object.
pub(crate) fn index_of(key: u32) -> u32 {
    key & KEY_INDEX_MASK
}

/// An object with a key.
#[derive(Debug, Serialize, Deserialize)]
enum Object {
    Region(Region),
    Window(Window),
}

/// Returns whether an access with these rights writes.
fn changes(rights: u32) -> bool {
    rights & (access::LOCAL_WRITE | access::REMOTE_CHANGES) != 0
}

/// An object and its key.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The whole key: the lowest byte must match too.
    key: u32,
    object: Object,
}

/// All regions and windows of a device by key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keys {
    #[serde(serialize_with = "state::map")]
    by_index: FxHashMap<u32, Entry>,
    /// Indices of removed objects, oldest first. None of them is in use.
    resting: VecDeque<u32>,
    #[serde(serialize_with = "state::set")]
    rests: FxHashSet<u32>,
    random: ChaCha12Rng,
    features: Features,
    max_regions: u32,
    max_windows: u32,
    windows: u32,
    /// What the bindings of each queue pair that bound a type 2 window have as their binder. Without its entry here, a
    /// queue pair has no access any more, so that the bindings need not be found when it goes.
    #[serde(serialize_with = "state::map")]
    binders: FxHashMap<u32, u64>,
    /// Number of binders so far.
    last_binder: u64,
    /// The access that was refused last, until it is taken.
    refused: Cell<Option<(Cause, Access)>>,
    /// Pages recently found missing, until they are taken.
    faults: RefCell<Vec<Fault>>,
    /// Number of integrity regions.
    integrity: u32,
    /// Indices of the regions for which each waiter waits or has waited.
    #[serde(serialize_with = "state::map")]
    waits: FxHashMap<Waiter, Vec<u32>>,
}

impl Keys {
    /// Creates an empty set of keys with room for the objects in `limits`. New keys depend on `seed`.
    pub(crate) fn new(limits: &Limits, features: Features, seed: [u8; 32]) -> Self {
        Self {
            by_index: FxHashMap::default(),
            resting: VecDeque::new(),
            rests: FxHashSet::default(),
            random: ChaCha12Rng::from_seed(seed),
            features,
            max_regions: limits.mr,
            max_windows: limits.mw,
            windows: 0,
            binders: FxHashMap::default(),
            last_binder: 0,
            refused: Cell::new(None),
            faults: RefCell::default(),
            integrity: 0,
            waits: FxHashMap::default(),
        }
    }

    /// Takes the access that was refused last, and why.
    pub(crate) fn take_refused(&self) -> Option<(Cause, Access)> {
        self.refused.take()
    }

    /// Remembers that an access was refused, and returns the cause.
    pub(crate) fn refuse(&self, cause: Cause, access: Access) -> Cause {
        self.refused.set(Some((cause, access)));
        cause
    }

    /// Returns up to `limit` objects from position `position` on, in no particular order; `None` beyond the last
    /// object.
    fn objects(&self, position: usize, limit: usize) -> Option<impl Iterator<Item = &Entry>> {
        let all = self.by_index.values().skip(position).take(limit);
        (position < self.by_index.len()).then_some(all)
    }

    /// Returns the regions, with their keys, among up to `limit` objects from position `position` on, in no particular
    /// order; `None` beyond the last object.
    pub(crate) fn page(
        &self,
        position: usize,
        limit: usize,
    ) -> Option<impl Iterator<Item = (u32, &Region)>> {
        let all = self.objects(position, limit)?;
        Some(all.filter_map(|entry| match &entry.object {
            Object::Region(region) => Some((entry.key, region)),
            Object::Window(_) => None,
        }))
    }

    /// Does the same for windows.
    pub(crate) fn window_page(
        &self,
        position: usize,
        limit: usize,
    ) -> Option<impl Iterator<Item = MwSnapshot>> {
        let all = self.objects(position, limit)?;
        Some(all.filter_map(|entry| match &entry.object {
            Object::Window(window) => Some(MwSnapshot::new(entry.key, window, self.bound(window))),
            Object::Region(_) => None,
        }))
    }

    /// Returns the object that a key names, for display.
    pub(crate) fn named(&self, key: u32) -> Named {
        match self.by_index.get(&index_of(key)) {
            Some(entry) => match &entry.object {
                Object::Region(region) => Named::Region(MrSnapshot::new(entry.key, region)),
                Object::Window(window) => {
                    Named::Window(MwSnapshot::new(entry.key, window, self.bound(window)))
                }
            },
            None if self.rests.contains(&index_of(key)) => Named::Removed,
            None => Named::Nothing,
        }
    }

    /// Describes the binding of a window, if any.
    fn bound(&self, window: &Window) -> Option<BoundMw> {
        let binding = window.binding.as_ref()?;
        let binder = self.binders.get(&binding.qpn);
        let is_there = window.mw_type == MwType::Type1 || binder == Some(&binding.binder);
        Some(BoundMw {
            region: self.by_index.get(&binding.region)?.key,
            first: binding.first,
            length: binding.length,
            access: binding.access,
            qpn: if is_there { binding.qpn } else { 0 },
        })
    }

    /// Returns the number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.by_index.len() - self.windows as usize
    }

    /// Returns the number of windows.
    pub(crate) fn windows(&self) -> u32 {
        self.windows
    }

    /// Returns whether there is no room for another region.
    pub(crate) fn is_full(&self) -> bool {
        self.regions() >= self.max_regions as usize
    }

    /// Adds an object and returns its new key, whose index no other object has.
    fn insert(&mut self, object: Object) -> u32 {
        // Far fewer than half of all indices are in use, so this ends soon.
        let key = loop {
            let key = self.random.next_u32();
            let index = index_of(key);
            let taken = self.by_index.contains_key(&index) || self.rests.contains(&index);
            if index != RESERVED_INDEX && !taken {
                break key;
            }
        };
        self.by_index.insert(index_of(key), Entry { key, object });
        key
    }

    /// Removes an object.
    fn remove(&mut self, index: u32) -> Option<Object> {
        let entry = self.by_index.remove(&index)?;
        if self.resting.len() >= RESTING
            && let Some(oldest) = self.resting.pop_front()
        {
            self.rests.remove(&oldest);
        }
        self.resting.push_back(index);
        self.rests.insert(index);
        Some(entry.object)
    }

    /// Adds a region and returns its key; `None` if there is no room.
    pub(crate) fn insert_region(&mut self, region: Region) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.integrity += u32::from(matches!(region.memory, RegionMemory::Integrity(_)));
        Some(self.insert(Object::Region(region)))
    }

    /// Adds a window and returns its key; `None` if there is no room.
    pub(crate) fn insert_window(&mut self, window: Window) -> Option<u32> {
        if self.windows >= self.max_windows {
            return None;
        }
        self.windows += 1;
        Some(self.insert(Object::Window(window)))
    }

    /// Returns the region that a command names by this key. For regions for fast registration, commands ignore the
    /// lowest byte, which work requests may change.
    pub(crate) fn region(&self, key: u32) -> Option<&Region> {
        match self.by_index.get(&index_of(key))? {
            Entry {
                key: own,
                object: Object::Region(region),
            } if *own == key || region.fast.is_some() => Some(region),
            _ => None,
        }
    }

    /// Returns the window that a command names by this key.
    pub(crate) fn window(&self, key: u32) -> Option<&Window> {
        match &self.by_index.get(&index_of(key))?.object {
            Object::Window(window) => Some(window),
            Object::Region(_) => None,
        }
    }

    /// Removes the region that a command names by this key. It must have no other regions as its pages.
    pub(crate) fn remove_region(&mut self, key: u32) -> Option<Region> {
        self.region(key)?;
        let Object::Region(region) = self.remove(index_of(key))? else {
            return None;
        };
        self.integrity -= u32::from(matches!(region.memory, RegionMemory::Integrity(_)));
        if let Some((nested, page)) = region.page_of
            && let Some(nested) = self.nested_at(nested)
            && nested.regions.get(&page) == Some(&index_of(key))
        {
            nested.regions.remove(&page);
        }
        Some(region)
    }

    /// Removes the window that a command names by this key.
    pub(crate) fn remove_window(&mut self, key: u32) -> Option<Window> {
        self.window(key)?;
        self.unbind(index_of(key));
        self.windows -= 1;
        match self.remove(index_of(key))? {
            Object::Window(window) => Some(window),
            Object::Region(_) => None,
        }
    }

    /// Returns the region that a command names by this key, for modification.
    pub(crate) fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.region(key)?;
        self.region_at(index_of(key))
    }

    /// Revokes all rights of a region, or ends the binding of a window.
    pub(crate) fn revoke(&mut self, key: u32) {
        if self.window(key).is_some() {
            self.unbind(index_of(key));
        } else if let Some(region) = self.region_mut(key) {
            region.access = 0;
        }
    }

    fn region_at(&mut self, index: u32) -> Option<&mut Region> {
        match &mut self.by_index.get_mut(&index)?.object {
            Object::Region(region) => Some(region),
            Object::Window(_) => None,
        }
    }

    /// Ends the binding of a window, if any.
    fn unbind(&mut self, index: u32) {
        let binding = match self.by_index.get_mut(&index).map(|entry| &mut entry.object) {
            Some(Object::Window(window)) => window.binding.take(),
            _ => None,
        };
        let Some(binding) = binding else {
            return;
        };
        if let Some(region) = self.region_at(binding.region) {
            region.windows -= 1;
        }
    }

    /// Forgets a queue pair that is gone. No one can use the type 2 windows that it bound any more, although its number
    /// will be reused eventually.
    pub(crate) fn forget_queue_pair(&mut self, qpn: u32) {
        for half in Half::ALL {
            self.wait_no_more((qpn, half));
        }
        self.binders.remove(&qpn);
    }

    /// Returns the pages of the region of `pd` that a command names by this key.
    pub(crate) fn pages_mut(&mut self, pd: u32, key: u32) -> Result<&mut Pages, Cause> {
        let region = self.region_mut(key).ok_or(Cause::UnknownKey)?;
        let owner = region.pd;
        let pages = region.memory.pages_mut().ok_or(Cause::UnknownKey)?;
        (owner == pd).then_some(pages).ok_or(Cause::PdMismatch)
    }

    /// Makes the on-demand region `key` page `page` of the region `nested`. Both must be in the domain `pd`, and the
    /// former must be as long as a page. Replaces the region that was there.
    pub(crate) fn attach(
        &mut self,
        pd: u32,
        nested: u32,
        page: u32,
        key: u32,
    ) -> Result<(), Cause> {
        let size = match self
            .region_at(index_of(nested))
            .map(|region| &region.memory)
        {
            Some(RegionMemory::Nested(nested)) => nested.pages.page_size(),
            _ => return Err(Cause::NestedPage),
        };
        let region = self.region_mut(key).ok_or(Cause::UnknownKey)?;
        if region.pd != pd {
            return Err(Cause::PdMismatch);
        }
        match &region.memory {
            RegionMemory::Paged(pages) if pages.is_whole(size) => {}
            _ => return Err(Cause::NestedPage),
        }
        if region.page_of.is_some() {
            return Err(Cause::RegionBound);
        }
        region.page_of = Some((index_of(nested), page));
        let before = match self.nested_at(index_of(nested)) {
            Some(nested) => nested.regions.insert(page, index_of(key)),
            None => None,
        };
        if let Some(before) = before.and_then(|index| self.region_at(index)) {
            before.page_of = None;
        }
        Ok(())
    }

    /// Removes up to `left` pages from a nested region, and subtracts them from `left`. Returns how many there were,
    /// and where the rest begins.
    pub(crate) fn detach(
        &mut self,
        nested: u32,
        pages: &std::ops::Range<u32>,
        left: &mut u64,
    ) -> (u64, u32) {
        let Some(nested) = self.nested_at(index_of(nested)) else {
            return (0, pages.end);
        };
        let gone = nested.regions.range(pages.clone()).take(*left as usize);
        let gone: Vec<_> = gone.map(|(page, index)| (*page, *index)).collect();
        for (page, _) in &gone {
            nested.regions.remove(page);
        }
        for (_, index) in &gone {
            if let Some(region) = self.region_at(*index) {
                region.page_of = None;
            }
        }
        let count = gone.len() as u64;
        *left -= count;
        let last = gone.last().filter(|_| *left == 0);
        (count, last.map_or(pages.end, |(page, _)| page + 1))
    }

    fn nested_at(&mut self, index: u32) -> Option<&mut Nested> {
        match &mut self.region_at(index)?.memory {
            RegionMemory::Nested(nested) => Some(nested),
            _ => None,
        }
    }

    /// Returns the pages of a region that is a page of a nested region.
    fn paged_at(&self, index: u32) -> Option<&Pages> {
        match &self.by_index.get(&index)?.object {
            Object::Region(Region {
                memory: RegionMemory::Paged(pages),
                ..
            }) => Some(pages),
            _ => None,
        }
    }

    /// Calls `each` for every piece of the `length` bytes at `offset` of a nested region. `each` returns the pages that
    /// are missing.
    fn in_nested(
        &self,
        nested: &Nested,
        index: u32,
        (offset, length): (u64, u64),
        write: bool,
        mut each: impl FnMut(&Pages, u64, u64) -> Result<(), Want>,
    ) -> Result<(), Cause> {
        let mut result = Ok(());
        for (page, inside, part) in nested.pieces(offset, length) {
            let region = nested.regions.get(&page).copied();
            let there = region.and_then(|region| Some((region, self.paged_at(region)?)));
            let found = if let Some((region, pages)) = there {
                each(pages, inside, part).map_err(|want| self.note_fault(region, want))
            } else {
                let pages = page..page + 1;
                Err(self.note_fault(index, Want { pages, write }))
            };
            // All missing pages are requested at once.
            result = result.and(found);
        }
        result
    }

    /// Remembers that an access found pages missing.
    fn note_fault(&self, index: u32, want: Want) -> Cause {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < MAX_FAULTS {
            faults.push(Fault { index, want });
        }
        Cause::PageAbsent
    }

    /// Takes the missing pages that were found since the last call, in the order in which they were found.
    pub(crate) fn take_faults(&self) -> Vec<Fault> {
        self.faults.take()
    }

    /// Returns whether any pages were found missing since [`take_faults`](Self::take_faults).
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.borrow().is_empty()
    }

    /// Makes `waiter` wait for these missing pages and no others. Returns the keys of the regions with new wants for
    /// the driver.
    pub(crate) fn wait_for(&mut self, waiter: Waiter, faults: &[Fault]) -> Vec<u32> {
        self.wait_no_more(waiter);
        let mut news = Vec::new();
        for fault in faults {
            if let Some(Entry {
                key,
                object: Object::Region(region),
            }) = self.by_index.get_mut(&fault.index)
                && let Some(pages) = region.memory.pages_mut()
                && pages.want(&fault.want, waiter)
            {
                news.push(*key);
            }
        }
        let indices = faults.iter().map(|fault| fault.index).collect();
        self.waits.insert(waiter, indices);
        news
    }

    /// Stops `waiter` from waiting for pages.
    pub(crate) fn wait_no_more(&mut self, waiter: Waiter) {
        for index in self.waits.remove(&waiter).unwrap_or_default() {
            if let Some(region) = self.region_at(index)
                && let Some(pages) = region.memory.pages_mut()
            {
                pages.forget(waiter);
            }
        }
    }

    /// Returns whether work requests can end what this key gives, and not only commands.
    pub(crate) fn is_revocable(&self, key: u32) -> bool {
        let entry = self.by_index.get(&index_of(key));
        entry.is_some_and(|entry| match &entry.object {
            Object::Region(region) => region.is_fast(),
            Object::Window(_) => true,
        })
    }

    /// Makes the region or window with this key free. Errors are those of a local operation.
    pub(crate) fn invalidate(&mut self, key: u32, by: Accessor) -> Result<(), Cause> {
        let entry = self.by_index.get_mut(&index_of(key));
        let entry = entry.filter(|entry| entry.key == key);
        match &mut entry.ok_or(Cause::LocalKey)?.object {
            Object::Region(region) if region.pd != by.pd => return Err(Cause::LocalKeyPd),
            Object::Region(region) => return region.invalidate(),
            Object::Window(window) => {
                let binder = self.binders.get(&by.qpn).copied();
                window.check_invalidate(by.pd, binder)?;
            }
        }
        self.unbind(index_of(key));
        Ok(())
    }

    /// Registers a free region, which gets a new key with the same index.
    pub(crate) fn register<M: Memory>(
        &mut self,
        wanted: &RegisterTarget,
        by: Accessor,
        max_length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let key = wanted.key.get();
        let features = self.features;
        let entry = self.by_index.get_mut(&index_of(key));
        let Some(Entry {
            key: own,
            object: Object::Region(region),
        }) = entry
        else {
            return Err(Cause::RegisterKey);
        };
        if region.pd != by.pd {
            return Err(Cause::LocalKeyPd);
        }
        region.register(wanted, max_length, features, memory)?;
        *own = key;
        Ok(())
    }

    /// Registers a free integrity region, which gets a new key with the same index.
    pub(crate) fn register_integrity<M: Memory>(
        &mut self,
        wanted: &IntegrityTarget,
        by: Accessor,
        max_length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let key = wanted.key.get();
        let entry = self.by_index.get_mut(&index_of(key));
        let Some(Entry {
            key: own,
            object: Object::Region(region),
        }) = entry
        else {
            return Err(Cause::IntegrityKey);
        };
        if region.pd != by.pd {
            return Err(Cause::LocalKeyPd);
        }
        region.register_integrity(wanted, max_length, memory)?;
        *own = key;
        Ok(())
    }

    /// Returns whether there are integrity regions.
    pub(crate) fn has_integrity(&self) -> bool {
        self.integrity > 0
    }

    /// Returns the integrity region with this key, if there is one.
    fn integrity(&self, key: u32) -> Option<&Integrity> {
        if !self.has_integrity() {
            return None;
        }
        let entry = self.by_index.get(&index_of(key))?;
        match &entry.object {
            Object::Region(Region {
                memory: RegionMemory::Integrity(integrity),
                ..
            }) if entry.key == key => Some(integrity),
            _ => None,
        }
    }

    /// Returns whether this is the key of an integrity region.
    pub(crate) fn is_integrity(&self, key: u32) -> bool {
        self.integrity(key).is_some()
    }

    /// Completes bytes that were read with this key, if it is that of an integrity region. The access must have been
    /// [resolved](Self::resolve).
    pub(crate) fn pass_read<M: Memory>(
        &self,
        key: u32,
        address: u64,
        bytes: &mut [u8],
        memory: &M,
    ) -> Result<(), Unmapped> {
        match self.integrity(key) {
            Some(integrity) => integrity.pass_read(address, bytes, memory),
            None => Ok(()),
        }
    }

    /// Does what remains after `length` bytes of a payload, from a byte of it on, were written with this key, if it is
    /// that of an integrity region. The access must have been [resolved](Self::resolve).
    pub(crate) fn pass_written<M: Memory>(
        &self,
        key: u32,
        address: u64,
        length: u64,
        payload: (&Payload<'_>, u64),
        memory: &M,
    ) -> Result<(), Unmapped> {
        match self.integrity(key) {
            // An access of length 0 names nothing: neither its key nor its address was checked.
            Some(integrity) if length > 0 => {
                integrity.pass_written(address, length, payload, memory)
            }
            _ => Ok(()),
        }
    }

    /// Binds or unbinds a window, which gets a new key with the same index.
    pub(crate) fn bind(&mut self, wanted: &BindTarget, by: Accessor) -> Result<(), Cause> {
        let key = wanted.window.get();
        let (address, length) = (wanted.address.get(), wanted.length.get());
        let rights = wanted.access.get();
        let window = self.window(key).ok_or(Cause::WindowKey)?;
        window.check_bind(by.pd, length, rights)?;
        let mut binding = None;
        if length > 0 {
            let region_key = wanted.region.get();
            let entry = self.by_index.get(&index_of(region_key));
            let Some(Entry {
                object: Object::Region(region),
                ..
            }) = entry.filter(|entry| entry.key == region_key)
            else {
                return Err(Cause::LocalKey);
            };
            if region.is_free() {
                return Err(Cause::LocalFree);
            }
            if region.pd != by.pd {
                return Err(Cause::LocalKeyPd);
            }
            let changes = rights & access::REMOTE_CHANGES != 0;
            if region.access & access::WINDOWS != access::MW_BIND
                || (changes && region.access & access::LOCAL_WRITE == 0)
            {
                return Err(Cause::LocalRights);
            }
            // Its last byte must have an address, even in a region over all memory.
            check_extent(address, length).map_err(|_| Cause::LocalBounds)?;
            let offset = region.offset_of(address, length);
            binding = Some(Binding {
                region: index_of(region_key),
                offset: offset.ok_or(Cause::LocalBounds)?,
                first: if rights & access::ZERO_BASED != 0 {
                    0
                } else {
                    address
                },
                length,
                access: rights,
                qpn: by.qpn,
                binder: 0,
            });
        }
        self.unbind(index_of(key));
        if let Some(region) = binding.and_then(|binding| self.region_at(binding.region)) {
            region.windows += 1;
        }
        if let Some(Entry {
            key: own,
            object: Object::Window(window),
        }) = self.by_index.get_mut(&index_of(key))
        {
            *own = key;
            if let Some(binding) = &mut binding
                && window.mw_type == MwType::Type2
            {
                let new = self.last_binder + 1;
                binding.binder = *self.binders.entry(by.qpn).or_insert(new);
                self.last_binder = self.last_binder.max(binding.binder);
            }
            window.binding = binding;
        }
        Ok(())
    }

    /// Returns the memory with `length` bytes at `address`, their offset in it, and the index of its region. The key
    /// must be valid for the accessor and give all of `rights`. Errors are those of a local access.
    fn covering(
        &self,
        key: u32,
        by: Accessor,
        rights: u32,
        address: u64,
        length: u64,
    ) -> Result<(&RegionMemory, u64, u32), Cause> {
        let is_local = rights & !access::LOCAL_WRITE == 0;
        if key == LOCAL_DMA_KEY {
            let permitted = self.features.memory_extensions && by.kernel && is_local;
            return permitted
                .then_some((ALL_MEMORY, address, 0))
                .ok_or(Cause::LocalKey);
        }
        if key == NULL_KEY && self.features.null_key && is_local {
            return Ok((NULL_MEMORY, address, RESERVED_INDEX));
        }
        let entry = self.by_index.get(&index_of(key));
        let entry = entry.filter(|entry| entry.key == key);
        match &entry.ok_or(Cause::LocalKey)?.object {
            Object::Region(region) => {
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
                let offset = offset.ok_or(Cause::LocalBounds)?;
                Ok((&region.memory, offset, index_of(key)))
            }
            Object::Window(_) if is_local => Err(Cause::LocalKey),
            Object::Window(window) => {
                let binder = self.binders.get(&by.qpn).copied();
                let (binding, offset) = window.covering(by.pd, binder, rights, address, length)?;
                match self
                    .by_index
                    .get(&binding.region)
                    .map(|entry| &entry.object)
                {
                    Some(Object::Region(region)) => Ok((&region.memory, offset, binding.region)),
                    _ => Err(Cause::LocalKey),
                }
            }
        }
    }

    /// Checks an access to the object itself and none of its bytes, whose address need not be known.
    pub(crate) fn check_object(&self, key: u32, by: Accessor, rights: u32) -> Result<(), Cause> {
        let entry = self.by_index.get(&index_of(key));
        let address = match entry.map(|entry| &entry.object) {
            Some(Object::Region(region)) => region.iova,
            Some(Object::Window(window)) => window.binding.map_or(0, |binding| binding.first),
            None => 0,
        };
        let access = Access {
            key,
            pd: by.pd,
            rights,
            address,
            length: 0,
        };
        let covered = self.covering(key, by, rights, address, 0);
        covered.map_err(|cause| self.refuse(cause, access))?;
        Ok(())
    }

    /// Returns what a flush with this key must make persistent, one range in each block of memory. Errors are those of
    /// a local access.
    pub(crate) fn to_sync<M: Memory>(
        &self,
        key: u32,
        by: Accessor,
        memory: &M,
    ) -> Result<Vec<HostRange>, Cause> {
        self.check_object(key, by, access::FLUSH_PERSISTENT)?;
        let region = self.region(key).ok_or(Cause::LocalKey)?;
        region.to_sync(memory)
    }

    /// Appends the host ranges of `length` bytes at `address` to `ranges`, after all checks. Errors are those of a
    /// local access; nothing is appended then.
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
        let covered = self.covering(key, by, rights, address, length);
        let resolved = covered.and_then(|(place, offset, index)| match place {
            RegionMemory::Buffer(buffer) => buffer
                .ranges(offset, length, ranges)
                .ok_or(Cause::LocalBounds),
            RegionMemory::Paged(pages) => pages
                .ranges(offset, length, changes(rights), ranges)
                .map_err(|want| self.note_fault(index, want)),
            RegionMemory::Nested(nested) => {
                let before = ranges.len();
                let (place, write) = ((offset, length), changes(rights));
                let each =
                    |pages: &Pages, offset, length| pages.ranges(offset, length, write, ranges);
                let resolved = self.in_nested(nested, index, place, write, each);
                resolved.inspect_err(|_| ranges.truncate(before))
            }
            RegionMemory::All => memory
                .resolve(GuestAddress(offset), length)
                .map(|range| ranges.push(range))
                .ok_or(Cause::LocalUnmapped),
            RegionMemory::Integrity(integrity) => integrity
                .ranges(offset, length, ranges)
                .ok_or(Cause::LocalBounds),
            RegionMemory::Null => {
                ranges.push(HostRange::null(length));
                Ok(())
            }
        });
        let access = Access {
            key,
            pd: by.pd,
            rights,
            address,
            length,
        };
        resolved.map_err(|cause| self.refuse(cause, access))
    }

    /// Checks an access as [`resolve`](Self::resolve) does, without resolving it. Of on-demand pages, checks those of
    /// the first [`AHEAD`] bytes, or none for a flush.
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
        let covered = self.covering(key, by, rights, address, length);
        let checked = covered.and_then(|(place, offset, index)| match place {
            RegionMemory::Paged(pages) if rights & access::PLACEMENT == 0 => {
                match pages.missing(offset, length.min(AHEAD), changes(rights)) {
                    Some(want) => Err(self.note_fault(index, want)),
                    None => Ok(()),
                }
            }
            RegionMemory::Nested(nested) if rights & access::PLACEMENT == 0 => {
                let (place, write) = ((offset, length.min(AHEAD)), changes(rights));
                self.in_nested(nested, index, place, write, |pages, offset, length| {
                    pages.missing(offset, length, write).map_or(Ok(()), Err)
                })
            }
            RegionMemory::All if memory.resolve(GuestAddress(offset), length).is_none() => {
                Err(Cause::LocalUnmapped)
            }
            _ => Ok(()),
        });
        let access = Access {
            key,
            pd: by.pd,
            rights,
            address,
            length,
        };
        checked.map_err(|cause| self.refuse(cause, access))
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
    fn a_queue_pair_goes_without_a_look_at_its_windows() {
        const WINDOWS: u32 = 100;
        let mut keys = Keys::new(&Limits::default(), Features::ALL, [7; 32]);
        let region = Region {
            access: access::MW_BIND,
            memory: RegionMemory::All,
            fast: None,
            ..region()
        };
        let region = keys.insert_region(region).expect("room");
        let window = Window {
            pd: 1,
            mw_type: MwType::Type2,
            binding: None,
        };
        let by = Accessor {
            qpn: 5,
            pd: 1,
            kernel: false,
        };
        let bound = |keys: &mut Keys| {
            let window = Window {
                binding: None,
                ..window
            };
            let key = keys.insert_window(window).expect("room");
            let wanted = BindTarget {
                window: key.into(),
                region: region.into(),
                length: 1.into(),
                access: access::REMOTE_READ.into(),
                ..BindTarget::default()
            };
            assert_eq!(keys.bind(&wanted, by), Ok(()));
            key
        };
        let windows: Vec<u32> = (0..WINDOWS).map(|_| bound(&mut keys)).collect();
        let before = format!("{:?}", keys.by_index);
        keys.forget_queue_pair(by.qpn);
        assert_eq!(format!("{:?}", keys.by_index), before);
        // Another one gets its number.
        let other = bound(&mut keys);
        let read = |key| keys.check_object(key, by, access::REMOTE_READ);
        assert_eq!(read(other), Ok(()));
        for key in windows {
            assert_eq!(read(key), Err(Cause::LocalKeyQp));
            let Named::Window(window) = keys.named(key) else {
                panic!("a window");
            };
            assert_eq!(window.bound.map(|bound| bound.qpn), Some(0));
        }
    }

    #[test]
    fn no_two_keys_share_an_index_and_none_returns_soon() {
        let mut keys = Keys::new(&Limits::default(), Features::ALL, [7; 32]);
        let mut seen = FxHashSet::default();
        for _ in 0..RESTING / 4 {
            let batch: Vec<u32> = (0..4)
                .filter_map(|_| keys.insert_region(region()))
                .collect();
            for key in batch {
                assert!(seen.insert(index_of(key)), "{key:#x}");
                assert_ne!(index_of(key), RESERVED_INDEX);
                assert!(keys.remove_region(key).is_some() && keys.region(key).is_none());
            }
        }
        assert_eq!(keys.regions(), 0);
        // The number of resting indices is limited.
        for _ in 0..1000 {
            let key = keys.insert_region(region()).expect("room");
            keys.remove_region(key);
        }
        assert_eq!((keys.resting.len(), keys.rests.len()), (RESTING, RESTING));
    }
}
