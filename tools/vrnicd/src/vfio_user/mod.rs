// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Devices for VMMs, by the vfio-user protocol, which the crate [`vrnic_vfio_user`] speaks.
//!
//! * [`pci_device`]: a [`pci::Function`](crate::pci::Function) as a [`Device`].
//! * [`dead_device`]: what the holder process shows in place of a device whose daemon died.
//! * [`listener`]: a socket that serves one VMM after the other.
//!
//! The thread that reads the socket never waits for anything but the socket: QEMU queues posted writes without a limit
//! and gives a device up that does not answer for five seconds.

pub mod dead_device;
pub mod listener;
pub mod pci_device;

pub use vrnic_vfio_user::{
    Device, Disconnect, client, journal, message, serve, session, stream, take_over,
};
