// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Guest memory: the RAM of a VM, shared with code that writes to it at any moment.
//!
//! * [`Mapping`]: one file of the VMM's, mapped once and whole. It is the only thing that is mapped.
//! * [`GuestMemory`]: which guest addresses lie where in which mapping, kept up to date by DMA_MAP and DMA_UNMAP.
//! * [`RegionTable`]: the worker's names for mappings; every access of the engine goes through it and is checked.
//! * [`QueueMemory`]: what virtqueues see.
//! * [`Syncer`]: makes memory that is a file on a disk survive a loss of power.
//!
//! Rules, which every access here keeps:
//! * No `&` or `&mut` to guest memory exists; it is read and written through raw pointers with volatile, atomic or
//!   `memmove` accesses, so a guest that writes at the same time changes data and nothing else.
//! * A mapping lives as long as somebody holds its [`Arc`](std::sync::Arc). DMA_UNMAP removes the translation at once,
//!   the mapping itself goes when the device was reset and no memory region can name it any more.
//! * A page that is not there when we access it raises SIGBUS. [`sigbus`] then gives up that file alone.

mod map;
mod queue_memory;
mod syncer;
mod table;

pub use map::{GuestMemory, MAX_TRANSLATIONS, MapError};
pub use queue_memory::QueueMemory;
pub use syncer::Syncer;
pub use table::{DeviceMemory, RegionTable};
pub use vrnic_vfio_user::{Mapping, sigbus};

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// A file in memory.
    pub(crate) fn memfd(len: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fd
    }
}
