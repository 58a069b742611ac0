// SPDX-License-Identifier: GPL-2.0

//! Abstractions for virtio drivers.
//!
//! A driver implements [`Driver`] and is declared with [`module_virtio_driver!`]. Its `probe` reads
//! the device's [configuration](Device::read_config), creates the [`Virtqueue`]s it needs and hands
//! them to [`Virtqueues`], which is the device's DMA and interrupts as one value: while it lives,
//! the device may use the memory that was added to a queue; when it is dropped or
//! [stopped](Stopper::stop), the device has been reset, every buffer has come back to its owner and
//! no handler runs any more.
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
//!   may write to it at any time in between, so nobody else can even name it.
//! - Handlers find their queue through the virtio device, not through the driver's private data:
//!   interrupts come while `probe` still runs, because drivers talk to their device in `probe`.
//! - The virtio core demands a device that is reset when `remove` returns, and a driver may want to
//!   talk to its device until the last moment of its teardown. So the [`Adapter`] drops the
//!   driver's private data inside `remove`, with the queues as the last thing to go, and then
//!   deletes what is left, forgotten or not: queues, and [watchdogs](Watchdog). It does the same
//!   when the machine sleeps, when the function is reset, and when the driver has to [begin
//!   anew](Restarter) with a device that failed; then it probes the device once more.
//!
//! That a token of the caller accompanies each buffer through the queue, and the names of much of
//! what follows, are ideas of the virtio abstractions proposed by Manos Pitsidianakis on the
//! rust-for-linux list. This is a separate implementation: one handler per queue, ownership instead
//! of unsafe lifetimes, and driver data bound to the device.
//!
//! C headers: [`include/linux/virtio.h`](srctree/include/linux/virtio.h),
//! [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

pub(crate) use vrnic_bindings as bindings;
pub(crate) use vrnic_bindings::compat;
pub(crate) use vrnic_bindings::gate;

mod chain;
mod device;
mod driver;
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
    Feature,
    Status, //
};
pub use driver::{
    Adapter,
    Driver, //
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
    MappedPage,
    Region,
    REGION_PAGE_SIZE, //
};
pub use restart::Restarter;
pub use virtqueue::{
    AnyVirtqueue,
    Handler,
    Virtqueue, //
};
pub use watchdog::{
    Watch,
    Watchdog, //
};
