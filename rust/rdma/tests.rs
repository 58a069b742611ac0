// SPDX-License-Identifier: GPL-2.0

//! Tests of all that the core of RDMA and a driver say to each other: verbs from the call to the
//! method of the driver and back, and the translations of types.
//!
//! [`driver`] is a driver without hardware, [`environment`] what tests need of the rest of the
//! kernel; the tests of a module of this crate are in the module of the same name here.

#[macro_use]
mod common;

mod access;
mod ah;
mod answers;
mod buffer;
mod cq;
mod device;
pub(crate) mod driver;
pub(crate) mod environment;
mod event;
mod gid;
mod mr;
mod mw;
mod pages;
mod pd;
mod port;
mod qp;
mod restrack;
mod srq;
mod stats;
mod ucontext;
mod wr;
