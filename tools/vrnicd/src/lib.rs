// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicd`: presents virtio RDMA devices to virtual machines, without privileges.
//!
//! ```text
//!  QEMU ──vfio-user──▶ vfio_user ─▶ pci ─▶ virtio::Backend ═ mailbox ═▶ worker ─▶ device ─▶ engine
//!                      one thread per device                            one thread or several   │
//!                                                                            ◀── fabric ◀───────┘
//! ```
//!
//! The front end (`vfio_user`, `pci`) knows nothing about RDMA; the engine knows nothing about PCI.

#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "registers and fields are narrowed where their range is known"
)]
#![allow(
    clippy::doc_markdown,
    reason = "commands, registers and status bits are written as their standards write them"
)]
#![allow(
    clippy::many_single_char_names,
    reason = "bytes of an array have no better names"
)]

mod actor;
mod atomic_set;
mod attended;
pub mod capture;
mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod device;
pub mod fabric;
#[allow(unsafe_code, reason = "maps and accesses memory of other processes")]
pub mod guest_memory;
pub mod holder;
#[allow(
    unsafe_code,
    reason = "passes memory from thread to thread without a lock"
)]
mod inbox;
#[cfg(test)]
mod inbox_tests;
#[allow(unsafe_code, reason = "a descriptor that is known by its number")]
mod inherited;
pub mod logging;
pub mod manual;
pub mod network;
mod networked;
mod outgoing;
pub mod pci;
pub mod quota;
mod reaper;
pub mod recording;
mod roster;
#[allow(unsafe_code, reason = "system calls that no safe crate has")]
pub mod scheduling;
mod socket;
mod sync;
pub mod vfio_user;
pub mod virtio;
pub mod waker;
#[allow(unsafe_code, reason = "timers of threads, which no safe crate has")]
mod watchdog;
pub mod worker;

pub use vrnic_vfio_user::stop;
