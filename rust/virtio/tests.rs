// SPDX-License-Identifier: GPL-2.0

//! Tests of virtio: of parts that need no device, and of queues of a device whose transport is
//! here.

mod driver;
mod parts;
mod queues;
mod restart;
mod transport;
