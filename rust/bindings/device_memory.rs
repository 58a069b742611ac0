// SPDX-License-Identifier: GPL-2.0

//! Memory of devices that drivers may pass on to processes.

use core::marker::PhantomData;

use kernel::{
    io::{
        resource::{
            Flags,
            Resource, //
        },
        PhysAddr, //
    },
    prelude::*, //
};

/// A range of a device's memory that the device offers to its driver, and to processes that the
/// driver chooses.
///
/// It contains nothing that the kernel keeps for itself, such as the table of interrupts. Hence
/// safe code can make smaller ranges of it ([`part`](Self::part)), but no others.
///
/// During `'bound` the device is bound to its driver, so the memory belongs to the device. Later it
/// may belong to another device.
///
/// # Invariants
///
/// The range is not empty, and is memory that the device offers in this way during `'bound`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory<'bound> {
    start: PhysAddr,
    length: u64,
    _bound: PhantomData<&'bound Resource>,
}

impl<'bound> DeviceMemory<'bound> {
    /// Creates a range of `length` bytes at `offset` of a resource.
    ///
    /// Returns `EINVAL` if the range is empty, if the resource does not contain it, or if the
    /// resource is not memory with an address.
    ///
    /// # Safety
    ///
    /// The range must be offered to the driver, and to processes, by the device that the resource
    /// belongs to. That device must be bound during `'bound`.
    pub unsafe fn new(resource: &'bound Resource, offset: u64, length: u64) -> Result<Self> {
        // Port addresses look like memory addresses, but there is other memory at those.
        let is_memory = resource.flags().contains(Flags::IORESOURCE_MEM);
        if !is_memory || resource.start() == 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Guaranteed by the caller for the parts of the resource.
        let all = Self {
            start: resource.start(),
            length: resource.size(),
            _bound: PhantomData,
        };
        all.part(offset, length)
    }

    /// Returns the part of `length` bytes at `offset`; `EINVAL` if it is empty or not contained.
    pub fn part(self, offset: u64, length: u64) -> Result<Self> {
        let end = offset.checked_add(length).ok_or(EINVAL)?;
        if length == 0 || end > self.length {
            return Err(EINVAL);
        }
        // INVARIANT: Not empty, and within a range that is offered.
        Ok(Self {
            start: self.start + offset,
            length,
            _bound: PhantomData,
        })
    }

    /// Returns the physical address of the first byte.
    #[inline]
    pub fn start(&self) -> PhysAddr {
        self.start
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> u64 {
        self.length
    }
}
