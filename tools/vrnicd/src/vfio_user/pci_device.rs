// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A virtio-pci function as a vfio device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tracing::debug;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_TYPE_MASK, VFIO_IRQ_SET_DATA_BOOL,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_IRQ_SET_DATA_TYPE_MASK,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};

use super::message::{DmaMap, DmaUnmap, IrqSet, dma_flags};
use super::session::{Device, fd_number};
use crate::guest_memory::{GuestMemory, MapError};
use crate::holder::Held;
use crate::pci::{CONFIG_LEN, EventFd, Function};
use crate::quota::limited;

/// Last BAR of a PCI function.
const LAST_BAR: u32 = 5;

/// Serves one [`Function`] to one VMM.
pub struct PciDevice {
    function: Function,
    memory: Arc<GuestMemory>,
    held: Option<Arc<Held>>,
}

impl PciDevice {
    /// Creates a device that serves `function`, whose guest memory is `memory`. `held` passes its interrupts to the
    /// holder.
    pub fn new(function: Function, memory: Arc<GuestMemory>, held: Option<Arc<Held>>) -> Self {
        Self {
            function,
            memory,
            held,
        }
    }

    /// Returns whether its VMM gets no more interrupts because one of them made the worker block.
    pub fn is_silenced(&self) -> bool {
        self.function.signals().is_silenced()
    }
}

impl From<MapError> for Errno {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Invalid => Self::INVAL,
            MapError::NoSpace => Self::NOSPC,
            MapError::NotFound => Self::NOENT,
        }
    }
}

impl Device for PciDevice {
    fn info(&self) -> (u32, u32, u32) {
        (
            VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
            VFIO_PCI_NUM_REGIONS,
            VFIO_PCI_NUM_IRQS,
        )
    }

    fn region(&self, index: u32) -> Result<(u32, u64), Errno> {
        let size = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_LEN as u64,
            0..=LAST_BAR => self.function.bar_size(index as u8),
            index if index < VFIO_PCI_NUM_REGIONS => 0,
            _ => return Err(Errno::INVAL),
        };
        // Not mappable: if a single page were, QEMU would wait for a reply to every trapped write.
        let flags = if size == 0 {
            0
        } else {
            VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
        };
        Ok((flags, size))
    }

    fn irq(&self, index: u32) -> Result<(u32, u32), Errno> {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => Ok((
                VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE,
                self.function.signals().vector_count(),
            )),
            // Never raised, but QEMU warns about a device without this interrupt.
            VFIO_PCI_ERR_IRQ_INDEX => Ok((VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE, 1)),
            index if index < VFIO_PCI_NUM_IRQS => Ok((0, 0)),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_irqs(&mut self, set: &IrqSet, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let signals = self.function.signals();
        let trigger = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK == VFIO_IRQ_SET_ACTION_TRIGGER;
        if set.index == VFIO_PCI_ERR_IRQ_INDEX && trigger && set.start == 0 && set.count <= 1 {
            return Ok(());
        }
        if set.index != VFIO_PCI_MSIX_IRQ_INDEX || !trigger {
            return Err(Errno::INVAL);
        }
        let in_range = |ok: bool| if ok { Ok(()) } else { Err(Errno::INVAL) };
        match set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK {
            // No vectors and no data: disconnect all.
            VFIO_IRQ_SET_DATA_NONE if set.count == 0 => {
                signals.disconnect_all();
                if let Some(held) = &self.held {
                    held.forget_vectors();
                }
                Ok(())
            }
            VFIO_IRQ_SET_DATA_NONE => {
                let end = set
                    .start
                    .checked_add(set.count)
                    .filter(|&end| end <= signals.vector_count());
                (set.start..end.ok_or(Errno::INVAL)?)
                    .try_for_each(|vector| in_range(signals.trigger(vector)))
            }
            VFIO_IRQ_SET_DATA_BOOL if data.len() == set.count as usize => {
                let vectors = (set.start..).zip(data).filter(|(_, wanted)| **wanted != 0);
                vectors
                    .map(|(vector, _)| vector)
                    .try_for_each(|vector| in_range(signals.trigger(vector)))
            }
            // One descriptor per vector connects the vectors; no descriptors disconnect them.
            VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => {
                in_range(set.count <= signals.vector_count())?;
                in_range(signals.connect(set.start, (0..set.count).map(|_| None)))
            }
            VFIO_IRQ_SET_DATA_EVENTFD if fds.len() == set.count as usize => {
                in_range(
                    u64::from(set.start) + u64::from(set.count)
                        <= u64::from(signals.vector_count()),
                )?;
                if let Some(held) = &self.held {
                    held.set_vectors(set.start, &fds);
                }
                let eventfds = fds
                    .into_iter()
                    .map(EventFd::new)
                    .collect::<Result<Vec<_>, _>>();
                let eventfds = eventfds.map_err(|_| Errno::INVAL)?;
                debug!(
                    start = set.start,
                    count = set.count,
                    "interrupt vectors connected"
                );
                in_range(signals.connect(set.start, eventfds.into_iter().map(Some)))
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.function.config_read(offset, data),
            bar => self.function.bar_read(bar as u8, offset, data),
        }
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.function.config_write(offset, data),
            bar => self.function.bar_write(bar as u8, offset, data),
        }
        Ok(())
    }

    fn dma_map(&mut self, map: &DmaMap, fd: Option<OwnedFd>) -> Result<(), Errno> {
        debug!(
            address = format_args!("{:#x}", map.address),
            size = format_args!("{:#x}", map.size),
            offset = format_args!("{:#x}", map.offset),
            writable = map.flags & dma_flags::WRITE != 0,
            fd = fd_number(fd.as_ref()),
            "DMA_MAP"
        );
        // Without a descriptor (ROMs, registers of other devices) there is nothing to map and nothing that RDMA needs.
        let Some(fd) = fd else { return Ok(()) };
        let writable = map.flags & dma_flags::WRITE != 0;
        self.memory
            .map(map.address, map.size, &fd, map.offset, writable)
            .map_err(Errno::from)
    }

    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        if unmap.flags & dma_flags::ALL != 0 {
            self.memory.unmap_all();
            return Ok(());
        }
        self.memory
            .unmap(unmap.address, unmap.size)
            .map_err(Errno::from)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        limited!(self.function.quota(), info, "reset by the VMM");
        self.function.reset();
        Ok(())
    }
}

impl Drop for PciDevice {
    /// Makes the device stop using the memory of the VMM, which is gone.
    fn drop(&mut self) {
        self.function.reset();
        self.memory.unmap_all();
    }
}
