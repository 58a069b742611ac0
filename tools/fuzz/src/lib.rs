// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fuzz targets for every interface of the device.
//!
//! Each target is a function that takes any bytes and panics if the device does something that it must not do. An
//! attack may break what belongs to the attacker. But nothing may panic, hang or grow without bound, others must not be
//! affected, no completion may be lost, and everything must be destroyable at the end. The bytes are interpreted as a
//! sequence of operations (see [`input`]), so that a fuzzer soon gets past the first checks.
//!
//! `make fuzz` searches with libFuzzer (feature `libfuzzer`, `src/main.rs`). Inputs worth keeping are in `corpus/`,
//! which `tests/replay.rs` runs as a plain test.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod commands;
pub mod control;
pub mod datagram;
pub mod infiniband;
pub mod innocent;
pub mod input;
pub mod machine;
pub mod objects;
pub mod recording;
pub mod responder;
pub mod rings;
pub mod switch;
pub mod vfio_user;

/// Runs one input.
pub type Target = fn(&[u8]);

/// All targets by name; their corpora have the same names.
pub const TARGETS: &[(&str, Target)] = &[
    ("responder", responder::run),
    ("commands", commands::run),
    ("rings", rings::run),
    ("vfio_user", vfio_user::run),
    ("control", control::run),
    ("switch", switch::run),
    ("recording", recording::run),
    ("datagram", datagram::run),
    ("infiniband", infiniband::run),
];
