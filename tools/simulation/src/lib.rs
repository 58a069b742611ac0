// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Simulates many devices, switches, programs and faults in virtual time, and checks what must hold in any case:
//!
//! * the simulation ends;
//! * each request completes exactly once, in order, with a status that the circumstances allow; everything after the
//!   first error is flushed;
//! * when a request completes, memory contains what it transferred, and never anything that was not sent;
//! * atomics are executed once;
//! * each member of a multicast group receives each message to it once;
//! * flows that are not affected by a fault do not notice it;
//! * when all objects are destroyed, nothing is left in the devices.
//!
//! A [`Plan`](plan::Plan) is derived from a seed, and the [`world`] carries it out. If that fails, [`failure`] searches
//! for the smallest plan that still fails, and keeps recordings of its devices.

#![forbid(unsafe_code)]

mod circle;
mod device;
pub mod failure;
mod fault;
mod flow;
mod network;
pub mod plan;
mod random;
pub mod world;
