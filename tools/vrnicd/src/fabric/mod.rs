// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Where segments go when they leave an RNIC.
//!
//! A fabric decides which RNIC a segment reaches; the engine neither knows nor cares. [`Local`] joins the RNICs of this
//! process that have this setting: a segment names its payload by ranges of guest memory, and the receiver copies it
//! once, straight from guest to guest. RNICs on a wire send RoCE frames instead: a [`RoceEnd`] turns segments into
//! frames and frames into segments, and a [`Network`](crate::network::Network) carries the frames. RNICs on a subnet
//! send InfiniBand packets, which a [`SubnetFabric`] makes, carries and reads.

mod local;
mod roce;
pub mod subnet;

pub use local::Local;
pub use roce::{Refused, RoceEnd};
pub use subnet::SubnetFabric;

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// It reaches the device with this index in the worker.
    Device(usize),
    /// It reaches all devices but its sender's that have members of its multicast group.
    Group,
    /// Nobody has its destination GID: it is lost, as on any network.
    Nowhere,
}
