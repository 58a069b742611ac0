// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A simulated InfiniBand subnet without I/O: packets and the time go in, packets come out.
//!
//! ```text
//!  topology ──▶ subnet ──┬── hca     one port   ──┬── agent    attributes, M_Key, traps, counters
//!                        ├── switch  many ports ──┤── port     state, lanes, partitions
//!                        └── links                └── directed routes
//!
//!  packet   LRH, GRH, BTH, CRCs   mad, rmpp   management datagrams   attributes, trap, ping   what is in them
//! ```
//!
//! The crate has no thread, socket or clock, and no subnet manager. The owner connects a subnet manager through the
//! port of an HCA; until then, only management packets pass. Times are [`Duration`](std::time::Duration)s since a start
//! that the owner chooses. Clauses in this documentation are those of volume 1 of the InfiniBand Architecture
//! Specification.
//!
//! # What hostile packets can do
//!
//! Any bytes can be parsed: they become values or are refused, and never cause a panic. An agent takes management
//! packets at a limited rate, remembers a limited number of traps, and guards its node by the management key. A packet
//! from an HCA has one of the LIDs of the HCA as its source, whatever its sender wrote there. A packet passes a limited
//! number of switches, even if their forwarding tables form a loop, and the packets on links take a limited amount of
//! memory.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use vrnic_infiniband::{
//!     attributes::{NodeInfo, NodeType, id},
//!     mad::{Method, Route, Smp},
//!     subnet::Subnet,
//!     topology::Topology,
//! };
//!
//! let topology = Topology::parse("[single]\nhosts = 3").unwrap();
//! let mut subnet = Subnet::new(&topology);
//! // The links come up.
//! subnet.run_until(Duration::from_millis(100));
//!
//! // What is behind the first HCA's port?
//! let from = subnet.hcas().next().unwrap();
//! let request = Smp { route: Route::along(&[1]), ..Smp::request(Method::GET, id::NODE_INFO, 0) };
//! subnet.send_smp(from, &request, 0).unwrap();
//! subnet.run_until(Duration::from_millis(200));
//!
//! let (at, packet) = subnet.receive().unwrap();
//! let (_, _, mad) = packet.as_datagram().unwrap();
//! let node = NodeInfo::read(&Smp::parse(mad).unwrap().data);
//! assert_eq!((at, node.kind, node.ports), (from, NodeType::SWITCH, 3));
//! ```

#![forbid(unsafe_code)]

pub mod agent;
pub mod attributes;
pub mod credits;
pub mod directed;
mod field;
pub mod hca;
pub mod mad;
mod node;
pub mod packet;
pub mod performance;
pub mod ping;
pub mod port;
mod queue;
pub mod rmpp;
pub mod subnet;
pub mod switch;
pub mod topology;
pub mod trap;

/// A local identifier (4.1.3): 0 for none, ports up to 0xbfff, multicast groups from
/// [`MULTICAST_LID`](port::MULTICAST_LID) on, and [`PERMISSIVE`](mad::PERMISSIVE).
pub type Lid = u16;
