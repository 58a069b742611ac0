// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a driver does for regions whose pages it does not keep in place.

use super::guest::{Arena, Mr, PAGE};
use super::world::World;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::ops::Range;
use vrnic_wire::{
    command::{MapPages, PageFault, RefusePages, TakePageFault, UnmapPages, fault_flags},
    event::EventType,
    memory::{TABLE_PAGES, page_flags},
};

/// A region whose pages come and go.
#[derive(Debug)]
struct Region {
    node: usize,
    key: u32,
    arena: Arena,
    /// Pages that the device has; whether it may write them.
    mapped: Vec<Option<bool>>,
    /// Pages that nobody can have.
    holes: Range<u32>,
}

/// Gives devices the pages that they ask for, and takes them back.
///
/// A page that was taken back stands somewhere else from then on, and what stands in its old place
/// has nothing to do with it.
#[derive(Debug)]
pub struct Pager {
    regions: Vec<Region>,
    random: ChaCha8Rng,
    /// Page faults that were taken from devices.
    pub faults: u64,
}

impl Pager {
    /// A pager of no regions.
    pub fn new(seed: u64) -> Self {
        Self {
            regions: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            faults: 0,
        }
    }

    /// Adds a region of a node, of which the device has no pages yet; gives its number.
    pub fn add(&mut self, node: usize, mr: &Mr) -> usize {
        self.regions.push(Region {
            node,
            key: mr.key,
            arena: mr.arena.clone(),
            mapped: vec![None; mr.arena.pages.len()],
            holes: 0..0,
        });
        self.regions.len() - 1
    }

    /// From now on there are no such pages in a region.
    pub fn punch(&mut self, world: &mut World, region: usize, pages: Range<u32>) {
        self.forget(world, region, pages.clone());
        self.regions[region].holes = pages;
    }

    /// The memory of a region as it stands now.
    pub fn arena(&self, region: usize) -> &Arena {
        &self.regions[region].arena
    }

    /// A random number.
    pub fn random(&mut self) -> u32 {
        self.random.next_u32()
    }

    /// Answers all page faults that devices have told of. Whether there were any.
    pub fn serve(&mut self, world: &mut World) -> bool {
        let mut served = false;
        for node in 0..world.nodes.len() {
            while let Some(event) = world.nodes[node].rnic.next_async_event() {
                let of_key =
                    |region: &Region| region.node == node && region.key == event.number.get();
                if event.event_type.get() == EventType::PageFault.raw()
                    && let Some(region) = self.regions.iter().position(of_key)
                {
                    served |= self.serve_region(world, region);
                }
            }
        }
        served
    }

    /// Answers what a device wants of a region. Whether it wanted anything.
    fn serve_region(&mut self, world: &mut World, region: usize) -> bool {
        let mut served = false;
        loop {
            let Region { node, key, .. } = self.regions[region];
            let place = &mut world.nodes[node];
            let request = TakePageFault {
                pd: place.guest.pd.into(),
                key: key.into(),
            };
            let fault = place.guest.command(&mut place.rnic, request);
            let fault: PageFault = fault.expect("page fault");
            let first = fault.first_page.get();
            let end = first + fault.page_count.get();
            if first == end {
                return served;
            }
            served = true;
            self.faults += 1;
            let write = fault.flags.get() & fault_flags::WRITE != 0;
            let holes = self.regions[region].holes.clone();
            let (before, after) = (end.min(holes.start), first.max(holes.end));
            if holes.is_empty() {
                self.map(world, region, first..end, write);
                continue;
            }
            if first < before {
                self.map(world, region, first..before, write);
            }
            if first.max(holes.start) < end.min(holes.end) {
                self.refuse(world, region, first.max(holes.start)..end.min(holes.end));
            }
            if after < end {
                self.map(world, region, after..end, write);
            }
        }
    }

    /// Gives pages.
    pub fn map(&mut self, world: &mut World, region: usize, pages: Range<u32>, write: bool) {
        let mut first = pages.start;
        while first < pages.end {
            let most = (pages.end - first).min(TABLE_PAGES as u32);
            // Now and then in more than one step.
            let count = most.min(1 + self.random.next_u32() % (2 * most));
            self.map_at_once(world, region, first..first + count, write);
            first += count;
        }
    }

    fn map_at_once(&mut self, world: &mut World, region: usize, pages: Range<u32>, write: bool) {
        let mut entries = Vec::new();
        for number in pages.clone().map(|number| number as usize) {
            let was = self.regions[region].mapped[number];
            if write && was == Some(false) {
                // It was shared, so the writer gets a copy.
                self.relocate(world, region, number);
            }
            let region = &mut self.regions[region];
            let writable = write || was == Some(true);
            region.mapped[number] = Some(writable);
            let flags = page_flags::PRESENT | if writable { page_flags::WRITABLE } else { 0 };
            entries.extend((region.arena.pages[number] | flags).to_le_bytes());
        }
        let Region { node, key, .. } = self.regions[region];
        let place = &mut world.nodes[node];
        let table = place.guest.arena(PAGE);
        table.put(0, &entries);
        let request = MapPages {
            pd: place.guest.pd.into(),
            key: key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
            table: table.address(0).into(),
        };
        place.guest.command(&mut place.rnic, request).expect("map");
        place.guest.free(table);
    }

    fn refuse(&mut self, world: &mut World, region: usize, pages: Range<u32>) {
        let Region { node, key, .. } = self.regions[region];
        let place = &mut world.nodes[node];
        let request = RefusePages {
            pd: place.guest.pd.into(),
            key: key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
        };
        (place.guest.command(&mut place.rnic, request)).expect("refuse");
    }

    /// Takes pages back, which stand somewhere else then.
    pub fn forget(&mut self, world: &mut World, region: usize, pages: Range<u32>) {
        let Region { node, key, .. } = self.regions[region];
        let place = &mut world.nodes[node];
        let request = UnmapPages {
            pd: place.guest.pd.into(),
            key: key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
        };
        (place.guest.command(&mut place.rnic, request)).expect("unmap");
        for number in pages.map(|number| number as usize) {
            self.regions[region].mapped[number] = None;
            self.relocate(world, region, number);
        }
    }

    /// Takes a few pages of any region back.
    pub fn forget_some(&mut self, world: &mut World) {
        let region = self.random.next_u32() as usize % self.regions.len();
        let count = self.regions[region].mapped.len() as u32;
        let first = self.random.next_u32() % count;
        let length = 1 + self.random.next_u32() % (count - first).min(40);
        self.forget(world, region, first..first + length);
    }

    /// Has a page stand somewhere else.
    fn relocate(&mut self, world: &mut World, region: usize, number: usize) {
        let Region { node, arena, .. } = &mut self.regions[region];
        let guest = &mut world.nodes[*node].guest;
        let mut bytes = [0; PAGE];
        let old = arena.pages[number];
        guest.view.get(old, &mut bytes);
        let mut new = guest.arena(PAGE);
        guest.view.put(new.pages[0], &bytes);
        let mut poison = [0; PAGE];
        self.random.fill_bytes(&mut poison);
        guest.view.put(old, &poison);
        std::mem::swap(&mut arena.pages[number], &mut new.pages[0]);
        guest.free(new);
    }
}
