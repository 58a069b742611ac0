// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The RDMA device itself, free of input and output.
//!
//! Everything that `Documentation/virtio-rdma.rst` asks of a device apart from the transport that
//! presents it to the guest: the control commands, keys and access checks, rings and doorbells,
//! and the requester and responder state machines of the RDMA transports.
//!
//! There is no thread, socket, clock, log or pointer in here. Time, randomness and guest memory
//! come in as arguments and segments, completions and events go out as values, so the same code
//! serves every fabric, runs under virtual time with seeded faults, and can be fuzzed at full
//! speed.

#![forbid(unsafe_code)]

pub mod memory;
pub mod time;
