// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Many devices, switches, programs and faults in virtual time, and what has to hold whatever happens:
//!
//! * the simulation ends;
//! * each request completes exactly once, in order, with a status that what happened allows; what follows the first
//!   error is flushed;
//! * memory holds what completed requests moved when they complete, and nothing that nobody sent;
//! * atomics are executed once;
//! * each member of a multicast group gets each message to it once;
//! * whom nothing concerns notices nothing;
//! * when all objects are destroyed, nothing is left in the devices.
//!
//! A [`Plan`](plan::Plan) follows from a seed. The [`world`] carries it out. If that fails, [`failure`] looks for the
//! smallest plan that still does, and keeps recordings of its devices.

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
