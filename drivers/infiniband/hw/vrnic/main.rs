// SPDX-License-Identifier: GPL-2.0

//! Driver of virtio RDMA devices.
//!
//! The device, its commands, its rings and its events are those of
//! `Documentation/virtio-rdma.rst`; the crate `vrnic_wire` has them as types.
//!
//! Objects have a module each, named as theirs in `rdma`. What the kernel posts to and polls by
//! itself is in `kernel_*`: processes do that in their provider. All else is what stands between
//! the objects and the device: `driver`, `control`, `object`, `page_list`, `event`, `health`.

#![deny(unsafe_code)]
#![recursion_limit = "256"]

mod ah;
mod control;
mod counter;
mod cq;
mod device;
mod dm;
mod driver;
mod event;
mod gid;
mod health;
mod kernel_context;
mod kernel_cq;
mod kernel_qp;
mod kernel_srq;
mod mad;
mod mr;
mod multicast;
mod mw;
mod object;
mod odp;
mod page_list;
mod pd;
mod port;
mod qp;
mod ring;
mod srq;
mod uapi;
mod ucontext;
mod udata;
mod wqe;
mod xrc;

virtio::module_virtio_driver! {
    type: driver::Driver,
    name: "vrnic",
    authors: ["The vrnic authors"],
    description: "Virtio RDMA device driver",
    license: "GPL",
}
