// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Checks the doorbell protocol of `Documentation/virtio-rdma.rst` in all interleavings.
//!
//! Posters and a device execute the steps P1 to P5, D1, D2 and S1 to S3 of the specification, one
//! step at a time, in every possible order. Stores that the specification does not order stay in a
//! buffer and reach memory at any later time, including the setting of a summary bit; this is more
//! freedom than processors have. No work may be left undone when the device sleeps for good.
//! Protocols that lack a step of the specification must fail, which shows that the check works.

use std::collections::{HashSet, VecDeque};

/// Number of slots, in two pending words of two bits each.
const SLOTS: usize = 4;

/// A deviation from the protocol.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Change {
    /// The poster stops if P1 found its bit set.
    StopAtPending,
    /// The poster stops if P2 found its bit set.
    StopAtSummary,
    /// P2 comes before P1.
    SummaryFirst,
    /// No P3.
    NoPosterFence,
    /// No S2.
    NoDeviceFence,
    /// No S3.
    NoSecondLook,
    /// The device takes pending words first, then the summary.
    SummaryLast,
    /// The device stays asleep after a doorbell write.
    Deaf,
}

use Change::{
    Deaf, NoDeviceFence, NoPosterFence, NoSecondLook, StopAtPending, StopAtSummary, SummaryFirst,
    SummaryLast,
};

/// A variant of the protocol, with these deviations.
type Variant<'a> = &'a [Change];

/// A store on its way to memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Store {
    Producer(usize, u8),
    Summary(u8),
    Polling(bool),
}

/// Memory shared by both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    producer: [u8; SLOTS],
    pending: [u8; 2],
    summary: u8,
    polling: bool,
}

impl Memory {
    fn apply(&mut self, store: Store) {
        match store {
            // Posters of one slot have a lock, so an older index never overwrites a newer one.
            Store::Producer(slot, index) => {
                self.producer[slot] = self.producer[slot].max(index);
            }
            Store::Summary(bits) => self.summary |= bits,
            Store::Polling(on) => self.polling = on,
        }
    }
}

/// A poster: its next step, and its stores that are not in memory yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Poster {
    slot: usize,
    left: u8,
    step: u8,
    buffer: VecDeque<Store>,
}

/// Next step of the device.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    TakeSummary,
    TakePending,
    Consider,
    AnnounceSleep,
    Fence,
    LookOnceMore,
    Asleep,
}

/// The device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Device {
    step: Step,
    /// Summary bits that were taken but not handled yet.
    found: u8,
    consumed: [u8; SLOTS],
    /// Whether a doorbell write has arrived.
    rung: bool,
    buffer: VecDeque<Store>,
}

/// State of the whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    memory: Memory,
    /// Number of requests posted to each slot, whether visible to the device or not.
    posted: [u8; SLOTS],
    posters: Vec<Poster>,
    device: Device,
}

impl World {
    fn new(slots: &[usize], requests: u8) -> Self {
        let poster = |&slot| Poster {
            slot,
            left: requests,
            step: 0,
            buffer: VecDeque::new(),
        };
        Self {
            memory: Memory::default(),
            posted: [0; SLOTS],
            posters: slots.iter().map(poster).collect(),
            device: Device {
                step: Step::Asleep,
                found: 0,
                consumed: [0; SLOTS],
                rung: false,
                buffer: VecDeque::new(),
            },
        }
    }

    /// Returns all possible next states.
    fn successors(&self, variant: Variant<'_>) -> Vec<Self> {
        let mut next = Vec::new();
        for index in 0..self.posters.len() {
            if !self.posters[index].buffer.is_empty() {
                let mut world = self.clone();
                let store = world.posters[index].buffer.pop_front();
                world.memory.apply(store.expect("store"));
                next.push(world);
            }
            if self.posters[index].left > 0 {
                let mut world = self.clone();
                world.step_poster(index, variant);
                next.push(world);
            }
        }
        if let Some(&store) = self.device.buffer.front() {
            let mut world = self.clone();
            world.device.buffer.pop_front();
            world.memory.apply(store);
            next.push(world);
        }
        next.extend(self.step_device(variant));
        next
    }

    fn step_poster(&mut self, index: usize, variant: Variant<'_>) {
        let poster = &mut self.posters[index];
        let slot = poster.slot;
        let (word, bit) = (slot / 2, 1 << (slot % 2));
        let drain = |buffer: &mut VecDeque<Store>, memory: &mut Memory| {
            buffer.drain(..).for_each(|store| memory.apply(store));
        };
        let mut done = false;
        let step = match (poster.step, variant.contains(&SummaryFirst)) {
            (1, true) => 2,
            (2, true) => 1,
            (step, _) => step,
        };
        match step {
            // The request itself.
            0 => {
                self.posted[slot] += 1;
                let index = self.posted[slot];
                poster.buffer.push_back(Store::Producer(slot, index));
            }
            // P1, which has release order.
            1 => {
                drain(&mut poster.buffer, &mut self.memory);
                let old = self.memory.pending[word];
                self.memory.pending[word] |= bit;
                done = variant.contains(&StopAtPending) && old & bit != 0;
            }
            // P2. It has to happen now only if its result is needed.
            2 if variant.contains(&StopAtSummary) => {
                drain(&mut poster.buffer, &mut self.memory);
                let old = self.memory.summary;
                self.memory.summary |= 1 << word;
                done = old & 1 << word != 0;
            }
            2 => poster.buffer.push_back(Store::Summary(1 << word)),
            // P3.
            3 if variant.contains(&NoPosterFence) => {}
            3 => drain(&mut poster.buffer, &mut self.memory),
            // P4.
            4 => done = self.memory.polling,
            // P5, which is ordered after P1 and P2.
            _ => {
                drain(&mut poster.buffer, &mut self.memory);
                self.device.rung = true;
                done = true;
            }
        }
        if done {
            poster.step = 0;
            poster.left -= 1;
        } else {
            poster.step += 1;
        }
    }

    fn step_device(&self, variant: Variant<'_>) -> Vec<Self> {
        let mut world = self.clone();
        let (device, memory) = (&mut world.device, &mut world.memory);
        match device.step {
            Step::TakeSummary if variant.contains(&SummaryLast) => {
                device.found = 0b11;
                device.step = Step::TakePending;
            }
            Step::TakeSummary => {
                device.found = std::mem::take(&mut memory.summary);
                device.step = Step::TakePending;
            }
            Step::TakePending if device.found == 0 => {
                if variant.contains(&SummaryLast) {
                    memory.summary = 0;
                }
                device.step = Step::Consider;
            }
            Step::TakePending => {
                let place = device.found.trailing_zeros() as usize;
                device.found &= device.found - 1;
                let bits = std::mem::take(&mut memory.pending[place]);
                for slot in (0..2).filter(|slot| bits & 1 << slot != 0) {
                    let slot = place * 2 + slot;
                    device.consumed[slot] = memory.producer[slot];
                }
            }
            // The device may continue to poll, or sleep.
            Step::Consider => {
                let mut again = self.clone();
                again.device.rung = false;
                again.device.step = Step::TakeSummary;
                device.step = Step::AnnounceSleep;
                return vec![again, world];
            }
            Step::AnnounceSleep => {
                device.buffer.push_back(Store::Polling(false));
                device.step = Step::Fence;
            }
            Step::Fence => {
                if !variant.contains(&NoDeviceFence) {
                    device
                        .buffer
                        .drain(..)
                        .for_each(|store| memory.apply(store));
                }
                device.step = Step::LookOnceMore;
            }
            Step::LookOnceMore if memory.summary == 0 || variant.contains(&NoSecondLook) => {
                device.step = Step::Asleep;
            }
            Step::LookOnceMore => {
                device.buffer.push_back(Store::Polling(true));
                device.step = Step::TakeSummary;
            }
            Step::Asleep if device.rung && variant.contains(&Deaf) => device.rung = false,
            Step::Asleep if device.rung => {
                device.rung = false;
                device.buffer.push_back(Store::Polling(true));
                device.step = Step::TakeSummary;
            }
            Step::Asleep => return Vec::new(),
        }
        vec![world]
    }

    /// Returns whether work was left undone.
    fn is_lost(&self) -> bool {
        self.posted != self.device.consumed
    }
}

/// Explores all possible states. Returns their number, or a final state in which there is work
/// left.
fn explore(slots: &[usize], requests: u8, variant: Variant<'_>) -> Result<usize, Box<World>> {
    let start = World::new(slots, requests);
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let next = world.successors(variant);
        if next.is_empty() && world.is_lost() {
            return Err(Box::new(world));
        }
        for world in next {
            if !seen.contains(&world) {
                seen.insert(world.clone());
                open.push(world);
            }
        }
    }
    Ok(seen.len())
}

/// One poster; two of the same slot, of one pending word, and of two pending words.
const POSTERS: [&[usize]; 4] = [&[0], &[0, 0], &[0, 1], &[0, 2]];

fn assert_holds(variant: Variant<'_>) {
    for slots in POSTERS {
        let states = explore(slots, 2, variant).unwrap_or_else(|world| panic!("lost: {world:?}"));
        assert!(states > 50, "{states} states are not the protocol");
    }
}

fn assert_fails(variant: Variant<'_>) {
    let lost = POSTERS
        .iter()
        .any(|slots| explore(slots, 2, variant).is_err());
    assert!(lost, "{variant:?} should lose a request");
}

#[test]
fn no_request_is_lost() {
    assert_holds(&[]);
}

#[test]
fn bits_that_were_set_already_are_enough() {
    assert_holds(&[StopAtPending]);
    assert_holds(&[StopAtSummary]);
    assert_holds(&[StopAtPending, StopAtSummary]);
}

#[test]
fn each_step_is_needed() {
    for change in [
        SummaryFirst,
        NoPosterFence,
        NoDeviceFence,
        NoSecondLook,
        SummaryLast,
        Deaf,
    ] {
        assert_fails(&[change]);
    }
}
