// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A small learning Ethernet switch, as a value: frames and the time go in, frames come out.
//!
//! ```text
//!  receive(endpoint, frame, now) ──▶ admission ─▶ address table ─▶ queues ──▶ drain(…)
//!                                    VLAN, MTU,   learns, ages     one per endpoint,
//!                                    source                        bounded
//! ```
//!
//! There is no thread, socket or clock in here. Time is the [`Duration`](std::time::Duration) since a beginning that
//! the owner chooses. Frames start at the destination address and have neither padding nor frame check sequence.
//!
//! # Ports and endpoints
//!
//! A [port](PortConfig) is a place in the network. It has one or two [endpoints](Endpoint): a network device (or
//! whatever else takes plain frames: an uplink, a link to another switch), and an RNIC. As on a real NIC, both have
//! one MAC address and one wire. Of what reaches the port, the RNIC gets RoCE frames to its address, the network
//! device everything else; RoCE multicast goes to both. They reach each other without anybody else noticing, and an
//! RNIC reaches itself. An RNIC that is down gets nothing: then RoCE is UDP like any other.
//!
//! # What hostile endpoints can do
//!
//! Nothing to others but send to them. Memory is bounded: queues by [`QueueLimits`], learned addresses by
//! [`PortConfig::addresses`]. The address of a port that has one ([`PortConfig::mac`]) cannot be taken by another
//! port, and an endpoint that fills its queue loses its own frames only.

#![forbid(unsafe_code)]

mod address;
mod counter;
mod frame;
mod impair;
mod port;
mod queue;
mod switch;
mod vlan;

pub use address::{LearnedAddress, Mac};
pub use counter::{Counters, Drop};
pub use impair::Impairment;
pub use port::{Endpoint, Member, PortConfig, PortId};
pub use queue::{Queue, QueueLimits};
pub use switch::Switch;
pub use vlan::{Vlan, VlanSet, Vlans};

/// Bytes of an Ethernet header without a tag. An MTU does not count them, nor a tag.
pub const HEADER_LENGTH: usize = 14;
/// Bytes of an 802.1Q tag.
pub const TAG_LENGTH: usize = 4;
