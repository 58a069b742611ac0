// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The whole PCI function: dispatches accesses to configuration space and BARs.

use std::sync::Arc;

use super::{
    CommonConfig, ConfigEvent, ConfigSpace, DOORBELL_BAR, DOORBELL_PAGE_SIZE, MSIX_BAR,
    MSIX_BAR_SIZE, Signals, VIRTIO_BAR, VIRTIO_BAR_SIZE, layout,
};
use crate::guest_memory::GuestMemory;
use crate::quota::{Quota, limited};
use crate::virtio::{Backend, DeviceSpec};

/// A virtio-pci function as one VM sees it. Each connection of a VMM gets a new one.
pub struct Function {
    spec: DeviceSpec,
    config: ConfigSpace,
    common: CommonConfig,
    signals: Arc<Signals>,
    backend: Arc<dyn Backend>,
    /// [`Backend::presence`] at the last access.
    presence: u64,
    /// How much the guest may still add to the log.
    quota: Quota,
}

impl Function {
    /// Creates a function in its power-on state, with one MSI-X vector per queue and one for configuration changes.
    pub fn new(spec: DeviceSpec, backend: Arc<dyn Backend>, memory: Arc<GuestMemory>) -> Self {
        let vectors = spec.queues + 1;
        let signals = Arc::new(Signals::new(spec.queues, vectors));
        Self {
            config: ConfigSpace::new(&spec, vectors),
            common: CommonConfig::new(&spec, signals.clone(), backend.clone(), memory),
            signals,
            presence: backend.presence(),
            backend,
            spec,
            quota: Quota::default(),
        }
    }

    /// Sets how much the guest and its VMM may add to the log.
    pub fn limit_log(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Returns how much the guest and its VMM may still add to the log.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Returns the function's interrupts.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Returns the size of a BAR in bytes, a power of two; 0 if the BAR does not exist.
    pub fn bar_size(&self, bar: u8) -> u64 {
        match bar {
            VIRTIO_BAR => VIRTIO_BAR_SIZE,
            MSIX_BAR => MSIX_BAR_SIZE,
            DOORBELL_BAR if self.spec.doorbell_pages > 0 => {
                (u64::from(self.spec.doorbell_pages) * DOORBELL_PAGE_SIZE).next_power_of_two()
            }
            _ => 0,
        }
    }

    /// Resets the whole function, which then appears to the guest as after power-on. Returns at once.
    pub fn reset(&mut self) {
        self.config.reset();
        self.common.reset();
    }

    /// Returns whether the card is in its slot. If it was removed at any time since the last access, it is in its
    /// power-on state.
    fn is_present(&mut self) -> bool {
        let presence = self.backend.presence();
        if presence != self.presence {
            self.presence = presence;
            self.reset();
        }
        presence.is_multiple_of(2)
    }

    /// Reads configuration space; all ones if the card is absent.
    pub fn config_read(&mut self, offset: u64, data: &mut [u8]) {
        if !self.is_present() {
            data.fill(0xff);
        } else if let Some(window) = self.config.window(offset, data.len()) {
            self.bar_read(window.bar, window.offset, data);
        } else {
            let busy = self.common.is_resetting();
            self.config.read(offset, data, busy);
        }
    }

    /// Writes configuration space.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        if !self.is_present() {
            return;
        }
        match self.config.window(offset, data.len()) {
            Some(window) => self.bar_write(window.bar, window.offset, data),
            None => match self.config.write(offset, data) {
                ConfigEvent::None => {}
                ConfigEvent::FunctionLevelReset => {
                    limited!(self.quota, info, "function-level reset by the guest");
                    self.reset();
                }
            },
        }
    }

    /// Reads a BAR. Reserved areas read as zeros; everything reads as ones if the card is absent.
    pub fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        if !self.is_present() {
            return data.fill(0xff);
        }
        data.fill(0);
        if bar != VIRTIO_BAR {
            return;
        }
        match offset {
            0..layout::COMMON_LEN => self.common.read(offset - layout::COMMON, data),
            layout::ISR => {
                if let Some(isr) = data.first_mut() {
                    *isr = self.signals.take_isr();
                }
            }
            layout::DEVICE..layout::NOTIFY => {
                let start = (offset - layout::DEVICE) as usize;
                let bytes = self.spec.config.get(start..).unwrap_or_default();
                data.iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = *from);
            }
            _ => {}
        }
    }

    /// Writes a BAR. Writes to reserved or read-only areas are ignored.
    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        if !self.is_present() {
            return;
        }
        match bar {
            // Comes first because this is the only BAR on a data path.
            DOORBELL_BAR => self.ring(offset, data),
            VIRTIO_BAR if offset < layout::COMMON_LEN => {
                self.common.write(offset - layout::COMMON, data);
            }
            VIRTIO_BAR if offset >= layout::NOTIFY => {
                let queue = (offset - layout::NOTIFY) / u64::from(layout::NOTIFY_MULTIPLIER);
                if queue < u64::from(self.spec.queues) && self.common.is_active() {
                    self.backend.queue_notify(queue as u16);
                }
            }
            _ => {}
        }
    }

    /// Rings a doorbell if this is a 32-bit write to the first word of a doorbell page.
    fn ring(&self, offset: u64, data: &[u8]) {
        let page = offset / DOORBELL_PAGE_SIZE;
        if let Ok(value) = data.try_into()
            && offset.is_multiple_of(DOORBELL_PAGE_SIZE)
            && page < u64::from(self.spec.doorbell_pages)
            && self.common.is_active()
        {
            self.backend
                .doorbell(page as u32, u32::from_le_bytes(value));
        }
    }
}
