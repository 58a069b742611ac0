// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What the verbs test programs share: a thin safe layer over libibverbs, deterministic payloads, and plumbing.
//!
//! Only the modules [`ffi`], [`memory`] and [`verbs`] hold unsafe code.

pub mod args;
pub mod check;
pub mod control;
pub mod ffi;
pub mod memory;
pub mod pattern;
pub mod rng;
pub mod stress;
pub mod verbs;
