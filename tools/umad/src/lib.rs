// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs of InfiniBand management on a subnet that is not there.
//!
//! OpenSM and infiniband-diags talk to a fabric through libibumad. `vrnic-subnet` runs a
//! [subnet](vrnic_infiniband::subnet) and listens on a Unix socket; this library, put before libibumad by `LD_PRELOAD`,
//! stands in for the functions of libibumad that look for hardware, and connects each program to an HCA of that subnet.
//!
//! ```text
//!  opensm ── libvrnic_umad.so ──┐
//!  ibnetdiscover ── (same) ─────┴── Unix socket ── vrnic-subnet: Server ── Subnet
//! ```
//!
//! The environment of a program names the socket, `VRNIC_SUBNET`, and the HCA, `VRNIC_HCA`; without the latter it is
//! the subnet's first one.

mod ffi;
mod record;
mod server;

pub use record::{MAD, Record};
pub use server::Server;
