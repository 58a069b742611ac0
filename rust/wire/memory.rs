// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Page lists and access rights.
//!
//! A *page list* describes the guest memory of a buffer to the device: of a memory region, a ring
//! or a notify area. It is a chain of chunks in guest memory, and a command contains the address of
//! the first one.

use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a page list chunk in bytes, of which its address is a multiple.
pub const CHUNK_SIZE: usize = 4096;

/// Number of page addresses in a chunk.
pub const CHUNK_PAGES: usize = 510;

/// A chunk of a page list, in guest memory at a multiple of [`CHUNK_SIZE`].
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageListChunk {
    /// Bus address of the next chunk; ignored in the last chunk, which completes `page_count`
    /// pages.
    pub next: U64,
    /// Number of pages in this chunk, 1 to [`CHUNK_PAGES`].
    pub count: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Bus addresses of the pages, each a multiple of the page size.
    pub pages: [U64; CHUNK_PAGES],
}
assert_layout!(PageListChunk, CHUNK_SIZE, next @ 0, count @ 8, pages @ 16);

/// A buffer in guest memory, described by its pages.
///
/// The buffer has `length` bytes, starting `offset` bytes into the first page. All pages except the
/// first and the last are used completely, so `page_count` is exactly
/// `ceil((offset + length) / page_size)`.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageList {
    /// Bus address of the first [`PageListChunk`].
    pub first_chunk: U64,
    /// Byte offset of the buffer in its first page; less than the page size.
    pub offset: U64,
    /// Length of the buffer in bytes; at least 1.
    pub length: U64,
    /// Number of pages in the list.
    pub page_count: U32,
    /// Binary logarithm of the page size, 12 to 48.
    pub page_shift: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
assert_layout!(PageList, 32, first_chunk @ 0, offset @ 8, length @ 16, page_count @ 24,
    page_shift @ 28);

/// Binary logarithm of the smallest page size of a page list.
pub const MIN_PAGE_SHIFT: u8 = 12;

/// Binary logarithm of the largest page size of a page list.
pub const MAX_PAGE_SHIFT: u8 = 48;

/// Bits of a key that identify its object. If the object can be invalidated, its owner chooses the
/// other bits.
pub const KEY_INDEX_MASK: u32 = 0xffff_ff00;

/// Local key by which a queue pair of a kernel context refers to all memory that the device can
/// reach. Addresses are bus addresses. No object has a key with this index.
pub const LOCAL_DMA_KEY: u32 = 1;

/// Local key of memory that reads as zeros at every address and drops all writes. No object has a
/// key with this index.
pub const NULL_KEY: u32 = 2;

/// Length in bytes of a page address in the table of a region for fast registration.
pub const TABLE_ENTRY_LENGTH: usize = 8;

/// Maximum number of pages that one command maps.
pub const TABLE_PAGES: usize = 512;

/// Bits of an entry of the table of a [`MapPages`](crate::command::MapPages), in addition to the
/// bus address.
pub mod page_flags {
    /// The page exists. Without this bit the entry does not change the page.
    pub const PRESENT: u64 = 1 << 0;
    /// The page may be written.
    pub const WRITABLE: u64 = 1 << 1;
}

/// Access rights of a memory region or of a queue pair; numerically the verbs access flags.
pub mod access {
    /// The owner's receives and RDMA reads may write to the memory.
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// Peers may write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// Peers may read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Peers may perform atomic operations.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses start from 0 at the start of the region.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// Peers may flush to global visibility.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// Peers may flush to persistence; for memory that survives a loss of power.
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// Writes to the region may become visible in any order.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// Rights that let a peer change memory, and so require [`LOCAL_WRITE`].
    pub const REMOTE_CHANGES: u32 = REMOTE_WRITE | REMOTE_ATOMIC;
    /// Rights that a region can have.
    pub const REGION: u32 = LOCAL_WRITE
        | REMOTE_WRITE
        | REMOTE_READ
        | REMOTE_ATOMIC
        | MW_BIND
        | ZERO_BASED
        | FLUSH_GLOBAL
        | FLUSH_PERSISTENT
        | RELAXED_ORDERING;
    /// Rights of a region that are related to memory windows.
    pub const WINDOWS: u32 = MW_BIND | ZERO_BASED;
    /// Rights that are related to the placement of data.
    pub const PLACEMENT: u32 = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    /// Rights that a window can have.
    pub const WINDOW: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | ZERO_BASED;
    /// Rights that a queue pair can grant its peer, besides those of [`PLACEMENT`].
    pub const QUEUE_PAIR: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

    /// Returns all rights that a queue pair can grant its peer, on a device with or without memory
    /// placement ([`F_MEMORY_PLACEMENT`](crate::config::F_MEMORY_PLACEMENT)).
    pub const fn queue_pair(memory_placement: bool) -> u32 {
        if memory_placement {
            QUEUE_PAIR | PLACEMENT
        } else {
            QUEUE_PAIR
        }
    }
}
