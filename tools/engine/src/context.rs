// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Contexts: notify areas, doorbell slots and polling.

use crate::{
    buffer::Buffer,
    counter::Counters,
    memory::{HostRange, Memory, Unmapped},
    state::wire,
    time::Instant,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    time::Duration,
};
use vrnic_wire::{
    command::ContextKind,
    counter::Counter,
    notify::{self, SUMMARY_WORDS, SlotBits, flags},
};

/// How long the device keeps polling a context without work.
const POLL_FOR: Duration = Duration::from_millis(2);

/// Number of rings in a pending word that cost as much as the word.
const RINGS_PER_WORD: u32 = 8;

/// Owner of a slot that belongs to no queue pair.
const NOBODY: u32 = u32::MAX;

/// The process for which a context was created, as named by the driver.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process ID; 0 if it has none.
    pub pid: u32,
    /// Its name, padded with zeros.
    pub name: [u8; 16],
}

impl Owner {
    /// The guest's kernel.
    const KERNEL: Self = Self {
        pid: 0,
        name: *b"kernel\0\0\0\0\0\0\0\0\0\0",
    };
}

impl fmt::Display for Owner {
    /// Writes the name with control characters replaced, or nothing if the owner is unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.split(|byte| *byte == 0).next();
        let name = String::from_utf8_lossy(name.unwrap_or_default());
        let shown = |letter: char| if letter.is_control() { '?' } else { letter };
        name.chars()
            .try_for_each(|letter| f.write_char(shown(letter)))
    }
}

/// A context.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Context {
    /// Kind of context.
    #[serde(with = "wire")]
    pub(crate) kind: ContextKind,
    /// Process for which the context was created.
    pub(crate) owner: Owner,
    /// Number of objects that belong to the context.
    pub(crate) users: u32,
    area: Buffer,
    slots: u32,
    /// Queue pair of each slot that was ever in use.
    owners: Vec<u32>,
    free: VecDeque<u32>,
    /// Summary bits that were taken but not handled yet.
    #[serde(with = "wire")]
    backlog: [u64; SUMMARY_WORDS],
    /// Whether the device polls the notify area.
    pub(crate) polled: bool,
    /// Whether the context is in the list of contexts that are or will be polled.
    pub(crate) listed: bool,
    busy_at: Instant,
}

impl Context {
    /// Creates a context whose notify area is `area`.
    pub(crate) fn new(kind: ContextKind, slots: u32, area: Buffer) -> Self {
        Self {
            kind,
            owner: match kind {
                ContextKind::User => Owner::default(),
                ContextKind::Kernel => Owner::KERNEL,
            },
            users: 0,
            area,
            slots,
            owners: Vec::new(),
            free: VecDeque::new(),
            backlog: [0; SUMMARY_WORDS],
            polled: false,
            listed: false,
            busy_at: Instant::default(),
        }
    }

    /// Returns the number of host ranges of the notify area.
    pub(crate) fn translations(&self) -> usize {
        self.area.translations()
    }

    /// Takes a slot that belongs to no queue pair; `None` if there is none.
    pub(crate) fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop_front() {
            return Some(slot);
        }
        let slot = u32::try_from(self.owners.len()).ok()?;
        if slot >= self.slots {
            return None;
        }
        self.owners.push(NOBODY);
        Some(slot)
    }

    /// Assigns a slot that was taken to a queue pair.
    pub(crate) fn set_owner(&mut self, slot: u32, qpn: u32) {
        if let Some(owner) = self.owners.get_mut(slot as usize) {
            *owner = qpn;
        }
    }

    /// Releases a slot.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        if let Some(owner) = self.owners.get_mut(slot as usize) {
            *owner = NOBODY;
            self.free.push_back(slot);
        }
    }

    /// Returns the queue pair of a slot.
    pub(crate) fn owner(&self, slot: u32) -> Option<u32> {
        let owner = *self.owners.get(slot as usize)?;
        (owner != NOBODY).then_some(owner)
    }

    fn words(&self) -> usize {
        (self.slots as usize / 64).div_ceil(64)
    }

    /// Returns the 8 bytes at `offset` in the notify area.
    fn word(&self, offset: usize) -> Result<HostRange, Unmapped> {
        self.area.contiguous(offset as u64, 8).ok_or(Unmapped)
    }

    fn set_flags<M: Memory>(&self, value: u32, memory: &M) -> Result<(), Unmapped> {
        memory.store_u32(self.word(notify::FLAGS_OFFSET)?, 0, value)
    }

    /// Starts polling.
    pub(crate) fn start_polling<M: Memory>(&mut self, now: Instant, memory: &M) {
        self.polled = true;
        self.busy_at = now;
        // If the area is gone, the process is gone too, and polling will find nothing.
        let _ = self.set_flags(flags::POLLING, memory);
    }

    /// Stops polling, after [`announce_sleep`](Self::announce_sleep) and a last look.
    pub(crate) fn stop_polling(&mut self) {
        self.polled = false;
        self.listed = false;
    }

    /// Returns whether the context has not had work for a while.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        now - self.busy_at > POLL_FOR
    }

    /// Announces that the device stops polling. A fence and a call of [`has_work`](Self::has_work) must follow.
    pub(crate) fn announce_sleep<M: Memory>(&self, memory: &M) {
        // An error has no consequence, as in `start_polling`.
        let _ = self.set_flags(0, memory);
    }

    /// Returns whether summary bits are set.
    pub(crate) fn has_work<M: Memory>(&self, memory: &M) -> bool {
        self.backlog.iter().any(|&bits| bits != 0)
            || (0..self.words()).any(|word| {
                self.word(notify::SUMMARY_OFFSET + word * 8)
                    .and_then(|range| memory.load_u64(range, 0))
                    .is_ok_and(|bits| bits != 0)
            })
    }

    /// Takes pending bits, and calls `found` with the queue pair of each, until `left` is used up: each pending word
    /// costs 1, and more if it has many bits. Returns whether there were any.
    pub(crate) fn look<M: Memory>(
        &mut self,
        left: &mut u32,
        now: Instant,
        counters: &mut Counters,
        memory: &M,
        mut found: impl FnMut(u32),
    ) -> bool {
        let mut any = false;
        for word in 0..self.words() {
            // An area that cannot be read has no work.
            let fresh = self
                .word(notify::SUMMARY_OFFSET + word * 8)
                .and_then(|range| match memory.load_u64(range, 0)? {
                    0 => Ok(0),
                    _ => memory.swap_u64(range, 0, 0),
                })
                .unwrap_or(0);
            let mut bits = self.backlog[word] | fresh;
            while bits != 0 && *left > 0 {
                let pending = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                any = true;
                let rings = self.take_pending(pending as u32, counters, memory, &mut found);
                *left = left.saturating_sub(1 + rings / RINGS_PER_WORD);
            }
            self.backlog[word] = bits;
        }
        if any {
            self.busy_at = now;
        }
        any
    }

    /// Takes the bits of a pending word. Returns their number.
    fn take_pending<M: Memory>(
        &self,
        pending: u32,
        counters: &mut Counters,
        memory: &M,
        found: &mut impl FnMut(u32),
    ) -> u32 {
        let first_slot = pending * 64;
        if first_slot >= self.slots {
            counters.count(Counter::InvalidDoorbells);
            return 0;
        }
        let mut bits = self
            .word(SlotBits::new(first_slot).pending_offset)
            .and_then(|range| memory.swap_u64(range, 0, 0))
            .unwrap_or(0);
        let rings = bits.count_ones();
        while bits != 0 {
            match self.owner(first_slot + bits.trailing_zeros()) {
                Some(qpn) => found(qpn),
                None => counters.count(Counter::InvalidDoorbells),
            }
            bits &= bits - 1;
        }
        rings
    }
}
