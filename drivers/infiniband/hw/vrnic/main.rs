// SPDX-License-Identifier: GPL-2.0

//! Driver of virtio RDMA devices.
//!
//! The device, its commands, its rings and its events are those of `Documentation/virtio-rdma.rst`;
//! the crate `vrnic_wire` has them as types.
//!
//! | module       | concept                                                       |
//! |--------------|---------------------------------------------------------------|
//! | [`driver`]   | probe and remove                                              |
//! | [`control`]  | the control queue: commands and replies                       |
//! | [`commands`] | objects on the device, page lists                             |
//! | [`events`]   | the event queues                                              |
//! | [`health`]   | whether the device still works                                |
//! | [`context`]  | the kernel's context and its doorbell                         |

#![deny(unsafe_code)]
#![recursion_limit = "256"]

mod commands;
mod context;
mod control;
mod driver;
mod events;
mod health;

virtio::module_virtio_driver! {
    type: driver::Driver,
    name: "vrnic",
    authors: ["The vrnic authors"],
    description: "Virtio RDMA device driver",
    license: "GPL",
}
