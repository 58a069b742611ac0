// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Guest memory: the RAM of a VM, which the guest can write to at any moment.
//!
//! * [`Mapping`]: one of the VMM's files, mapped once and in full. Nothing else is mapped.
//! * [`GuestMemory`]: translates guest addresses to offsets in mappings, as set by DMA_MAP and DMA_UNMAP.
//! * [`RegionTable`]: a device's names for mappings. Every access by the engine goes through it and is checked.
//! * [`QueueMemory`]: guest memory as virtqueues see it.
//! * [`Syncer`]: makes writes persistent if the memory is a file on a disk.
//!
//! Every access follows these rules:
//! * No `&` or `&mut` to guest memory exists. It is read and written through raw pointers with volatile, atomic or
//!   `memmove` accesses, so a guest that writes concurrently can only change the data.
//! * A mapping lives as long as an [`Arc`](std::sync::Arc) to it exists. DMA_UNMAP removes the translation at once. The
//!   mapping itself is removed after a reset of the device, when no memory region can refer to it any more.
//! * Access to a page that does not exist raises SIGBUS. [`sigbus`] then gives up that one file.

mod map;
mod queue_memory;
mod syncer;
mod table;

pub use map::{GuestMemory, MAX_TRANSLATIONS, MapError};
pub use queue_memory::QueueMemory;
pub use syncer::Syncer;
pub use table::{DeviceMemory, MAX_DEVICES, RegionTable};
pub use vrnic_vfio_user::{Mapping, sigbus};

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// Creates a file in memory.
    pub(crate) fn memfd(len: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fd
    }
}
