// SPDX-License-Identifier: GPL-2.0

//! Virtio.

pub(crate) use vrnic_bindings as bindings;

/// Check.
pub const SIZE: usize = size_of::<bindings::virtio_device>();
