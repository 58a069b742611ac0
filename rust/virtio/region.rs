// SPDX-License-Identifier: GPL-2.0

//! Structures that a device type adds to those of its transport ([`Device::region`]).
//!
//! Among the transports, only PCI supports this: a virtio PCI device describes each of its
//! structures by a vendor-specific capability (virtio standard, section 4.1.4,
//! `struct virtio_pci_cap`).

use core::ptr::NonNull;

use kernel::{
    device::Bound,
    error::to_result,
    io::resource::{
        self,
        Flags, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::{
    bindings,
    compat,
    device_memory::DeviceMemory,
    Device, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A structure of the device in one of its BARs, reserved for the driver.
pub struct Region<'bound> {
    memory: DeviceMemory<'bound>,
    reserved: Arc<resource::Region>,
}

/// Finds the first structure of a kind.
///
/// `ENOENT` if the device has none, `EOPNOTSUPP` if its transport has no such structures, and
/// `EINVAL` if the structure is not in an existing BAR or overlaps the interrupt table.
fn structure(dev: &Device<Bound>, kind: u8) -> Result<bindings::virtio_structure> {
    let mut found = bindings::virtio_structure::default();
    // SAFETY: The device is valid, and `found` is writable.
    to_result(unsafe { bindings::virtio_get_structure(dev.as_raw(), &mut found, kind) })?;
    Ok(found)
}

/// Returns the length in bytes of a device's configuration space, as far as the transport can read
/// it; `EOPNOTSUPP` if the transport does not report the length.
pub(crate) fn config_length(dev: &Device<Bound>) -> Result<usize> {
    /// The transport does not map more than this.
    const MOST: u64 = kernel::page::PAGE_SIZE as u64;
    // CAST: A small constant.
    const DEVICE_CFG: u8 = bindings::VIRTIO_PCI_CAP_DEVICE_CFG as u8;

    match structure(dev, DEVICE_CFG) {
        // CAST: No more than `MOST`.
        Ok(found) => Ok(found.len.min(MOST) as usize),
        Err(ENOENT) => Ok(0),
        Err(err) => Err(err),
    }
}

impl<'bound> Region<'bound> {
    /// Implements [`Device::region`].
    pub(crate) fn find(dev: &'bound Device<Bound>, kind: u8) -> Result<Option<Self>> {
        let found = match structure(dev, kind) {
            Ok(found) => found,
            Err(ENOENT | EOPNOTSUPP) => return Ok(None),
            Err(err) => return Err(err),
        };
        // SAFETY: This is a resource of the device that `dev` is a function of, which lives at
        // least as long. That device stays bound, so its resources do not change.
        let bar = unsafe { compat::resource_from_raw(found.res) };
        // SAFETY: The device offers the structure to drivers of its device type. The transport has
        // checked that the BAR does not contain the interrupt table. It reserved the BARs with its
        // own structures as a whole, so the reservation below fails for those.
        let memory = unsafe { DeviceMemory::new(bar, found.offset, found.len) }?;

        let reserved = bar
            .request_region(
                memory.start(),
                memory.len(),
                c"virtio".try_into()?,
                Flags::IORESOURCE_MEM,
            )
            .ok_or(EBUSY)?;
        Ok(Some(Self {
            memory,
            reserved: Arc::new(reserved, GFP_KERNEL)?,
        }))
    }

    /// Returns the memory of the structure, for example to let processes map parts of it.
    #[inline]
    pub fn memory(&self) -> DeviceMemory<'bound> {
        self.memory
    }

    /// Maps `SIZE` bytes at `offset` of the structure for the kernel.
    ///
    /// Returns `EINVAL` if the structure does not contain them, or if they do not start at an
    /// address that is a multiple of 4.
    pub fn map<const SIZE: usize>(&self, offset: u64) -> Result<Mapping<'bound, SIZE>> {
        let part = self.memory.part(offset, SIZE as u64)?;
        if part.start() % size_of::<u32>() as u64 != 0 {
            return Err(EINVAL);
        }
        // SAFETY: The address is device memory that `self` has reserved.
        let memory = unsafe { bindings::ioremap(part.start(), SIZE) };
        // INVARIANT: Just mapped, at an aligned address.
        Ok(Mapping {
            memory: NonNull::new(memory).ok_or(ENOMEM)?,
            _part: part,
            _reserved: self.reserved.clone(),
        })
    }
}

/// A part of a [`Region`], mapped for the kernel.
///
/// # Invariants
///
/// `memory` is a mapping of `SIZE` bytes, aligned for words, which stay reserved as long as `self`
/// exists.
pub struct Mapping<'bound, const SIZE: usize> {
    memory: NonNull<c_void>,
    _part: DeviceMemory<'bound>,
    _reserved: Arc<resource::Region>,
}

// SAFETY: Device memory may be written, unmapped and released by any thread.
unsafe impl<const SIZE: usize> Send for Mapping<'_, SIZE> {}

// SAFETY: Device memory may be written by several threads at the same time.
unsafe impl<const SIZE: usize> Sync for Mapping<'_, SIZE> {}

impl<const SIZE: usize> Mapping<'_, SIZE> {
    /// Writes a little-endian word at `OFFSET`, after all earlier writes to memory. Does not wait
    /// for the device. May be called in any context.
    pub fn write32<const OFFSET: usize>(&self, value: u32) {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET + size_of::<u32>() <= SIZE) };
        // SAFETY: The mapping has `SIZE` bytes, and `OFFSET` is that of an aligned word in it.
        unsafe { bindings::writel(value, self.memory.byte_add(OFFSET).as_ptr()) };
    }
}

impl<const SIZE: usize> Drop for Mapping<'_, SIZE> {
    fn drop(&mut self) {
        // SAFETY: `Region::map` created this mapping.
        unsafe { bindings::iounmap(self.memory.as_ptr()) };
    }
}
