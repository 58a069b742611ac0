// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs programs of InfiniBand management on a simulated subnet.
//!
//! OpenSM and infiniband-diags talk to a fabric through libibumad. `vrnic-subnet` runs a
//! [subnet](vrnic_infiniband::subnet) and listens on a Unix socket. This library, which `LD_PRELOAD` loads before
//! libibumad, replaces the functions of libibumad that look for hardware, and connects each program to an HCA of that
//! subnet.
//!
//! ```text
//!  opensm ── libvrnic_umad.so ──┐
//!  ibnetdiscover ── (same) ─────┴── Unix socket ── vrnic-subnet: Server ── Subnet
//! ```
//!
//! A program's environment names the socket in `VRNIC_SUBNET` and the HCA in `VRNIC_HCA`. Without the latter, the
//! program is connected to the first HCA of the subnet.

mod ffi;
mod record;
mod server;

pub use record::{MAD, Record};
pub use server::Server;
