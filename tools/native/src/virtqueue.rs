// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The driver's side of a split virtqueue (virtio 1.3, section 2.7).

use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::ram::{Area, Ram};

/// Number of entries.
pub const SIZE: u16 = 64;
const AVAILABLE: usize = 16 * SIZE as usize;
const USED: usize = 4096;

/// Descriptor flag: the device writes to the buffer.
pub const WRITE: u16 = 2;
/// Descriptor flag: another descriptor follows.
pub const NEXT: u16 = 1;
/// Flag of either ring: the other side need not be notified.
const QUIET: u32 = 1;

/// A virtqueue that occupies two pages.
pub struct Virtqueue {
    area: Area,
    offered: u16,
    seen: u16,
    quiet: bool,
}

impl Virtqueue {
    /// Creates an empty queue. `quiet` turns off its interrupts.
    pub fn new(ram: &mut Ram, quiet: bool) -> Result<Self> {
        Ok(Self {
            area: ram.allocate(2 * USED)?,
            offered: 0,
            seen: 0,
            quiet,
        })
    }

    /// Returns the bus addresses of the descriptors, the available ring and the used ring.
    pub fn addresses(&self) -> [u64; 3] {
        [0, AVAILABLE, USED].map(|offset| self.area.address + offset as u64)
    }

    /// Fills in a descriptor.
    pub fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let low = u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.area
            .memory
            .write(16 * usize::from(index), &[address.to_le(), low.to_le()]);
    }

    /// Makes the chain that begins at descriptor `head` available. Returns whether the device wants to be notified.
    pub fn offer(&mut self, head: u16) -> bool {
        let slot = usize::from(self.offered % SIZE);
        self.area
            .memory
            .write_bytes(AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        // Flags and index form one word. Release: the chain was written before.
        let word = u32::from(self.offered) << 16 | if self.quiet { QUIET } else { 0 };
        self.area
            .memory
            .word(AVAILABLE)
            .store(word.to_le(), Ordering::Release);
        vrnic::memory::full_fence();
        self.used_word() & QUIET == 0
    }

    fn used_word(&self) -> u32 {
        u32::from_le(self.area.memory.word(USED).load(Ordering::Acquire))
    }

    /// Returns the next chain that the device has used: its first descriptor, and the number of bytes written.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        if (self.used_word() >> 16) as u16 == self.seen {
            return None;
        }
        let slot = USED + 4 + 8 * usize::from(self.seen % SIZE);
        self.seen = self.seen.wrapping_add(1);
        let word =
            |offset| u32::from_le(self.area.memory.word(slot + offset).load(Ordering::Relaxed));
        Some((word(0) as u16, word(4)))
    }
}
