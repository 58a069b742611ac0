// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A small learning Ethernet switch as a plain data structure: frames and the time go in, frames come out.
//!
//! ```text
//!  receive(endpoint, frame, now) ──▶ admission ─▶ address table ─▶ queues ──▶ pop()
//!                                    VLAN, MTU,   learns, ages     one per endpoint,
//!                                    source                        bounded
//! ```
//!
//! It has no threads, sockets or clocks. Time is the [`Duration`](std::time::Duration) since a start that the caller
//! chooses. Frames start at the destination address and have neither padding nor a frame check sequence.
//!
//! # Ports and endpoints
//!
//! A [port](PortConfig) is a place in the network. It has one or two [endpoints](Endpoint): a network device (or
//! something else that takes plain frames, such as an uplink or a link to another switch) and an RNIC. As on a real
//! NIC, both share one MAC address and one wire. Of the frames that reach the port, the RNIC gets RoCE to its address,
//! and the network device gets everything else. Both get RoCE multicast. They can reach each other, and the RNIC can
//! reach itself, without any frame leaving the port. An RNIC that is down gets nothing; RoCE is then treated like any
//! other UDP traffic.
//!
//! # What hostile endpoints can do
//!
//! They can send frames to other endpoints, but cannot affect them in any other way. Memory is bounded: queues by
//! [`QueueLimits`], learned addresses by [`PortConfig::addresses`]. If a port has an address ([`PortConfig::mac`]), no
//! other port can claim it. An endpoint that fills its queue loses only its own frames.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use vrnic_switch::{Endpoint, Member, PortConfig, Switch};
//!
//! let mut switch = Switch::new(Duration::from_secs(300));
//! let [from, to] = [PortConfig::default(), PortConfig::default()].map(|config| Endpoint {
//!     port: switch.add_port(config).unwrap(),
//!     member: Member::Netdev,
//! });
//!
//! // A broadcast of Ethernet type 0x88b5, which is for experiments.
//! let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]].concat();
//! switch.receive(from, frame.clone(), Duration::ZERO);
//! assert_eq!(switch.pop(), Some((to, frame)));
//! assert_eq!(switch.pop(), None);
//! ```

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

/// Length of an Ethernet header without a tag. The MTU includes neither the header nor the tag.
pub const HEADER_LENGTH: usize = 14;
/// Length of an 802.1Q tag.
pub const TAG_LENGTH: usize = 4;
