// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Server side of the vfio-user protocol (`docs/interop/vfio-user.rst` of QEMU).
//!
//! * [`message`]: layouts; pure parsing, no I/O.
//! * [`stream`]: bytes and file descriptors over a UNIX socket.
//! * [`session`]: one connection: negotiation and dispatch to a [`Device`].
//! * [`pci_device`]: a [`pci::Function`](crate::pci::Function) as a [`Device`].
//! * [`journal`], `noted_io` and [`dead_device`]: what the holder process needs to stand in for a daemon that died.
//! * [`listener`]: a socket that serves one VMM after the other.
//! * [`client`]: the other side, for tests and measurements.
//!
//! The thread that reads the socket never waits for anything but the socket: QEMU queues posted writes without a limit
//! and gives a device up that does not answer for five seconds.

pub mod client;
pub mod dead_device;
pub mod journal;
pub mod listener;
pub mod message;
#[allow(unsafe_code, reason = "system calls that no safe crate has")]
mod noted_io;
pub mod pci_device;
pub mod session;
pub mod stream;

pub use session::{Device, Disconnect, serve, take_over};
