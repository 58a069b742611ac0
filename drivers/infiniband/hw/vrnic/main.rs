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
//! | [`device`]   | the RDMA device and its attributes                            |
//! | [`port`]     | the port                                                      |
//! | [`gid`]      | the GID table                                                 |
//! | [`counters`] | the counters of the port                                      |
//! | [`udata`]    | the driver's part of the uverbs commands                      |
//! | [`memory`]   | memory of processes as the device is told of it               |
//! | [`ucontext`] | contexts of processes                                         |
//! | [`pd`]       | protection domains                                            |
//! | [`mr`]       | memory regions                                                |
//! | [`paging`]   | memory regions whose pages are not kept in place              |
//! | [`mw`]       | memory windows                                                |
//! | [`cq`]       | completion queues                                             |
//! | [`polled`]   | what the kernel polls                                         |
//! | [`qp`]       | queue pairs                                                   |
//! | [`srq`]      | shared receive queues                                         |
//! | [`attr`]     | attributes of queue pairs                                     |
//! | [`ah`]       | address handles                                               |
//! | [`ring`]     | where rings of the kernel stand, completion rings             |
//! | [`work`]     | work rings of the kernel, and what was posted to them         |
//! | [`shared`]   | rings of shared receive queues of the kernel                  |
//! | [`wqe`]      | work queue entries of the kernel                              |

#![deny(unsafe_code)]
#![recursion_limit = "256"]

mod ah;
mod attr;
mod commands;
mod context;
mod control;
mod counters;
mod cq;
mod device;
mod driver;
mod events;
mod gid;
mod health;
mod memory;
mod mr;
mod multicast;
mod mw;
mod paging;
mod pd;
mod polled;
mod port;
mod qp;
mod ring;
mod shared;
mod srq;
mod ucontext;
mod udata;
mod work;
mod wqe;

virtio::module_virtio_driver! {
    type: driver::Driver,
    name: "vrnic",
    authors: ["The vrnic authors"],
    description: "Virtio RDMA device driver",
    license: "GPL",
}
