// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Where segments go when they leave an RNIC.
//!
//! A fabric decides which RNIC a segment reaches; the engine neither knows nor cares. [`Local`] joins all RNICs of this
//! process: a segment names its payload by ranges of guest memory, and the receiver copies it once, straight
//! from guest to guest.

use vrnic_engine::Segment;

mod local;

pub use local::Local;

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// It reaches the device with this index in the worker.
    Device(usize),
    /// Nobody has its destination GID: it is lost, as on any network.
    Nowhere,
}

/// A network that joins RNICs.
pub trait Fabric: Send {
    /// Device `device` has these GIDs from now on.
    fn set_gids(&mut self, device: usize, gids: &mut dyn Iterator<Item = [u8; 16]>);

    /// Where `segment`, sent by device `from`, goes.
    fn route(&self, from: usize, segment: &Segment<'_>) -> Route;
}
