// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! RAM of a guest: a file that the device maps too.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vrnic::memory::{Mapping, Shared};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// RAM, at the bus addresses from 0 on. What is allocated is never given back.
pub struct Ram {
    file: OwnedFd,
    memory: Shared,
    length: usize,
    /// Everything before is in use.
    end: usize,
}

/// A piece of RAM: whole pages, zeroed.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Bus address of the first byte.
    pub address: u64,
    /// Bytes, as they were asked for.
    pub length: usize,
    /// The same bytes, for the guest.
    pub memory: Shared,
}

impl Ram {
    /// RAM of `length` bytes. It takes as much of the host's memory as is used of it.
    pub fn new(length: usize) -> Result<Self> {
        let file = memfd_create("ram", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, length as u64)?;
        let mapping = Mapping::memory(file.as_raw_fd(), 0, length).context("no address space")?;
        // SAFETY: It came from `memory`, and is never dropped, so whatever is made of it may be used for ever.
        let memory = unsafe { mapping.shared() };
        std::mem::forget(mapping);
        Ok(Self {
            file,
            memory,
            length,
            end: 0,
        })
    }

    /// The file, for the VMM to give to the device.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Bytes of RAM.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Pages for at least `length` bytes, which nobody used before.
    pub fn allocate(&mut self, length: usize) -> Result<Area> {
        let start = self.end;
        let pages = length.max(1).next_multiple_of(PAGE);
        ensure!(pages <= self.length - start, "the guest has no RAM left");
        self.end += pages;
        Ok(Area {
            address: start as u64,
            length,
            memory: self.memory.part(start, pages),
        })
    }
}

impl Area {
    /// Fills a part with bytes that depend on `seed` and on their distance from its beginning.
    pub fn fill(&self, seed: u8, part: Range<usize>) {
        let bytes: Vec<u8> = (0..part.len()).map(|at| pattern(seed, at)).collect();
        self.memory.write_bytes(part.start, &bytes);
    }

    /// Sets a part to zeros.
    pub fn clear(&self, part: Range<usize>) {
        self.memory.write_bytes(part.start, &vec![0; part.len()]);
    }

    /// The first of the bytes from `start` on that is not what [`fill`](Self::fill) wrote to `length` bytes.
    pub fn difference(&self, seed: u8, start: usize, length: usize) -> Option<usize> {
        (0..length).find(|&at| self.byte(start + at) != pattern(seed, at))
    }

    /// The byte at an offset.
    pub fn byte(&self, at: usize) -> u8 {
        self.memory
            .byte(at)
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// The number at an offset, a multiple of 8.
    pub fn long(&self, at: usize) -> u64 {
        u64::from_le(
            self.memory
                .long(at)
                .load(std::sync::atomic::Ordering::Acquire),
        )
    }

    /// Stores a number at an offset, a multiple of 8.
    pub fn set_long(&self, at: usize, value: u64) {
        self.memory
            .long(at)
            .store(value.to_le(), std::sync::atomic::Ordering::Release);
    }
}

/// Never 0, which is what memory is before.
fn pattern(seed: u8, at: usize) -> u8 {
    ((usize::from(seed) * 89 + at * 7 + at / 251) % 251) as u8 + 1
}
