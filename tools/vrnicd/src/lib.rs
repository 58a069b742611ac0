// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicd`: presents virtio RDMA devices to virtual machines, without privileges.
//!
//! ```text
//!  QEMU ──vfio-user──▶ vfio_user ─▶ pci ─▶ virtio::Backend ═ mailbox ═▶ worker ─▶ engine ─▶ fabric
//!                      one thread per device                            one thread for all devices
//! ```

pub mod guest_memory;
pub mod holder;
pub mod pci;
pub mod stop;
pub mod vfio_user;
pub mod virtio;
