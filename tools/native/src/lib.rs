// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Drives devices of a running vrnicd as a VM does, without a VM: one process is the VMM (vfio-user, a memfd as
//! RAM), the guest's kernel (virtqueues, commands) and its programs (rings, doorbells, completions).
//!
//! The rings are libvrnic's own code, and the device is the real one, in a process of its own. So what is measured here
//! is the device, on processors that emulate nothing.
//!
//! One thread plays all guests. It polls, vrnicd's worker polls, and two cores suffice.

#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "sizes and indices are cut to what a field holds"
)]

pub mod bench;
pub mod daemon;
pub mod pair;
pub mod queues;
#[allow(unsafe_code, reason = "shares memory with the device")]
pub mod ram;
pub mod table;
mod virtqueue;
pub mod vm;
