// SPDX-License-Identifier: GPL-2.0

//! Feature bits, and the set of those that a device and its driver agree on.

use core::ops::BitOr;

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Number of a feature bit (virtio standard, section 2.2).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Feature(u32);

impl Feature {
    /// The device complies with version 1 of the standard (`VIRTIO_F_VERSION_1`).
    pub const VERSION_1: Self = Self(bindings::VIRTIO_F_VERSION_1);

    /// The device uses addresses that the platform translates, so all memory that it accesses must
    /// be mapped with the DMA API (`VIRTIO_F_ACCESS_PLATFORM`).
    pub const ACCESS_PLATFORM: Self = Self(bindings::VIRTIO_F_ACCESS_PLATFORM);

    /// Accesses of the device and the driver to memory are ordered as the platform requires for
    /// hardware (`VIRTIO_F_ORDER_PLATFORM`).
    pub const ORDER_PLATFORM: Self = Self(bindings::VIRTIO_F_ORDER_PLATFORM);

    /// Creates a feature bit of the device type: one of 0 to 23 or of 50 to 63. The standard
    /// reserves those between for the transport and for itself.
    pub const fn device(bit: u32) -> Self {
        assert!(matches!(bit, 0..=23 | 50..=63));
        Self(bit)
    }

    /// Returns the number of the bit.
    #[inline]
    pub const fn bit(self) -> u32 {
        self.0
    }
}

/// A set of features.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Creates a set from the word that has the bit of each feature.
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns whether `feature` is in the set.
    #[inline]
    pub fn contains(self, feature: Feature) -> bool {
        self.0 & Self::from(feature).0 != 0
    }
}

impl From<Feature> for Features {
    #[inline]
    fn from(feature: Feature) -> Self {
        // All features that a `Feature` can name are in the first word.
        Self(1 << feature.bit())
    }
}

impl BitOr<Feature> for Features {
    type Output = Self;

    #[inline]
    fn bitor(self, feature: Feature) -> Self {
        Self(self.0 | Self::from(feature).0)
    }
}

impl BitOr for Feature {
    type Output = Features;

    #[inline]
    fn bitor(self, other: Self) -> Features {
        Features::from(self) | other
    }
}
