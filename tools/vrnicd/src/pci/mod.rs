// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A modern virtio-pci function (virtio 1.3, section 4.1): what the guest sees on its PCI bus.
//!
//! It knows about neither vfio-user below it nor RDMA above it.
//!
//! | BAR | contents |
//! |-----|----------|
//! | 0 | common configuration, ISR, device configuration, queue notifications |
//! | 2 | MSI-X table and PBA (the VMM emulates the table; there is no memory behind it here) |
//! | 4 | doorbell pages, 4096 bytes each |

mod common_config;
mod config_space;
mod function;
mod signals;

pub use common_config::CommonConfig;
pub use config_space::{CONFIG_LEN, ConfigEvent, ConfigSpace};
pub use function::Function;
pub use signals::{EventFd, Signals};

/// PCI vendor id of all virtio devices.
pub const VENDOR_ID: u16 = 0x1af4;
/// PCI device id of virtio device type 0 (virtio 1.3, 4.1.2).
pub const DEVICE_ID_BASE: u16 = 0x1040;
/// Vector number that means "no vector".
pub const NO_VECTOR: u16 = 0xffff;
/// Largest number of MSI-X vectors of a function.
pub const MAX_VECTORS: u16 = 2048;

/// Index of the BAR with the virtio structures.
pub const VIRTIO_BAR: u8 = 0;
/// Index of the BAR with the MSI-X table.
pub const MSIX_BAR: u8 = 2;
/// Index of the BAR with the doorbell pages.
pub const DOORBELL_BAR: u8 = 4;

/// Size of the BAR with the virtio structures, in bytes.
pub const VIRTIO_BAR_SIZE: u64 = 0x8000;
/// Size of the BAR with the MSI-X table, in bytes.
pub const MSIX_BAR_SIZE: u64 = 0x10000;
/// Offset of the pending bit array in its BAR.
pub const PBA_OFFSET: u32 = 0x8000;
/// Size of one doorbell page, in bytes.
pub const DOORBELL_PAGE_SIZE: u64 = 4096;

/// Layout of [`VIRTIO_BAR`].
pub mod layout {
    /// Offset of the common configuration.
    pub const COMMON: u64 = 0;
    /// Length of the common configuration.
    pub const COMMON_LEN: u64 = 0x40;
    /// Offset of the device status in the common configuration.
    pub const STATUS: u64 = 0x14;
    /// Offset of the ISR byte.
    pub const ISR: u64 = 0x1000;
    /// Offset of the device configuration.
    pub const DEVICE: u64 = 0x2000;
    /// Space reserved for the device configuration.
    pub const DEVICE_LEN: u64 = 0x1000;
    /// Offset of the queue notifications.
    pub const NOTIFY: u64 = 0x4000;
    /// Distance between the notification words of two queues.
    pub const NOTIFY_MULTIPLIER: u32 = 4;
}
