// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replays recordings of devices ([`vrnic_engine::recording`]) and shows what happened in them.
//!
//! * [`story`]: derives work requests, packets and completions from calls and memory accesses.
//! * [`check`]: checks every step against the standard.
//! * [`image`]: guest memory, as far as a recording knows it.
//! * [`minimise`]: finds the fewest calls that still end in the same failure.

#![forbid(unsafe_code)]

pub mod check;
pub mod image;
pub mod minimise;
pub mod story;
