// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a VMM sees in place of a device whose daemon died: a card that was pulled out.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::message::{DmaMap, DmaUnmap, IrqSet};
use super::session::Device;

/// Reads as all ones, swallows writes, and agrees to everything else, so that the VMM can go on, reset its machine and
/// change its memory.
pub struct DeadDevice;

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

    fn read(&mut self, _region: u32, _offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.fill(0xff);
        Ok(())
    }

    fn write(&mut self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
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
