// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a VMM sees in place of a device whose daemon died: a card that was pulled out.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::message::{DmaMap, DmaUnmap, IrqSet};
use super::session::Device;
use crate::pci::{VIRTIO_BAR, layout};

/// Reads as all ones, swallows writes, and agrees to everything else, so that the VMM can go on, reset its machine and
/// change its memory.
///
/// With one exception: a driver that resets the device sees it reset, and any other status that it then sets is
/// refused. Drivers wait for the end of a reset, and virtio core complains about a device that its driver left
/// without one.
#[derive(Default)]
pub struct DeadDevice {
    was_reset: bool,
}

impl DeadDevice {
    /// Whether this is an access to the device status.
    fn is_status(region: u32, offset: u64, length: usize) -> bool {
        region == u32::from(VIRTIO_BAR) && offset == layout::COMMON + layout::STATUS && length == 1
    }
}

impl Device for DeadDevice {
    fn info(&self) -> (u32, u32, u32) {
        (0, 0, 0)
    }

    fn region(&self, _index: u32) -> Result<(u32, u64), Errno> {
        Ok((0, u64::MAX))
    }

    fn irq(&self, _index: u32) -> Result<(u32, u32), Errno> {
        Ok((0, 0))
    }

    fn set_irqs(&mut self, _set: &IrqSet, _data: &[u8], _fds: Vec<OwnedFd>) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let reset = self.was_reset && Self::is_status(region, offset, data.len());
        data.fill(if reset { 0 } else { 0xff });
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.was_reset |= Self::is_status(region, offset, data.len()) && data == [0];
        Ok(())
    }

    fn dma_map(&mut self, _map: &DmaMap, _fd: Option<OwnedFd>) -> Result<(), Errno> {
        Ok(())
    }

    fn dma_unmap(&mut self, _unmap: &DmaUnmap) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}
