// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The fabrics that carry segments between RNICs.
//!
//! A fabric decides which RNIC a segment reaches; the engine does not know how. [`Local`] connects those RNICs of this
//! process that are configured for it: a segment refers to its payload as ranges of guest memory, and the receiver
//! copies it once, directly from guest to guest. RNICs on a wire send RoCE frames instead: a [`RoceEnd`] converts
//! between segments and frames, and a [`Network`](crate::network::Network) carries the frames. RNICs on a subnet send
//! InfiniBand packets, which a [`SubnetFabric`] encodes, carries and decodes.

mod local;
mod roce;
pub mod routing;
pub mod subnet;

pub use local::{Local, Routes};
pub use roce::{Refused, RoceEnd};
pub use subnet::SubnetFabric;

/// The destination of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The device with this index.
    Device(usize),
    /// All devices that have members of the multicast group, except the sender.
    Group,
    /// No device has the destination GID, so the segment is lost, as on any network.
    Nowhere,
}
