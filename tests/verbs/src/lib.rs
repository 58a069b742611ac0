// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What the verbs test programs share: a thin safe layer over libibverbs, deterministic payloads, and plumbing.
//!
//! Only the modules [`dma_buf`], [`ffi`], [`memory`], [`trace`] and [`verbs`] hold unsafe code.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes and numbers of tests fit, and the C interface mixes int and unsigned"
)]

pub mod args;
pub mod check;
pub mod control;
pub mod dma_buf;
pub mod ffi;
pub mod memory;
pub mod pattern;
pub mod rng;
pub mod stress;
pub mod trace;
pub mod verbs;
