// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Drives devices of a running vrnicd as a VM does, but without a VM. One process acts as the VMM (vfio-user, a memfd
//! as RAM), the guest's kernel (virtqueues, commands) and its programs (rings, doorbells, completions).
//!
//! The rings are libvrnic's own code, and the device is the real one, in its own process. So measurements are those of
//! the device, on CPUs that emulate nothing.
//!
//! One thread plays all guests. It polls, and vrnicd's worker polls, so two cores are enough.

#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "sizes and indices are cut to what a field holds"
)]

pub mod bench;
pub mod daemon;
pub mod manager;
pub mod pair;
pub mod queues;
#[allow(unsafe_code, reason = "shares memory with the device")]
pub mod ram;
pub mod table;
mod virtqueue;
pub mod vm;
