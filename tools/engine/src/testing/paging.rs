// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver functions for regions whose pages are not pinned.

use super::guest::{Arena, Guest, Mr, PAGE};
use super::world::{Node, World};
use crate::device::Rnic;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::ops::Range;
use vrnic_wire::{
    command::{MapPages, PageFault, RefusePages, TakePageFault, UnmapPages, fault_flags},
    event::EventType,
    memory::{TABLE_PAGES, page_flags},
};

/// A region whose pages come and go.
///
/// A page that was unmapped is moved. The contents of its old place are unrelated to it from then on.
#[derive(Debug)]
pub struct PagedRegion {
    key: u32,
    arena: Arena,
    /// For each page that the device has, whether it may write it.
    mapped: Vec<Option<bool>>,
    /// Pages that cannot be mapped.
    holes: Range<u32>,
}

impl PagedRegion {
    /// Creates a region of which the device has no pages yet.
    pub fn new(mr: &Mr) -> Self {
        Self {
            key: mr.key,
            arena: mr.arena.clone(),
            mapped: vec![None; mr.arena.pages.len()],
            holes: 0..0,
        }
    }

    /// Returns its memory in its current place.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the number of its pages.
    pub fn pages(&self) -> u32 {
        self.mapped.len() as u32
    }

    /// Makes the region have no such pages from now on.
    pub fn punch(&mut self, guest: &mut Guest, rnic: &mut Rnic, pages: Range<u32>) {
        self.forget(guest, rnic, pages.clone());
        self.holes = pages;
    }

    /// Answers the device's requests for pages. Returns how many there were.
    pub fn serve(&mut self, guest: &mut Guest, rnic: &mut Rnic) -> u64 {
        let mut faults = 0;
        loop {
            let request = TakePageFault {
                pd: guest.pd.into(),
                key: self.key.into(),
            };
            let fault: PageFault = guest.command(rnic, request).expect("page fault");
            let first = fault.first_page.get();
            let end = first + fault.page_count.get();
            if first == end {
                return faults;
            }
            faults += 1;
            let write = fault.flags.get() & fault_flags::WRITE != 0;
            let holes = self.holes.clone();
            let (before, after) = (end.min(holes.start), first.max(holes.end));
            if holes.is_empty() {
                self.map(guest, rnic, first..end, write);
                continue;
            }
            if first < before {
                self.map(guest, rnic, first..before, write);
            }
            if first.max(holes.start) < end.min(holes.end) {
                self.refuse(guest, rnic, first.max(holes.start)..end.min(holes.end));
            }
            if after < end {
                self.map(guest, rnic, after..end, write);
            }
        }
    }

    /// Maps pages.
    pub fn map(&mut self, guest: &mut Guest, rnic: &mut Rnic, pages: Range<u32>, write: bool) {
        let mut first = pages.start;
        while first < pages.end {
            let most = (pages.end - first).min(TABLE_PAGES as u32);
            // Sometimes in more than one step.
            let count = most.min(1 + guest.random() % (2 * most));
            self.map_at_once(guest, rnic, first..first + count, write);
            first += count;
        }
    }

    fn map_at_once(&mut self, guest: &mut Guest, rnic: &mut Rnic, pages: Range<u32>, write: bool) {
        let mut entries = Vec::new();
        for number in pages.clone().map(|number| number as usize) {
            let was = self.mapped[number];
            if write && was == Some(false) {
                // The page was shared, so the writer gets a copy.
                self.relocate(guest, number);
            }
            let writable = write || was == Some(true);
            self.mapped[number] = Some(writable);
            let flags = page_flags::PRESENT | if writable { page_flags::WRITABLE } else { 0 };
            entries.extend((self.arena.pages[number] | flags).to_le_bytes());
        }
        let table = guest.arena(PAGE);
        table.put(0, &entries);
        let request = MapPages {
            pd: guest.pd.into(),
            key: self.key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
            table: table.address(0).into(),
        };
        guest.command(rnic, request).expect("map");
        guest.free(table);
    }

    fn refuse(&self, guest: &Guest, rnic: &mut Rnic, pages: Range<u32>) {
        let request = RefusePages {
            pd: guest.pd.into(),
            key: self.key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
        };
        guest.command(rnic, request).expect("refuse");
    }

    /// Unmaps pages and moves them.
    pub fn forget(&mut self, guest: &mut Guest, rnic: &mut Rnic, pages: Range<u32>) {
        let request = UnmapPages {
            pd: guest.pd.into(),
            key: self.key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
        };
        guest.command(rnic, request).expect("unmap");
        for number in pages.map(|number| number as usize) {
            self.mapped[number] = None;
            self.relocate(guest, number);
        }
    }

    /// Unmaps a few random pages.
    pub fn forget_some(&mut self, guest: &mut Guest, rnic: &mut Rnic) {
        let first = guest.random() % self.pages();
        let length = 1 + guest.random() % (self.pages() - first).min(40);
        self.forget(guest, rnic, first..first + length);
    }

    /// Moves a page.
    fn relocate(&mut self, guest: &mut Guest, number: usize) {
        let mut bytes = [0; PAGE];
        let old = self.arena.pages[number];
        guest.view.get(old, &mut bytes);
        let mut new = guest.arena(PAGE);
        guest.view.put(new.pages[0], &bytes);
        let poison: Vec<u8> = (0..PAGE / 4)
            .flat_map(|_| guest.random().to_le_bytes())
            .collect();
        guest.view.put(old, &poison);
        std::mem::swap(&mut self.arena.pages[number], &mut new.pages[0]);
        guest.free(new);
    }
}

/// Supplies the devices of a world with the pages that they request, and takes pages back.
#[derive(Debug)]
pub struct Pager {
    /// The regions, each with its node.
    regions: Vec<(usize, PagedRegion)>,
    random: ChaCha8Rng,
    /// Number of page faults that devices reported.
    pub faults: u64,
}

impl Pager {
    /// Creates a pager without regions.
    pub fn new(seed: u64) -> Self {
        Self {
            regions: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            faults: 0,
        }
    }

    /// Adds a region of a node, of which the device has no pages yet, and returns its number.
    pub fn add(&mut self, node: usize, mr: &Mr) -> usize {
        self.regions.push((node, PagedRegion::new(mr)));
        self.regions.len() - 1
    }

    /// Returns a region and its node.
    fn at<'a>(
        &'a mut self,
        world: &'a mut World,
        region: usize,
    ) -> (&'a mut PagedRegion, &'a mut Node) {
        let (node, region) = &mut self.regions[region];
        (region, &mut world.nodes[*node])
    }

    /// Makes a region have no such pages from now on.
    pub fn punch(&mut self, world: &mut World, region: usize, pages: Range<u32>) {
        let (region, node) = self.at(world, region);
        region.punch(&mut node.guest, &mut node.rnic, pages);
    }

    /// Returns the memory of a region in its current place.
    pub fn arena(&self, region: usize) -> &Arena {
        self.regions[region].1.arena()
    }

    /// Returns a random number.
    pub fn random(&mut self) -> u32 {
        self.random.next_u32()
    }

    /// Answers all page faults that devices reported. Returns whether there were any.
    pub fn serve(&mut self, world: &mut World) -> bool {
        let before = self.faults;
        for node in 0..world.nodes.len() {
            while let Some(event) = world.nodes[node].rnic.next_async_event() {
                let of_key = |(at, region): &(usize, PagedRegion)| {
                    *at == node && region.key == event.number.get()
                };
                if event.event_type.get() == EventType::PageFault.raw()
                    && let Some(region) = self.regions.iter().position(of_key)
                {
                    let (region, node) = self.at(world, region);
                    self.faults += region.serve(&mut node.guest, &mut node.rnic);
                }
            }
        }
        self.faults > before
    }

    /// Maps pages.
    pub fn map(&mut self, world: &mut World, region: usize, pages: Range<u32>, write: bool) {
        let (region, node) = self.at(world, region);
        region.map(&mut node.guest, &mut node.rnic, pages, write);
    }

    /// Unmaps pages and moves them.
    pub fn forget(&mut self, world: &mut World, region: usize, pages: Range<u32>) {
        let (region, node) = self.at(world, region);
        region.forget(&mut node.guest, &mut node.rnic, pages);
    }

    /// Unmaps a few pages of a random region.
    pub fn forget_some(&mut self, world: &mut World) {
        let region = self.random.next_u32() as usize % self.regions.len();
        let (region, node) = self.at(world, region);
        region.forget_some(&mut node.guest, &mut node.rnic);
    }
}
