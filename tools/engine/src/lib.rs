// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The RDMA device itself, free of I/O.
//!
//! This crate does everything that `Documentation/virtio-rdma.rst` asks of a device, except the
//! transport that presents it to the guest: the control commands, keys and access checks, rings and
//! doorbells, and the requester and responder state machines of the RDMA transports.
//!
//! This crate contains no threads, sockets, clocks, logging or pointers. Time, randomness and guest memory come in as
//! arguments; segments, completions and events go out as values. So the same code serves every fabric, runs under
//! virtual time with seeded faults, and can be fuzzed at full speed.
//!
//! [`Rnic`] is one device and owns all of its state. A worker drives it:
//!
//! ```text
//! loop {
//!     control queue  -> execute        event queues <- next_async_event, next_completion_event
//!     doorbell page  -> doorbell
//!     poll           -> outbox -> fabric -> receive (of some device)
//!     next_deadline is due -> advance
//!     next_sync      -> some other thread -> synced
//!     nothing to do  -> prepare_sleep, then sleep until one of the above
//! }
//! ```

#![forbid(unsafe_code)]

mod buffer;
pub mod cause;
mod checksum;
mod command;
mod completion_counter;
mod context;
mod counter;
mod cq;
mod device;
mod event;
pub mod explain;
pub mod fault;
pub mod flow;
mod gid;
mod guard;
mod inspect;
mod integrity;
mod keys;
pub mod limits;
pub mod memory;
mod multicast;
mod page_list;
mod pages;
mod pause;
mod persistence;
pub mod psn;
mod qp;
mod rate;
pub mod recording;
mod region;
mod resources;
mod ring;
mod rnic;
pub mod scaling;
pub mod segment;
mod srq;
mod state;
pub mod subnet;
mod table;
mod tcp_segments;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
mod timer;
pub mod trace;
mod turn;
mod window;
mod work;

pub use cause::Cause;
pub use command::PAGES_AT_ONCE;
pub use context::Owner;
pub use device::Rnic;
pub use explain::Explanation;
pub use fault::Faults;
pub use inspect::{
    CompletionCounterSnapshot, CqSnapshot, FlowSnapshot, GroupSnapshot, MrSnapshot, MwSnapshot,
    Named, Queue, SrqSnapshot, TunnelSnapshot,
};
pub use limits::{Features, Limits};
pub use qp::QpSnapshot;
pub use rate::RateLimit;
pub use rnic::{Engine, Io, LinkLayer, Recovery, RnicConfig, Segmentation, Snapshot};
pub use segment::{Outbox, Segment};
pub use timer::{ack_timeout, rnr_timeout};
pub use turn::Budget;
