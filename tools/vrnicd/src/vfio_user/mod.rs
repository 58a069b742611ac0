// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Devices for VMMs over the vfio-user protocol, which crate [`vrnic_vfio_user`] implements.
//!
//! * [`pci_device`]: a [`pci::Function`](crate::pci::Function) as a vfio-user [`Device`].
//! * [`dead_device`]: what the holder process presents in place of a device whose daemon died.
//! * [`listener`]: a socket that serves one VMM at a time.
//!
//! The thread that reads the socket never waits for anything but the socket: QEMU queues posted writes without a limit
//! and gives up a device that does not answer for five seconds.

pub mod dead_device;
pub mod listener;
pub mod pci_device;

pub use vrnic_vfio_user::{
    Device, Disconnect, client, journal, message, serve, session, stream, take_over,
};
