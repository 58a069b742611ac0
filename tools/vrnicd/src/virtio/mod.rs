// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The interface between a transport and the device behind it.
//!
//! A transport (virtio-pci over vfio-user here; vhost-user could be another) knows a device only as a [`DeviceSpec`]
//! and talks to it through [`Backend`]. The device answers through [`Notifier`]. Neither side ever waits for the other,
//! because every method here returns at once. So the engine can never hold up the thread that reads the VMM's socket,
//! and the VMM can never hold up the engine.

use std::sync::Arc;

use crate::guest_memory::GuestMemory;

pub mod mailbox;
pub mod queue;

/// What a transport has to present to the guest.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Virtio device id (virtio 1.3, section 5).
    pub virtio_id: u16,
    /// PCI class code: programming interface, sub-class, base class.
    pub pci_class: [u8; 3],
    /// Feature bits offered to the driver.
    pub offered_features: u64,
    /// Feature bits without which the device does not work: FEATURES_OK is refused if one is missing.
    pub required_features: u64,
    /// Device configuration space, read-only for the driver, little-endian.
    pub config: Vec<u8>,
    /// Number of virtqueues.
    pub queues: u16,
    /// Largest size of a virtqueue, a power of two.
    pub max_queue_size: u16,
    /// Number of 4096-byte doorbell pages; 0 for a device without a doorbell region.
    pub doorbell_pages: u32,
}

/// A virtqueue as the driver set it up. The addresses come from the driver and are unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSetup {
    /// Index of the queue.
    pub index: u16,
    /// Number of descriptors.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring ("driver area").
    pub driver_area: u64,
    /// Address of the used ring ("device area").
    pub device_area: u64,
}

/// Everything a device needs to start working after DRIVER_OK.
pub struct Activation {
    /// Feature bits that the driver accepted.
    pub features: u64,
    /// The queues that the driver enabled.
    pub queues: Vec<QueueSetup>,
    /// Guest memory of the connected VM.
    pub memory: Arc<GuestMemory>,
    /// Notifier for the guest.
    pub notifier: Arc<dyn Notifier>,
}

/// Calls from a transport to a device. No method blocks.
pub trait Backend: Send + Sync {
    /// Starts the device: the driver has set DRIVER_OK.
    fn activate(&self, activation: Activation);

    /// Stops all work and drops all state. The device calls [`Notifier::reset_done`] with `generation` once it no
    /// longer accesses guest memory or queues.
    fn reset(&self, generation: u64, notifier: Arc<dyn Notifier>);

    /// Returns how many times the device was removed from its slot or put back. While the number is odd, the device is
    /// absent.
    fn presence(&self) -> u64 {
        0
    }

    /// Tells the device that the driver made buffers available in `queue`.
    fn queue_notify(&self, queue: u16);

    /// Tells the device that the driver wrote `value` to doorbell page `page`. Rings of the same page may be merged;
    /// the last value counts.
    fn doorbell(&self, page: u32, value: u32);
}

/// Calls from a device to a transport. No method blocks.
pub trait Notifier: Send + Sync {
    /// Interrupts the driver: the device has used buffers of `queue`.
    fn queue_used(&self, queue: u16);

    /// Reports an error that only a reset clears: sets DEVICE_NEEDS_RESET and interrupts the driver.
    fn needs_reset(&self);

    /// Reports that the reset with this generation is complete.
    fn reset_done(&self, generation: u64);
}
