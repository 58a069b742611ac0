// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A small world to test devices in: guest memory, guests that drive devices, and a fabric with seeded faults, all in
//! virtual time. It panics when a test has to fail.

mod datagram;
mod guest;
mod keys;
mod memory;
mod paging;
mod paths;
mod world;

pub use datagram::DatagramEnd;
pub use guest::{Arena, Completion, Cq, Guest, Mr, Qp, QpOptions, Ring, Send, Srq};
pub use keys::{FastMr, IntegrityMr, Mw, next_key};
pub use memory::{BASE, GuestView, Memories};
pub use paging::{PagedRegion, Pager};
pub use paths::{ALTERNATE_TIMEOUT, migration, second_gid_of};
pub use world::{Connection, Faults, Line, Node, Wire, World, gid_of, hca_port_of, lid_of};
