// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a VMM sees in place of a device whose daemon died: a card that has been pulled out.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET;

use super::message::{DmaMap, DmaUnmap, IrqSet};
use super::session::Device;
use crate::pci::{VIRTIO_BAR, layout};

/// Reads return all ones, writes are ignored, and everything else succeeds, so that the VMM can continue to run, reset
/// its machine and change its memory.
///
/// The device status is an exception: it reports that the device needs a reset, and stays 0 after one. A driver that
/// resets the device waits for that 0. And virtio core complains if a driver releases a device without resetting it,
/// which a driver cannot do if the device seems to be gone.
#[derive(Default)]
pub struct DeadDevice {
    was_reset: bool,
}

impl DeadDevice {
    /// Returns whether this is an access to the device status.
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
        const NEEDS_RESET: u8 = VIRTIO_CONFIG_S_NEEDS_RESET as u8;

        data.fill(match Self::is_status(region, offset, data.len()) {
            true if self.was_reset => 0,
            true => NEEDS_RESET,
            false => 0xff,
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(device: &mut DeadDevice, offset: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0x55; length];
        device
            .read(VIRTIO_BAR.into(), offset, &mut data)
            .expect("reads are answered");
        data
    }

    #[test]
    fn the_status_asks_for_a_reset_and_then_stays_0() {
        const STATUS: u64 = layout::COMMON + layout::STATUS;
        let mut device = DeadDevice::default();
        assert_eq!(read(&mut device, STATUS, 1), [0x40]);
        assert_eq!(read(&mut device, STATUS, 2), [0xff; 2]);
        assert_eq!(read(&mut device, layout::COMMON, 4), [0xff; 4]);
        for status in [0, 1, 3] {
            device.write(VIRTIO_BAR.into(), STATUS, &[status]).unwrap();
            assert_eq!(read(&mut device, STATUS, 1), [0]);
        }
        assert_eq!(read(&mut device, layout::COMMON, 4), [0xff; 4]);
    }
}
