// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replays recordings of devices ([`vrnic_engine::recording`]), and tells what happened in them.
//!
//! * [`story`]: from calls and memory accesses to work requests, packets and completions.
//! * [`check`]: what the standard demands of them, on every step.
//! * [`image`]: guest memory as far as a recording knows it.
//! * [`minimise`]: the fewest calls that still end in the same failure.

#![forbid(unsafe_code)]

pub mod check;
pub mod image;
pub mod minimise;
pub mod story;
