// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The common configuration structure (virtio 1.3, 4.1.4.3) and the device status state machine (3.1).

use std::sync::Arc;

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET,
};

use super::layout::COMMON_LEN;
use super::{NO_VECTOR, Signals};
use crate::guest_memory::GuestMemory;
use crate::virtio::{Activation, Backend, DeviceSpec, QueueSetup};

/// Status bits that a driver may set.
const DRIVER_BITS: u8 = (VIRTIO_CONFIG_S_ACKNOWLEDGE
    | VIRTIO_CONFIG_S_DRIVER
    | VIRTIO_CONFIG_S_DRIVER_OK
    | VIRTIO_CONFIG_S_FEATURES_OK
    | VIRTIO_CONFIG_S_FAILED) as u8;
const FEATURES_OK: u8 = VIRTIO_CONFIG_S_FEATURES_OK as u8;
const DRIVER_OK: u8 = VIRTIO_CONFIG_S_DRIVER_OK as u8;
const NEEDS_RESET: u8 = VIRTIO_CONFIG_S_NEEDS_RESET as u8;

/// Field offsets.
mod field {
    pub const DEVICE_FEATURE_SELECT: usize = 0x00;
    pub const DEVICE_FEATURE: usize = 0x04;
    pub const DRIVER_FEATURE_SELECT: usize = 0x08;
    pub const DRIVER_FEATURE: usize = 0x0c;
    pub const CONFIG_VECTOR: usize = 0x10;
    pub const NUM_QUEUES: usize = 0x12;
    pub const STATUS: usize = super::super::layout::STATUS as usize;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_VECTOR: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY_OFF: usize = 0x1e;
    pub const QUEUE_DESC: usize = 0x20;
    pub const QUEUE_DRIVER: usize = 0x28;
    pub const QUEUE_DEVICE: usize = 0x30;
}

#[derive(Clone, Copy)]
struct Queue {
    size: u16,
    enabled: bool,
    descriptors: u64,
    driver_area: u64,
    device_area: u64,
}

impl Queue {
    fn new(size: u16) -> Self {
        Self {
            size,
            enabled: false,
            descriptors: 0,
            driver_area: 0,
            device_area: 0,
        }
    }
}

/// Registers of the common configuration. Lives in the front end's thread.
pub struct CommonConfig {
    offered: u64,
    required: u64,
    accepted: u64,
    max_queue_size: u16,
    device_feature_select: u32,
    driver_feature_select: u32,
    queue_select: u16,
    queues: Vec<Queue>,
    status: u8,
    /// Whether the device has been told to start and not been told to reset since.
    active: bool,
    generation: u64,
    /// Generation of the reset that the device is still working on.
    pending_reset: Option<u64>,
    signals: Arc<Signals>,
    backend: Arc<dyn Backend>,
    memory: Arc<GuestMemory>,
}

impl CommonConfig {
    /// Creates the registers in their power-on state.
    pub fn new(
        spec: &DeviceSpec,
        signals: Arc<Signals>,
        backend: Arc<dyn Backend>,
        memory: Arc<GuestMemory>,
    ) -> Self {
        Self {
            offered: spec.offered_features,
            required: spec.required_features,
            accepted: 0,
            max_queue_size: spec.max_queue_size,
            device_feature_select: 0,
            driver_feature_select: 0,
            queue_select: 0,
            queues: vec![Queue::new(spec.max_queue_size); usize::from(spec.queues)],
            status: 0,
            active: false,
            generation: 0,
            pending_reset: None,
            signals,
            backend,
            memory,
        }
    }

    /// Returns whether queues and doorbells work: DRIVER_OK is set and no reset is in progress.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Returns whether a reset is in progress; finishes it if the device has reported its completion.
    pub fn is_resetting(&mut self) -> bool {
        if self
            .pending_reset
            .is_some_and(|generation| self.signals.completed_reset() >= generation)
        {
            self.pending_reset = None;
            self.clear();
        }
        self.pending_reset.is_some()
    }

    /// Starts a reset. Does not wait: the status register reads non-zero until the device has stopped.
    pub fn reset(&mut self) {
        if self.is_resetting() {
            return;
        }
        if self.active {
            self.active = false;
            self.generation += 1;
            self.pending_reset = Some(self.generation);
            self.backend.reset(self.generation, self.signals.clone());
        } else {
            self.clear();
        }
    }

    /// Reads `data.len()` bytes at `offset`; zeros beyond the structure.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        let image = self.image();
        let start = offset.min(COMMON_LEN) as usize;
        for (offset, byte) in (start..).zip(data) {
            *byte = image.get(offset).copied().unwrap_or(0);
        }
    }

    /// Writes a register. Writes that match no register in offset and width are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let resetting = self.is_resetting();
        match (offset as usize, data) {
            (field::STATUS, &[status]) => self.write_status(status),
            // During a reset, the driver must wait before it accesses anything else.
            _ if resetting => {}
            (offset, &[a, b]) => self.write16(offset, u16::from_le_bytes([a, b])),
            (offset, &[a, b, c, d]) => self.write32(offset, u32::from_le_bytes([a, b, c, d])),
            (field::QUEUE_DESC | field::QUEUE_DRIVER | field::QUEUE_DEVICE, data)
                if data.len() == 8 =>
            {
                let (low, high) = data.split_at(4);
                self.write(offset, low);
                self.write(offset + 4, high);
            }
            _ => {}
        }
    }

    fn image(&mut self) -> [u8; COMMON_LEN as usize] {
        let half = |select: u32, features: u64| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let mut image = [0; COMMON_LEN as usize];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        let status = self.read_status();
        put(
            field::DEVICE_FEATURE_SELECT,
            &self.device_feature_select.to_le_bytes(),
        );
        put(
            field::DEVICE_FEATURE,
            &half(self.device_feature_select, self.offered).to_le_bytes(),
        );
        put(
            field::DRIVER_FEATURE_SELECT,
            &self.driver_feature_select.to_le_bytes(),
        );
        put(
            field::DRIVER_FEATURE,
            &half(self.driver_feature_select, self.accepted).to_le_bytes(),
        );
        put(
            field::CONFIG_VECTOR,
            &self.signals.config_vector().to_le_bytes(),
        );
        put(field::NUM_QUEUES, &(self.queues.len() as u16).to_le_bytes());
        put(field::STATUS, &[status]);
        put(field::QUEUE_SELECT, &self.queue_select.to_le_bytes());
        put(
            field::QUEUE_VECTOR,
            &self.signals.queue_vector(self.queue_select).to_le_bytes(),
        );
        if let Some(queue) = self.queues.get(usize::from(self.queue_select)) {
            put(field::QUEUE_SIZE, &queue.size.to_le_bytes());
            put(field::QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
            put(field::QUEUE_NOTIFY_OFF, &self.queue_select.to_le_bytes());
            put(field::QUEUE_DESC, &queue.descriptors.to_le_bytes());
            put(field::QUEUE_DRIVER, &queue.driver_area.to_le_bytes());
            put(field::QUEUE_DEVICE, &queue.device_area.to_le_bytes());
        }
        image
    }

    fn read_status(&mut self) -> u8 {
        if self.is_resetting() {
            // Not zero: the driver polls for zero to detect the end of the reset.
            return self.status | DRIVER_OK;
        }
        self.status
            | if self.signals.is_reset_needed() {
                NEEDS_RESET
            } else {
                0
            }
    }

    fn write_status(&mut self, status: u8) {
        if status == 0 {
            return self.reset();
        }
        if self.is_resetting() {
            return;
        }
        // Writes can only add bits; a reset clears them.
        let mut new = status & DRIVER_BITS & !self.status;
        if new & FEATURES_OK != 0
            && (self.accepted & !self.offered != 0 || self.required & !self.accepted != 0)
        {
            new &= !FEATURES_OK;
        }
        if (self.status | new) & FEATURES_OK == 0 {
            new &= !DRIVER_OK;
        }
        self.status |= new;
        if new & DRIVER_OK != 0 {
            self.active = true;
            let enabled = self
                .queues
                .iter()
                .zip(0..)
                .filter(|(queue, _)| queue.enabled);
            self.backend.activate(Activation {
                features: self.accepted,
                queues: enabled
                    .map(|(queue, index)| QueueSetup {
                        index,
                        size: queue.size,
                        descriptors: queue.descriptors,
                        driver_area: queue.driver_area,
                        device_area: queue.device_area,
                    })
                    .collect(),
                memory: self.memory.clone(),
                notifier: self.signals.clone(),
            });
        }
    }

    fn write16(&mut self, offset: usize, value: u16) {
        let vector = if u32::from(value) < self.signals.vector_count() {
            value
        } else {
            NO_VECTOR
        };
        match offset {
            field::CONFIG_VECTOR => self.signals.set_config_vector(vector),
            field::QUEUE_SELECT => self.queue_select = value,
            field::QUEUE_VECTOR => self.signals.set_queue_vector(self.queue_select, vector),
            field::QUEUE_SIZE if value.is_power_of_two() && value <= self.max_queue_size => {
                self.with_idle_queue(|queue| queue.size = value);
            }
            field::QUEUE_ENABLE if value == 1 => self.with_idle_queue(|queue| queue.enabled = true),
            _ => {}
        }
    }

    fn write32(&mut self, offset: usize, value: u32) {
        let low = |register: &mut u64| *register = *register >> 32 << 32 | u64::from(value);
        let high = |register: &mut u64| {
            *register = *register & u64::from(u32::MAX) | u64::from(value) << 32;
        };
        match offset {
            field::DEVICE_FEATURE_SELECT => self.device_feature_select = value,
            field::DRIVER_FEATURE_SELECT => self.driver_feature_select = value,
            field::DRIVER_FEATURE if self.status & FEATURES_OK == 0 => {
                match self.driver_feature_select {
                    0 => low(&mut self.accepted),
                    1 => high(&mut self.accepted),
                    _ => {}
                }
            }
            field::QUEUE_DESC => self.with_idle_queue(|queue| low(&mut queue.descriptors)),
            0x24 => self.with_idle_queue(|queue| high(&mut queue.descriptors)),
            field::QUEUE_DRIVER => self.with_idle_queue(|queue| low(&mut queue.driver_area)),
            0x2c => self.with_idle_queue(|queue| high(&mut queue.driver_area)),
            field::QUEUE_DEVICE => self.with_idle_queue(|queue| low(&mut queue.device_area)),
            0x34 => self.with_idle_queue(|queue| high(&mut queue.device_area)),
            _ => {}
        }
    }

    /// Runs `change` on the selected queue unless that is already enabled.
    fn with_idle_queue(&mut self, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self
            .queues
            .get_mut(usize::from(self.queue_select))
            .filter(|queue| !queue.enabled)
        {
            change(queue);
        }
    }

    fn clear(&mut self) {
        self.accepted = 0;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.queue_select = 0;
        self.queues.fill(Queue::new(self.max_queue_size));
        self.status = 0;
        self.signals.clear();
    }
}
