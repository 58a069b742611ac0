// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! RAM of a guest: a file that the device maps as well.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vrnic::memory::{Mapping, Shared};

/// Size of a page in bytes.
pub const PAGE: usize = 4096;

/// RAM, with bus addresses from 0 on. Allocated memory is never freed.
pub struct Ram {
    file: OwnedFd,
    memory: Shared,
    length: usize,
    /// Everything below this offset is in use.
    end: usize,
}

/// A piece of RAM: whole pages, zeroed.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Bus address of the first byte.
    pub address: u64,
    /// Length in bytes, as requested.
    pub length: usize,
    /// The same bytes as the guest accesses them.
    pub memory: Shared,
}

impl Ram {
    /// Creates RAM of `length` bytes. It only uses as much of the host's memory as the guest touches.
    pub fn new(length: usize) -> Result<Self> {
        let file = memfd_create("ram", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, length as u64)?;
        let mapping = Mapping::memory(file.as_raw_fd(), 0, length).context("no address space")?;
        // SAFETY: The mapping came from `memory` and is never dropped, so everything made from it may be used forever.
        let memory = unsafe { mapping.shared() };
        std::mem::forget(mapping);
        Ok(Self {
            file,
            memory,
            length,
            end: 0,
        })
    }

    /// Returns the file, which the VMM passes to the device.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns the size of the RAM in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Allocates unused pages for at least `length` bytes.
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
    /// Fills a part with bytes that depend on `seed` and on their distance from the start of the part.
    pub fn fill(&self, seed: u8, part: Range<usize>) {
        let bytes: Vec<u8> = (0..part.len()).map(|at| pattern(seed, at)).collect();
        self.memory.write_bytes(part.start, &bytes);
    }

    /// Sets a part to zeros.
    pub fn clear(&self, part: Range<usize>) {
        self.memory.write_bytes(part.start, &vec![0; part.len()]);
    }

    /// Returns the offset, relative to `start`, of the first byte that differs from what [`fill`](Self::fill) wrote to
    /// `length` bytes.
    pub fn difference(&self, seed: u8, start: usize, length: usize) -> Option<usize> {
        (0..length).find(|&at| self.byte(start + at) != pattern(seed, at))
    }

    /// Returns the byte at an offset.
    pub fn byte(&self, at: usize) -> u8 {
        self.memory
            .byte(at)
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns the 64-bit number at an offset, which is a multiple of 8.
    pub fn long(&self, at: usize) -> u64 {
        u64::from_le(
            self.memory
                .long(at)
                .load(std::sync::atomic::Ordering::Acquire),
        )
    }

    /// Stores a 64-bit number at an offset, which is a multiple of 8.
    pub fn set_long(&self, at: usize, value: u64) {
        self.memory
            .long(at)
            .store(value.to_le(), std::sync::atomic::Ordering::Release);
    }
}

/// Returns a byte of the pattern. It is never 0, the initial value of memory.
fn pattern(seed: u8, at: usize) -> u8 {
    ((usize::from(seed) * 89 + at * 7 + at / 251) % 251) as u8 + 1
}
