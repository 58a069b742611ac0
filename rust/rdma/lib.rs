// SPDX-License-Identifier: GPL-2.0

//! RDMA providers.

pub(crate) use vrnic_bindings as bindings;

/// Size of `struct ib_device`.
pub const SIZE: usize = size_of::<bindings::ib_device>();
