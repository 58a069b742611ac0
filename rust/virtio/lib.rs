// SPDX-License-Identifier: GPL-2.0

//! Abstractions for virtio drivers.
//!
//! A driver implements [`Driver`] and is declared with `module_virtio_driver!`. Its `probe` reads
//! the device's [configuration](Device::read_config), creates the [`Virtqueue`]s that it needs and
//! passes them to [`Virtqueues`], which stands for all DMA and interrupts of the device. While that
//! value exists, the device may use the memory that was added to a queue. Once it is dropped or
//! [stopped](Stopper::stop), the device has been reset, every buffer has been returned to its owner
//! and no handler runs any more.
//!
//! ```text
//!   probe ──▶ Virtqueue::new ──▶ Virtqueues::new ──▶ ready ──▶ add, kick ⇄ Handler::used
//!                                        │                              │
//!                                        └──── drop, stop: reset ──▶ Handler::cancelled
//! ```
//!
//! Three rules shape this interface:
//!
//! - A buffer belongs to the queue from [`Virtqueue::add`] until the queue returns it. The device
//!   may write to it at any time in between, so nothing else can access it.
//! - Handlers find their queue through the virtio device, not through the driver's private data.
//!   Drivers talk to their device in `probe`, so interrupts arrive while `probe` is still running.
//! - The virtio core requires that the device is reset when `remove` returns, and a driver may need
//!   its device until the very end of its teardown. So the [`Adapter`] drops the driver's private
//!   data inside `remove`, queues last. Then it deletes all remaining queues and
//!   [watchdogs](Watchdog), even if they were leaked. It does the same when the machine suspends,
//!   when the function is reset, and when the driver has to [restart](Restarter) a device that
//!   failed; after that it probes the device again.
//!
//! Two ideas come from the virtio abstractions that Manos Pitsidianakis proposed on the
//! rust-for-linux list: the caller's token that accompanies each buffer through the queue, and many
//! of the names. This is a separate implementation, with one handler per queue, ownership instead
//! of unsafe lifetimes, and driver data bound to the device.
//!
//! C headers: [`include/linux/virtio.h`](srctree/include/linux/virtio.h),
//! [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

pub(crate) use vrnic_bindings as bindings;
pub(crate) use vrnic_bindings::compat;
pub(crate) use vrnic_bindings::device_memory;
pub(crate) use vrnic_bindings::gate;
pub(crate) use vrnic_bindings::workqueue;

mod chain;
mod device;
mod driver;
mod feature;
mod id;
mod memory;
mod pci;
mod queues;
mod region;
mod restart;
mod virtqueue;
mod watchdog;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
pub mod testing;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use chain::{
    Chain,
    Refused,
    Used, //
};
pub use compat::Completion;
pub use device::{
    Device,
    Status, //
};
pub use driver::{
    Adapter,
    Driver, //
};
pub use feature::{
    Feature,
    Features, //
};
pub use id::{
    DeviceId,
    IdTable, //
};
pub use memory::{
    full_fence,
    Dma,
    SharedMemory, //
};
pub use queues::{
    Stopper,
    Virtqueues, //
};
pub use region::{
    Mapping,
    Region, //
};
pub use restart::{
    RestartPolicy,
    Restarter, //
};
pub use virtqueue::{
    AnyVirtqueue,
    Deferral,
    Handler,
    Virtqueue, //
};
pub use watchdog::{
    Watch,
    Watchdog, //
};
